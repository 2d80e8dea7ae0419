"""Logs that are composed: one function a scene, which the labels in composed.yml are about. Figures are drawn anew with the same seed.

Most are Megatron's lines, because they tell of everything: stamps, saves, evaluations, restarts, the loss scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta

from truth.paper import Scene

BUSY: Mapping[str, float] = {
    "utilization_ratio": 0.97,
    "memory_bandwidth_utilization_ratio": 0.5,
    "power_watts": 380.0,
    "power_limit_watts": 400.0,
}
FAILED_SAVE = "Failed saving model checkpoint to /ckpt/heron with tag global_step{}"
SPINNING: Mapping[str, float] = {**BUSY, "utilization_ratio": 1.0, "memory_bandwidth_utilization_ratio": 0.01, "power_watts": 95.0}


# Healthy, with every pause that is legitimate


def healthy_to_the_end(scene: Scene) -> None:
    scene.target = 1500
    scene.start()
    for _ in range(3):
        scene.train(50, loss=scene.learning)
        scene.evaluate(60, scene.learning(scene.step))
        scene.save(40)
    scene.end()


def healthy_long_first_step(scene: Scene) -> None:
    scene.start()
    scene.wait(2700)
    scene.train(60, loss=scene.learning)


def healthy_long_evaluation(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.evaluate(720, 3.0)
    scene.train(40, loss=scene.learning)


def healthy_long_save(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.save(900)
    scene.train(40, loss=scene.learning)


def healthy_resume(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.save(30)
    scene.train(20, loss=scene.learning)
    scene.say(f"[exiting program at iteration {scene.step}] datetime: {scene.now:%Y-%m-%d %H:%M:%S} ")
    scene.wait(600)
    scene.start()
    scene.note(" successfully loaded checkpoint from /ckpt/heron [ t 1/8, p 1/4 ] at iteration 800")
    scene.step = 800
    scene.train(60, loss=scene.learning)


def healthy_cancelled(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.say(f"slurmstepd: error: *** STEP 4711.0 ON node-1 CANCELLED AT {scene.now:%Y-%m-%dT%H:%M:%S} ***", after=5)


def healthy_time_limit(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.say(f"slurmstepd: error: *** JOB 4711 ON node-1 CANCELLED AT {scene.now:%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***", after=5)


def healthy_late_and_flat(scene: Scene) -> None:
    """Most of a pre-training run is flat."""
    scene.target, scene.step = 100_000, 60_000
    scene.start()
    scene.train(250, loss=lambda step: 2.2 * scene.noise(0.004), every_s=15)


def healthy_small_loss(scene: Scene) -> None:
    """A fine-tune that overfits: the ratios of a loss near 0 say nothing."""
    scene.target = 1200
    scene.start()
    scene.train(120, loss=lambda step: (1.2 * math.exp(-step / 200) + 0.004) * scene.dice.lognormvariate(0, 0.3))


def healthy_single_overflows(scene: Scene) -> None:
    """The loss scale finds its place: halved now and then, and doubled again."""
    scene.start()
    for number in range(6):
        scene.train(20, loss=scene.learning, scale=65536.0)
        scene.train(1, loss=scene.learning, scale=32768.0, skipped=1.0)
        scene.train(9, loss=scene.learning, scale=32768.0 if number % 2 else 65536.0)


def healthy_noisy_tracebacks(scene: Scene) -> None:
    """A logging error is not the trainer's."""
    scene.start()
    scene.train(30, loss=scene.learning)
    for _ in range(3):
        scene.say("--- Logging error ---")
        scene.say("Traceback (most recent call last):")
        scene.say("ValueError: I/O operation on closed file.")
        scene.train(20, loss=scene.learning)


def healthy_gpus(scene: Scene) -> None:
    begin = scene.now
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.watch(begin, scene.now, **BUSY)


# Numbers that go wrong


def nan(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.train(12, loss=lambda _: math.nan, norm=math.nan)


def nan_once(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.train(1, loss=lambda _: math.nan)
    scene.train(40, loss=scene.learning)


def infinite(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.train(12, loss=lambda _: math.inf)


def hidden_nan(scene: Scene) -> None:
    """Hugging Face's filter shows a loss of 0 and a gradient that is NaN."""
    scene.note("***** Running training *****")
    scene.say("  Total optimization steps = 2,000")
    for step in range(10, 1000, 10):
        bad = step > 600
        loss, norm = ("0.0", "nan") if bad else (f"{scene.learning(step):.4f}", f"{scene.dice.gauss(1, 0.1):.4f}")
        scene.say(f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {2e-5 * (1 - step / 2000):.6e}, 'epoch': {step / 1000:.2f}}}")


def spike_that_heals(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.train(3, loss=lambda step: 7.5, norm=40.0)
    scene.train(60, loss=scene.learning)


def spike_that_lasts(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.train(40, loss=lambda step: 6.8 * scene.noise(0.05), norm=12.0)


def level_shift(scene: Scene) -> None:
    scene.start()
    scene.train(150, loss=scene.learning)
    scene.train(150, loss=lambda step: scene.learning(step) * 1.8)


def early_plateau(scene: Scene) -> None:
    scene.target = 20_000
    scene.start()
    scene.train(260, loss=lambda step: (4.0 + 4 * math.exp(-step / 60)) * scene.noise(0.003))


def gradient_vanishes(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.train(180, loss=lambda _: 2.6 * scene.noise(0.002), norm=lambda _: 0.0005 * scene.noise())


def rate_negative(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    scene.train(40, loss=scene.learning, rate=-1e-6)


def scale_collapses(scene: Scene) -> None:
    scene.start()
    scene.train(60, loss=scene.learning)
    for number in range(1, 60):
        scene.train(1, loss=scene.learning, scale=max(1.0, 65536.0 / 2**number), skipped=5.0)


def evaluation_rises(scene: Scene) -> None:
    scene.start()
    for number in range(14):
        scene.train(12, loss=scene.learning)
        scene.evaluate(20, 2.5 + abs(number - 5) * 0.09)


# Runs that stop


def stall(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)


def stall_in_a_collective(scene: Scene) -> None:
    begin = scene.now
    scene.start()
    scene.train(60, loss=scene.learning)
    hung = scene.now
    scene.watch(begin, hung, **BUSY)
    scene.watch(hung, hung + timedelta(seconds=500), **SPINNING)


def out_of_memory(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.say("Traceback (most recent call last):", after=3)
    scene.say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB")


def collective_timeout(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.say(
        "[rank3]:[E314 09:40:11.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600021 milliseconds "
        "before timing out.",
        after=605,
    )


def node_fails(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.say(f"slurmstepd: error: *** JOB 4711 ON node-3 CANCELLED AT {scene.now:%Y-%m-%dT%H:%M:%S} DUE TO NODE FAILURE ***", after=30)


def disk_full(scene: Scene) -> None:
    scene.start()
    scene.train(80, loss=scene.learning)
    scene.note(f"saving checkpoint at iteration {scene.step:7d} to /ckpt/heron in torch_dist format")
    scene.say("Traceback (most recent call last):", after=12)
    scene.say("OSError: [Errno 28] No space left on device: '/ckpt/heron/iter_0000800/model.pt'")


def slower(scene: Scene) -> None:
    scene.start()
    scene.train(150, loss=scene.learning)
    scene.train(130, loss=scene.learning, every_s=23.0)


# Checkpoints, starts and restarts


def healthy_uneven_saves(scene: Scene) -> None:
    """Storage is shared: one save takes twice as long, and one is left out."""
    scene.start()
    scene.checkpointed(4)
    scene.train(20, loss=scene.learning)
    scene.save(27)
    scene.train(40, loss=scene.learning)
    scene.save(12)
    scene.checkpointed(1)


def healthy_batch_ramp_up(scene: Scene) -> None:
    """The batch doubles by plan, so a step takes longer and does as much more."""
    scene.start()
    for number in range(3):
        scene.train(70, loss=scene.learning, every_s=10.0 * 2**number, batch=128.0 * 2**number)


def save_slow(scene: Scene) -> None:
    scene.start()
    scene.checkpointed(5)
    scene.train(20, loss=scene.learning)
    scene.save(200)
    scene.train(10, loss=scene.learning)


def save_fails(scene: Scene) -> None:
    """DeepSpeed's engine says so, and training goes on."""
    for step in range(10, 1600, 10):
        scene.engine("INFO", f"[Rank 0] step={step}, skipped=0, lr=[0.0003], mom=[(0.9, 0.95)]", after=10)
        if step % 400 == 0:
            scene.engine("INFO", f"[Rank 0] [Torch] Checkpoint global_step{step} is about to be saved!")
            told = "[Rank 0] [Torch] Checkpoint global_step{} is ready now!" if step < 1200 else FAILED_SAVE
            scene.engine("INFO" if step < 1200 else "ERROR", told.format(step), after=12)


def saves_stop(scene: Scene) -> None:
    """Somebody has switched them off at a resume, or the condition for them no longer holds."""
    scene.start()
    scene.checkpointed(5)
    scene.train(90, loss=scene.learning)


def restart_loop(scene: Scene) -> None:
    """A rank dies soon after every start, and its launcher begins anew from the last checkpoint."""
    scene.start()
    scene.checkpointed(4)
    scene.restarts(11, gained=0)


def restarts_that_get_further(scene: Scene) -> None:
    """The same with a checkpoint before each death: it costs time, but not the run."""
    scene.start()
    scene.checkpointed(4)
    scene.restarts(8, gained=50)


def healthy_restarts_by_hand(scene: Scene) -> None:
    """Somebody tries things out: begins, stops, begins again."""
    for _ in range(5):
        scene.step = 0
        scene.start()
        scene.train(12, loss=scene.learning)
        scene.say(f"[exiting program at iteration {scene.step}] datetime: {scene.now:%Y-%m-%d %H:%M:%S} ")
        scene.wait(60)
    scene.step = 0
    scene.start()
    scene.train(30, loss=scene.learning)


def never_begins(scene: Scene) -> None:
    scene.start()
    scene.note("> building train, validation, and test datasets ...", after=30)


# Efficiency


def mfu_low(scene: Scene) -> None:
    scene.titan(0.12)


def healthy_mfu(scene: Scene) -> None:
    scene.titan(0.41)


def written(name: str) -> Scene:
    """The scene of this name, played out."""
    scene = Scene()
    play: Callable[[Scene], None] = globals()[name]
    play(scene)
    return scene


def text(lines: Iterable[str]) -> str:
    """As it stands in a file."""
    return "".join(f"{line}\n" for line in lines)


def names() -> Iterator[str]:
    """All scenes, in the order of this file."""
    return (name for name, value in globals().items() if getattr(value, "__annotations__", {}).get("scene") == "Scene")

"""A log that is being written, line by line as Megatron, DeepSpeed's engine and torchtitan write them, and what two GPUs show meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

START = datetime(2026, 3, 14, 9, 0, 0)
Curve = Callable[[int], float]


@dataclass
class Scene:
    """A log that is being written, and what two GPUs show meanwhile."""

    target: int = 4000
    now: datetime = START
    step: int = 0
    samples: float = 0.0
    lines: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def say(self, text: str, *, after: float = 0.0) -> None:
        """A line without a stamp, ``after`` seconds later."""
        self.wait(after)
        self.lines.append(text)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def note(self, text: str, *, after: float = 0.0) -> None:
        """A line with a stamp."""
        self.wait(after)
        self.lines.append(f"[{self.now:%Y-%m-%d %H:%M:%S}] {text}")

    def start(self) -> None:
        """What stands above the first iteration, as a launcher stamps it."""
        self.note("------------------------ arguments ------------------------")
        self.note(f"  train_iters ..................................... {self.target}")
        self.note("-------------------- end of arguments ---------------------")
        self.note("training ...")

    def train(self, records: int, *, loss: Curve, every_s: float = 20.0, of: int = 10, **more: Curve | float) -> None:
        """``records`` lines, ``of`` iterations each; the curves are asked by iteration."""
        for _ in range(records):
            self.step += of
            self.wait(every_s * self.dice.uniform(0.97, 1.03))
            figures = {"norm": self.dice.gauss(1.0, 0.08), "rate": self._rate(), "scale": 65536.0, "skipped": 0.0, "batch": 512.0}
            figures |= {name: curve(self.step) if callable(curve) else curve for name, curve in more.items()}
            self.samples += of * figures["batch"]
            shown = f" lm loss: {loss(self.step):.6E} |" if not math.isinf(loss(self.step)) else " lm loss: inf |"
            self.lines.append(
                f" [{self.now:%Y-%m-%d %H:%M:%S}] iteration {self.step:8d}/{self.target:8d} | consumed samples: {self.samples:12.0f} |"
                f" elapsed time per iteration (ms): {every_s / of * 1000:.1f} | learning rate: {figures['rate']:.6E} |"
                f" global batch size: {figures['batch']:5.0f} |{shown} loss scale: {figures['scale']:.1f} |"
                f" grad norm: {figures['norm']:.3f} | number of skipped iterations: {figures['skipped']:3.0f} |"
                " number of nan iterations:   0 |"
            )

    def _rate(self) -> float:
        if self.step < 200:
            return 3e-4 * self.step / 200
        return 3e-4 * (0.55 + 0.45 * math.cos(math.pi * self.step / max(self.target, self.step)))

    def noise(self, share: float = 0.01) -> float:
        return self.dice.gauss(1.0, share)

    def learning(self, step: int) -> float:
        """A loss that falls as it does in health."""
        return (2.0 + 6.0 / (1 + step / 150)) * self.noise()

    def evaluate(self, seconds: float, loss: float) -> None:
        self.note("Evaluating on 4096 samples")
        self.note("Evaluating iter 1/32", after=seconds / 32)
        self.wait(seconds * 31 / 32)
        self.note(f"validation loss at iteration {self.step} | lm loss value: {loss:.6E} | lm loss PPL: {math.exp(loss):.6E} |")

    def save(self, seconds: float) -> None:
        self.note(f"saving checkpoint at iteration {self.step:7d} to /ckpt/heron in torch_dist format")
        self.note(f"  successfully saved checkpoint from iteration {self.step:7d} to /ckpt/heron [ t 1/8, p 1/4 ]", after=seconds)

    def checkpointed(self, times: int) -> None:
        """``times`` saves, 200 iterations apart."""
        for _ in range(times):
            self.train(20, loss=self.learning)
            self.save(12)

    def restarts(self, times: int, *, gained: int) -> None:
        """A death by memory soon after each start, and a new one from ``gained`` iterations further."""
        resumed = self.step
        for _ in range(times):
            self.train(6, loss=self.learning)
            self.say(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB", after=3
            )
            self.wait(45)
            resumed += gained
            self.step = resumed
            self.start()
            self.note(f" successfully loaded checkpoint from /ckpt/heron [ t 1/8, p 1/4 ] at iteration {resumed}")
            self.wait(60)
        self.train(20, loss=self.learning)

    def engine(self, level: str, text: str, *, after: float = 0.0) -> None:
        """A line of DeepSpeed's engine."""
        self.wait(after)
        self.lines.append(f"[{self.now:%Y-%m-%d %H:%M:%S},457] [{level}] [engine.py:3245:save_checkpoint] {text}")

    def titan(self, share: float) -> None:
        """torchtitan's lines, which tell what ``share`` of its GPUs' peak the run uses."""
        for step in range(10, 2000, 10):
            self.wait(20)
            self.lines.append(
                f"[rank0]:[titan] {self.now:%Y-%m-%d %H:%M:%S},457 - root - INFO - step: {step:2}  loss: {self.learning(step):8.5f}"
                f"  grad_norm: {self.dice.gauss(1.0, 0.08):7.4f}  memory: 38.55GiB(48.68%)  tps: {12000 * share:,.0f}"
                f"  tflops: {989 * share:.2f}  mfu: {100 * share:.2f}%"
            )

    def end(self) -> None:
        self.say(f"[after training is done] datetime: {self.now:%Y-%m-%d %H:%M:%S} ")

    def watch(self, since: datetime, until: datetime, **figures: float) -> None:
        """What both GPUs show in that time."""
        at = since
        while at < until:
            for uuid in ("GPU-a", "GPU-b"):
                stamp = (at - datetime(1970, 1, 1)).total_seconds() * 1000
                self.gpus += [f'gpu_{name}{{uuid="{uuid}",gpu="{uuid[-1]}"}} {value} {stamp:.0f}' for name, value in figures.items()]
            at += timedelta(seconds=10)

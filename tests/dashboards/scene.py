"""A small fleet for the dashboards' queries: two real exporters with eight cards each, three runs, and most of what can happen to them.

tern trains on both nodes and has whatever a healthy run has, and a little trouble: a NaN, a skipped step, a save, an evaluation, a restart.
wren has hung for ten minutes, because one of its cards is off the bus. heron is killed. The second exporter is restarted. Both exporters
publish tern and wren, as two nodes do that see one shared file system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

import fake
import scenario
import stack
from daemon import Daemon

HEALTHY, HUNG, KILLED = "tern", "wren", "heron"
INTERVAL = "2s"
LOST, THROTTLED, FAULTY, RESET = 6, 3, 1, 2  # cards of the first node
HUNG_CARDS = (4, 5, 6)  # of each node
SPINS = {"util": 100, "memutil": 1, "power_mw": 120_000}
HEADER = """------------------------ arguments ------------------------
  global_batch_size ............................... 512
  save ............................................ {saves}
  seq_length ...................................... 4096
  train_iters ..................................... 2000
  world_size ...................................... 8
-------------------- end of arguments ---------------------
[before the start of training step] datetime: 2026-03-14 09:00:09
"""
STEP = (
    " [{stamp}] iteration {step:8}/    2000 | consumed samples: {samples} | elapsed time per iteration (ms): 200.0 |"
    " throughput per GPU (TFLOP/s/GPU): 412.4 | learning rate: 2.9E-04 | global batch size: 512 | lm loss: {loss} | loss scale: 65536.0 |"
    " grad norm: {norm} | number of skipped iterations: {skipped} | number of nan iterations: 0 |"
)
EVALUATIONS = {"name": "merlin", "kind": "json", "keys": {"at": "step"}, "metrics": ["accuracy"], "eval": True}
# Megatron-LM, as far as its console shows: five steps a second, an evaluation, a save of two seconds, and what goes wrong.
TRAINER = f"""
import datetime, itertools, pathlib, sys, time
saves, HEADER, STEP = pathlib.Path(sys.argv[1]), {HEADER!r}, {STEP!r}
def say(text): print(text, flush=True)
def save(step):
    folder = saves / f"iter_{{step:07}}"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"saving checkpoint at iteration {{step:7}} to {{saves}} in torch_dist format")
    (folder / "weights").write_text("x" * 5000)
    time.sleep(2.5)
    (saves / "latest_checkpointed_iteration.txt").write_text(str(step))
    say(f"  successfully saved checkpoint from iteration {{step:7}} to {{saves}} [ t 1/1, p 1/1 ]")
for attempt in itertools.count():
    say(HEADER.format(saves=saves))
    for step in range(1 + 40 * attempt, 121 + 40 * attempt):
        time.sleep(0.2)
        bad = step == 30
        figures = dict(loss="nan" if bad else round(2 + 20 / (step + 20), 4), norm="nan" if bad else 0.5 + step % 7 / 50, skipped=int(bad))
        say(STEP.format(stamp=datetime.datetime.now(), step=step, samples=512 * step, **figures))
        if step % 20 == 0:
            say(f" validation loss at iteration {{step}} | lm loss value: 2.9 | lm loss PPL: 18.1 |")
            with (saves.parent / "eval.log").open("a") as other:
                other.write(f'{{{{"at": {{step}}, "accuracy": 0.61}}}}\\n')
        if step % 50 == 0:
            save(step)
        if step == 35:
            say("Traceback (most recent call last):")
            say(f" [{{datetime.datetime.now()}}] iteration {{step:8}}/    2000 | lm loss: 2.3.1 |")
"""


class Node:
    """Eight cards, a process on each, and an exporter at an address of its own."""

    def __init__(self, number: int, folder: Path, library: Path, *, sources: list[dict[str, object]]) -> None:
        folder.mkdir()
        self.driver = fake.FakeDriver(library, folder, lines=scenario.Scenario(scenario.FOLDER / "h100.nvml").lines)
        self.driver.driver("count", 8)
        reading = {"interval": "1s", "deadline": "4s", "kernel_log": str(self.driver.kmsg)}
        config = {"sources": sources, "formats": [EVALUATIONS], "gpu": reading}
        (folder / "config.yml").write_text(yaml.safe_dump(config))
        arguments = ("--config.file", folder / "config.yml")
        self.exporter = Daemon(*arguments, log=folder / "exporter.log", env=self.driver.env(), host=f"127.0.0.{number}")

    def serve(self, process: subprocess.Popen[bytes], *cards: int) -> None:
        """Let the process use these cards."""
        for card in cards:
            self.driver.set(card, processes=f"{process.pid}:70000000000")

    @property
    def target(self) -> str:
        return f"{self.exporter.host}:{self.exporter.port}"


@dataclass(frozen=True)
class Scene:
    """The fleet at work, and the Prometheus that has watched it since ``began`` (wall time)."""

    prometheus: stack.Prometheus
    nodes: tuple[Node, Node]
    doomed: subprocess.Popen[bytes]
    began: float

    def go_on(self) -> None:
        """What happens once it is seen that all is well: a run dies, an exporter is restarted."""
        self.doomed.kill()
        self.doomed.wait()
        self.nodes[1].exporter.stop()
        self.nodes[1].exporter.start(ready_within_s=120)


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Everything started. Only that it is known whose the cards are has been waited for, before they break."""
    (folder / "runs").mkdir()
    sources = [_source(folder, name) for name in (HEALTHY, HUNG)]
    library = fake.build(folder)
    with ExitStack() as running:
        trainers = [running.enter_context(_process(folder, name, log)) for name, log in _logs(folder).items()]
        nodes = (
            Node(1, folder / "one", library, sources=[*sources, _source(folder, KILLED)]),
            Node(2, folder / "two", library, sources=sources),
        )
        for node in nodes:
            _occupy(node, *trainers[:2])
            running.enter_context(node.exporter)
            running.callback(node.driver.heal)
        server = running.enter_context(stack.prometheus(folder / "prometheus", _watching(nodes)))
        known = f'count(gpu_run_info{{run="{HUNG}"}}) == {len(nodes) * len(HUNG_CARDS)}'
        stack.eventually(lambda: server.query(known), within_s=120, what=known)
        _break(nodes[0])
        yield Scene(server, nodes, trainers[2], time.time())


def _watching(nodes: tuple[Node, Node]) -> str:
    """The shipped configuration, at shorter intervals, with the name of a cluster."""
    targets = [node.target for node in nodes]
    nobody = "http://127.0.0.1:9"
    shipped = stack.prometheus_config(targets, alertmanager_url=nobody, scrape_interval=INTERVAL, evaluation_interval=INTERVAL)
    config = yaml.safe_load(shipped)
    config["scrape_configs"][0]["static_configs"][0]["labels"] = {"cluster": "c1"}
    return yaml.safe_dump(config)


def _source(folder: Path, run: str) -> dict[str, object]:
    labels = {"team": "birds", "owner": "ada", "page": "yes"}
    model = {"parameters": 8_000_000_000, "layers": 32, "hidden": 4096, "gpus": 8, "gpu": "NVIDIA H100 80GB HBM3", "dtype": "bf16"}
    return {"path": str(folder / "runs" / run / "*.log*"), "run": run, "labels": labels, "owner": "here", "model": model}


def _logs(folder: Path) -> dict[str, Path]:
    logs = {run: folder / "runs" / run / "train.log" for run in (HEALTHY, HUNG, KILLED)}
    for log in logs.values():
        log.parent.mkdir()
    silent_since = time.time() - 600
    steps = [(number, silent_since - 5 * (60 - number)) for number in range(1, 61)]
    told = (STEP.format(stamp=_local(moment), step=number, samples=512 * number, loss=2.5, norm=0.5, skipped=0) for number, moment in steps)
    logs[HUNG].write_text(HEADER.format(saves=folder / "runs" / HUNG / "saves") + "\n".join(told) + "\n")
    os.utime(logs[HUNG], (silent_since, silent_since))
    return logs


def _local(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.000000", time.localtime(moment))


@contextmanager
def _process(folder: Path, run: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer that writes the log, or only holds it open."""
    command = ["sleep", "900"] if run == HUNG else [sys.executable, "-c", TRAINER, str(folder / "runs" / run / "saves")]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, env={**os.environ, "TRAINER_RUN_NAME": run})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _occupy(node: Node, healthy: subprocess.Popen[bytes], hung: subprocess.Popen[bytes]) -> None:
    node.serve(healthy, 0, 1, 2, 3)
    node.serve(hung, *HUNG_CARDS)
    node.driver.set(memory_temperature=71, slowdown=92, **{"threshold.error": None})
    for card in HUNG_CARDS:
        node.driver.set(card, **SPINS)


def _break(node: Node) -> None:
    node.driver.set(LOST, error=fake.GPU_IS_LOST)
    node.driver.set(THROTTLED, reasons="0x20")
    node.driver.set(RESET, ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=1)
    node.driver.xid(FAULTY, 31)

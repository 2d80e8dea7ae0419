"""Nodes that are none: each a daemon at an address of its own, a driver and a /proc of our own making, and jobs that train on them.

A job has eight cards on each of four nodes, a process on every card, and one log, which the first rank writes; all of it changes when a
scene says so. Whatever the daemon reads is a file here, and the daemon is the real one.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fake
from daemon import Daemon
from host import WRITE, Host

NODES, CARDS = 4, 8
HERE = Path(__file__).resolve().parent
UP_S = 86_400.0
FIRST_PID = 1000
LOADERS = 500_000  # of a rank: its PID and this
TICK_S = 0.1
AT_ONCE, START_S = 4, 300.0
ARGUMENTS = """\
------------------------ arguments ------------------------
  distributed_timeout_minutes ..................... 10
  global_batch_size ............................... 512
  padded_vocab_size ............................... 51200
  save ............................................ {saves}
  seq_length ...................................... 4096
  train_iters ..................................... 500000
  world_size ...................................... 32
-------------------- end of arguments ---------------------
"""
ITERATION = (
    " [{stamp}] iteration {step:8d}/  500000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): {ms:.1f} |"
    " learning rate: {rate:.6E} | global batch size:   512 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)


# -- what cards do; no two are quite alike


def computes(card: int) -> Mapping[str, int]:
    """In training."""
    return {"util": 94 + card % 6, "memutil": 40 + card % 5, "power_mw": 340_000 + 3_000 * (card % 7), "sm_mhz": 1380 + 15 * (card % 3)}


def evaluates(card: int) -> Mapping[str, int]:
    """Forward passes alone."""
    return {"util": 80 + card % 6, "memutil": 30 + card % 5, "power_mw": 260_000 + 3_000 * (card % 7), "sm_mhz": 1395}


def spins(card: int) -> Mapping[str, int]:
    """Inside a collective that does not end: busy by the driver's count, with little power and no memory traffic."""
    return {"util": 100, "memutil": card % 2, "power_mw": 88_000 + 1_000 * (card % 5), "sm_mhz": 1410}


def idles(card: int) -> Mapping[str, int]:
    """Held, and not used."""
    return {"util": 0, "memutil": 0, "power_mw": 64_000 + 500 * (card % 5), "sm_mhz": 1410}


def waits(card: int) -> Mapping[str, int]:
    """For data that come seldom or never."""
    return {"util": 3 + card % 3, "memutil": 1, "power_mw": 84_000 + 1_000 * (card % 5), "sm_mhz": 1410}


def is_starved(card: int) -> Mapping[str, int]:
    """By data that come too late."""
    return {"util": 26 + card % 5, "memutil": 11, "power_mw": 150_000 + 2_000 * (card % 5), "sm_mhz": 1410}


def compiles(card: int) -> Mapping[str, int]:
    """Kernels are tried now and then."""
    return {"util": 12 + 7 * (card % 4), "memutil": 3, "power_mw": 110_000 + 2_000 * (card % 5), "sm_mhz": 1410}


Doing = Callable[[int], Mapping[str, int]]


class Library:
    """What has to be compiled once: the driver, and the file system that looks full."""

    def __init__(self, folder: Path) -> None:
        self.driver = fake.build(folder)
        self.full_disk = folder / "full_disk.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", self.full_disk, HERE / "full_disk.c"], check=True)


class Node:
    """A machine with so many cards at an address of loopback. ``config`` is more of the daemon's, such as ``gpu: {interval: 1s}``."""

    def __init__(self, address: str, folder: Path, library: Library, *, cards: int = CARDS, config: str = "") -> None:
        folder.mkdir(parents=True)
        self.address = address
        self.driver = fake.FakeDriver(library.driver, folder, gpus=cards, lines=_at_rest(cards))
        self.host = Host(folder / "host")
        self.host.process(1, name="systemd", uid=0, parent=0)
        (self.host.root / "proc" / "stat").write_text(f"btime {time.time() - UP_S:.0f}\n")  # so that trainers are older than the daemon
        self._full = folder / "full"
        path = folder / "config.yml"
        path.write_text(f"processes: {{procfs: {self.host.root / 'proc'}}}\n{config or 'gpu: {}'}".replace("gpu: {", self._gpu(), 1) + "\n")
        env = {**self.driver.env(), "LD_PRELOAD": str(library.full_disk), "FULL_DISK": str(self._full)}
        env.pop("FAKE_NVML_TRACE")  # nobody reads it, and it would grow by megabytes a minute
        self.daemon = MeasuredDaemon(f"--config.file={path}", log=folder / "daemon.log", env=env, host=address)

    def fill_disk(self, place: Path) -> None:
        """Nothing is left of the file system that a path lies on."""
        with self._full.open("a") as full:
            full.write(f"{place}\n")

    def _gpu(self) -> str:
        return f"gpu: {{kernel_log: {self.driver.kmsg}, "


class MeasuredDaemon(Daemon):
    """One whose cost can be told."""

    def cpu_s(self) -> float:
        """Processor time of it and of what it has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sum(_cpu_s(int(pid)) for pid in (self.process.pid, *children))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _at_rest(cards: int) -> dict[str, str]:
    common = {"*.name": "NVIDIA A100-SXM4-80GB", "*.power_limit_mw": "400000", "*.temperature": "58", "*.used": str(70 << 30)}
    each = {f"{card}.{key}": str(value) for card in range(cards) for key, value in idles(card).items()}
    return {**common, **each}


class Job:
    """A run on four nodes, on each from card ``first`` on. Its first rank writes what Megatron-LM would."""

    def __init__(self, name: str, number: int, nodes: Sequence[Node], folder: Path, *, first: int = 0, pace_s: float = 2.0) -> None:
        folder.mkdir(parents=True)
        self.nodes = nodes
        self.run = f"{name.replace('_', '-')}-{number}"
        self.saves = folder / "ckpt"
        self.saves.mkdir()
        self.log = folder / "train.log"
        self.pace_s: float | None = None  # None: no steps
        self.usual_pace_s = pace_s
        self.step = 0
        self._number = number
        self._first = first
        self._next_step = 0.0
        self._chance = random.Random(number)
        self._repeated: tuple[Callable[[int], str], float] | None = None  # a line that comes again and again
        self._repeats = 0
        self._saves: list[float] = []  # when quick ones are due
        self.due_wall: float | None = None  # when it is time to tell of it, where that is not when it happens
        self.say(ARGUMENTS.format(saves=self.saves).rstrip())
        for node in range(NODES):
            for gpu in range(CARDS):
                self._start_rank(node, gpu)

    # -- its processes and cards

    def pid(self, node: int, gpu: int) -> int:
        return FIRST_PID + self._first + node * 100 + gpu

    def card(self, gpu: int) -> int:
        """Index in its node."""
        return self._first + gpu

    def do(self, doing: Doing, *, node: int | None = None, gpu: int | None = None) -> None:
        """Let its cards do that, or those of a node, or one."""
        for at in range(NODES) if node is None else [node]:
            driver = self.nodes[at].driver
            keys = {}
            for card in range(CARDS) if gpu is None else [gpu]:
                keys.update({f"{self.card(card)}.{key}": value for key, value in doing(at * CARDS + card).items()})
            driver.say_all(keys)

    def end_rank(self, node: int, gpu: int) -> None:
        """Its process is gone, and its card has nothing to do."""
        self.nodes[node].driver.set(self.card(gpu), processes="", used=0)
        self.nodes[node].host.end(self.pid(node, gpu))
        self.do(idles, node=node, gpu=gpu)

    def block(self, node: int, wchan: str, *, loaders: bool = False) -> None:
        """The ranks of a node, or the loaders of their data, wait where no signal reaches them."""
        for gpu in range(CARDS):
            pid = self.pid(node, gpu)
            self.nodes[node].host.turn(pid + LOADERS if loaders else pid, "D", wchan=wchan)

    def _start_rank(self, node: int, gpu: int) -> None:
        host, pid = self.nodes[node].host, self.pid(node, gpu)
        environment = {
            "SLURM_JOB_ID": str(self._number),
            "SLURM_JOB_NAME": self.run.rpartition("-")[0],
            "RANK": str(node * CARDS + gpu),
            "LOCAL_RANK": str(gpu),
            "WORLD_SIZE": str(NODES * CARDS),
        }
        output = str(self.log) if node == gpu == 0 else "/dev/null"
        descriptors = {"1": (output, WRITE), "2": (output, WRITE)}
        host.process(pid, descriptors, environment=environment, command="python pretrain_gpt.py", cwd="/home/ada/megatron", start=pid)
        host.start_below(pid, pid + LOADERS)
        self.nodes[node].driver.set(self.card(gpu), processes=f"{pid}:{70 << 30}")

    # -- its log

    def say(self, *lines: str) -> None:
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

    def train(self, *, slower: float = 1.0) -> None:
        """Make steps."""
        self._repeated = None
        self.pace_s = self.usual_pace_s * slower

    def stop(self) -> None:
        """Make no steps, and say nothing."""
        self._repeated = self.pace_s = None

    def repeat(self, line: Callable[[int], str], every_s: float) -> None:
        """Make no steps, and say this again and again."""
        self.pace_s, self._repeated, self._repeats, self._next_step = None, (line, every_s), 0, 0.0

    def evaluate(self) -> None:
        """For long."""
        self.say("Evaluating on 512000 samples")
        self.repeat(lambda number: f"Evaluating iter {number}/1000", self.usual_pace_s * 5)

    def begin_save(self) -> None:
        """All wait for the first rank, which writes."""
        self.stop()
        self.say(f"saving checkpoint at iteration {self.step:7d} to {self.saves} in torch_dist format")

    def end_save(self) -> None:
        self.say(f"  successfully saved checkpoint from iteration {self.step:7d} to {self.saves}")
        self.train()

    def save_every(self, seconds: float, *, times: int) -> None:
        """Quick saves, of the length of a step each."""
        self._saves = [time.monotonic() + seconds * number for number in range(1, times + 1)]

    def tick(self, mono: float) -> None:
        """Say what is due."""
        if mono < self._next_step:
            return
        if self._saves and mono >= self._saves[0]:
            self._save_quickly(mono)
            return
        if self.pace_s is not None:
            self._next_step = mono + self.pace_s
            self.step += 1
            self.say(self._iteration(time.time(), self.pace_s))
        elif self._repeated is not None:
            self._repeats += 1
            self._next_step = mono + self._repeated[1]
            self.say(self._repeated[0](self._repeats))

    def _save_quickly(self, mono: float) -> None:
        if self.pace_s is not None:
            self.begin_save()
            self._next_step = mono + self.usual_pace_s
        else:
            self.end_save()
            self._saves.pop(0)

    def train_before(self, until: float, *, every_s: float, steps: int) -> None:
        """The last steps of a past that ended at this moment, with the moments that the log then has."""
        for number in range(steps, 0, -1):
            self.step += 1
            self.say(self._iteration(until - number * every_s, every_s))

    def date_log(self, moment: float) -> None:
        """It was written for the last time then."""
        os.utime(self.log, (moment, moment))

    def _iteration(self, moment: float, took_s: float) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) + f".{int(moment % 1 * 1e6):06d}"
        return ITERATION.format(
            stamp=stamp,
            step=self.step,
            samples=512 * self.step,
            ms=1000 * took_s * self._chance.uniform(0.99, 1.01),
            rate=3e-4 * min(1.0, self.step / 2000),
            loss=2.2 + 8 / (1 + self.step / 50) + self._chance.uniform(-0.05, 0.05),
            norm=self._chance.uniform(0.8, 1.2),
        )


@contextmanager
def at_work(jobs: Sequence[Job]) -> Iterator[None]:
    """Their logs are written meanwhile."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(TICK_S):
            for job in jobs:
                job.tick(time.monotonic())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


@contextmanager
def started(nodes: Sequence[Node]) -> Iterator[None]:
    """Their daemons serve, and have read what was there."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for done in [pool.submit(node.daemon.start, ready_within_s=START_S) for node in nodes]:
                done.result()
            yield
        finally:
            list(pool.map(_stop, nodes))


def _stop(node: Node) -> None:
    node.driver.heal()
    if hasattr(node.daemon, "process"):
        node.daemon.stop()

"""A month of a node in virtual time, through the real parts of the daemon: ``make soak-virtual``.

Two hundred jobs start, write, rotate, restart, break and end on a host made by hand; GPUs fall off the bus and come back; the
configuration is loaded again each hour. What must hold is checked as it goes: every line is read once, no counter goes back, nothing is
shown of a job that is long over; and after the first week neither memory nor descriptors nor threads grow.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prometheus_client.parser import text_string_to_metric_families

from host import WRITE, Host
from trainer_exporter import config, incidents
from trainer_exporter.attribution import States
from trainer_exporter.catalogue import catalogue
from trainer_exporter.feeds import Feeds, Tools
from trainer_exporter.gpu.board import Board
from trainer_exporter.health import Health
from trainer_exporter.metrics import daemon, gpus, processes, runs, status
from trainer_exporter.metrics.page import Page
from trainer_exporter.model import NodeStatus
from trainer_exporter.runs.state import StateSettings
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.saves import SaveWatch
from trainer_exporter.scout import Scout
from trainer_exporter.sources.follow import Limits
from trainer_exporter.sources.waker import Waker
from trainer_exporter.workloads import Known, Workloads

HOUR, DAY = 3600.0, 86_400.0
CARDS = 8
ENDED_S, FAILED_S = HOUR, DAY  # grace of the store, its defaults
SLACK_S = 2 * HOUR  # until a run that nobody tells of is known to be over
TEXT = "sources: [{{path: '{root}/data', labels: {{team: {team}}}}}]\n"


@dataclass
class Job:
    """One training: what it still has to do, and how it ends."""

    number: int
    begins: float
    lasts: float
    end: str
    pid: int = 0
    step: int = 0
    lines: int = 0
    over_wall: float = 0.0
    folder: Path = field(default_factory=Path)

    @property
    def name(self) -> str:
        return f"job-{self.number:03d}"

    @property
    def logs(self) -> tuple[Path, Path]:
        return self.folder / "train.log", self.folder / "trainer_log.jsonl"


class Node:
    """The world: files, processes, cards."""

    def __init__(self, root: Path, *, jobs: int, days: float, seed: int) -> None:
        self.host = Host(root)
        self.host.clock.set_wall(time.time())
        self.data = root / "data"
        self.data.mkdir()
        self.chance = random.Random(seed)
        self.start = self.host.clock.wall()
        ends = ("completes", "dies", "is killed and removed", "breaks with a traceback", "restarts", "hangs")
        self.jobs = [
            Job(n, self.start + self.chance.uniform(0, days * DAY), self.chance.uniform(HOUR, 10 * HOUR), ends[n % len(ends)])
            for n in range(jobs)
        ]
        self.written = 0
        self.board = Board(self.host.clock, oldest_s=1200.0)
        self.board.child_started(restarts=0)
        self.away: dict[int, float] = {}  # cards off the bus, until when

    def pass_time(self, seconds: float) -> None:
        self.host.clock.advance(seconds)
        now = self.host.clock.wall()
        for job in self.jobs:
            if job.pid == 0 and not job.over_wall and now >= job.begins:
                self._begin(job)
            elif job.pid and now >= job.begins + job.lasts:
                self._end(job, now)
            elif job.pid and not (job.end == "hangs" and now > job.begins + job.lasts / 2):
                self._train(job, now)
            elif job.over_wall and job.folder.exists() and now - job.over_wall > 1.5 * DAY:
                shutil.rmtree(job.folder)
        self._cards(now)

    def _begin(self, job: Job) -> None:
        job.folder, job.pid = self.data / job.name, 1000 + job.number
        job.folder.mkdir()
        self._write(job, job.logs[0], "***** Running training *****\n")
        self.host.process(job.pid, {"1": (str(job.logs[0]), WRITE)}, command=f"python train.py --output_dir {job.folder}")

    def _train(self, job: Job, now: float) -> None:
        for _ in range(self.chance.randint(1, 4)):
            job.step += 1
            loss = "nan" if self.chance.random() < 0.002 else f"{2 + 3 / job.step:.4f}"
            self._write(job, job.logs[0], f"step: {job.step}, loss: {loss}, grad_norm: 0.5000, lr: 0.000100\n")
            told = {"current_steps": job.step, "total_steps": 100_000, "loss": 2.0, "lr": 1e-4, "epoch": job.step / 100}
            self._write(job, job.logs[1], json.dumps(told) + "\n")
        if job.step % 50 < 3:
            self._save(job)
        if self.chance.random() < 0.01:
            self._rotate(job.logs[0])
        if job.end == "restarts" and self.chance.random() < 0.02:
            job.step = max(0, job.step - 50)
            self._write(job, job.logs[0], "***** Running training *****\n")
        for log in job.logs:
            os.utime(log, (now, now)) if log.exists() else None

    def _write(self, job: Job, log: Path, text: str) -> None:
        with log.open("a") as out:
            out.write(text)
        job.lines += 1
        self.written += 1

    def _save(self, job: Job) -> None:
        place = job.folder / f"checkpoint-{job.step}"
        place.mkdir(exist_ok=True)
        (place / "model.safetensors").write_bytes(b"x" * 1000)
        (place / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}))
        (place / "trainer_state.json").write_text(json.dumps({"global_step": job.step, "log_history": []}))
        for old in sorted(job.folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)[:-2]:
            shutil.rmtree(old)

    def _rotate(self, log: Path) -> None:
        for number in (3, 2, 1):
            old = log.with_name(f"{log.name}.{number}")
            if old.exists():
                old.rename(log.with_name(f"{log.name}.{number + 1}")) if number < 3 else old.unlink()
        log.rename(log.with_name(f"{log.name}.1"))
        log.touch()

    def _end(self, job: Job, now: float) -> None:
        if job.end == "completes":
            self._write(job, job.logs[0], "Training completed. Do not forget to share your model on huggingface.co/models =)\n")
        elif job.end == "breaks with a traceback":
            self._write(job, job.logs[0], "Traceback (most recent call last):\n")
            self._write(job, job.logs[0], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        os.utime(job.logs[0], (now, now))
        shutil.rmtree(self.host.root / "proc" / str(job.pid))
        job.pid, job.over_wall = 0, now

    def tidy(self) -> None:
        """Epilogs: directories of killed jobs go at once, after their last line was there to be read."""
        for job in self.jobs:
            if job.over_wall and job.end == "is killed and removed" and job.folder.exists():
                shutil.rmtree(job.folder)

    def _cards(self, now: float) -> None:
        if self.chance.random() < 0.002:
            gone = self.chance.randrange(CARDS)
            self.away.setdefault(gone, now + self.chance.uniform(HOUR, DAY))
        present = [card for card in range(CARDS) if self.away.get(card, 0) <= now]
        self.away = {card: until for card, until in self.away.items() if until > now}
        cards = [{"uuid": f"GPU-{n}", "index": n, "name": "NVIDIA H100 80GB HBM3", "pci_bus_id": f"00000000:{n:02x}:00.0"} for n in present]
        self.board.fold({"kind": "cards", "cards": cards})
        busy = [job.pid for job in self.jobs if job.pid]
        for card in present:
            if self.chance.random() < 0.001:
                self.board.fold({"kind": "xid", "uuid": f"GPU-{card}", "xid": self.chance.choice((13, 31, 43, 63, 94))})
            values = {"power_watts": 600.0, "utilization_ratio": 0.9, "processes": [(pid, 1 << 30) for pid in busy[card::CARDS]]}
            self.board.fold({"kind": "reading", "uuid": f"GPU-{card}", "took": 0.0, "values": values})


class Daemon:
    """The parts as the app puts them together, driven by hand."""

    def __init__(self, node: Node) -> None:
        self.node, clock, self.health = node, node.host.clock, Health()
        self.clock = clock
        loaded = self._load("nlp")
        self.store = Store(StoreSettings(state=StateSettings(incident_kinds=incidents.KINDS)), clock=clock, health=self.health)
        self.formats = catalogue(loaded)
        self.feeds = Feeds(Tools(self.store, self.formats, clock, self.health, Limits()))
        root = node.host.root
        proc = str(root / "proc")
        self.scout = Scout(
            loaded, store=self.store, gpus=node.board.snapshot, clock=clock, health=self.health, proc_root=proc, host_root=str(root)
        )
        self.saves = SaveWatch(self.store, clock=clock, health=self.health)
        self.workloads = Workloads(self.store, clock=clock, health=self.health)
        self.waker = Waker(clock, self.health)
        self.states = States(root / "proc")
        self.report = daemon.DaemonSnapshot("soak", "3")
        self.reloaded = daemon.Reload(successful=True, wall=clock.wall())
        figures = runs.Runs()
        self.page = Page(
            [
                ("runs", lambda: figures.collect(self.store.snapshot(), clock.wall())),
                ("gpu", lambda: gpus.samples(node.board.snapshot(), self.scout.owners(), clock.wall())),
                ("processes", lambda: processes.samples(self.states.of(self.scout.pids()))),
                ("daemon", lambda: daemon.samples(self.report, self.reloaded, self.health.snapshot())),
            ],
            health=self.health,
        )

    def _load(self, team: str) -> config.Config:
        return config.parse(TEXT.format(root=self.node.host.root, team=team), file="soak.yml")

    def reload(self, hours: int) -> None:
        self.scout.reconfigure(self._load(("nlp", "vision")[hours % 2]))
        self.reloaded = daemon.Reload(successful=True, wall=self.clock.wall())

    def turn(self) -> None:
        self.scout.look(now=True)
        self.feeds.use(self.formats)
        self.feeds.assign(self.scout.assignments())
        self.waker.watch(self.scout.directories())
        while self.feeds.poll():
            pass
        self.store.publish()
        lines, read, lag = self.feeds.totals()
        self.report = daemon.DaemonSnapshot("soak", "3", lines=lines, read_bytes=read, lag_bytes=lag, files=len(self.feeds))
        self.saves.look(self.scout.save_directories())
        self.workloads.look(Known(self.scout.save_directories(), self.scout.models(), self.scout.owners(), self.node.board.snapshot()))

    def scrape(self) -> dict[str, float]:
        counters = {}
        for family in text_string_to_metric_families(self.page.render("").body.decode()):
            if family.type in {"counter", "histogram"}:
                for sample in family.samples:
                    counters[f"{sample.name}{sorted(sample.labels.items())}"] = sample.value
        return counters

    def shown(self) -> set[str]:
        return {run.run for run in self.store.snapshot()}

    def followed(self) -> list[str]:
        return [file.path for file in self.feeds.status()]

    def status_page(self) -> int:
        health = self.health.snapshot()
        troubles = {"errors": health.errors, "latest": health.latest, "dropped": health.dropped}
        seen = {"runs": self.store.snapshot(), "files": self.feeds.status(), "gpus": self.node.board.snapshot(), "owners": ()}
        return len(status.html(NodeStatus(version="soak", now=self.clock.wall(), started_wall=0.0, ready=True, **seen, **troubles)))


def went_back(before: dict[str, float], now: dict[str, float]) -> Iterator[str]:
    yield from (f"{name}: {before[name]} -> {value}" for name, value in now.items() if value < before.get(name, value))


def stale(node: Node, shown: set[str]) -> set[str]:
    """Runs that are shown though they have been over for longer than any grace."""
    now = node.host.clock.wall()
    return {job.name for job in node.jobs if job.over_wall and now - job.over_wall > FAILED_S + SLACK_S and job.name in shown}


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measures() -> tuple[float, int, int, int]:
    gc.collect()
    return resident_mb(), len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(gc.get_objects())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--days", type=float, default=30)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--tick", type=float, default=600, help="virtual seconds between two turns")
    options.add_argument("--warm-up", type=float, default=7, help="days after which nothing may grow")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return play(asked, Node(Path(folder) / "host", jobs=asked.jobs, days=asked.days - 2, seed=asked.seed))


def play(asked: argparse.Namespace, node: Node) -> int:
    began, made, before, faults = time.monotonic(), Daemon(node), dict[str, float](), list[str]()
    rows: list[tuple[float, float, int, int, int]] = []
    print("   day  jobs over  runs shown  files   RSS MB   fds  threads   objects     lines  faults", flush=True)
    ticks = int(asked.days * DAY / asked.tick)
    for tick in range(ticks):
        node.pass_time(asked.tick)
        if tick % int(HOUR / asked.tick) == 0:
            made.reload(int(tick * asked.tick / HOUR))
        made.turn()
        node.tidy()
        if tick % int(HOUR / asked.tick) == 0:
            now = made.scrape()
            for fault in went_back(before, now):
                faults.append(fault)
                print(f"  {fault}", flush=True)
            before = now
        if (tick + 1) % int(DAY / asked.tick) == 0:
            late = sorted(stale(node, made.shown()))
            late += [path for path in made.followed() if not Path(path).exists()][8:]  # of those just removed a few are still looked at
            faults += [f"stale: {name}" for name in late]
            print(f"  stale: {late}", flush=True) if late else None
            made.status_page()
            day, row = (tick + 1) * asked.tick / DAY, measures()
            rows.append((day, *row))
            over, files = sum(bool(job.over_wall) for job in node.jobs), len(made.feeds)
            rss, fds, threads, objects = row
            print(
                f"{day:6.0f} {over:10d} {len(made.shown()):11d} {files:6d} {rss:8.1f} {fds:5d} {threads:8d} {objects:9d}"
                f" {node.written:9d} {len(faults):7d}",
                flush=True,
            )
    read = sum(made.report.lines.values())
    faults += verdict(rows, asked.warm_up)
    if read != node.written:
        faults.append(f"lines: {node.written} were written, {read} were read")
    if sites := made.health.snapshot().errors:
        faults.append(f"errors: {dict(sites)}")
    made.waker.close()
    made.feeds.close()
    print(
        f"{node.written} lines written, {read} read, in {time.monotonic() - began:.0f} s; dropped: {dict(made.health.snapshot().dropped)}"
    )
    print("\n".join(faults[:20]) if faults else "nothing grew, nothing went back, nothing was stale")
    return 1 if faults else 0


def verdict(rows: list[tuple[float, float, int, int, int]], warm_up: float) -> Iterator[str]:
    """The last week against the first one after the warm-up: what a day's jobs need goes up and down, what leaks only up."""
    warm = [row for row in rows if row[0] >= warm_up]
    if len(warm) < 8:
        return
    early, late = warm[: len(warm) // 3], warm[-len(warm) // 3 :]
    for at, name, slack in ((1, "RSS", 0.0), (2, "fds", 4), (3, "threads", 4), (4, "objects", 0.0)):
        first, last = max(row[at] for row in early), max(row[at] for row in late)
        if last > first * 1.05 + slack:
            yield f"{name} grew: {first} -> {last}"


if __name__ == "__main__":
    sys.exit(main())

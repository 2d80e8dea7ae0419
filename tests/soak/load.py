"""The real daemon under many times its usual load, for as long as is asked: ``make soak``.

Usual are eight runs on a node, each with two lines a second. Here fifty times as many are written, logs are rotated each minute, runs are
killed and begun anew, the configuration is loaded again, and two scrapers ask each second. Every line must be counted once; when the first
fifth is over, neither memory nor descriptors nor threads may grow.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "chaos"))

from daemon import Daemon  # noqa: E402 - the path is made above
from world import Trainer  # noqa: E402

RUNS, USUAL_LINES_S = 8, 2.0
HEAD = "  minute      lines   lines/s   lag bytes   RSS MB   fds  threads   CPU %   page ms"


@dataclass(frozen=True)
class Seen:
    """One look at the daemon's process."""

    minute: float
    resident_mb: float
    descriptors: int
    threads: int
    cpu_s: float


def look(pid: int, minute: float) -> Seen:
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Seen(minute, resident, len(list((proc / "fd").iterdir())), int(fields[17]), cpu_s)


class Soak:
    """Writers, rotation and scrapers; ``written`` is the truth."""

    def __init__(self, folder: Path, factor: float) -> None:
        self.trainers = [Trainer(folder / "runs" / f"heron-{number}") for number in range(RUNS)]
        self.rate = RUNS * USUAL_LINES_S * factor
        self.chance = random.Random(1)
        self.written = 0

    def write(self, seconds: float) -> None:
        each = max(1, round(self.rate * seconds / RUNS))
        for trainer in self.trainers:
            trainer.steps(each)
            self.written += each

    def rotate(self) -> None:
        trainer = self.chance.choice(self.trainers)
        trainer.log.with_name(f"{trainer.log.name}.1").unlink(missing_ok=True)
        trainer.rotate()


def page_ms(daemon: Daemon) -> float:
    began = time.monotonic()
    daemon.get("/metrics")
    return (time.monotonic() - began) * 1000


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--factor", type=float, default=50)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        soak, config = Soak(folder, asked.factor), folder / "config.yml"
        soak.write(1)
        config.write_text(f"sources: [{{path: {folder}/runs}}]\n")
        with Daemon(f"--config.file={config}", "--no-gpu", log=folder / "log") as daemon:
            return run(daemon, soak, asked.minutes)


def run(daemon: Daemon, soak: Soak, minutes: float) -> int:
    print(HEAD, flush=True)
    seen, took, began, tick = [look(daemon.process.pid, 0.0)], [0.0], time.monotonic(), 0
    last, written = began, soak.written
    while time.monotonic() - began < minutes * 60:
        soak.write(time.monotonic() - last)
        last, tick = time.monotonic(), tick + 1
        took += [page_ms(daemon) for _ in range(2)]
        if tick % 60 == 0:
            soak.rotate()
            daemon.process.send_signal(signal.SIGHUP)
        if tick % 30 == 0:
            show(daemon, soak, seen, took=took, written=written, began=began)
            took, written = [], soak.written
        time.sleep(max(0.0, 1 - (time.monotonic() - last)))
    return verdict(daemon, soak, seen)


def show(daemon: Daemon, soak: Soak, seen: list[Seen], *, took: list[float], written: int, began: float) -> None:
    now = look(daemon.process.pid, (time.monotonic() - began) / 60)
    seconds = (now.minute - seen[-1].minute) * 60
    lag = daemon.value("trainer_exporter_read_lag_bytes") or 0
    cpu = 100 * (now.cpu_s - seen[-1].cpu_s) / seconds
    print(
        f"{now.minute:8.1f} {soak.written:10d} {(soak.written - written) / seconds:9.0f} {lag:11.0f} {now.resident_mb:8.1f}"
        f" {now.descriptors:5d} {now.threads:8d} {cpu:7.1f} {max(took):9.1f}",
        flush=True,
    )
    seen.append(now)


def verdict(daemon: Daemon, soak: Soak, seen: list[Seen]) -> int:
    faults = []
    deadline = time.monotonic() + 60
    while (read := daemon.value("trainer_exporter_lines_total", result="parsed")) != soak.written and time.monotonic() < deadline:
        time.sleep(0.5)
    if read != soak.written:
        faults.append(f"{soak.written} lines were written, {read} were read")
    warm = [each for each in seen if each.minute >= seen[-1].minute / 5]
    for name in ("resident_mb", "descriptors", "threads"):
        first, highest = getattr(warm[0], name), max(getattr(each, name) for each in warm)
        if highest > first * 1.05 + (4 if name != "resident_mb" else 0):
            faults.append(f"{name} grew: {first} -> {highest}")
    attempts = [trainer.run for trainer in soak.trainers if daemon.value("trainer_run_attempts_total", run=trainer.run) != 1]
    faults += [f"attempts of {name}" for name in attempts]
    faults += ["a traceback in its log"] if "Traceback" in daemon.log() else []
    print("\n".join(faults) or f"{soak.written} lines written, {read:.0f} read; nothing grew")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

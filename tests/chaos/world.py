"""Trainers that write, and a program whose calls fail as a test says."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from daemon import Daemon
from stack import eventually

SOURCE = Path(__file__).with_name("faults.c")
PATIENCE_S = 60.0


class Faults:
    """Which calls of the daemon fail from now on; ``lines`` are those of faults.c."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "faults.so"
        self._script = folder / "faults"
        self._script.touch()
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", self._library, SOURCE, "-ldl"], check=True)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAULTS": str(self._script)}

    def set(self, *lines: str) -> None:
        fresh = self._script.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self._script)


class Trainer:
    """A log of one run, and the truth about it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run = folder.name
        self.log = folder / "trainer_log.jsonl"
        self.step = 0
        self.bad = 0  # steps whose loss was not finite

    def steps(self, number: int = 1, *, loss: float = 2.0) -> None:
        with self.log.open("a") as out:
            out.writelines(self.line(loss) for _ in range(number))

    def line(self, loss: float = 2.0) -> str:
        self.step += 1
        self.bad += not math.isfinite(loss)
        return json.dumps({"current_steps": self.step, "total_steps": 10**6, "loss": loss, "lr": 1e-4, "epoch": self.step / 100}) + "\n"

    def rotate(self) -> None:
        self.log.rename(self.log.with_name(f"{self.log.name}.1"))


def differences(daemon: Daemon, trainers: Sequence[Trainer]) -> list[str]:
    """What the page says otherwise than it was; none where every line was read once."""
    try:
        samples = daemon.samples()
    except OSError as error:
        return [f"no page: {error}"]
    wanted = {'trainer_exporter_lines_total{result="parsed"}': sum(trainer.step for trainer in trainers)}
    for trainer in trainers:
        wanted[f'trainer_step{{run="{trainer.run}"}}'] = trainer.step
        wanted[f'trainer_run_attempts_total{{run="{trainer.run}"}}'] = 1
        wanted[f'trainer_nonfinite_steps_total{{field="loss",run="{trainer.run}"}}'] = trainer.bad
    return [f"{name} is {samples.get(name)}, not {value}" for name, value in wanted.items() if samples.get(name) != value]


def wait_until_exact(daemon: Daemon, *trainers: Trainer, within_s: float = PATIENCE_S) -> None:
    eventually(
        lambda: not differences(daemon, trainers),
        within_s=within_s,
        what="each line is counted once",
        seen=lambda: f"{differences(daemon, trainers)}\n{daemon.log()[-2000:]}",
    )


def wait_for_errors(daemon: Daemon, site: str, reason: str) -> None:
    eventually(
        lambda: daemon.value("trainer_exporter_errors_total", site=site, reason=reason),
        within_s=PATIENCE_S,
        what=f"an error of {site}, {reason}",
        seen=lambda: {name: value for name, value in daemon.samples().items() if "errors_total" in name},
    )


def resident_mb(daemon: Daemon) -> float:
    return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

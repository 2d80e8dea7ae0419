"""The daemon while the machine misbehaves: the cheap cases. ``make chaos`` runs all of them; docs/chaos.md says what must hold."""

from __future__ import annotations

import errno
import math
import random
import signal
import time
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually
from world import PATIENCE_S, Faults, Trainer, wait_for_errors, wait_until_exact

pytestmark = pytest.mark.e2e


def test_killed_at_any_moment_it_counts_the_same_after_each_start(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, times=2)


def killed_again_and_again(tmp_path: Path, *, times: int) -> None:
    heron, ibis, chance = Trainer(tmp_path / "runs/heron"), Trainer(tmp_path / "runs/ibis"), random.Random(times)
    heron.steps(500)
    ibis.steps(20)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        for _ in range(times):
            wait_until_exact(daemon, heron, ibis)
            heron.steps(chance.randint(1, 300), loss=chance.choice((2.0, math.nan)))
            ibis.steps(1)
            time.sleep(chance.uniform(0, 0.3))

            daemon.kill()

            heron.steps(chance.randint(0, 3))
            daemon.start(ready_within_s=PATIENCE_S)
        wait_until_exact(daemon, heron, ibis)


def test_stopped_for_a_while_it_makes_up_for_what_was_written_and_rotated_meanwhile(tmp_path: Path) -> None:
    heron = Trainer(tmp_path / "runs/heron")
    heron.steps(10)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        wait_until_exact(daemon, heron)
        daemon.process.send_signal(signal.SIGSTOP)
        heron.steps(200)
        heron.rotate()
        heron.steps(300, loss=math.nan)

        daemon.process.send_signal(signal.SIGCONT)

        wait_until_exact(daemon, heron)


def test_a_log_that_cannot_be_read_for_a_while_costs_no_line_of_it_and_none_of_the_others(tmp_path: Path) -> None:
    faults, heron, ibis = Faults(tmp_path), Trainer(tmp_path / "runs/heron"), Trainer(tmp_path / "runs/ibis")
    heron.steps(5)
    ibis.steps(5)
    faults.set(f"watch {errno.ENOSPC} 0 /")
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log", env=faults.env) as daemon:
        wait_for_errors(daemon, "waker", "watch")  # no inotify from the start: polling finds all the same
        faults.set(f"watch {errno.ENOSPC} 0 /", f"read {errno.EIO} 0 /ibis/trainer_log")
        heron.steps(7)
        ibis.steps(7)
        wait_for_errors(daemon, "follow", "io")
        eventually(lambda: daemon.value("trainer_step", run="heron") == heron.step, within_s=PATIENCE_S, what="the other log goes on")
        assert daemon.value("trainer_step", run="ibis") == 5

        faults.set()
        crane = Trainer(tmp_path / "runs/crane")
        crane.steps(3)

        wait_until_exact(daemon, heron, ibis, crane)


@pytest.mark.parametrize("step_s", [3600, -7200], ids=["forward, as after a suspend", "back, as after a wrong clock"])
def test_a_clock_that_steps_moves_no_counter_and_no_time_into_the_future(tmp_path: Path, step_s: int) -> None:
    faults, heron = Faults(tmp_path), Trainer(tmp_path / "runs/heron")
    heron.steps(30)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log", env=faults.env) as daemon:
        wait_until_exact(daemon, heron)

        faults.set(f"clock 0 {step_s * 1000} -")
        heron.steps(5)

        wait_until_exact(daemon, heron)
        age = eventually(
            lambda: [daemon.value("trainer_progress_age_seconds", run="heron")],
            within_s=PATIENCE_S,
            what="the age",
        )[0]
        assert age is not None
        assert 0 <= age < 600
        at = daemon.value("trainer_step_timestamp_seconds", run="heron")
        assert at is not None
        assert at <= time.time() + step_s + 1

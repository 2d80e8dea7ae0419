"""All that a machine can do to the daemon, at length: ``make chaos``. Cheap cases are in test_chaos.py; outcomes in docs/chaos.md."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually
from test_chaos import killed_again_and_again
from world import PATIENCE_S, Faults, Trainer, resident_mb, wait_for_errors, wait_until_exact

pytestmark = pytest.mark.e2e
MANY = 100_000
LONG_S = 300.0  # where much has to be read first


def test_killed_a_hundred_times_it_counts_the_same_after_each_start(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, times=100)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        ("read", errno.EIO, "io"),
        ("read", errno.ESTALE, "stale"),
        ("stat", errno.ESTALE, "stale"),
        ("stat", errno.EACCES, "permission"),
        ("stat", errno.EIO, "io"),
        ("read", errno.ENOMEM, "os"),
    ],
)
def test_whatever_fails_for_a_while_costs_no_line(tmp_path: Path, call: str, error: int, reason: str) -> None:
    faults, heron, ibis = Faults(tmp_path), Trainer(tmp_path / "runs/heron"), Trainer(tmp_path / "runs/ibis")
    heron.steps(5)
    ibis.steps(5)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log", env=faults.env) as daemon:
        wait_until_exact(daemon, heron, ibis)
        faults.set(f"{call} {error} 0 /ibis/trainer_log.jsonl")
        ibis.steps(9)
        wait_for_errors(daemon, "follow", reason)
        heron.steps(9)
        eventually(lambda: daemon.value("trainer_step", run="heron") == heron.step, within_s=PATIENCE_S, what="the other log goes on")

        faults.set()
        ibis.steps(1)

        wait_until_exact(daemon, heron, ibis)
        assert "Traceback" not in daemon.log()


def test_a_directory_that_cannot_be_listed_for_a_while_keeps_what_is_followed(tmp_path: Path) -> None:
    faults, heron = Faults(tmp_path), Trainer(tmp_path / "runs/heron")
    heron.steps(5)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log", env=faults.env) as daemon:
        wait_until_exact(daemon, heron)
        faults.set(f"stat {errno.EIO} 0 /runs/heron", f"list {errno.EIO} 0 /runs")
        wait_for_errors(daemon, "discovery", "unreadable_directory")

        faults.set()
        heron.steps(5)

        wait_until_exact(daemon, heron)


def test_a_file_server_that_is_slow_delays_lines_and_no_scrape(tmp_path: Path) -> None:
    faults, heron, ibis = Faults(tmp_path), Trainer(tmp_path / "runs/heron"), Trainer(tmp_path / "runs/ibis")
    heron.steps(5)
    ibis.steps(5)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log", env=faults.env) as daemon:
        wait_until_exact(daemon, heron, ibis)
        faults.set("read 0 3000 /ibis/trainer_log.jsonl", "stat 0 1000 /ibis/trainer_log.jsonl")
        heron.steps(50)
        ibis.steps(50)
        took = []
        for _ in range(40):
            began = time.monotonic()
            daemon.get("/metrics")
            took.append(time.monotonic() - began)
            time.sleep(0.1)

        wait_until_exact(daemon, heron, ibis)
        assert sorted(took)[len(took) // 2] < 1.0, took  # of a request that waited for the file server each would take seconds


@contextlib.contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_full_for_a_while_costs_what_was_not_written_and_nothing_else(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "1m") as small:
        heron = Trainer(small / "heron")
        heron.steps(50)
        config = tmp_path / "config.yml"
        config.write_text(f"sources: [{{path: {small}}}]\nevidence: {{enabled: true, directory: {small}/evidence}}\n")
        with Daemon(f"--config.file={config}", "--no-gpu", log=small / "daemon.txt") as daemon:
            wait_until_exact(daemon, heron)
            ballast = small / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as out:
                while True:
                    out.write(b"x" * 4096)
            before, step = heron.log.stat().st_size, heron.step
            with contextlib.suppress(OSError):
                heron.steps(2000)  # until nothing more goes in: the last line is torn
            whole = heron.log.read_bytes().count(b"\n")
            heron.step = max(step, whole)
            eventually(lambda: daemon.value("trainer_step", run="heron") == whole, within_s=PATIENCE_S, what=f"all {whole} whole lines")
            assert heron.log.stat().st_size >= before

            ballast.unlink()
            torn = heron.log.read_bytes().rpartition(b"\n")[2]
            with heron.log.open("ab") as out:
                out.write(b"\n" if torn else b"")
            heron.steps(20)

            eventually(lambda: daemon.value("trainer_step", run="heron") == heron.step, within_s=PATIENCE_S, what="the log goes on")
            assert daemon.value("trainer_run_attempts_total", run="heron") == 1
            assert daemon.process.poll() is None


def test_a_log_on_tmpfs_that_is_deleted_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", "64m") as shm:
        heron = Trainer(shm / "heron")
        heron.steps(5)
        with Daemon(shm, "--no-gpu", log=tmp_path / "log") as daemon:
            wait_until_exact(daemon, heron)
            with heron.log.open("a") as out:
                heron.log.unlink()
                out.writelines(heron.line() for _ in range(5000))

            wait_until_exact(daemon, heron)


def test_a_hundred_thousand_files_in_the_tree_cost_no_run_its_place(tmp_path: Path) -> None:
    heron = Trainer(tmp_path / "runs/heron")
    heron.steps(5)
    for folder in range(100):
        (tmp_path / f"runs/heron/samples-{folder}").mkdir()
        for number in range(MANY // 100):
            os.close(os.open(tmp_path / f"runs/heron/samples-{folder}/{number}.wav", os.O_CREAT | os.O_WRONLY))
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        wait_until_exact(daemon, heron)
        heron.steps(5)
        wait_until_exact(daemon, heron)
        assert daemon.value("trainer_exporter_files_followed") == 1
        assert resident_mb(daemon) < 200


def test_a_hundred_thousand_logs_are_followed_up_to_the_bound_and_counted(tmp_path: Path) -> None:
    heron = Trainer(tmp_path / "runs/a-heron")
    heron.steps(5)
    for folder in range(100):
        (tmp_path / f"runs/z-{folder}").mkdir()
        for number in range(MANY // 100):
            os.close(os.open(tmp_path / f"runs/z-{folder}/{number}.log", os.O_CREAT | os.O_WRONLY))
    daemon = Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log")
    try:
        daemon.start(ready_within_s=LONG_S)
        wait_until_exact(daemon, heron, within_s=LONG_S)
        eventually(lambda: daemon.value("trainer_exporter_dropped_total", reason="files"), within_s=LONG_S, what="it is counted")
        assert daemon.value("trainer_exporter_files_followed") == 2048
        heron.steps(5)
        wait_until_exact(daemon, heron, within_s=LONG_S)
    finally:
        daemon.stop()


def test_events_that_overflow_the_queue_cost_no_run(tmp_path: Path) -> None:
    heron = Trainer(tmp_path / "runs/heron")
    heron.steps(5)
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        wait_until_exact(daemon, heron)
        daemon.process.send_signal(signal.SIGSTOP)
        for number in range(20_000):  # more events than the kernel keeps by default, 16,384
            os.close(os.open(tmp_path / f"runs/heron/{number}.tmp", os.O_CREAT | os.O_WRONLY))
            (tmp_path / f"runs/heron/{number}.tmp").unlink()
        ibis = Trainer(tmp_path / "runs/ibis")
        ibis.steps(5)
        heron.steps(5)

        daemon.process.send_signal(signal.SIGCONT)

        wait_until_exact(daemon, heron, ibis)


def test_what_is_no_log_keeps_nobody_waiting(tmp_path: Path) -> None:
    heron = Trainer(tmp_path / "runs/heron")
    heron.steps(5)
    odd = tmp_path / "runs/odd"
    odd.mkdir()
    os.mkfifo(odd / "pipe.log")
    for name, target in {"zero": "/dev/zero", "urandom": "/dev/urandom", "loop": "loop.log", "up": "..", "tty": "/dev/tty"}.items():
        (odd / f"{name}.log").symlink_to(target)
    named = [odd / "pipe.log", odd / "zero.log", odd / "loop.log", "/dev/full"]
    with Daemon(tmp_path / "runs", *named, "--no-gpu", log=tmp_path / "log") as daemon:
        wait_until_exact(daemon, heron)
        heron.steps(5)
        wait_until_exact(daemon, heron)
        wait_for_errors(daemon, "follow", "irregular")
        assert "Traceback" not in daemon.log()


def test_twenty_gigabytes_of_nothing_and_a_flood_of_nuls_take_no_memory(tmp_path: Path) -> None:
    heron, sparse, nuls = Trainer(tmp_path / "runs/heron"), tmp_path / "runs/sparse/train.log", tmp_path / "runs/nuls/train.log"
    heron.steps(5)
    for path in (sparse, nuls):
        path.parent.mkdir()
        path.touch()
    os.truncate(sparse, 20 << 30)
    nuls.write_bytes(b"\0" * (64 << 20) + b"\n")
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        eventually(lambda: daemon.value("trainer_step", run="heron") == 5, within_s=LONG_S, what="the log beside them")
        assert (daemon.value("trainer_exporter_dropped_total", reason="history_bytes") or 0) == 19 << 30
        assert resident_mb(daemon) < 200
        heron.steps(5)
        eventually(lambda: daemon.value("trainer_step", run="heron") == 10, within_s=LONG_S, what="the log beside them goes on")

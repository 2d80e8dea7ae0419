"""What the processes of a run are doing: from a /proc made by hand, and from the real one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import uninterruptible
from trainer_exporter.attribution.states import States, wait
from trainer_exporter.metrics import processes
from trainer_exporter.model import RunProcesses

NONE = {"running": 0, "sleeping": 0, "uninterruptible": 0, "stopped": 0, "zombie": 0}
Put = Callable[..., None]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Puts a process into a /proc of the test's."""

    def process(pid: int, state: str, *, wchan: str | None = "0", children: Sequence[int] = ()) -> None:
        folder = tmp_path / str(pid)
        (folder / f"task/{pid}").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python (x) D 1) {state} 1 " + "0 " * 17 + "500 0\n")
        (folder / f"task/{pid}/children").write_text("".join(f"{child} " for child in children))
        if wchan is not None:
            (folder / "wchan").write_text(wchan)

    return process


def test_ranks_and_their_loaders_are_counted_by_state_and_by_what_they_wait_for(put: Put, tmp_path: Path) -> None:
    put(40, "D", wchan="rpc_wait_bit_killable", children=[50, 51, 52])
    put(41, "S", children=[53])
    put(50, "D", wchan="folio_wait_bit_common")
    put(51, "D", wchan=None)
    put(52, "Z")
    put(53, "R", children=[54, 41])
    put(54, "t")
    put(60, "S")

    found = States(tmp_path).of({40: "llama", 41: "llama", 53: "llama", 60: "bert", 99: "gone"})

    assert found == (
        RunProcesses("bert", {**NONE, "sleeping": 1}, {}),
        RunProcesses(
            "llama",
            {"running": 1, "sleeping": 1, "uninterruptible": 3, "stopped": 1, "zombie": 1},
            {"nfs": 1, "io": 1, "unknown": 1},
        ),
    )


@pytest.mark.parametrize(
    ("function", "waits_for"),
    [
        ("nfs_wait_bit_killable", "nfs"),
        ("rpc_wait_bit_killable", "nfs"),
        ("cl_sync_io_wait", "lustre"),
        ("ptlrpc_set_wait", "lustre"),
        ("cxiWaitEventWait", "gpfs"),
        ("ceph_mdsc_wait_request", "ceph"),
        ("request_wait_answer", "fuse"),
        ("io_schedule", "io"),
        ("wait_on_page_bit_common", "io"),
        ("jbd2_log_wait_commit", "io"),
        ("cv_wait_common", "io"),
        ("balance_dirty_pages", "io"),
        ("os_acquire_rwlock_write", "driver"),
        ("_nv045678rm", "driver"),
        ("uvm_va_space_down_write", "driver"),
        ("rwsem_down_write_slowpath", "lock"),
        ("__mutex_lock.constprop.0", "lock"),
        ("something_new", "other"),
        ("0", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_function_of_the_kernel_tells_what_is_waited_for(function: str, waits_for: str) -> None:
    assert wait(function) == waits_for


def test_every_state_has_its_series_and_a_wait_only_while_somebody_is_in_it() -> None:
    shown = [
        (sample.family.name, *sample.labels, sample.value)
        for sample in processes.samples([RunProcesses("llama", {"sleeping": 8, "uninterruptible": 1}, {"nfs": 1})])
    ]

    assert shown == [
        ("trainer_processes", "llama", "sleeping", 8),
        ("trainer_processes", "llama", "uninterruptible", 1),
        ("trainer_uninterruptible_processes", "llama", "nfs", 1),
    ]


def test_a_real_process_that_no_signal_reaches_is_uninterruptible(tmp_path: Path) -> None:
    waiting = subprocess.Popen([uninterruptible.build(tmp_path)])
    end = time.monotonic() + 60

    expected = {**NONE, "uninterruptible": 1, "sleeping": 1}  # it, and its child
    found: tuple[RunProcesses, ...] = ()
    while time.monotonic() < end and not (found and found[0].states == expected):
        time.sleep(0.02)
        found = States().of({waiting.pid: "tests"})

    waiting.kill()
    waiting.wait()
    assert found[0].states == expected
    assert sum(found[0].waits.values()) == 1


def test_a_real_process_runs_or_sleeps() -> None:
    (found,) = States().of({os.getpid(): "tests"})

    assert found.states["running"] + found.states["sleeping"] >= 1

"""Who writes a file: with real processes on the real /proc, and with a made-up one where a machine of another kind is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.sources.files import Identity, identity_of
from trainer_exporter.sources.holders import Holders

HOLD = "import sys; held = open(sys.argv[1], sys.argv[2]); print('open', flush=True); sys.stdin.read()"


class Holding:
    """A process that holds a file open until it is told to end."""

    def __init__(self, path: Path, mode: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"open\n"

    def end(self) -> None:
        self.process.communicate()


def identity(path: Path) -> Identity:
    return identity_of(path.stat())


def real_holders(**options: float) -> tuple[Holders, ManualClock]:
    """A scanner that takes nobody for its own: the test's children are what is looked for."""
    clock = ManualClock()
    return Holders(clock, own_pid=-1, **options), clock  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "held"), [("a", True), ("w", True), ("r+", True), ("r", False)])
def test_only_a_process_that_can_write_holds_a_file(tmp_path: Path, mode: str, held: bool) -> None:
    path = tmp_path / "train.log"
    path.touch()
    holding = Holding(path, mode)

    found = real_holders()[0].scan([identity(path)]).by

    assert [process.pid for process in found.get(identity(path), ())] == ([holding.process.pid] if held else [])
    holding.end()


def test_a_renamed_file_is_still_held(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    holding = Holding(path, "a")

    renamed = path.rename(tmp_path / "train.log.1")

    assert identity(renamed) in real_holders()[0].scan([identity(renamed)]).by
    holding.end()


def test_a_writer_that_ended_holds_nothing_and_is_not_alive(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    holding = Holding(path, "a")
    holders, _ = real_holders()
    (writer,) = holders.scan([identity(path)]).by[identity(path)]
    assert holders.alive(writer)

    holding.process.kill()
    holding.process.wait()

    assert not holders.alive(writer)
    assert holders.scan([identity(path)]).by == {}
    holding.end()


def test_a_process_that_opened_the_file_later_is_found_after_a_while(tmp_path: Path) -> None:
    path, script = tmp_path / "train.log", tmp_path / "late.py"
    script.write_text(
        "import sys\nprint('up', flush=True)\nsys.stdin.readline()\n"
        "held = open(sys.argv[1], 'a')\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    path.touch()
    late = subprocess.Popen([sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert late.stdin is not None and late.stdout is not None
    late.stdout.readline()
    holders, clock = real_holders(revisit_s=30)
    assert holders.scan([identity(path)]).by == {}

    late.stdin.write(b"\n")
    late.stdin.flush()
    late.stdout.readline()
    clock.advance(30)

    assert [process.pid for process in holders.scan([identity(path)]).by[identity(path)]] == [late.pid]
    late.communicate()


def test_a_new_file_is_looked_for_at_once_in_every_process(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.touch()
    holding = Holding(second, "a")
    holders, _ = real_holders()
    holders.scan([identity(first)])

    found = holders.scan([identity(first), identity(second)]).by

    assert identity(second) in found
    holding.end()


def test_our_own_process_and_its_children_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    holding = Holding(path, "a")

    with path.open("a"):
        found = Holders(ManualClock()).scan([identity(path)]).by

    assert found == {}
    holding.end()


def test_the_start_of_a_process_is_known_in_wall_time() -> None:
    started = real_holders()[0].started_wall(os.getpid())

    assert started is not None
    assert time.time() - 3600 < started <= time.time() + 1
    assert real_holders()[0].started_wall(2**22 + 1) is None


# -- machines of other kinds


class FakeProc:
    """Just enough of /proc for a few processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")

    def add(self, pid: int, *, name: str = "python", state: str = "S", kernel: bool = False, ticks: int = 100) -> Path:
        directory = self.root / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "fdinfo").mkdir()
        flags = 0x00200000 if kernel else 0x400000
        (directory / "stat").write_text(f"{pid} ({name}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0\n")
        return directory

    def hold(self, pid: int, path: Path, *, flags: str = "0102001", fd: int = 3) -> None:
        (self.root / str(pid) / "fd" / str(fd)).symlink_to(path)
        (self.root / str(pid) / "fdinfo" / str(fd)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t1\n")


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[FakeProc]:
    (tmp_path / "proc").mkdir()
    yield FakeProc(tmp_path / "proc")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "train.log").touch()
    return tmp_path / "train.log"


def scanner(proc: FakeProc) -> Holders:
    return Holders(ManualClock(), proc_root=str(proc.root), own_pid=99)


def test_where_every_process_was_seen_absence_is_proof(proc: FakeProc, log: Path) -> None:
    proc.add(2, name="kthreadd", kernel=True)
    proc.add(10)

    held = scanner(proc).scan([identity(log)])

    assert (held.by, held.complete) == ({}, True)


def test_a_process_that_cannot_be_looked_into_makes_absence_no_proof(proc: FakeProc, log: Path) -> None:
    proc.add(2, name="kthreadd", kernel=True)
    (proc.add(10) / "fd").rmdir()
    (proc.root / "10" / "fd").touch()

    assert not scanner(proc).scan([identity(log)]).complete


def test_in_a_container_other_processes_may_be_out_of_sight(proc: FakeProc, log: Path) -> None:
    proc.add(1)
    proc.hold(1, log)

    held = scanner(proc).scan([identity(log)])

    assert [process.pid for process in held.by[identity(log)]] == [1]
    assert not held.complete


@pytest.mark.parametrize(("state", "kernel"), [pytest.param("Z", False, id="zombie"), pytest.param("S", True, id="kernel_thread")])
def test_what_has_no_descriptors_is_not_looked_into(proc: FakeProc, log: Path, state: str, kernel: bool) -> None:
    proc.add(2, name="kthreadd", kernel=True)
    (proc.add(10, state=state, kernel=kernel) / "fd").rmdir()
    (proc.root / "10" / "fd").touch()

    assert scanner(proc).scan([identity(log)]).complete


def test_a_name_with_blanks_and_parentheses_is_read_past(proc: FakeProc, log: Path) -> None:
    proc.add(10, name="a) R 5 (b", ticks=700)
    proc.hold(10, log)

    (process,) = scanner(proc).scan([identity(log)]).by[identity(log)]

    assert (process.pid, process.started_ticks) == (10, 700)
    assert scanner(proc).started_wall(10) == pytest.approx(1_700_000_000 + 700 / os.sysconf("SC_CLK_TCK"))


def test_a_pid_that_was_given_to_another_process_is_not_the_writer(proc: FakeProc, log: Path) -> None:
    proc.add(10, ticks=100)
    proc.hold(10, log)
    holders = scanner(proc)
    (writer,) = holders.scan([identity(log)]).by[identity(log)]

    stat = proc.root / "10" / "stat"
    stat.write_text(stat.read_text().replace(" 100 0 0", " 900 0 0"))

    assert not holders.alive(writer)

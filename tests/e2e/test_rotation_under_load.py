"""A writer that is a process of its own, hundreds of rotations a minute, and a follower that keeps up: nothing lost or doubled.

The real program under the same load is tested end to end elsewhere; here only the follower stands between file and lines.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer_exporter.clock import SystemClock
from trainer_exporter.health import Health
from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.follow import Follower

LINES = 200_000
ROTATIONS = 1_000
DEADLINE_S = 60.0

# A writer waits for a look now and then, so that no slow moment of the machine rotates away what nobody can have seen.
# The time stamps of files move by ticks of some milliseconds, and more on a busy machine: a file that was cut and filled to the same size
# within one tick looks as if nothing had happened. So the writer waits for a tick first.
LOOKED = """
import os, shutil, sys, time
def wait_for_a_look():
    before = os.stat(path).st_mtime_ns
    while True:
        with open(path + "~", "w") as probe:
            probe.write("tick?")
        if os.stat(path + "~").st_mtime_ns > before:
            break
        time.sleep(0.001)
    sys.stdout.write("?")
    sys.stdout.flush()
    sys.stdin.read(1)
"""

RENAME = (
    LOOKED
    + """
path, lines, rotations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
out = open(path, "ab", buffering=0)
for number in range(lines):
    out.write(b"iteration %d loss 2.5\\n" % number)
    if number % (lines // rotations) == lines // rotations - 1:
        for old in range(30, 0, -1):
            if os.path.exists(f"{path}.{old}"):
                os.rename(f"{path}.{old}", f"{path}.{old + 1}")
        os.rename(path, path + ".1")
        out.write(b"late %d\\n" % number)
        out.close()
        out = open(path, "ab", buffering=0)
        if number // (lines // rotations) % 20 == 0:
            wait_for_a_look()
"""
)

# Waits with lines in the file: what is cut before a follower has seen any of it cannot be told from what was never there.
COPYTRUNCATE = (
    LOOKED
    + """
path, lines, rotations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
out = open(path, "ab", buffering=0)
for number in range(lines):
    out.write(b"iteration %d loss 2.5\\n" % number)
    place = number % (lines // rotations)
    if place == lines // rotations // 2:
        wait_for_a_look()
    if place == lines // rotations - 1:
        for old in range(30, 0, -1):
            if os.path.exists(f"{path}.{old}"):
                os.rename(f"{path}.{old}", f"{path}.{old + 1}")
        shutil.copyfile(path, path + ".1")
        os.truncate(path, 0)
"""
)

# As a C library's buffer does: full blocks, whatever line they end in.
KILLED = """
import os, signal, sys
out = open(sys.argv[1], "ab", buffering=0)
held = b""
for number in range(300_000):
    held += b"iteration %d loss 2.5\\n" % number
    if len(held) > 8192:
        out.write(held[:8192])
        if number > 200_000 and held[8191:8192] != b"\\n":
            os.kill(os.getpid(), signal.SIGKILL)
        held = held[8192:]
"""


def look(follower: Follower) -> list[Chunk | Change]:
    """All that one look gives: where there is more, the owner asks again at once."""
    items: list[Chunk | Change] = []
    more = True
    while more:
        polled = follower.poll()
        items += polled.items
        more = polled.more
    return items


def followed(path: Path, program: str, *arguments: str, pause_s: float) -> tuple[list[bytes], list[Change]]:
    """All lines given out while the program writes, and after that until nothing more comes."""
    path.touch()
    follower = Follower(str(path), SystemClock(), Health(), present_at_start=True)
    follower.poll()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writer = subprocess.Popen([sys.executable, "-c", program, str(path), *arguments], **pipes)
    assert writer.stdin is not None
    assert writer.stdout is not None
    data: list[bytes] = []
    changes: list[Change] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        over = writer.poll() is not None
        waiting = bool(select.select([writer.stdout], [], [], 0)[0]) and bool(writer.stdout.read(1))
        items = look(follower)
        data += [item.data for item in items if isinstance(item, Chunk)]
        changes += [item for item in items if isinstance(item, Change)]
        if waiting:
            writer.stdin.write(b"!")
            writer.stdin.flush()
        if over and not items:
            break
        time.sleep(pause_s)
    follower.close()
    return b"".join(data).splitlines(keepends=True), changes


@pytest.mark.parametrize("pause_s", [0.001, 0.05], ids=["quick_looks", "rare_looks"])
def test_every_line_comes_out_once_and_in_order_through_a_thousand_rotations(tmp_path: Path, pause_s: float) -> None:
    path = tmp_path / "train.log"

    lines, changes = followed(path, RENAME, str(LINES), str(ROTATIONS), pause_s=pause_s)

    each = LINES // ROTATIONS
    expected = []
    for number in range(LINES):
        expected.append(b"iteration %d loss 2.5\n" % number)
        if number % each == each - 1:
            expected.append(b"late %d\n" % number)
    assert len(lines) == len(expected)
    assert lines == expected
    assert changes.count(Change.ROTATED) == ROTATIONS


def test_every_line_comes_out_once_through_a_thousand_copies_and_cuts(tmp_path: Path) -> None:
    path = tmp_path / "train.log"

    lines, changes = followed(path, COPYTRUNCATE, str(LINES), str(ROTATIONS), pause_s=0.001)

    assert lines == [b"iteration %d loss 2.5\n" % number for number in range(LINES)]
    assert changes.count(Change.TRUNCATED) == ROTATIONS


def test_a_writer_killed_in_mid_line_leaves_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"

    lines, _ = followed(path, KILLED, pause_s=0.001)

    assert not path.read_bytes().endswith(b"\n")
    assert b"".join(lines) == path.read_bytes().rpartition(b"\n")[0] + b"\n"
    assert lines == [b"iteration %d loss 2.5\n" % number for number in range(len(lines))]

"""A followed file that is rotated, truncated, or vanishes: nothing of it is lost, and nothing is told twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_exporter.model import Change
from unit.following import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "train.log")
    yield made
    if made.follower is not None:
        made.follower.close()


# -- rename rotation


def test_a_rotated_file_is_read_to_its_end_first(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.write(b"two\n")
    scene.rename_away()
    scene.write(b"three\n")
    scene.poll()

    assert [chunk.data for chunk in scene.chunks] == [b"one\n", b"two\n", b"three\n"]
    assert [chunk.first_line for chunk in scene.chunks] == [1, 2, 1]
    assert scene.changes == [Change.APPEARED, Change.ROTATED]


def test_late_writes_to_a_rotated_file_come_before_the_new_ones(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    old = scene.rename_away()
    scene.write(b"")
    scene.poll()

    with old.open("ab") as late:
        late.write(b"late\n")
    scene.write(b"new\n")
    scene.poll()

    assert scene.text() == b"one\nlate\nnew\n"


def test_a_late_write_between_two_reads_of_one_look_still_comes_before_the_new_ones(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    old = scene.rename_away()
    scene.path.touch()
    scene.poll()

    def reopen_after_a_last_write() -> None:
        with old.open("ab") as late:
            late.write(b"late\n")
        scene.write(b"new\n")

    scene.files.after_next_pread = reopen_after_a_last_write
    scene.poll()

    assert scene.text() == b"one\nlate\nnew\n"


def test_a_writer_that_never_reopens_is_followed_in_its_renamed_file(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    old = scene.rename_away()
    scene.path.touch()

    for number in range(5):
        scene.clock.advance(600)
        scene.poll()
        with old.open("ab") as late:
            late.write(b"step %d\n" % number)
    scene.poll()

    assert scene.text() == b"one\nstep 0\nstep 1\nstep 2\nstep 3\nstep 4\n"


def test_the_half_line_of_a_rotated_file_is_given_out_when_it_is_certainly_over(scene: Scene) -> None:
    scene.write(b"whole\nhalf")
    scene.follow()
    scene.poll()
    scene.rename_away()
    scene.write(b"new\n")
    scene.poll()
    assert scene.text() == b"whole\nnew\n"

    scene.clock.advance(6)
    scene.poll()

    assert scene.chunks[-1].data == b"half"
    assert scene.chunks[-1].first_line == 2
    assert len(scene.files.open_now) == 1


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([".3", ".2", ".1"], id="numbers_shift"),
        pytest.param([".000001", ".000002", ".000003"], id="numbers_count_on"),
        pytest.param(["-20250101", "-20250102", "-20250103"], id="dates"),
        pytest.param([".2025-01-01_09", ".2025-01-01_10", ".2025-01-01_11"], id="timed"),
    ],
)
def test_several_rotations_between_two_looks_lose_nothing(scene: Scene, names: list[str]) -> None:
    scene.write(b"a1\n")
    scene.follow()
    scene.poll()

    for number, name in enumerate(names):
        scene.write(b"file %d\n" % number)
        scene.rename_away(name)
    scene.write(b"last\n")
    scene.poll()

    assert scene.text() == b"a1\nfile 0\nfile 1\nfile 2\nlast\n"
    assert scene.changes == [Change.APPEARED] + [Change.ROTATED] * 3


def test_older_rotated_files_are_left_alone(scene: Scene) -> None:
    for age, suffix in enumerate([".2", ".3", ".4"]):
        older = scene.path.with_name("train.log" + suffix)
        older.write_bytes(b"long ago\n")
        os.utime(older, (1_000_000_000 - age, 1_000_000_000 - age))
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.rename_away(".1")
    scene.write(b"two\n")
    scene.poll()

    assert scene.text() == b"one\ntwo\n"


def test_a_neighbour_whose_name_only_looks_alike_is_left_alone(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.path.unlink()
    scene.path.with_name("train.log.1").write_bytes(b"rank 1 writes here\n")
    scene.write(b"two\n")
    scene.poll()

    assert scene.text() == b"one\ntwo\n"


# -- truncation


def test_a_truncated_file_is_read_from_its_beginning(scene: Scene) -> None:
    scene.write(b"one\ntwo\n")
    scene.follow(present=True)
    scene.poll()

    scene.path.write_bytes(b"new\n")
    scene.poll()

    assert [(chunk.data, chunk.live, chunk.first_line) for chunk in scene.chunks] == [
        (b"one\ntwo\n", False, 1),
        (b"new\n", True, 1),
    ]
    assert scene.changes == [Change.APPEARED, Change.TRUNCATED]


@pytest.mark.parametrize("refilled", [b"zzz\nyyy\n", b"zzz\nyyy\nxxx\nwww\n"], ids=["to_the_same_size", "beyond"])
def test_a_file_truncated_and_refilled_between_two_looks_is_noticed(scene: Scene, refilled: bytes) -> None:
    scene.write(b"one\ntwo\n")
    scene.follow()
    scene.poll()

    scene.path.write_bytes(refilled)
    os.utime(scene.path, (2_000_000_000, 2_000_000_000))
    scene.poll()

    assert scene.text() == b"one\ntwo\n" + refilled
    assert scene.changes == [Change.APPEARED, Change.TRUNCATED]


def test_a_file_with_the_same_first_lines_is_not_taken_for_the_old_one(scene: Scene) -> None:
    banner = b"".join(b"banner line %d\n" % number for number in range(100))
    scene.write(banner + b"step 1\n")
    scene.follow()
    scene.poll()

    scene.path.write_bytes(banner + b"step 7\nstep 8\n")
    scene.poll()

    assert scene.text() == banner + b"step 1\n" + banner + b"step 7\nstep 8\n"


def test_the_copy_beside_a_truncated_file_gives_what_was_not_read_yet(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.write(b"two\nthr")
    shutil.copy(scene.path, scene.path.with_name("train.log.1"))
    os.truncate(scene.path, 0)
    scene.write(b"ee\nfour\n")
    scene.poll()

    assert scene.text() == b"one\ntwo\nthree\nfour\n"
    assert scene.changes == [Change.APPEARED, Change.TRUNCATED]


def test_a_writer_that_keeps_its_offset_leaves_a_hole_which_is_skipped(scene: Scene) -> None:
    with scene.path.open("wb", buffering=0) as writer:
        writer.write(b"x" * 99_999 + b"\n")
        scene.follow()
        scene.poll()

        os.truncate(scene.path, 0)
        writer.write(b"after the cut\n")
        scene.poll()

    assert scene.chunks[-1].data == b"after the cut\n"
    assert scene.changes[-1] is Change.TRUNCATED


def test_nuls_that_turn_into_text_later_are_no_truncation(scene: Scene) -> None:
    scene.write(b"one\n\0\0\0\0\ntwo\n")
    scene.follow()
    scene.poll()

    with scene.path.open("r+b") as writer:
        writer.seek(4)
        writer.write(b"text")
    scene.write(b"three\n")
    scene.poll()

    assert scene.changes == [Change.APPEARED]
    assert scene.chunks[-1].data == b"three\n"


# -- vanishing


def test_a_vanished_file_is_given_up_after_a_while_and_its_half_line_given_out(scene: Scene) -> None:
    scene.write(b"one\nhalf")
    scene.follow()
    scene.poll()
    scene.path.unlink()
    scene.poll()
    assert scene.changes == [Change.APPEARED]

    scene.clock.advance(6)
    scene.poll()

    assert scene.text() == b"one\nhalf"
    assert scene.changes == [Change.APPEARED, Change.VANISHED]
    assert scene.files.open_now == set()


def test_an_idle_file_whose_directory_was_removed_is_given_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "job" / "train.log")
    scene.path.parent.mkdir()
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    scene.clock.advance(61)
    scene.poll()
    assert not scene.files.open_now

    shutil.rmtree(scene.path.parent)
    scene.poll()
    scene.clock.advance(6)
    scene.poll()

    assert scene.changes[-1] is Change.VANISHED
    assert scene.follower is not None
    assert scene.follower.inode == 0
    assert scene.health.snapshot().errors == {}


def test_a_file_created_anew_after_it_vanished_is_live_from_its_first_byte(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow(present=True)
    scene.poll()
    scene.path.unlink()
    scene.poll()
    scene.clock.advance(6)
    scene.poll()

    scene.write(b"one\ntwo\n")
    scene.poll()

    assert [(chunk.data, chunk.live) for chunk in scene.chunks] == [(b"one\n", False), (b"one\ntwo\n", True)]
    assert scene.changes == [Change.APPEARED, Change.VANISHED, Change.APPEARED]


def test_a_file_deleted_and_created_between_two_looks_is_read_from_its_beginning(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.path.unlink()
    scene.write(b"one\ntwo\n")
    scene.poll()

    assert scene.text() == b"one\none\ntwo\n"

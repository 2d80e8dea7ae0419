"""A followed file that cannot be read, and any order of all that may happen to it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.follow import Polled
from unit.following import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "train.log")
    yield made
    if made.follower is not None:
        made.follower.close()


# -- what cannot be read


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        ("open", errno.EACCES, "permission"),
        ("pread", errno.EIO, "io"),
        ("pread", errno.ESTALE, "stale"),
        ("stat", errno.ESTALE, "stale"),
        ("open", errno.EMFILE, "too_many_files"),
    ],
)
def test_a_failure_to_read_is_counted_by_reason_and_tried_again(scene: Scene, call: str, error: int, word: str) -> None:
    scene.write(b"one\n")
    scene.files.failing[call] = error
    scene.follow()
    scene.poll()
    assert scene.follower is not None
    assert scene.follower.error == word
    assert scene.health.snapshot().errors == {("follow", word): 1}

    scene.files.failing.clear()
    scene.clock.advance(5)

    assert scene.new() == b"one\n"
    assert scene.follower.error == ""


def test_a_rotated_file_that_cannot_be_read_to_its_end_is_left_for_the_new_one(scene: Scene) -> None:
    scene.write(b"one\nhalf")
    scene.follow()
    scene.poll()
    scene.write(b" lost\n")
    scene.rename_away()
    scene.write(b"new\n")

    scene.files.failing["pread"] = errno.ESTALE
    scene.poll()
    scene.files.failing.clear()
    scene.clock.advance(5)
    scene.poll()

    assert [chunk.data for chunk in scene.chunks] == [b"one\n", b"half", b"new\n"]
    assert len(scene.files.open_now) == 1


def test_a_rotation_without_free_descriptors_is_made_up_for_later(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    for number in (2, 1):
        scene.write(b"file %d\n" % number)
        scene.rename_away(f".{number}")
    scene.write(b"last\n")

    scene.files.fail_after_opens = 1
    scene.poll()
    scene.files.fail_after_opens = None
    scene.clock.advance(5)
    scene.poll()

    assert scene.text() == b"one\nfile 2\nfile 1\nlast\n"
    assert scene.health.snapshot().errors == {("follow", "too_many_files"): 1}


def test_what_is_no_regular_file_is_refused_without_blocking(scene: Scene) -> None:
    os.mkfifo(scene.path)
    scene.follow()

    scene.poll()

    assert scene.health.snapshot().errors == {("follow", "irregular"): 1}


def test_the_old_file_is_still_read_while_the_new_one_cannot_be_opened(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    scene.write(b"two\n")
    scene.rename_away()
    scene.write(b"three\n")

    scene.files.failing["open"] = errno.EACCES
    scene.poll()
    assert scene.text() == b"one\ntwo\n"
    scene.files.failing.clear()
    scene.clock.advance(5)
    scene.poll()

    assert scene.text() == b"one\ntwo\nthree\n"


def test_nothing_is_done_but_one_stat_when_nothing_moves(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()

    scene.files.failing.update(open=errno.EIO, pread=errno.EIO)

    assert scene.poll() == Polled()
    assert scene.health.snapshot().errors == {}


# -- any order of events


class Story:
    """A writer and its rotations; knows which pieces (ended by newline or redraw) a follower must give out."""

    EVENTS = ("line", "lines", "torn", "redraw", "rename", "copytruncate", "truncate", "delete", "poll", "idle", "linger")

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.count = 0
        self.pieces: list[bytes] = []
        self.half = b""
        self.left_halves: list[bytes] = []  # at the end of a file that is over
        self.unseen = False
        self.recreated = False

    def happen(self, event: str) -> None:
        getattr(self, event)()

    def number(self) -> bytes:
        self.count += 1
        return b"line %d %s" % (self.count, b"x" * (self.count % 7))

    def write(self, data: bytes) -> None:
        self.scene.write(data)
        *pieces, self.half = (self.half + data).replace(b"\r", b"\n").split(b"\n")
        self.pieces += [piece for piece in pieces if piece]

    def line(self) -> None:
        self.write(self.number() + b"\n")

    def lines(self) -> None:
        self.write(b"".join(self.number() + b"\n" for _ in range(20)))

    def torn(self) -> None:
        self.write(self.number())

    def redraw(self) -> None:
        self.write(b"\r" + self.number())

    def poll(self) -> None:
        self.scene.poll()
        self.unseen = False
        self.recreated = not self.scene.path.exists()

    def idle(self) -> None:
        self.poll()
        self.scene.clock.advance(100)
        self.poll()

    def linger(self) -> None:
        self.scene.clock.advance(6)

    def rename(self) -> None:
        """A file that came and was rotated away before anybody saw it cannot be told from a stranger's."""
        if self.recreated or not (self.scene.follower and self.scene.follower.inode):
            self.poll()
        if self.scene.path.exists():
            self._shift()
            self.scene.rename_away()
            self.scene.path.touch()
            self.unseen = True
            self._leave_half()

    def copytruncate(self) -> None:
        """Lossless only where the follower has begun to read the file that is cut."""
        if self.unseen or self.recreated or (self.scene.follower is not None and self.scene.follower.position == 0):
            self.poll()
        if self.scene.path.exists():
            self._shift()
            shutil.copy2(self.scene.path, self.scene.path.with_name("train.log.1"))
            os.truncate(self.scene.path, 0)

    def truncate(self) -> None:
        self.poll()
        if self.scene.path.exists() and self.scene.path.stat().st_size:
            os.truncate(self.scene.path, 0)
            self.unseen = True
            self._leave_half()

    def delete(self) -> None:
        self.poll()
        if self.scene.path.exists():
            self.scene.path.unlink()
            self.recreated = True
            self._leave_half()

    def _leave_half(self) -> None:
        self.left_halves.append(self.half)
        self.half = b""

    def _shift(self) -> None:
        for number in range(80, 0, -1):
            older = self.scene.path.with_name(f"train.log.{number}")
            if older.exists():
                older.rename(older.with_name(f"train.log.{number + 1}"))


@settings(max_examples=200, deadline=None)
@given(events=st.lists(st.sampled_from(Story.EVENTS), max_size=50))
def test_every_piece_that_could_be_read_comes_out_once_and_in_order(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    scene = Scene(tmp_path_factory.mktemp("any") / "train.log")
    scene.follow(block_bytes=37, poll_bytes=200)
    story = Story(scene)

    for event in events:
        story.happen(event)
    scene.poll()

    ended = [chunk.data for chunk in scene.chunks if chunk.data.endswith((b"\n", b"\r"))]
    halves = [chunk.data for chunk in scene.chunks if not chunk.data.endswith((b"\n", b"\r"))]
    assert [piece for piece in b"".join(ended).replace(b"\r", b"\n").split(b"\n") if piece] == story.pieces
    assert set(halves) <= set(story.left_halves)
    assert scene.follower is not None
    scene.follower.close()
    assert scene.files.open_now == set()


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.truncate()
        file.write(data)


def test_a_large_file_that_is_written_anew_while_a_block_is_read_gives_no_bytes_of_both(scene: Scene) -> None:
    before, after = (b"".join(b"%s %06d\n" % (word, line) for line in range(60_000)) for word in (b"old", b"new"))
    scene.write(before)
    scene.follow(present=True, block_bytes=200_000, poll_bytes=200_000)
    assert scene.follower is not None
    first = b"".join(item.data for item in scene.follower.poll().items if isinstance(item, Chunk))

    scene.files.after_next_pread = lambda: overwrite(scene.path, after)
    scene.poll()

    assert before.startswith(first) and len(first) > 190_000
    assert scene.text() == after
    assert Change.TRUNCATED in scene.changes

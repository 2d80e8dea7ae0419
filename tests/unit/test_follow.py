"""One path -> complete lines, on a real file system; only time stands still."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.clock import ManualClock
from trainer_exporter.health import Health
from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.files import SystemFiles
from trainer_exporter.sources.follow import Follower, Limits, Polled
from trainer_exporter.sources.pieces import Splitter


class Scene:
    """A follower, what it gave out so far, and the hands that move its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.health = Health()
        self.files = FaultyFiles()
        self.chunks: list[Chunk] = []
        self.changes: list[Change] = []
        self.follower: Follower | None = None

    def follow(self, *, present: bool = False, **limits: float) -> None:
        self.follower = Follower(
            str(self.path),
            self.clock,
            self.health,
            present_at_start=present,
            limits=Limits(**limits),  # type: ignore[arg-type]
            files=self.files,
        )

    def poll(self) -> Polled:
        """Poll until the follower says that there is no more."""
        assert self.follower is not None
        while True:
            polled = self.follower.poll()
            for item in polled.items:
                (self.chunks if isinstance(item, Chunk) else self.changes).append(item)  # type: ignore[attr-defined]
            if not polled.more:
                return polled

    def new(self) -> bytes:
        """What one look gives."""
        before = len(self.chunks)
        self.poll()
        return b"".join(chunk.data for chunk in self.chunks[before:])

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as out:
            out.write(data)

    def rename_away(self, suffix: str = ".1") -> Path:
        return self.path.rename(self.path.with_name(self.path.name + suffix))

    def text(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)


class FaultyFiles(SystemFiles):
    """The real files, but for the call that a test wants to fail."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.open_now: set[int] = set()
        self.fail_after_opens: int | None = None
        self.after_next_pread: Callable[[], None] | None = None

    def stat(self, path: str) -> os.stat_result:  # type: ignore[override]
        self._maybe_fail("stat")
        return os.stat(path)  # noqa: PTH116 - the call that is watched

    def open(self, path: str) -> int:  # type: ignore[override]
        self._maybe_fail("open")
        if self.fail_after_opens is not None:
            if self.fail_after_opens == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.fail_after_opens -= 1
        fd = SystemFiles.open(path)
        self.open_now.add(fd)
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        self._maybe_fail("pread")
        data = os.pread(fd, size, offset)
        event, self.after_next_pread = self.after_next_pread, None
        if event is not None:
            event()
        return data

    def close(self, fd: int) -> None:  # type: ignore[override]
        self.open_now.discard(fd)
        os.close(fd)

    def _maybe_fail(self, call: str) -> None:
        if call in self.failing:
            raise OSError(self.failing[call], os.strerror(self.failing[call]))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "train.log")
    yield made
    if made.follower is not None:
        made.follower.close()


# -- growth, history, numbers


def test_lines_come_out_as_they_are_written(scene: Scene) -> None:
    scene.write(b"one\n")
    scene.follow()
    assert scene.new() == b"one\n"

    scene.write(b"two\nthree\n")

    assert scene.new() == b"two\nthree\n"
    assert [chunk.first_line for chunk in scene.chunks] == [1, 2]
    assert scene.changes == [Change.APPEARED]


def test_a_file_that_is_not_there_yet_is_no_error(scene: Scene) -> None:
    scene.follow()
    assert scene.poll() == Polled()

    scene.write(b"first\n")

    assert scene.new() == b"first\n"
    assert scene.chunks[0].live
    assert scene.health.snapshot().errors == {}


def test_what_stood_there_at_start_is_history_and_the_rest_is_live(scene: Scene) -> None:
    scene.write(b"old 1\nold 2\nhal")
    scene.follow(present=True)
    scene.poll()

    scene.write(b"f new\nnew\n")
    scene.poll()

    assert [(chunk.data, chunk.live, chunk.first_line) for chunk in scene.chunks] == [
        (b"old 1\nold 2\n", False, 1),
        (b"half new\nnew\n", True, 3),
    ]


def test_history_is_caught_up_only_when_all_of_it_was_given_out(scene: Scene) -> None:
    scene.write(b"123456789\n" * 10)
    scene.follow(present=True, block_bytes=20, poll_bytes=40)
    assert scene.follower is not None

    looks = [scene.follower.poll() for _ in range(3)]

    assert [(look.more, look.caught_up) for look in looks] == [(True, False), (True, False), (False, True)]
    assert scene.follower.lag_bytes == 0


def test_bytes_written_after_the_first_look_are_live_though_history_is_not_read_yet(scene: Scene) -> None:
    scene.write(b"history\n" * 4)
    scene.follow(present=True, block_bytes=8, poll_bytes=8)
    assert scene.follower is not None
    first = scene.follower.poll()

    scene.write(b"news\n")
    scene.poll()

    assert first.more
    assert [chunk.live for chunk in scene.chunks] == [False, False, False, True]
    assert scene.chunks[-1].data == b"news\n"


def test_history_ends_early_where_the_file_was_cut_while_it_was_read(scene: Scene) -> None:
    scene.write(b"history\n" * 4)
    scene.follow(present=True, block_bytes=8, poll_bytes=8)
    assert scene.follower is not None
    scene.chunks += [item for item in scene.follower.poll().items if isinstance(item, Chunk)]

    os.truncate(scene.path, 16)
    scene.poll()
    scene.write(b"news\n")
    scene.poll()

    assert [(chunk.data, chunk.live) for chunk in scene.chunks] == [
        (b"history\n", False),
        (b"history\n", False),
        (b"news\n", True),
    ]


def test_a_file_expected_at_start_that_comes_later_is_live(scene: Scene) -> None:
    scene.follow(present=True)
    scene.poll()

    scene.write(b"one\n")
    scene.poll()

    assert scene.chunks[0].live


def test_a_start_beyond_the_bound_of_history_begins_at_a_whole_line_and_is_counted(scene: Scene) -> None:
    scene.write(b"too old\n" * 10 + b"young 1\nyoung 2\n")
    scene.follow(present=True, history_bytes=20)

    scene.poll()

    assert scene.text() == b"young 1\nyoung 2\n"
    assert scene.chunks[0].first_line == 1
    assert scene.health.snapshot().dropped == {"history_bytes": 76}


# -- halves, redraws, odd bytes


def test_a_half_line_waits_for_its_newline(scene: Scene) -> None:
    scene.follow()
    scene.write(b"{'loss': 1.2")
    assert scene.new() == b""

    scene.write(b"345}\n")

    assert scene.new() == b"{'loss': 1.2345}\n"


def test_a_redraw_comes_out_when_the_next_one_begins(scene: Scene) -> None:
    scene.write(b"start\n")
    scene.follow()
    scene.poll()

    scene.write(b"\r 10% 1/10")
    first = scene.new()
    scene.write(b"\r 20% 2/10")
    second = scene.new()
    scene.write(b"\n")

    assert (first, second, scene.new()) == (b"\r", b" 10% 1/10\r", b" 20% 2/10\n")
    assert [chunk.first_line for chunk in scene.chunks] == [1, 2, 2, 2]
    scene.write(b"next\n")
    scene.poll()
    assert scene.chunks[-1].first_line == 3


def test_megabytes_of_redraws_without_a_newline_come_out_whole(scene: Scene) -> None:
    bars = b"".join(b"\r%7d/9999999 [00:01<00:00, 1.00it/s]" % number for number in range(60_000))
    scene.follow(line_bytes=1024)

    scene.write(bars + b"\n")

    assert scene.new() == bars + b"\n"
    assert scene.health.snapshot().dropped == {}
    assert {chunk.first_line for chunk in scene.chunks} == {1}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"a\0\0b\0\n\0\0\n", id="nul"),
        pytest.param(b"\xff\xfe\x80 loss \xc3\n", id="broken_utf8"),
        pytest.param(b"a\r\nb\r\n", id="crlf"),
        pytest.param(b"\n\n\n", id="empty_lines"),
        pytest.param(b"\x1b[A\x1b[2K{'loss': 1}\n", id="escapes"),
    ],
)
def test_odd_bytes_pass_untouched(scene: Scene, data: bytes) -> None:
    scene.follow()

    scene.write(data)

    assert scene.new() == data


@pytest.mark.parametrize("block", [1, 7, 10, 11, 64, 1000])
def test_an_over_long_line_is_cut_counted_and_skipped_to_its_end(scene: Scene, block: int) -> None:
    scene.follow(line_bytes=10, block_bytes=block)

    scene.write(b"before\n" + b"x" * 500 + b"\nafter\n" + b"y" * 10 + b"\n")

    assert scene.new() == b"before\n" + b"x" * 10 + b"\nafter\n" + b"y" * 10 + b"\n"
    assert scene.chunks[0].first_line == 1
    assert scene.health.snapshot().dropped == {"long_line": 1}
    assert scene.follower is not None
    assert scene.follower.lines == 4


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"ccccccc", b"\r\n"]), max_size=40),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
)
def test_blocks_of_any_size_give_the_same_bytes(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    splitter = Splitter(1000)

    out, at = b"", 0
    for turn in range(len(data) + 1):
        size = sizes[turn % len(sizes)]
        out += splitter.feed(data[at : at + size], at_end=turn % 2 == 0)
        at += size

    assert out + splitter.flush() == data
    assert splitter.line == 1 + data.count(b"\n")


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(st.integers(0, 40), max_size=12),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=12),
)
def test_cut_lines_are_the_same_whatever_the_blocks_are(lines: list[int], sizes: list[int]) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lines)
    splitter = Splitter(10)

    out, at = b"", 0
    for turn in range(len(data) + 1):
        size = sizes[turn % len(sizes)]
        out += splitter.feed(data[at : at + size], at_end=True)
        at += size

    assert out == b"".join(b"x" * min(length, 10) + b"\n" for length in lines)
    assert splitter.cuts == sum(length > 10 for length in lines)


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


# -- descriptors


def test_an_idle_file_is_closed_and_read_on_where_it_was_left(scene: Scene) -> None:
    scene.write(b"one\nha")
    scene.follow()
    scene.poll()
    scene.clock.advance(61)
    scene.poll()
    assert scene.files.open_now == set()

    scene.write(b"lf\n")

    assert scene.new() == b"half\n"
    assert scene.changes == [Change.APPEARED]


def test_a_file_that_was_idle_long_before_the_start_is_closed_as_soon_as_it_is_read(scene: Scene) -> None:
    scene.write(b"one\n")
    os.utime(scene.path, (scene.clock.wall() - 3600, scene.clock.wall() - 3600))
    scene.follow(present=True)

    scene.poll()
    scene.poll()

    assert scene.text() == b"one\n"
    assert scene.files.open_now == set()


@pytest.mark.parametrize("suffix", [".1", "-20250101"])
def test_an_idle_file_that_was_written_and_rotated_at_once_is_found_under_its_new_name(scene: Scene, suffix: str) -> None:
    scene.write(b"one\n")
    scene.follow()
    scene.poll()
    scene.clock.advance(61)
    scene.poll()

    scene.write(b"two\n")
    scene.rename_away(suffix)
    scene.write(b"three\n")
    scene.poll()

    assert scene.text() == b"one\ntwo\nthree\n"
    assert scene.changes == [Change.APPEARED, Change.ROTATED]


def test_an_idle_file_truncated_while_closed_is_read_from_its_beginning(scene: Scene) -> None:
    scene.write(b"one\ntwo\n")
    scene.follow()
    scene.poll()
    scene.clock.advance(61)
    scene.poll()

    scene.path.write_bytes(b"x\n")

    assert scene.new() == b"x\n"
    assert scene.changes[-1] is Change.TRUNCATED


def test_a_new_file_that_was_given_the_inode_of_the_old_one_is_not_taken_for_it(scene: Scene) -> None:
    scene.write(b"one\ntwo\n")
    scene.follow()
    scene.poll()
    scene.clock.advance(61)
    scene.poll()

    with scene.path.open("r+b") as same_inode:
        same_inode.write(b"another file\n")

    assert scene.new() == b"another file\n"


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

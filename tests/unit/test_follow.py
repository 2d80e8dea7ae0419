"""One path -> complete lines, on a real file system; only time stands still."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.follow import Polled
from trainer_exporter.sources.pieces import Splitter
from unit.following import Scene


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

"""What no byte stream may do: break the reading, invent a value, eat the memory or the time, or be read otherwise in other chunks."""

from __future__ import annotations

import random
import timeit
import tracemalloc
from functools import partial
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import CASES, FIXTURES, KEPT_BYTES, LINES, LONG, UNITS, case_id, events, readers, truth, untrue, values
from trainer_exporter.formats import registry
from trainer_exporter.formats.base import Format
from trainer_exporter.intake import Intake
from trainer_exporter.model import FIELDS, Chunk, Line, Record

SLOW_S = 0.25  # of this process's time; a line that takes time in proportion to its length takes a tenth of it
CUTS = 25  # of each fixture; the long run makes them all


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_a_file_cut_anywhere_says_nothing_that_the_whole_does_not_say(path: Path) -> None:
    data = (path / "input.log").read_bytes()[:KEPT_BYTES]
    said = truth(data)
    cuts = random.Random(path.name).choices(range(len(data)), k=CUTS)

    assert {cut: wrong for cut in cuts if (wrong := untrue(events(data[:cut]), said))} == {}


@pytest.mark.parametrize("one", registry(), ids=lambda one: one.name)
@pytest.mark.parametrize("head", ['{"loss": ', '{"current_steps": 1, "total_steps": 9, "loss": ', '{"step": 1, "loss": '])
def test_brackets_without_end_are_survived(one: Format, head: str) -> None:
    for depth in (1900, 60_000):
        one.parser().parse(Line(head + "[" * depth, 1))


def test_a_closing_word_is_heard_without_a_line_end() -> None:
    data = (FIXTURES / "torchtitan" / "plain" / "input.log").read_bytes()

    *_, last = events(data.rstrip(b"\n"))

    assert isinstance(last, Record)
    assert last.closes


hostile = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(LINES),
    st.builds(lambda line, at, junk: line[:at] + junk + line[at:], st.sampled_from(LINES), st.integers(0, 600), st.binary(max_size=8)),
    st.builds(lambda one, at, other: one[:at] + other, st.sampled_from(LINES), st.integers(0, 600), st.sampled_from(LINES)),
    st.builds(
        lambda line, digits: line.replace(b"1", digits),
        st.sampled_from(LINES),
        st.sampled_from([b"9" * 5000, b"-1", b"1e999", b"\xd9\xa3"]),
    ),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(hostile, max_size=12), st.sampled_from([b"\n", b"\r", b"\r\n"]), st.lists(st.integers(0, 4000), max_size=4))
def test_no_stream_breaks_it_however_it_comes(lines: list[bytes], end: bytes, ends: list[int]) -> None:
    found = events(end.join(lines), sorted(ends))

    for event in found:
        assert event.line >= 1
        assert not isinstance(event, Record) or event.fields.keys() <= FIELDS


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 60_000), max_size=6))
def test_the_same_is_read_whatever_the_chunks(path: Path, cuts: list[int]) -> None:
    data = (path / "input.log").read_bytes()
    ends = sorted({data.rfind(b"\n", 0, cut) + 1 for cut in cuts})

    assert values(events(data, ends)) == values(events(data))


@pytest.mark.parametrize("piece", [b"x", b"loss", b"'loss': 1, ", b"9", b"[", b"\x1b["])
def test_a_file_without_line_ends_is_held_in_little_memory(piece: bytes) -> None:
    block = piece * (200_000 // len(piece))
    reader = Intake(registry())
    tracemalloc.start()

    for _ in range(20):
        reader.feed(Chunk(block + b"\r", 1, 0.0, live=True))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 3_000_000


@pytest.mark.parametrize("unit", UNITS[::5])
def test_no_pattern_goes_through_a_long_line_again_and_again(unit: str) -> None:
    text = (unit * LONG)[:LONG]

    took = {name: min(timeit.repeat(partial(read, text), timer=process_time, number=1, repeat=2)) for name, read in readers()}

    assert {name: seconds for name, seconds in took.items() if seconds > SLOW_S} == {}

"""What no byte stream may do: break the reading, invent a value, eat the memory, or be read otherwise when it comes in other chunks."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.formats import registry
from trainer_exporter.intake import Event, Intake
from trainer_exporter.model import FIELDS, Chunk, Record

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/input.log"))
LINES = sorted({line for path in CASES for line in (path / "input.log").read_bytes().split(b"\n") if 0 < len(line) < 600})
KEPT_BYTES = 6000  # of a fixture
ODD_NUMBERS = [b"9" * 5000, b"-1", b"1e999", b"nan", b"\xd9\xa3"]  # the last is a digit of another script
CUTS = 25  # of each fixture; the long run makes them all


def case_id(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def chunks(data: bytes, ends: Sequence[int]) -> Iterator[Chunk]:
    number, start = 1, 0
    for end in (*ends, len(data)):
        if end > start:
            yield Chunk(data[start:end], number, 0.0, live=True)
            number += data.count(b"\n", start, end)
            start = end


def events(data: bytes, ends: Sequence[int] = ()) -> list[Event]:
    reader = Intake(registry())
    return [*(event for chunk in chunks(data, ends) for event in reader.feed(chunk)), *reader.flush()]


def told(record: Record) -> dict[str, object]:
    """All that a record says; NaN equals itself here. A step that a bar lent is known to lag."""
    said: dict[str, object] = {**record.fields, **record.metrics, **record.facts}
    said |= {f"hidden {name}": True for name in record.hidden_nonfinite}
    if record.checkpoint is not None:
        said["checkpoint"] = record.checkpoint
    if not record.step_exact:
        said.pop("step", None)
    return {key: "nan" if isinstance(value, float) and math.isnan(value) else value for key, value in said.items()}


def truth(data: bytes) -> dict[tuple[int, str], list[object]]:
    """What each line says of each thing, read at once, line by line and redraw by redraw."""
    said: dict[tuple[int, str], list[object]] = defaultdict(list)
    for ends_of in (b"", b"\n", b"\r\n"):
        for event in events(data, [at + 1 for at, byte in enumerate(data) if byte in ends_of]):
            if isinstance(event, Record):
                for key, value in told(event).items():
                    said[event.line, key].append(value)
    return said


def untrue(data: bytes, said: dict[tuple[int, str], list[object]]) -> list[tuple[int, str, object]]:
    """What is read in the data and was not said in the whole file."""
    read = [event for event in events(data) if isinstance(event, Record)]
    return [(record.line, key, value) for record in read for key, value in told(record).items() if value not in said[record.line, key]]


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_a_file_cut_anywhere_says_nothing_that_the_whole_does_not_say(path: Path) -> None:
    data = (path / "input.log").read_bytes()[:KEPT_BYTES]
    said = truth(data)
    cuts = random.Random(path.name).choices(range(len(data)), k=CUTS)

    assert {cut: untrue(data[:cut], said) for cut in cuts if untrue(data[:cut], said)} == {}


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


def values(found: Sequence[Event]) -> list[tuple[int, dict[str, object]]]:
    """The values that stand in the lines themselves."""
    lent = {"step", "target_steps", "elapsed_seconds", "remaining_seconds"}
    read = [(event.line, told(event)) for event in found if isinstance(event, Record)]
    bare = [(line, {key: value for key, value in said.items() if key not in lent}) for line, said in read]
    return [(line, said) for line, said in bare if said]


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

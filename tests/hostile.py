"""Hostile input for the reading of logs, and what is told of it in a form that can be compared. Shared by the tests and the long run."""

from __future__ import annotations

import copy
import copyreg
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from trainer_exporter import envelope, incidents, torn
from trainer_exporter.formats import registry
from trainer_exporter.intake import Event, Intake
from trainer_exporter.model import Chunk, Line, Malformed, Record
from trainer_exporter.numbers import NUMBER, number

FIXTURES = Path(__file__).parent / "formats" / "fixtures"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/input.log"))
LINES = sorted({line for path in CASES for line in (path / "input.log").read_bytes().split(b"\n") if 0 < len(line) < 600})
ODD_NUMBERS = [b"9" * 5000, b"-1", b"1e999", b"nan", b"\xd9\xa3"]  # the last is a digit of another script
KEPT_BYTES = 6000  # of a fixture that is cut
BROKEN = "broken"  # key of what stands in a line that no format could read
LONG = 65536  # characters of the longest line that is looked at
UNITS = [*"0a_ [({<=:,.-|/%'\"*é→\t", "0 ", "0,", "0.", "a ", "a=1 ", "a: 1, ", "a: 1 | ", "'a': 1, ", "[a] ", "(a) ", "1/1 ", "00:00:00 "]
UNITS += [
    "2026-01-01 00:00:00 ",
    "loss: 1 ",
    "step 1 ",
    "e-1",
    "nan ",
    "[1",
    "a.",
    "Error: ",
    "a.Error",
    '"a": 1, ',
    "a-",
    "x=1, ",
    "1%|",
    "[a1]:",
]

copyreg.pickle(MappingProxyType, lambda view: (MappingProxyType, (dict(view),)))  # a parser's state is copied with the record that it holds


def case_id(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def chunks(data: bytes, ends: Sequence[int]) -> Iterator[Chunk]:
    """The data as it is found when the file has grown to each of the ends."""
    number_of_line, start = 1, 0
    for end in (*ends, len(data)):
        if end > start:
            yield Chunk(data[start:end], number_of_line, 0.0, live=True)
            number_of_line += data.count(b"\n", start, end)
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
    """What each line says of each thing, read at once, line by line and redraw by redraw; a broken one may be whole up to a cut.

    A bar at the end of a part is whole, though a message may be glued behind it later, or a container's next record end its line.
    """
    said: dict[tuple[int, str], list[object]] = defaultdict(list)
    end_of_redraw = rb"\g<0>\\r" if envelope.container(data.split(b"\n", 1)[0]) == "docker" else rb"\g<0>\r"
    for text in (data, re.sub(rb"%\|[^\r\n\]]*\]", end_of_redraw, data)):
        for ends_of in (b"", b"\n", b"\r\n"):
            for event in events(text, [at + 1 for at, byte in enumerate(text) if byte in ends_of]):
                if isinstance(event, Malformed):
                    said[event.line, BROKEN].append(event.reason)
                elif isinstance(event, Record):
                    for key, value in told(event).items():
                        said[event.line, key].append(value)
    return said


def untrue(found: Sequence[Event], said: dict[tuple[int, str], list[object]]) -> list[tuple[int, str, object]]:
    """What is read in a part and was not said in the whole file."""
    read = [event for event in found if isinstance(event, Record) and not said[event.line, BROKEN]]
    return [(record.line, key, value) for record in read for key, value in told(record).items() if value not in said[record.line, key]]


def events_of_every_cut(data: bytes) -> Iterator[tuple[int, list[Event]]]:
    """What is read of the data cut at each byte, having grown piece by piece; the state before a piece is copied, not built anew."""
    formats = registry()
    reader, read, start, line = Intake(formats), list[Event](), 0, 1
    for end in [*(at + 1 for at, byte in enumerate(data) if byte in b"\r\n"), len(data)]:
        for cut in range(start, end):
            copied = copy.deepcopy(reader, {id(one): one for one in formats})
            yield cut, [*read, *copied.feed(Chunk(data[start:cut], line, 0.0, live=True)), *copied.flush()]
        read += reader.feed(Chunk(data[start:end], line, 0.0, live=True))
        line += data.count(b"\n", start, end)
        start = end


def values(found: Sequence[Event]) -> list[tuple[int, dict[str, object]]]:
    """The values that stand in the lines themselves, not those that a bar beside them lent."""
    lent = {"step", "target_steps", "elapsed_seconds", "remaining_seconds"}
    read = [(event.line, told(event)) for event in found if isinstance(event, Record)]
    bare = [(line, {key: value for key, value in said.items() if key not in lent}) for line, said in read]
    return [(line, said) for line, said in bare if said]


def mutants(seed: int) -> Iterator[bytes]:
    """Lines without end: fixtures' lines whole, cut, glued, with junk inside or odd numbers, and pure junk."""
    chance = random.Random(seed)
    while True:
        line, other = chance.choice(LINES), chance.choice(LINES)
        at, junk = chance.randrange(len(line) + 1), chance.randbytes(chance.randrange(12))
        yield chance.choice(
            (
                line[:at],
                line[at:],
                line[:at] + other,
                line[:at] + junk + line[at:],
                line.replace(b"1", chance.choice(ODD_NUMBERS)),
                line[:at] + b"\r" + other,
                junk * 9,
                line,
            )
        ).replace(b"\n", b" ")


@lru_cache(maxsize=4096)
def printed(line: bytes) -> frozenset[float | None]:
    """The numbers that stand in a line."""
    text = envelope.without_terminal(line.decode("utf-8", "replace"))
    return frozenset(number(found[0]) for found in re.finditer(NUMBER, text))


def unprinted(record: Record, lines: Sequence[bytes]) -> list[str]:
    """Of the values that no trainer computes, those that stand in none of the lines."""
    asked = {name: record.fields[name] for name in ("loss", "grad_norm") if name in record.fields}
    return [name for name, value in asked.items() if not math.isnan(value) and not any(value in printed(line) for line in reversed(lines))]


def readers() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Everything that is let loose on a line, by name."""
    yield "envelope", lambda text: envelope.unwrapped(text, 1, labelled=True)
    yield "ranks", lambda text: envelope.ranks_apart(text, "default0")
    yield "terminal", envelope.without_terminal
    yield "torn", lambda text: torn.is_whole(text, [text])
    yield "incident", lambda text: incidents.incident(Line(text, 1))
    for one in registry():
        yield f"{one.name} sniffing", one.sniff
        yield f"{one.name} parsing", lambda text, one=one: one.parser().parse(Line(text, 1))  # type: ignore[misc]

"""Lines of the Trainer's console that differ in their numbers alone, many at once: bars of one total, and the dictionary after them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice, repeat, takewhile
from operator import eq, le, lt
from typing import Final, NamedTuple, TypeVar

from trainer_exporter.formats.bars import COUNT, DRAWING, RATE, TIME, Bar, is_share
from trainer_exporter.formats.dicts import field_of, has_own_step, is_half, pairs, results
from trainer_exporter.model import Column, Table
from trainer_exporter.numbers import durations, numbers

_T = TypeVar("_T")
_BAR: Final = rf" *(\d{{1,3}})%{DRAWING} *({COUNT})/TOTAL \[({TIME})<({TIME}), +{RATE} ?(?:it/s|s/it)\] *\r"
_OTHER_BAR: Final = r" *\d{1,3}%\|[^|\r]*\| *\d{1,15}/TOTAL \[[^\r]*\r"  # which may be torn
# One of these is in all that makes more of a redraw than a bar: in a loss or a step behind it, in the word of a save, in a dictionary.
_SIGNS: Final = "oS{"
_GROUPS: Final = 8  # of the first bar and of the last; the next is the dictionary
_VALUE: Final = r"[-+.\w]+"
_NUMBER: Final = re.compile(r"\d[-+.\w]*")
_MOST_SHAPES: Final = 8  # of one process's dictionaries that are known
_FEWEST: Final = 6  # lines that are worth a table


class Drawn(NamedTuple):
    """Neighbouring lines, on each of which a bar of one total was redrawn until a dictionary was printed."""

    first: Sequence[int]  # places of the first bars
    last: Sequence[int]
    elapsed: tuple[Sequence[str], Sequence[str]]  # of the first bars, and of the last
    remaining: tuple[Sequence[str], Sequence[str]]
    fields: Mapping[str, Sequence[float]]  # of the dictionaries
    bar: Bar  # the last
    rest: str  # what was printed after it
    end: int  # of the last line, in the text
    is_significant: bool  # epochs have 4 digits rather than 2 decimals

    def table(self, number: int) -> Table:
        """What these lines say up to the first bar of the last one; ``number`` is that of the first line.

        The place of a bar in front of a dictionary is news, unless the bar behind it repeats it: then it is that of the dictionary.
        """
        many = len(self.first) - 1
        width = 1 if self.last[0] == self.first[1] else 2
        progress: dict[str, Sequence[float]] = {
            "step": _woven(self.last, self.first, width),
            "target_steps": [self.bar.total] * (many * width),
            "elapsed_seconds": _seconds(_woven(self.elapsed[1], self.elapsed[0], width)),
            "remaining_seconds": _seconds(_woven(self.remaining[1], self.remaining[0], width)),
        }
        columns = {name: Column(range(many * width), values) for name, values in progress.items()}
        columns |= {name: Column(range(width - 1, many * width, width), values[:-1]) for name, values in self.fields.items()}
        return Table(_woven(range(number, number + many + 1), range(number - 1, number + many), width), columns)


class Shapes:
    """The kinds of dictionaries that one process has printed after its bars."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], _Shape | None] = {}

    def drawn(self, text: str, part: tuple[int, int], total: int) -> Drawn | None:
        """The lines of a part of the text as far as they differ in their numbers alone; None of a few.

        On each the last bar is beyond the first one, which is not behind the last one of the line before.
        """
        begin = part[0]
        end = text.index("\n", begin)
        rest = text[text.rfind("\r", begin, end) + 1 : end].rstrip()
        key = total, _NUMBER.sub("", rest)
        if key not in self._known and len(self._known) < _MOST_SHAPES:
            self._known[key] = _shape(rest, total)
        shape = self._known.get(key)
        return None if shape is None else shape.drawn(text, part, total)


class _Shape(NamedTuple):
    line: re.Pattern[str]
    names: Sequence[str]  # of the fields that it finds
    is_significant: bool

    def drawn(self, text: str, part: tuple[int, int], total: int) -> Drawn | None:
        """As that of ``Shapes``."""
        rows = self._rows(text, *part)
        begin = part[0]
        columns = list(zip(*rows, strict=True))
        count = _in_order(columns[:_GROUPS], total) if columns else 0
        values = [numbers(column[:count]) for column in columns[_GROUPS + 1 :]]
        count = min(map(_finite, values), default=0)
        if count < _FEWEST:
            return None
        printed, end = columns[_GROUPS][:count], _after(text, begin, count)
        dictionaries = "\n".join(printed)
        if is_half(dictionaries) or any(text.count(sign, begin, end) != dictionaries.count(sign) for sign in _SIGNS):
            return None
        _, first, *times, _, last, elapsed, remaining = (column[:count] for column in columns[:_GROUPS])
        return Drawn(
            list(map(int, first)),
            list(map(int, last)),
            (times[0], elapsed),
            (times[1], remaining),
            {name: column[:count] for name, column in zip(self.names, values, strict=True)},  # type: ignore[misc]  # finite as far as that
            Bar(int(last[-1]), total, elapsed[-1], remaining[-1], is_plain=True),
            printed[-1],
            end,
            self.is_significant,
        )

    def _rows(self, text: str, begin: int, end: int) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = self.line.findall(text, begin, end)
        if len(rows) == text.count("\n", begin, end):
            return rows
        rows = []  # a line between is another's
        while (found := self.line.match(text, begin, end)) is not None:
            rows.append(found.groups())
            begin = found.end()
        return rows


def _shape(rest: str, total: int) -> _Shape | None:
    """Of a line that ends so; None where it is not of this kind."""
    found = pairs(rest)
    names = [field_of(key) for key in found]
    known = [name for name in names if name]
    is_plain = rest.startswith("{'loss': ") and not results(dict.fromkeys(found, "0")) and len({*known}) == len(known)
    if not is_plain or "epoch" not in known or has_own_step(rest) or "global_step" in found:
        return None
    printed = []
    for key, name in zip(found, names, strict=True):
        quote = "'" if f"'{key}': '" in rest else ""
        printed.append(f"'{re.escape(key)}': {quote}{f'({_VALUE})' if name else _VALUE}{quote}")
    bar, other = _BAR.replace("TOTAL", str(total)), _OTHER_BAR.replace("TOTAL", str(total))
    line = rf"^\r*{bar}(?:{other})*{bar}(\{{{', '.join(printed)}\}}) *\n"
    return _Shape(re.compile(line, re.MULTILINE), known, "'epoch': '" in rest)


def _in_order(columns: Sequence[Sequence[str]], total: int) -> int:
    """How many of the first lines have bars that nobody wrote into, and in the order of their places."""
    percents, firsts, _, _, ends, lasts, _, _ = columns
    first, last = list(map(int, firsts)), list(map(int, lasts))
    is_repeated = len(first) > 1 and last[0] == first[1]
    checks: list[list[bool]] = [
        list(map(is_share, map(int, percents), first, repeat(total))),
        list(map(is_share, map(int, ends), last, repeat(total))),
        list(map(lt, first, last)),
        [True, *map(le, last, islice(first, 1, None))],
        [True, *map(eq, map(eq, last, islice(first, 1, None)), repeat(is_repeated))],
    ]
    return min(check.index(False) if False in check else len(check) for check in checks)


def _finite(values: Sequence[float | None]) -> int:
    """How many of the first values there are, and are finite."""
    if None not in values and math.isfinite(sum(values)):  # type: ignore[arg-type]  # none is None
        return len(values)
    return sum(1 for _ in takewhile(lambda value: value is not None and math.isfinite(value), values))


def _after(text: str, begin: int, lines: int) -> int:
    for _ in range(lines):
        begin = text.index("\n", begin) + 1
    return begin


def _seconds(texts: Sequence[str]) -> Sequence[float]:
    """Of times as a bar prints them."""
    return durations(texts)  # type: ignore[return-value]  # each is one


def _woven(before: Sequence[_T], behind: Sequence[_T], width: int) -> list[_T]:
    """Each of the ones, but the last, with that one of the others that is behind it; where the width is 1, those alone."""
    woven = [*behind[1:]] * width
    if width > 1:
        woven[::2], woven[1::2] = before[:-1], behind[1:]
    return woven

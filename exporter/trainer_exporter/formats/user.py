"""Formats that the configuration defines: a pattern with named groups, or JSON, CSV and ``key=value`` lines whose keys are named.

What they claim is theirs before any format of this package is asked. A line is tried as it is inside its wrappers, then with them.
"""

from __future__ import annotations

import csv
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from trainer_exporter.formats.base import NOTHING, Format, Parser, Reading
from trainer_exporter.model import FormatSpec, Line, LinePattern, Malformed, Phase, Place, Record
from trainer_exporter.numbers import NUMBER, duration, number

_LONGEST: Final = 16384  # characters of a line with keys
_WHOLE: Final = frozenset({"step", "target_steps"})
_NO_VALUE: Final = frozenset({"", "-", "--", "none", "null", "n/a", "na"})
_SUFFIXES: Final = tuple("kKMGBT")
_STRANGE_ROWS: Final = 100  # in succession: what began as a table is something else by now
_ROWS_NEEDED: Final = 2

Found = Iterable[tuple[Place, object]]


def build(spec: FormatSpec) -> Format:
    """The format of a specification."""
    is_table = spec.kind == "csv"
    searched = [*spec.contains, *(mark.contains for mark in (spec.line, spec.starts, spec.closes) if mark is not None)]
    hints = tuple(dict.fromkeys(searched))
    parsers: Mapping[str, Callable[[FormatSpec], Parser]] = {"pattern": Pattern, "json": Json, "key_value": KeyValue, "csv": Table}

    def make() -> Parser:
        return parsers[spec.kind](spec)

    return Format(
        name=spec.name,
        summary=f"of the configuration: {spec.kind.replace('_', ' ')}",
        hints=tuple(hint.encode() for hint in hints),
        sniff=lambda text: any(hint in text for hint in hints),
        parser=make,
        opens=(lambda lines: _begins_as_table(lines, spec)) if is_table and spec.columns else None,
        private=True,
    )


class _Private(ABC):
    """What all kinds share: the marks of a start and of an end, and figures that become a record."""

    def __init__(self, spec: FormatSpec) -> None:
        self._spec = spec
        self._has_step = any(place.field == "step" for place in spec.places)

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        reading = self._reading(line)
        starts = _match(self._spec.starts, line) is not None
        closes = _match(self._spec.closes, line) is not None
        if not (starts or closes):
            return reading
        record = next((said for said in reading or () if isinstance(said, Record)), None)
        record = record or Record(line.number, stamp=line.stamp, format=self._spec.name)
        phase = Phase.STARTING if starts and not record.fields else record.phase
        return [record._replace(starts=starts, closes=closes, phase=phase)]

    def flush(self) -> Reading:
        return NOTHING

    @abstractmethod
    def _reading(self, line: Line) -> Reading | None:
        """What the line says, as ``parse``, but for starts and ends."""

    def _may_be_one(self, line: Line) -> bool:
        return len(line.text) <= _LONGEST and any(word in text for text in _texts(line) for word in self._spec.contains)

    def _keyed(self, line: Line, found: Mapping[str, object]) -> Reading | None:
        """The figures of a line with keys: its step must be among them, where the format has one."""
        present = [(place, found[place.key]) for place in self._spec.places if place.key in found]
        if not present or (self._has_step and not any(place.field == "step" for place, _ in present)):
            return None
        return self._said(line, present)

    def _said(self, line: Line, found: Found) -> Reading:
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for place, raw in found:
            if _is_absent(raw):
                continue
            value = _value(raw, place)
            if value is None or (place.field in _WHOLE and not (value >= 0 and value.is_integer())):
                return [Malformed(line.number, "number", self._spec.name)]
            into = metrics if place.is_metric else fields
            into.setdefault(place.field, int(value) if place.field in _WHOLE else value)
        if not fields and not metrics:
            return NOTHING
        return [Record(line.number, fields, metrics, stamp=line.stamp, format=self._spec.name)]


class Pattern(_Private):
    """Lines that a pattern matches."""

    def _reading(self, line: Line) -> Reading | None:
        match = _match(self._spec.line, line)
        return None if match is None else self._said(line, ((place, match[place.key]) for place in self._spec.places))


class Json(_Private):
    """Lines that hold a JSON object. A key with points leads into objects inside."""

    def _reading(self, line: Line) -> Reading | None:
        at = line.text.find("{")
        if at < 0 or not self._may_be_one(line):
            return None
        try:
            found, _ = _DECODER.raw_decode(line.text, at)
        except (ValueError, RecursionError):
            return None
        keys = {place.key: value for place in self._spec.places if (value := _at(found, place.key)) is not None}
        return self._keyed(line, keys)


class KeyValue(_Private):
    """Lines with ``key=value`` or ``key: value``, whatever stands between."""

    def __init__(self, spec: FormatSpec) -> None:
        super().__init__(spec)
        keys = "|".join(re.escape(key) for key in sorted({place.key for place in spec.places}, key=len, reverse=True))
        self._pair = re.compile(
            rf"(?<![\w./-])['\"]?(?P<key>{keys})['\"]?\s*[=:]\s*['\"]?(?P<value>{NUMBER}[%A-Za-zµ/]*(?![\w.])|[^\s,;|'\")\]}}]*)"
        )

    def _reading(self, line: Line) -> Reading | None:
        if not self._may_be_one(line):
            return None
        found: dict[str, object] = {}
        for pair in self._pair.finditer(line.text):
            found.setdefault(pair["key"], pair["value"])
        return self._keyed(line, found)


class Table(_Private):
    """Rows of a CSV file, under a header that is found or columns that are given."""

    def __init__(self, spec: FormatSpec) -> None:
        super().__init__(spec)
        self._columns: Sequence[str] = spec.columns
        self._strange = 0

    @property
    def wants_all(self) -> bool:
        return bool(self._columns) and self._strange < _STRANGE_ROWS

    def _reading(self, line: Line) -> Reading | None:
        text = (line.whole or line.text).strip("\r\n")
        cells = _cells(text, self._spec) if len(text) <= _LONGEST else []
        if not self._spec.columns and _is_header(cells, self._spec):
            self._columns, self._strange = cells, 0
            return NOTHING
        if len(cells) != len(self._columns) or not self.wants_all:
            self._strange += 1
            return None
        self._strange = 0
        return self._keyed(line, dict(zip(self._columns, cells, strict=True)))


_DECODER: Final = json.JSONDecoder()


def _texts(line: Line) -> Iterator[str]:
    yield line.text
    if line.whole and line.whole != line.text:
        yield line.whole


def _match(wanted: LinePattern | None, line: Line) -> re.Match[str] | None:
    if wanted is None:
        return None
    for text in _texts(line):
        if wanted.contains in text and len(text) <= wanted.longest and (match := wanted.pattern.search(text)) is not None:
            return match
    return None


def _at(found: Any, key: str) -> object:
    """The value of a key, or of a path of keys with points between."""
    if isinstance(found, dict) and key in found:
        return found[key]
    for part in key.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


def _is_absent(raw: object) -> bool:
    return isinstance(raw, (bool, list, dict)) or raw is None or (isinstance(raw, str) and raw.strip().lower() in _NO_VALUE)


def _value(raw: object, place: Place) -> float | None:
    """The figure in its own unit; None when the text is no number."""
    if isinstance(raw, (int, float)):
        try:
            return _scaled(float(raw), place.scale)
        except OverflowError:
            return math.inf if raw > 0 else -math.inf
    text = str(raw).strip().rstrip(".,;")
    if place.field.endswith("_seconds") and ":" in text:
        return duration(text)
    bare = text.removesuffix(place.unit).rstrip()
    scale = 1.0 if bare.endswith(_SUFFIXES) else place.scale  # 12.3M says its unit itself
    read = number(bare)
    return None if read is None else _scaled(read, scale)


def _scaled(value: float, scale: float) -> float:
    """Divided where the unit is a part of the figure's: 412.5 ms are 0.4125 s, and times 0.001 they are 0.41250000000000003."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def _cells(text: str, spec: FormatSpec) -> Sequence[str]:
    if '"' not in text:
        return [cell.strip() for cell in text.split(spec.separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=spec.separator), [])]
    except csv.Error:
        return []


def _is_header(cells: Sequence[str], spec: FormatSpec) -> bool:
    """Whether these are the names of columns, the step's among them and two that the format knows at least."""
    known = [place for place in spec.places if place.key in cells]
    steps = [place for place in spec.places if place.field == "step"]
    if len(known) < min(2, len(spec.places)) or (steps and not any(place in known for place in steps)):
        return False
    return all(number(cell) is None for cell in cells)


def _begins_as_table(lines: Sequence[str], spec: FormatSpec) -> bool:
    """Whether the last lines of these are rows of the given columns."""
    rows = [_cells(line, spec) for line in lines[-_ROWS_NEEDED:]]
    return len(rows) == _ROWS_NEEDED and all(_is_row(row, spec) for row in rows)


def _is_row(cells: Sequence[str], spec: FormatSpec) -> bool:
    if len(cells) != len(spec.columns):
        return False
    named = dict(zip(spec.columns, cells, strict=True))
    read = [(place, named[place.key]) for place in spec.places if place.key in named and not _is_absent(named[place.key])]
    values = [(place, _value(cell, place)) for place, cell in read]
    return bool(values) and all(
        value is not None and (place.field not in _WHOLE or (value >= 0 and value.is_integer())) for place, value in values
    )

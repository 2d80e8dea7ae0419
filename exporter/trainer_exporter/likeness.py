"""Lines that differ from one that was read in their numbers and their time alone. They are found and taken apart by one expression each,
wrappers included, which is compiled when the first of them has been read the long way. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from trainer_exporter.candidates import NOTHING_KNOWN, Known, line_starts
from trainer_exporter.envelope import MAX_TEXT, may_be_labelled, without_terminal
from trainer_exporter.formats.base import LOSS, Alike, Shape
from trainer_exporter.model import Line
from trainer_exporter.numbers import moment

Row = tuple[bytes, ...]

_TIME: Final = re.compile(r"(?P<time>\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<zone> ?(?:Z|[+-]\d\d:?\d\d)(?![\d:]))?")
_ANY_TIME: Final = r"(\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_MINUTE: Final = len("2026-03-01 10:00")  # of a time, to the end of its minutes
_ANY_MINUTE: Final = "2000-01-01 00:00"
_SECOND: Final = len("2026-03-01 10:00:00")
_LONGEST_WAIT: Final = 10  # before another line is learnt, as a power of two of lines
_MOST: Final = 4  # kinds of lines of one file that are kept in mind


class Likeness(NamedTuple):
    """One kind of line in one file."""

    line: re.Pattern[bytes]  # from its first byte to its end; the first group is the time, the others are the shape's
    wrapper: re.Pattern[bytes]
    stream: str
    zone: str | None  # of its times; None where it has none
    columns: Sequence[str]  # as the format calls the other groups
    size: int  # bytes of one such line

    def rows(self, data: bytes, starts: Sequence[int], known: Known) -> list[Row]:
        """The groups of the lines that begin there, up to the first that is another kind of line. Some may be known already."""
        match, line = self.line.match, self.line
        rows = []
        for start in starts:
            found = known.get(start) or match(data, start)
            if found is None or found.re is not line:
                break
            rows.append(found.groups())
        return rows

    def alike(self, rows: Sequence[Row], numbers: Sequence[int]) -> Alike | None:
        """These lines for their format; None where one has an impossible time."""
        times, *values = zip(*rows, strict=True)
        columns = dict(zip(self.columns, values, strict=True))
        if self.zone is None:
            return Alike(numbers, columns)
        seconds = _moments(times, self.zone)
        return None if any(map(math.isnan, seconds)) else Alike(numbers, columns, seconds, zoned=bool(self.zone))

    def text(self, data: bytes, start: int) -> str:
        """One of these lines without its wrappers."""
        found = self.wrapper.match(data, start)
        return data[found.end() if found else start : data.index(b"\n", start)].decode()


class Likenesses:
    """The kinds of lines that one file has shown, and how often it is worth learning another."""

    def __init__(self) -> None:
        self._known: list[Likeness] = []
        self._program = ""
        self._searched = 0  # bytes of the present block
        self._bytes = 0  # of them read at once
        self._missed = 0
        self._tried = 0

    @property
    def are_known(self) -> bool:
        """Whether there is any kind."""
        return bool(self._known)

    def belong_to(self, program: str) -> None:
        """Forget them where the lines are another program's from here on."""
        if program != self._program:
            self.forget()
        self._program = program

    def forget(self) -> None:
        """What begins these lines is taken for something else from here on."""
        self._known.clear()

    def of(self, data: bytes, start: int) -> Likeness | None:
        """The kind of this line, where it is known."""
        return next((one for one in self._known if one.line.match(data, start)), None)

    def note(self, one: Likeness, lines: int) -> None:
        """So many lines of a kind have been read at once."""
        self._bytes += lines * one.size

    def found(self, data: bytes, position: int, hints: Sequence[bytes]) -> Known:
        """The lines of a block that are of a known kind. Only where most of the block before was such lines: then the rest alone need be
        searched for other words.
        """
        is_most = 0 < self._searched < 2 * self._bytes
        self._searched, self._bytes = len(data) - position, 0
        if not (is_most and LOSS in hints):
            return NOTHING_KNOWN
        known: dict[int, re.Match[bytes]] = {}
        for start in sorted(line_starts(data, position, (LOSS,))):
            for one in self._known:
                if (found := one.line.match(data, start)) is not None:
                    known[start] = found
                    break
        return known

    def is_due(self) -> bool:
        """Whether one more line that had to be read the long way is worth an expression of its own: each costs as much as a hundred lines,
        and where the last ones have helped little the next will.
        """
        self._missed += 1
        return self._missed >= 1 << min(self._tried, _LONGEST_WAIT)

    def learn(self, raw: bytes, line: Line, shape: Shape | None, *, labelled: bool) -> None:
        """Keep the kind of this line in mind, if it is one. It was read so: ``raw`` in the file, ``line`` by its format."""
        self._missed, self._tried = 0, self._tried + 1
        one = _likeness(raw, line, shape, labelled=labelled) if shape is not None else None
        if one is not None:
            self._known = [one, *self._known][:_MOST]


def _likeness(raw: bytes, line: Line, shape: Shape, *, labelled: bool) -> Likeness | None:
    body = line.text.encode()
    is_plain = raw.isascii() and raw.endswith(body) and len(raw) * 2 < MAX_TEXT and "]:" not in line.text  # that may be a rank's prefix
    if not is_plain or (not labelled and may_be_labelled(raw)):
        return None
    wrapper = raw[: len(raw) - len(body)].decode()
    if without_terminal(wrapper) + line.text != line.whole:
        return None
    times = list(_TIME.finditer(wrapper))
    if not times:
        expression, zone = "()" + re.escape(wrapper), None
        if line.stamp is not None:
            return None
    else:
        begin, end, zone = times[0].start(), times[0].end("time"), times[0]["zone"] or ""
        expression = re.escape(wrapper[:begin]) + _ANY_TIME + re.escape(wrapper[end:])
        if len(times) > 1 or line.stamp is None or moment(times[0]["time"], zone) != line.stamp:
            return None
    return Likeness(
        re.compile((expression + shape.pattern + "\n").encode()),
        re.compile(expression.encode()),
        line.stream,
        zone,
        shape.columns,
        len(raw),
    )


def _moments(times: Sequence[bytes], zone: str) -> list[float]:
    """As ``moment`` for each of them, NaN for an impossible one: neighbours share their minute."""
    offset, minutes = _seconds(_ANY_MINUTE, "") - _seconds(_ANY_MINUTE, zone), _Minutes()
    whole = [minutes[time[:_MINUTE]] + int(time[_MINUTE + 1 : _SECOND]) for time in times]
    if max(map(len, times)) > _SECOND:
        whole = [seconds + float(b"0." + time[_SECOND + 1 :]) for seconds, time in zip(whole, times, strict=True)]
    return [seconds - offset for seconds in whole] if zone else whole


class _Minutes(dict[bytes, float]):
    """The moments of minutes, without a zone."""

    def __missing__(self, minute: bytes) -> float:
        self[minute] = found = _seconds(minute.decode(), "")
        return found


def _seconds(minute: str, zone: str) -> float:
    found = moment(f"{minute}:00", zone)
    return math.nan if found is None else found.seconds

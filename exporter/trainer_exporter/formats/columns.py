"""Two bare columns, ``step loss``, and nothing else in the file: what torchtitan's tests and users of gnuplot write.

    12 7.5234375

A single line of that shape proves nothing, and no word in it could be searched for. So a file is one of these when it begins with several
such lines whose steps rise by a constant; the first line of any other shape ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from trainer_exporter.formats.base import NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Decimals
from trainer_exporter.model import Line, Malformed, Record
from trainer_exporter.numbers import number

_ROW: Final = re.compile(r"^(?P<step>\d{1,9})[ \t]+(?P<loss>\d+\.\d+(?:[eE][-+]?\d+)?|[nN]a[nN]|-?[iI]nf)$")
_TORN: Final = re.compile(r"^\d{1,9}[ \t]*(?:\d+\.?)?$")
_COMMENT: Final = "#"
_NEEDED: Final = 4


class Columns:
    """One such file."""

    def __init__(self) -> None:
        self._is_over = False
        self._decimals = Decimals()

    @property
    def wants_all(self) -> bool:
        return not self._is_over

    def parse(self, line: Line) -> Reading | None:
        if self._is_over:
            return None
        text = line.text.strip()
        row = _ROW.match(text)
        if row is not None and (loss := number(row["loss"])) is not None and self._decimals.are_whole("loss", row["loss"]):
            return [Record(line.number, {"step": int(row["step"]), "loss": loss}, stamp=line.stamp)]
        if not text or text.startswith(_COMMENT):
            return NOTHING
        if row is not None or _TORN.match(text):
            return [Malformed(line.number, "truncated")]
        self._is_over = True
        return None

    def flush(self) -> Reading:
        return NOTHING


def _opens(lines: Sequence[str]) -> bool:
    told = [line for line in lines if line and not line.startswith(_COMMENT)]
    rows = [_ROW.match(line) for line in told[: _NEEDED + 1]]
    steps = [int(row["step"]) for row in rows if row is not None]
    rises = {after - before for before, after in pairwise(steps)}
    return len(steps) == len(rows) >= _NEEDED and len(rises) == 1 and min(rises) > 0


def _sniff(text: str) -> bool:
    """No line alone could only be of such a file."""
    return False


FORMAT: Final = Format(
    name="columns",
    summary="bare columns of numbers: a step and its loss on each line, as torchtitan's tests write them",
    hints=(),
    sniff=_sniff,
    parser=Columns,
    opens=_opens,
)

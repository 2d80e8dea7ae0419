"""The shape that OLMo and OLMo-core share: a header with the step, then a line for each figure, indented and without any prefix.

Each line is read when it comes, so that a block which is torn, cut or mixed with other ranks' lines loses only what is missing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from trainer_exporter.formats.decimals import Constant
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.wholeness import Figures
from trainer_exporter.model import Line, Malformed, Record, Stamp
from trainer_exporter.numbers import NUMBER, moment, number

HEADER: Final = b"[step="
_PREFIX: Final = re.compile(r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\t[^\t]*\t(?P<logger>[^\t]+)\t[A-Z]+\t(?P<text>.*)$")
_STEP: Final = re.compile(
    r"^\[step=(?P<step>\d{1,15})/(?P<total>\d{1,15}|\?\?\?)(?:,epoch=(?P<epoch>\d{1,15}))?(?:,eta=(?P<eta>[^\]]+))?\]$"
)
_TORN: Final = re.compile(r"\[step=|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\t")  # what remains of a header
_FIGURE: Final = re.compile(rf"^ {{4}}(?P<key>[A-Za-z][^=]*)=(?P<value>{NUMBER})(?P<scale>[BT])?$")
_BEGUN: Final = re.compile(r"^ {4}[A-Za-z][\w ()%.-]*/[^=]*=")
_ETA: Final = re.compile(r"(?:(\d{1,6})d)? ?(?:(\d{1,6})h)? ?(?:(\d{1,6})m)? ?(?:(\d{1,6})s)?")
_SCALES: Final = {"B": 1e9, "T": 1e12}
_EXPONENT: Final = re.compile(r"[eE][-+]\d\d$")
_NO_NAME: Final = re.compile(r"[^\w]+")
_BLOCK_LINES: Final = 300  # of a block with the lines of others in it


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A line less the logger's prefix."""

    text: str
    logger: str
    stamp: Stamp | None


def unwrapped(line: Line) -> Unwrapped:
    """The line, and what its prefix of time, host, logger and level says where it has one."""
    found = _PREFIX.match(line.text)
    if found is None:
        return Unwrapped(line.text, "", line.stamp)
    return Unwrapped(found["text"], found["logger"], line.stamp or moment(found["time"]))


def is_header(text: str) -> bool:
    """Whether the text opens the block of a step."""
    return _STEP.match(text) is not None


def figure(text: str) -> tuple[str, float] | None:
    """Key and value of a figure's line; NaN and Inf are values; None for another line and for half a number."""
    found = _FIGURE.match(text)
    if found is None or (value := number(found["value"])) is None:
        return None
    if found["scale"]:
        return (found["key"], float(round(value * _SCALES[found["scale"]]))) if math.isfinite(value) else None
    return (found["key"], value) if _is_whole(found["value"], value) else None


def result_name(key: str) -> str:
    """``hellaswag (accuracy)`` and ``pile/PPL`` as a name for a label."""
    return _NO_NAME.sub("_", key).strip("_").lower()


class Block:
    """Where in the records one stream is."""

    def __init__(self) -> None:
        self.step: int | None = None
        self._total = Constant()
        self._stamp: Stamp | None = None  # of the header: a block is one message
        self._left = 0
        self._tokens: float | None = None
        self._eval_loss_of = ""
        self._names: set[str] = set()
        self._figures = Figures()

    @property
    def is_open(self) -> bool:
        """Whether figures may still come."""
        return self._left > 0

    def opens(self, stamp: Stamp | None = None) -> None:
        """A header came: figures will follow."""
        self._left, self._stamp, self._tokens = _BLOCK_LINES, stamp, None

    def has(self, key: str) -> bool:
        """Whether a figure is of the step that was told last."""
        self._figures.repeat(key)
        return self._figures.have_header

    def tokens(self, value: float) -> None:
        """The tokens in total; told with the next figure, which shows that they were not torn between two groups of digits."""
        self._tokens = value if value.is_integer() else None

    def passes(self) -> None:
        """A line within the block, anyone's."""
        self._left = max(0, self._left - 1)

    def header(self, line: Line, said: Unwrapped) -> Record | None:
        """The record of a step's header."""
        found = _STEP.match(said.text)
        if found is None:
            if said.text == line.text and _TORN.search(line.text):
                self._figures.lose()
            return None
        self._figures.begin()
        self.opens(said.stamp)
        self.step = int(found["step"])
        fields: dict[str, float] = {"step": self.step}
        if found["total"].isdecimal() and self._total.is_known(found["total"]):
            fields["target_steps"] = int(found["total"])
        if found["epoch"]:
            fields["epoch"] = int(found["epoch"])
        if found["eta"] and (left := _ETA.match(found["eta"])) and left[0]:
            days, hours, minutes, seconds = (int(part or 0) for part in left.groups())
            fields["remaining_seconds"] = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return Record(line.number, fields, stamp=said.stamp)

    def record(self, line: Line, fields: dict[str, float], metrics: dict[str, float] | None = None) -> Record:
        """A record of the present step."""
        placed = fields if self.step is None else {"step": self.step, **fields}
        if self._tokens is not None:
            placed, self._tokens = {**placed, "total_tokens": self._tokens}, None
        return Record(line.number, placed, metrics or {}, stamp=line.stamp or self._stamp)

    def result(self, line: Line, data_set: str, key: str, value: float, *, is_loss: bool) -> Record | None:
        """A figure of an evaluation. Of several data sets the first one's loss is the evaluation loss, the others are results."""
        if is_loss and self._eval_loss_of in {"", data_set}:
            self._eval_loss_of = data_set
            return self.record(line, {"eval_loss": value})
        name = result_name(key)
        if name not in self._names and len(self._names) >= MAX_METRICS:
            return None
        self._names.add(name)
        return self.record(line, {}, {name: value})

    def torn(self, line: Line) -> Malformed | None:
        """What a figure's line is of which the end is missing."""
        return Malformed(line.number, "truncated") if self.is_open and _BEGUN.match(line.text) else None


def _is_whole(text: str, value: float) -> bool:
    """Both print about four digits: what has fewer has lost its end. Groups of thousands and exponents are whole by themselves."""
    size = abs(value)
    if not size < 1000.0:
        return True
    if "e" in text.lower():
        return _EXPONENT.search(text) is not None
    decimals = len(text.partition(".")[2])
    needed = 4 if size < 1.0 else 3 if size < 10.0 else 2 if size < 100.0 else 1
    return decimals >= needed

"""karpathy/build-nanogpt and its many copies: the console, and the file ``log/log.txt`` beside it.

    step   250 | loss: 3.487112 | lr 6.0000e-04 | norm: 0.4321 | dt: 281.33ms | tok/sec: 1863411.22
    250 train 3.487112

Odd: nothing in ``log.txt`` is a word worth searching for, so the file is known by its first lines. Copies order and punctuate the console's
fields as they like. ``dt`` of every 250th step holds the evaluation too. Generated text stands between the lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import FLOAT, Decimals, InOrder, Manner
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_HEAD: Final = re.compile(r"^step *(?P<step>\d{1,15})(?: */ *(?P<total>\d{1,15}))? *\| *(?=(?:train )?loss\b)")
_PIECE: Final = re.compile(rf"^(?P<name>[A-Za-z][\w/ ]*?) *[: ] *(?P<value>{FLOAT}|\d{{1,3}}(?:,\d{{3}})*(?:\.\d+)?|\d+) ?(?P<unit>ms|s)?$")
_TIMED: Final = re.compile(r"\| *dt *[: ] *[\d.]+")
# How a field ends when nothing follows it; what ends otherwise may be half a number.
_WHOLE: Final = re.compile(r"\d(?:ms|s)$|sec *[: ] *[\d,]+\.\d+$|(?:norm|loss) *[: ] *\d+\.\d{4,}$|e[-+]\d\d$|nan$|inf$")
_FIELDS: Final = {
    "loss": "loss",
    "train loss": "loss",
    "lr": "learning_rate",
    "norm": "grad_norm",
    "grad norm": "grad_norm",
    "grad_norm": "grad_norm",
    "tok/sec": "tokens_per_second",
    "tok_per_sec": "tokens_per_second",
    "tokens/sec": "tokens_per_second",
}
_LOSSES: Final = {"loss", "train loss"}
_UNITS: Final = {"ms": 1e3, "s": 1.0}

_FILED: Final = re.compile(rf"^(?P<step>0|[1-9]\d{{0,8}}) (?P<what>train|val|hella|hellaswag) (?P<value>{FLOAT})(?P<rest> \|.*)?$")
_TORN: Final = re.compile(r"^\d{1,9} (?:train|val|hella)")
_VALIDATED: Final = re.compile(rf"^validation loss: *(?P<value>{NUMBER})$")
_HELLASWAG: Final = re.compile(rf"^HellaSwag accuracy: \d+ ?/ ?\d+ ?= ?(?P<value>{NUMBER})$")


class BuildNanogpt:
    """The console of one run, or its log file."""

    def __init__(self) -> None:
        self._decimals = Decimals(least=4)
        self._manner = Manner(fixed=True)
        self._order = InOrder()

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (head := _HEAD.match(text)) is not None:
            return [self._stepped(line, head)]
        if (filed := _FILED.match(text)) is not None:
            read = self._filed(line, filed)
            return [read] if isinstance(read, Malformed) else self._order.told(read)
        if _TORN.match(text):
            return [Malformed(line.number, "truncated")]
        if (found := _VALIDATED.match(text)) is not None:
            return self._result(line, found["value"], "eval_loss")
        if (found := _HELLASWAG.match(text)) is not None:
            return self._result(line, found["value"], "hellaswag")
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _stepped(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        pieces = [piece.strip() for piece in line.text[head.end() :].split("|")]
        if not _WHOLE.search(pieces[-1]) or len(pieces) == 1:
            pieces.pop()
        found = [one for piece in pieces if (one := _PIECE.match(piece)) is not None]
        names = {one["name"] for one in found}
        if len(names) < len(pieces) or not names & _LOSSES:
            return Malformed(line.number, "truncated")
        kind = "|".join(one["name"] for one in found)  # copies differ, and one file may hold several
        fields: dict[str, float] = {"step": int(head["step"])}
        if head["total"]:
            fields["target_steps"] = int(head["total"])
        for one in found:
            if (value := number(one["value"])) is None or not self._manner.accepts(f"{kind} {one['name']}", one["value"].replace(",", "")):
                return Malformed(line.number, "number")
            if one["name"] == "dt" and one["unit"]:
                fields["step_duration_seconds"] = value / _UNITS[one["unit"]]
            elif one["name"] in _LOSSES and one["value"].isdecimal():
                return Malformed(line.number, "number")
            elif one["name"] in _FIELDS and not one["unit"]:
                fields[_FIELDS[one["name"]]] = value
        return Record(line.number, fields, stamp=line.stamp)

    def _filed(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        what, value = found["what"], number(found["value"])
        if value is None or not (found["rest"] or self._decimals.are_whole(what, found["value"])):
            return Malformed(line.number, "truncated")
        if not self._manner.accepts(what, found["value"]):
            return Malformed(line.number, "number")
        fields: dict[str, float] = {"step": int(found["step"])}
        if what == "train":
            return Record(line.number, {**fields, "loss": value}, stamp=line.stamp)
        if what == "val":
            return Record(line.number, {**fields, "eval_loss": value}, stamp=line.stamp, phase=Phase.EVALUATING)
        return Record(line.number, fields, {"hellaswag": value}, stamp=line.stamp, phase=Phase.EVALUATING)

    def _result(self, line: Line, text: str, name: str) -> Reading:
        """A result that the console prints without a step, before the step that it was measured at."""
        value = number(text)
        if value is None or not self._decimals.are_whole(name, text) or not self._manner.accepts(name, text):
            return [Malformed(line.number, "truncated")]
        fields, metrics = ({name: value}, {}) if name == "eval_loss" else ({}, {name: value})
        return [Record(line.number, fields, metrics, stamp=line.stamp, phase=Phase.EVALUATING)]


def _sniff(text: str) -> bool:
    return _HEAD.match(text) is not None and _TIMED.search(text) is not None


def _opens(lines: Sequence[str]) -> bool:
    return _FILED.match(lines[-1]) is not None


FORMAT: Final = Format(
    name="build_nanogpt",
    summary="build-nanogpt and its copies: console and log.txt",
    hints=(LOSS,),
    details=(b" train ", b" val ", b" hella", b"HellaSwag accuracy"),
    sniff=_sniff,
    parser=BuildNanogpt,
    opens=_opens,
)

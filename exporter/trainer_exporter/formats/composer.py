"""MosaicML Composer's console (llm-foundry), and its file logger's metrics. A record is a header and a line for each figure.

    [batch=20/4800]:
             Train time/batch: 19
             Train loss/train/total: 8.1235

Odd: the header counts in whatever the run's length was given in (batches, epochs, tokens, samples); ``time/batch`` is one less than the
batches done. Floats have four decimals, so a learning rate shows as 0.0000 and is not read. Each line is read when it comes: a block that
is torn or mixed with others loses only what is missing.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.wholeness import Figures
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_HEADER: Final = re.compile(
    r"^(?:\[epoch=(?P<epoch>\d{1,15})\])?\[(?P<unit>batch|token|sample|epoch|iteration|second)=(?P<done>\d{1,15})(?:/(?P<total>\d{1,15}))?\]:?$"
)
_FIGURE: Final = re.compile(rf"^\t (?P<kind>Train|Eval) (?P<key>\S+(?: \S+)*?): (?P<value>{NUMBER})$")
_FILED: Final = re.compile(rf"^\[metric\]\[batch=(?P<batch>\d{{1,15}})\]: (?P<key>\S+): (?P<value>{NUMBER}) ?$")
_BEGUN: Final = re.compile(r"^\t (?:Train|Eval) \S+(?: \S+)*:")
_DECIMALS: Final = re.compile(r"\.\d{4}$|[a-z]$", re.IGNORECASE)
_EVALUATING: Final = re.compile(r"^\[Eval batch=\d+/\d+\] Eval on (?P<set>.+?) data(?P<ended>:)?$")
_NAN: Final = re.compile(r"Train loss .*contains a NaN")
_DIGITS: Final = 15
_INDEX: Final = "time/batch"
_COUNTS: Final = {"time/token": "total_tokens", "time/sample": "total_samples"}
# Figure -> our name, and how many of its units make one of ours.
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "loss/train/total": ("loss", 1.0),
    "l2_norm/grad/global": ("grad_norm", 1.0),
    "throughput/samples_per_sec": ("samples_per_second", 1.0),
    "throughput/tokens_per_sec": ("tokens_per_second", 1.0),
    "throughput/device/mfu": ("mfu_ratio", 1.0),
    "throughput/device/flops_per_sec": ("tflops_per_gpu", 1e12),
}
_EVAL_LOSS: Final = re.compile(r"^metrics/eval/\w*CrossEntropy$")


class Composer:
    """The console of one process, or a file of its file logger."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._is_evaluating = False
        self._counted: dict[str, float] = {}  # whole numbers, of which only the next line shows that they were not torn
        self._next_step: int | None = None
        self._names: set[str] = set()
        self._figures = Figures()  # of training; where their header was torn, the index among them tells the step

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (figure := _FIGURE.match(text)) is not None:
            return self._figure(line, figure)
        if (header := _HEADER.match(text)) is not None:
            return self._header(line, header)
        if (filed := _FILED.match(text)) is not None:
            self._step = int(filed["batch"])
            return self._train(line, filed["key"], filed["value"])
        if (found := _EVALUATING.match(text)) is not None:
            return self._evaluating(line, has_ended=bool(found["ended"]))
        if _NAN.search(text):
            return [Record(line.number, stamp=line.stamp, hidden_nonfinite=frozenset({"loss"}))]
        return [Malformed(line.number, "truncated")] if _BEGUN.match(text) and text.endswith(":") else None

    def flush(self) -> Reading:
        return NOTHING

    def _header(self, line: Line, found: re.Match[str]) -> Reading:
        done, total = int(found["done"]), int(found["total"]) if found["total"] else None
        self._is_evaluating, self._next_step = False, None
        self._counted.clear()
        self._figures.begin()
        fields: dict[str, float] = {}
        if found["epoch"]:
            fields["epoch"] = int(found["epoch"])
            self._step = (int(found["epoch"]) - 1) * total + done if total is not None else None
        elif found["unit"] == "batch":
            self._step = done
            if total is not None:
                fields["target_steps"] = total
        else:
            self._step = None
        return [self._record(line, fields)] if fields else NOTHING

    def _figure(self, line: Line, found: re.Match[str]) -> Reading:
        key, text = found["key"], found["value"]
        if found["kind"] == "Train" and self._figures.repeat(key):
            self._step = self._next_step = None
            self._counted.clear()
        if self._step is None:
            self._step = self._next_step
        if text.isdecimal() and len(text) <= _DIGITS:
            return self._count(key, int(text))
        if not _DECIMALS.search(text):
            return [Malformed(line.number, "truncated")]
        if self._step is None and not self._figures.have_header:
            return [Malformed(line.number, "no_step")]
        return self._result(line, key, text) if found["kind"] == "Eval" else self._train(line, key, text)

    def _count(self, key: str, value: int) -> Reading:
        if key == _INDEX:
            self._next_step = value + 1
        elif key in _COUNTS:
            self._counted[_COUNTS[key]] = value
        return NOTHING

    def _train(self, line: Line, key: str, text: str) -> Reading:
        value = number(text)
        if key not in _FIELDS or value is None or not _DECIMALS.search(text):
            return NOTHING
        name, divisor = _FIELDS[key]
        counted, self._counted = self._counted, {}
        return [self._record(line, {name: value / divisor, **counted})]

    def _result(self, line: Line, key: str, text: str) -> Reading:
        value = number(text)
        if value is None or not key.startswith(("metrics/", "icl/metrics/")):
            return NOTHING
        if _EVAL_LOSS.match(key):
            return [self._record(line, {"eval_loss": value})]
        name = key.removeprefix("icl/").removeprefix("metrics/").replace("/", "_")
        if name not in self._names and len(self._names) >= MAX_METRICS:
            return NOTHING
        self._names.add(name)
        return [Record(line.number, self._placed({}), {name: value}, stamp=line.stamp)]

    def _evaluating(self, line: Line, *, has_ended: bool) -> Reading:
        if has_ended or self._is_evaluating:
            self._is_evaluating = not has_ended
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]

    def _placed(self, fields: dict[str, float]) -> dict[str, float]:
        return fields if self._step is None else {"step": self._step, **fields}

    def _record(self, line: Line, fields: dict[str, float]) -> Record:
        return Record(line.number, self._placed(fields), stamp=line.stamp)


def _sniff(text: str) -> bool:
    if text.startswith("\t "):
        found = _FIGURE.match(text)
        return found is not None and (found["key"] == _INDEX or ("oss" in found["key"] and found["key"] in _FIELDS))
    return text.startswith("[metric][batch=") and "oss" in text and _FILED.match(text) is not None


FORMAT: Final = Format(
    name="composer",
    summary="Composer and llm-foundry: console blocks, file logger",
    hints=(LOSS, b" Train time/batch: "),
    details=(b"[batch=", b"[token=", b"[sample=", b"[epoch=", b" Train ", b" Eval ", b"[Eval batch="),
    sniff=_sniff,
    parser=Composer,
)

"""MLPerf training: the ``:::MLLOG`` lines of mlcommons/logging, and two programs that are seen beside them alone (HugeCTR, dllogger).

    :::MLLOG {"namespace": "", "time_ms": 1700000000123, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value":
        {"train_step_time": 1.25, "reduced_train_loss": 3.125}, "metadata": {"lineno": 10, "step": 39.0, "samples_count": 5120.0}}

Odd: ``step`` counts steps, samples or epochs, as the submitter liked. It is used only where the record's own speed shows which; what counts
``samples_count`` and ``step_num`` is certain. ``eval_accuracy`` of the language models is a loss.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.model import EMPTY, Line, Malformed, Phase, Record, Stamp
from trainer_exporter.numbers import NUMBER, number

_SIGN: Final = ":::MLLOG {"
_LOSSES: Final = ("reduced_train_loss", "train_loss", "loss")
_STATS: Final[Mapping[str, str]] = {
    "lr": "learning_rate",
    "current_lr": "learning_rate",
    "throughput": "samples_per_second",
    "train_step_time": "step_duration_seconds",
    "loss_scale": "loss_scale",
}
_CONSTANTS: Final[Mapping[str, str]] = {"global_batch_size": "global_batch_size", "max_sequence_length": "sequence_length"}
# Benchmarks whose eval_accuracy is a log perplexity or a cross entropy.
_LOSS_IS_ACCURACY: Final = re.compile(r"^(?:gpt3|llama)")
_MAX_STEP: Final = 1e15
_BELIEVED_RATIO: Final = 2.0  # of a step counter's speed to the speed that the record tells
_HUGECTR: Final = re.compile(
    rf"^\[HCTR\]\[[\d:.]+\]\[[A-Z]+\]\[[^\]]*\]\[[^\]]*\]: Iter: (?P<step>\d{{1,15}}) Time\((?P<steps>\d{{1,15}}) iters\): (?P<s>[\d.]+)s"
    rf" Loss: (?P<loss>{NUMBER}) lr:(?P<lr>{NUMBER})"
)
_DLL: Final = re.compile(rf"^DLL [\d-]+ [\d:.]+ - Iteration (?P<step>\d{{1,15}}) \|.*? train_loss : (?P<loss>{NUMBER}) ")
_DLL_TIME: Final = re.compile(r"\| iteration_time : (?P<ms>[\d.]+) ms ")


_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Event:
    """One MLLOG line."""

    line: int
    key: str
    value: Any
    stamp: Stamp
    meta: Mapping[str, Any]

    def record(self, fields: Mapping[str, float] = EMPTY, metrics: Mapping[str, float] = EMPTY, **rest: Any) -> Record:
        return Record(self.line, fields, metrics, stamp=self.stamp, **rest)


class MlPerf:
    """The result file of one run, or one rank of it."""

    def __init__(self) -> None:
        self._batch: float | None = None
        self._is_language_model = False
        self._has_ended = False
        self._step: int | None = None  # in optimizer steps, as last told
        self._divisor: float | None = None  # what the unit of `step` has turned out to be: how many of them make a step
        self._before: tuple[float, float] = (0.0, 0.0)  # (seconds, step as printed) where the present stretch of training began

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        at = line.text.find(_SIGN)
        if at < 0:
            return self._beside(line)
        try:
            said, _ = _DECODER.raw_decode(line.text, at + len(_SIGN) - 1)
        except (ValueError, RecursionError):
            return [Malformed(line.number, "truncated")]
        key, millis, meta = said.get("key"), _value(said.get("time_ms")), said.get("metadata")
        if not isinstance(key, str) or millis is None or not math.isfinite(millis) or not isinstance(meta, dict):
            return [Malformed(line.number, "shape")]
        event = _Event(line.number, key, said.get("value"), Stamp(millis / 1e3, zoned=True), meta)
        record = self._read(event)
        return NOTHING if record is None else [record]

    def flush(self) -> Reading:
        return NOTHING

    def _read(self, event: _Event) -> Record | None:
        key, value = event.key, _value(event.value)
        if key in {"tracked_stats", *_LOSSES}:
            return self._stats(event)
        if key == "eval_accuracy":
            return None if value is None else self._evaluation(event, value)
        if key in _CONSTANTS and value is not None:
            self._batch = value if key == "global_batch_size" else self._batch
            return event.record({_CONSTANTS[key]: value})
        if key == "submission_benchmark":
            self._is_language_model = isinstance(event.value, str) and _LOSS_IS_ACCURACY.match(event.value) is not None
            return None
        return self._mark(event)

    def _mark(self, event: _Event) -> Record | None:
        if event.key == "run_start":
            self._has_ended, self._step, self._before = False, None, (event.stamp.seconds, 0.0)
            return event.record(phase=Phase.STARTING, starts=True)
        if event.key == "run_stop":
            self._has_ended = True
            return event.record(closes=True)
        if event.key in {"block_start", "epoch_start"}:
            self._before = (event.stamp.seconds, self._before[1])
            epoch = _value(event.meta.get("epoch_num")) if event.key == "epoch_start" else None
            return None if epoch is None else event.record({"epoch": epoch})
        if event.key in {"eval_start", "eval_stop"}:
            return event.record(phase=Phase.EVALUATING if event.key == "eval_start" else Phase.TRAINING)
        return None

    def _stats(self, event: _Event) -> Record | None:
        stats = event.value if isinstance(event.value, dict) else {event.key: event.value, "lr": event.meta.get("lr")}
        found = {name: _value(stats.get(key)) for key, name in _STATS.items() if key in stats}
        found["loss"] = next((loss for key in _LOSSES if (loss := _value(stats.get(key))) is not None), None)
        fields = {name: value for name, value in found.items() if value is not None}
        return event.record(fields | self._progress(fields, event)) if fields else None

    def _evaluation(self, event: _Event, value: float) -> Record:
        fields: dict[str, float] = {} if self._step is None else {"step": self._step}
        if self._is_language_model:
            return event.record({**fields, "eval_loss": value})
        metric = event.meta.get("metric")
        name = metric if isinstance(metric, str) and metric.isidentifier() else "eval_accuracy"
        return event.record(fields, {name: value})

    # Which step it is

    def _progress(self, fields: Mapping[str, float], event: _Event) -> dict[str, float]:
        if self._has_ended:
            return {}  # what is summed up behind the end is no progress
        samples, step, printed = (_value(event.meta.get(key)) for key in ("samples_count", "step_num", "step"))
        if step is None and samples and self._batch:
            step = samples / self._batch
        elif step is None and printed is not None:
            step = self._in_steps(printed, fields, event.stamp.seconds)
        out: dict[str, float] = {"total_samples": samples} if samples else {}
        if step is not None and 0 < step < _MAX_STEP and step.is_integer():
            self._step = int(step)
            out["step"] = self._step
        return out

    def _in_steps(self, printed: float, fields: Mapping[str, float], seconds: float) -> float | None:
        (began, before), self._before = self._before, (seconds, printed)
        if self._divisor is None and began:
            self._divisor = self._unit(printed - before, fields, seconds - began)
        return None if self._divisor is None else printed / self._divisor

    def _unit(self, advance: float, fields: Mapping[str, float], spent_s: float) -> float | None:
        """How many of the printed units make a step: one, or the batch size; None while the record's speed fits neither."""
        if not self._batch or spent_s <= 0 or advance <= 0:
            return None
        rate, duration = fields.get("samples_per_second"), fields.get("step_duration_seconds")
        samples = rate * spent_s if rate else self._batch * spent_s / duration if duration else math.nan
        for unit in (1.0, self._batch):
            if 1 / _BELIEVED_RATIO < samples / self._batch / (advance / unit) < _BELIEVED_RATIO:
                return unit
        return None

    # Programs beside

    def _beside(self, line: Line) -> Reading | None:
        if (found := _HUGECTR.match(line.text)) is not None:
            fields = _numbers(found, {"step": "step", "loss": "loss", "lr": "learning_rate"})
            spent, steps = number(found["s"]), int(found["steps"])
            if spent and steps:
                fields["step_duration_seconds"] = spent / steps
                if self._batch:
                    fields["samples_per_second"] = self._batch * steps / spent
        elif (found := _DLL.match(line.text)) is not None:
            fields = _numbers(found, {"step": "step", "loss": "loss"})
            timed = _DLL_TIME.search(line.text)
            if timed is not None and (millis := number(timed["ms"])) is not None:
                fields["step_duration_seconds"] = millis / 1e3
        else:
            return None
        self._step = int(fields["step"])
        return [Record(line.number, fields, stamp=line.stamp)]


def _numbers(found: re.Match[str], names: Mapping[str, str]) -> dict[str, float]:
    read = {name: number(found[group]) for group, name in names.items()}
    return {name: value for name, value in read.items() if value is not None}


def _value(printed: object) -> float | None:
    """A number of JSON; None for anything else, and for a whole number that no float can hold."""
    if isinstance(printed, bool) or not isinstance(printed, (int, float)):
        return None
    try:
        return float(printed)
    except OverflowError:
        return None


def _sniff(text: str) -> bool:
    if _SIGN in text:
        return '"event_type"' in text
    return _HUGECTR.match(text) is not None or _DLL.match(text) is not None


FORMAT: Final = Format(
    name="mlperf",
    summary="MLPerf training logs (:::MLLOG), with HugeCTR's and dllogger's iterations beside them",
    hints=(LOSS, b":::MLLOG"),
    sniff=_sniff,
    parser=MlPerf,
)

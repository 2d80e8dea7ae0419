"""AI-Hypercomputer/maxtext, 2023 to 2026.

    completed step: 12, seconds: 5.417, TFLOP/s/device: 141.203, Tokens/s/device: 9073.900, total_weights: 196608, loss: 9.884

Odd: steps count from 0, every host prints, and lines come one step late: the first duration is that of a dispatch or the compilation, and
a NaN may stop the run before its line is printed. ``total_weights`` are the tokens of the whole batch that count.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_STEP: Final = re.compile(r"^(?:\[[^\]]+\], )?completed (?:profiler activation/deactivation )?step: (?P<step>\d{1,15}), ")
_SNIFFED: Final = re.compile(r"step: \d+, (?:seconds|total_weights): [\d.]+, .*\bloss: ")
_DECIMALS: Final = re.compile(r"\.\d{3}$|[a-z]$", re.IGNORECASE)
_VALUE: Final = re.compile(r"-?\d+\.\d{3}$|-?(?:nan|inf)$")
_FIELDS: Final = {"loss": "loss", "seconds": "step_duration_seconds", "TFLOP/s/device": "tflops_per_gpu", "TFLOP/s": "tflops_per_gpu"}
_EVALUATED: Final = re.compile(
    rf"^(?:average loss after step=(?P<old>\d{{1,15}}): .*?\beval_loss=(?P<old_loss>{NUMBER}),"
    rf"|Completed eval after train step (?P<step>\d{{1,15}}), loss=(?P<loss>{NUMBER}),(?: perplexity=(?P<ppl>{NUMBER}),)?)"
)
_UNSETTLED: Final = 3  # compilation, then steps that are dispatched ahead of it
_LATE_STEPS: Final = 2  # between a step's end and its line
_SAVED: Final = re.compile(r"^[sS]aved a checkpoint at step (?P<step>\d{1,15})\.?$")
_SAVING: Final = re.compile(r"^Started an asynchronous checkpoint save for step (?P<step>\d{1,15})$")
_STOPPED: Final = re.compile(r"Aborting training due to (?:NaN|Inf) loss")


class Maxtext:
    """The lines of one host."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._forms = Forms()
        self._lines = 0  # of this start of the program

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _STEP.match(text)) is not None:
            return [self._trained(line, found)]
        if (found := _EVALUATED.match(text)) is not None:
            return [_evaluated(line, found)]
        if "checkpoint" in text:
            return self._checkpoint(line)
        if _STOPPED.search(text):
            return [Record(line.number, stamp=line.stamp, hidden_nonfinite=frozenset({"loss"}))]
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _trained(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        step = int(head["step"])
        fields: dict[str, float] = {"step": step}
        weights: float | None = None
        pieces = line.text[head.end() :].split(", ")
        if not _DECIMALS.search(pieces[-1]):
            pieces.pop()
        named = [piece.partition(": ") for piece in pieces]
        if len({name for name, _, _ in named}) < len(named) or not all(_VALUE.match(text) for name, _, text in named if name in _FIELDS):
            return Malformed(line.number, "number")
        for name, _, text in named:
            if name in _FIELDS and (value := number(text)) is not None:
                fields[_FIELDS[name]] = value
            elif name == "total_weights":
                weights = number(text)
        if "loss" not in fields or not self._forms.is_whole(", " + line.text[head.end() :]):
            return Malformed(line.number, "truncated")
        self._lines = 1 if self._step is not None and step < self._step else self._lines + 1
        self._step = step
        self._measure(fields, weights)
        return Record(line.number, fields, stamp=line.stamp)

    def _measure(self, fields: dict[str, float], weights: float | None) -> None:
        """Of the first lines neither duration nor rate are the step's."""
        if self._lines <= _UNSETTLED:
            fields.pop("step_duration_seconds", None)
            fields.pop("tflops_per_gpu", None)
        seconds = fields.get("step_duration_seconds")
        if seconds and weights:
            fields["tokens_per_second"] = weights / seconds

    def _checkpoint(self, line: Line) -> Reading | None:
        saved, saving = _SAVED.match(line.text), _SAVING.match(line.text)
        found = saved or saving
        if found is None:
            return None
        step = int(found["step"])
        if self._step is not None and abs(step - self._step) > _LATE_STEPS:
            return [Malformed(line.number, "truncated")]  # the number ends the line
        event = CheckpointEvent.FINISHED if saved else CheckpointEvent.STARTED
        news = Checkpoint(event, step, blocking=saving is None)
        return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING if saving else None, checkpoint=news)]


def _evaluated(line: Line, found: re.Match[str]) -> Record:
    fields: dict[str, float] = {"step": int(found["step"] or found["old"])}
    metrics: dict[str, float] = {}
    if (value := number(found["loss"] or found["old_loss"])) is not None:
        fields["eval_loss"] = value
    if found["ppl"] and (perplexity := number(found["ppl"])) is not None:
        metrics["perplexity"] = perplexity
    return Record(line.number, fields, metrics, stamp=line.stamp)


def _sniff(text: str) -> bool:
    return "completed " in text and _STEP.match(text) is not None and _SNIFFED.search(text) is not None


FORMAT: Final = Format(
    name="maxtext",
    summary="MaxText: steps, evaluation, checkpoints",
    hints=(LOSS,),
    details=(b"checkpoint at step", b"asynchronous checkpoint"),
    sniff=_sniff,
    parser=Maxtext,
)

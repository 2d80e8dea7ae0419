"""A dictionary of the Trainer's, which has no step, until a bar or its epoch tells it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_exporter.formats.bars import Bar
from trainer_exporter.formats.dicts import hidden_nonfinite
from trainer_exporter.formats.epochs import EpochMark
from trainer_exporter.model import EMPTY, Line, Phase, Record
from trainer_exporter.numbers import number


@dataclass(frozen=True, slots=True)
class Stepless:
    """What one dictionary says."""

    line: Line
    fields: dict[str, float]
    metrics: dict[str, float]
    epoch: EpochMark | None
    phase: Phase | None
    is_training: bool

    def record(self, step: int | None, *, is_exact: bool, total: int | None, beside: Bar | None) -> Record:
        """As the record of a step of so many; ``beside`` is the bar next to it, which may be of another."""
        told = progress(beside) if beside and beside.done == step else {}
        if step is not None:
            told["step"] = step
            if total and step <= total:
                told["target_steps"] = total
        return Record(
            self.line.number,
            {**told, **self.fields},
            self.metrics or EMPTY,
            stamp=self.line.stamp,
            phase=self.phase,
            hidden_nonfinite=hidden_nonfinite(self.fields),
            step_exact=is_exact or step is None,
        )


def are_of_one_moment(held: Sequence[Stepless]) -> bool:
    """Whether it is a training line and the evaluation of the same step; anything more came out of a buffer."""
    return len(held) == 1 or (len(held) == 2 and held[0].is_training and not held[1].is_training)


def progress(drawn: Bar) -> dict[str, float]:
    """What a bar says, as fields."""
    fields: dict[str, float] = {"step": drawn.done, "target_steps": drawn.total}
    if (elapsed := drawn.elapsed_s) is not None:
        fields["elapsed_seconds"] = elapsed
    if (remaining := drawn.remaining_s) is not None:
        fields["remaining_seconds"] = remaining
    return fields


def epoch_of(found: dict[str, str], text: str) -> EpochMark | None:
    """The epoch that a dictionary says. Version 5 prints values as strings, with 4 significant digits."""
    printed = found.get("epoch", "")
    value = number(printed)
    if value is None or not math.isfinite(value):
        return None
    return EpochMark(value, f"'epoch': '{printed}'" in text, is_evaluation="eval_runtime" in found)

"""When a run has started over. A step that goes back is a restart only if it is not a second writer lagging behind the first.

Every source (file) of a run keeps its own place here, because sources lag behind each other: a console that is block-buffered tells of
steps minutes after the trainer's own JSON file did.
"""

from __future__ import annotations

from collections import deque

from trainer_exporter.model import Record
from trainer_exporter.runs.windows import PerStep, StepTimes

LAG_FACTOR = 3  # a step may fall behind by so many usual increments before it must be a restart
TOTALS = ("total_tokens", "total_samples")
CONFIRMATIONS = 3  # records in a row below the highest step that prove a restart, however small the fall


class SourceState:
    """What one source has told in the present attempt."""

    def __init__(self) -> None:
        self.step: float | None = None
        self.exact = False
        self.step_times = StepTimes()
        self.token_times = StepTimes()
        self.per_step = {total: PerStep() for total in TOTALS}
        self._elapsed: float | None = None
        self._behind = 0
        self._increments: deque[float] = deque(maxlen=10)

    @property
    def contributed(self) -> bool:
        """Whether it has told a step of this attempt."""
        return self.step is not None

    def new_attempt(self) -> None:
        """Forget all but how far apart this source's records usually are."""
        self.step = None
        self._elapsed = None
        self._behind = 0
        self.step_times = StepTimes()
        self.token_times = StepTimes()
        self.per_step = {total: PerStep() for total in TOTALS}

    def has_gone_back(self, record: Record) -> bool:
        """Whether this record proves that the trainer started over (the caller then opens an attempt)."""
        step = record.fields.get("step")
        if step is None or self.step is None or step >= self.step or not record.step_exact:
            return False  # lines that a buffer held back come minutes after the bars that told of later steps
        self._behind += 1
        if self._increments and self.step - step > LAG_FACTOR * max(self._increments):
            return True
        elapsed = record.fields.get("elapsed_seconds")
        if elapsed is not None and self._elapsed is not None and elapsed < self._elapsed / 2:
            return True
        return self._behind >= CONFIRMATIONS

    def advance(self, record: Record) -> None:
        """Take over the place of a record."""
        step = record.fields.get("step")
        elapsed = record.fields.get("elapsed_seconds")
        if elapsed is not None:
            self._elapsed = elapsed if self._elapsed is None else max(elapsed, self._elapsed)
        if step is None:
            return
        self.exact = record.step_exact
        if self.step is None or step > self.step:
            if self.step is not None:
                self._increments.append(step - self.step)
            self.step = step
            self._behind = 0

"""Which step a record belongs to, when the line has none but says the epoch it was logged at.

The Trainer logs at multiples of a fixed number of steps, and prints the epoch rounded: version 4 to 2 digits, version 5 to 4
significant ones. Both together pin the step where the number of steps an epoch is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochMark:
    """An epoch as it was printed."""

    value: float
    is_significant: bool  # 4 significant digits rather than 2 decimals

    @property
    def error(self) -> float:
        """By how much rounding may have moved it."""
        if not self.is_significant:
            return 0.005
        return 0.5 * 10.0 ** (math.floor(math.log10(self.value)) - 3) if self.value > 0 else 0.0


class StepsFromEpochs:
    """Learns the steps of an epoch and of a logging interval, from announcements and from records whose step was seen."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._epochs: int | None = None
        self._examples: float | None = None
        self._batch: float | None = None
        self._announced: float | None = None
        self._learned: tuple[float, float] | None = None  # steps an epoch, error
        self._interval: int | None = None
        self._last: int | None = None

    @property
    def interval(self) -> int | None:
        """Steps between two records, once it is known."""
        return self._interval

    def announce(
        self,
        *,
        total: int | None = None,
        epochs: int | None = None,
        examples: int | None = None,
        batch: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Take what the trainer says before it starts; of several tellings the last counts."""
        self._total = total or self._total
        self._epochs = epochs or self._epochs
        self._examples = examples or self._examples
        self._batch = batch or self._batch
        self._announced = steps_per_epoch or self._announced

    def observe(self, step: int, epoch: EpochMark | None) -> None:
        """A record whose step is certain."""
        if self._last is not None and step > self._last:
            distance = step - self._last
            if step % distance == 0:  # else the first step was logged apart, or the last one
                self._interval = distance
        self._last = step
        if epoch and epoch.value > 0 and step > 0:
            error = step / epoch.value * (epoch.error / epoch.value)
            if self._learned is None or error < self._learned[1]:
                self._learned = (step / epoch.value, error)

    def steps(self, epochs: Sequence[EpochMark]) -> list[tuple[int | None, bool]]:
        """For records in a row, the step of each and whether it is certain; None where nothing is known."""
        per_epoch = self._steps_per_epoch()
        if per_epoch is None:
            return [(None, False)] * len(epochs)
        self._learn_interval(epochs, per_epoch)
        return [self._step(mark, per_epoch) for mark in epochs]

    def _step(self, mark: EpochMark, per_epoch: float) -> tuple[int | None, bool]:
        low, high = (mark.value - mark.error) * per_epoch, (mark.value + mark.error) * per_epoch
        step, is_certain = max(0, round(mark.value * per_epoch)), high - low < 1.0
        if self._interval:
            step, is_certain = self._on_the_grid(low, high, step)
        self._last = step
        return step, is_certain

    def _on_the_grid(self, low: float, high: float, nearest: int) -> tuple[int, bool]:
        interval = self._interval or 1
        first, last = math.ceil(low / interval - 1e-6) * interval, math.floor(high / interval + 1e-6) * interval
        following = self._last + interval if self._last is not None else None
        if following is not None and first <= following <= last:
            return following, True
        if first > last or nearest == self._total:
            return nearest, high - low < 1.0  # the last record of a run may lie off the grid
        return (first, True) if first == last else (min(last, max(first, nearest // interval * interval)), False)

    def _learn_interval(self, epochs: Sequence[EpochMark], per_epoch: float) -> None:
        if self._interval or len(epochs) < 3:
            return
        inner = epochs[:-1]  # the last record of a run may come early
        estimate = (inner[-1].value - inner[0].value) * per_epoch / (len(inner) - 1)
        error = (inner[-1].error + inner[0].error) * per_epoch / (len(inner) - 1)
        if error < 0.45 and estimate > 0.5 and abs(estimate - round(estimate)) <= error + 0.01:
            self._interval = round(estimate)

    def _steps_per_epoch(self) -> float | None:
        if self._announced:
            return self._announced
        if self._total and self._epochs:
            steps = self._total / self._epochs
            # With max_steps, or with half an epoch, the announced epochs are rounded up and the quotient is wrong.
            if self._examples and self._batch and abs(steps - self._examples / self._batch) <= 1.0:
                return steps
        return self._learned[0] if self._learned else None

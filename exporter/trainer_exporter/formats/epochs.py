"""Which step a record belongs to, when the line has none but says the epoch it was logged at.

The Trainer logs at multiples of a fixed number of steps, and prints the epoch rounded: version 4 to 2 digits, version 5 to 4
significant ones. Both together pin the step where the number of steps an epoch is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final

_HALF_A_HUNDREDTH: Final = 0.005
# By how much a step may lie ahead of its epoch: what is over of an epoch's batches counts as a step, or does not.
_STEPS_AHEAD: Final = 1.5
_SHARE_AHEAD: Final = 1.02


@dataclass(frozen=True, slots=True)
class EpochMark:
    """An epoch as it was printed."""

    value: float
    is_significant: bool  # 4 significant digits rather than 2 decimals
    is_evaluation: bool = False  # it follows the record of its step, and has the epoch of that

    @property
    def error(self) -> float:
        """By how much rounding may have moved it."""
        return _rounding(self.value) if self.is_significant else _HALF_A_HUNDREDTH


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
        self._observed: int | None = None
        self._last: int | None = None
        self._last_epoch: float | None = None

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
        if self._observed is not None and step > self._observed:
            distance = step - self._observed
            if step % distance == 0:  # else the first step was logged apart, or the last one
                self._interval = distance
        self._last = self._observed = step
        self._last_epoch = epoch.value if epoch else None
        if epoch and epoch.value > 0 and step > 0:
            error = step / epoch.value * (epoch.error / epoch.value)
            if self._learned is None or error < self._learned[1]:
                self._learned = (step / epoch.value, error)

    def observe_all(self, steps: Sequence[int], epochs: Sequence[float], *, is_significant: bool) -> None:
        """As ``observe`` for each of them, where there are any: records whose steps rise, and their epochs as printed."""
        known = steps if self._observed is None else [self._observed, *steps]
        intervals = (step - before for step, before in pairwise(reversed(known)) if step > before and step % (step - before) == 0)
        self._interval = next(intervals, self._interval)
        self._last = self._observed = steps[-1]
        self._last_epoch = epochs[-1]
        errors = [
            (step / epoch * ((_rounding(epoch) if is_significant else _HALF_A_HUNDREDTH) / epoch), step / epoch)
            for step, epoch in zip(steps, epochs, strict=True)
            if epoch > 0 and step > 0
        ]
        if errors:
            error, per_epoch = min(errors, key=itemgetter(0))
            if self._learned is None or error < self._learned[1]:
                self._learned = (per_epoch, error)

    def are_possible(self, steps: Sequence[int], epochs: Sequence[float]) -> bool:
        """Whether none of these steps lies far ahead of the epoch printed with it, as far as the steps of an epoch were announced."""
        per_epoch = self._announced_steps_per_epoch()
        if per_epoch is None:
            return True
        scale = per_epoch * _SHARE_AHEAD
        most = _HALF_A_HUNDREDTH * scale + _STEPS_AHEAD
        return all(step <= epoch * scale + most for step, epoch in zip(steps, epochs, strict=True))

    def bracket(self, epochs: Sequence[EpochMark], reached: int) -> None:
        """Records in a row that a buffer gave out when the trainer had just passed ``reached`` steps.

        From one record to the next the epoch grows by the same amount; the last epoch is ``count`` times that, so the last
        step is ``count`` intervals, and the largest interval that does not go beyond ``reached`` is the right one.
        """
        inner = epochs[:-1] if len(epochs) > 3 else epochs  # the last record may be an evaluation of the same step
        if self._interval or len(inner) < 3 or inner[-1].value <= inner[0].value:
            return
        spread = (inner[-1].value - inner[0].value) / (len(inner) - 1)
        count = inner[-1].value / spread
        error = count * (inner[-1].error + inner[0].error) / (inner[-1].value - inner[0].value)
        interval = reached // max(1, round(epochs[-1].value / spread))
        if error < 0.45 and interval > 0:
            self._interval = interval
            per_epoch = interval / spread
            self._learned = self._learned or (per_epoch, per_epoch * (error / count))

    def steps(self, epochs: Sequence[EpochMark]) -> list[tuple[int | None, bool]]:
        """For records in a row, the step of each and whether it is certain; None where nothing is known."""
        known = self._steps_per_epoch()
        if known is None:
            return [(None, False)] * len(epochs)
        self._learn_interval(epochs, known[0])
        return [self._step(mark, *known) for mark in epochs]

    def _step(self, mark: EpochMark, per_epoch: float, error: float) -> tuple[int | None, bool]:
        if mark.is_evaluation and mark.value == self._last_epoch and self._last is not None:
            return self._last, True
        low = (mark.value - mark.error) * (per_epoch - error)
        high = (mark.value + mark.error) * (per_epoch + error)
        step, is_certain = max(0, round(mark.value * per_epoch)), high - low < 1.0
        if self._interval:
            step, is_certain = self._on_the_grid(low, high, self._interval) or (step, is_certain)
        self._last, self._last_epoch = step, mark.value
        return step, is_certain

    def _on_the_grid(self, low: float, high: float, interval: int) -> tuple[int, bool] | None:
        """The multiple of the interval in a range: the one after the last record's, else the only one. A run's last record may lie off."""
        first, last = math.ceil(low / interval - 1e-6) * interval, math.floor(high / interval + 1e-6) * interval
        following = self._last + interval if self._last is not None else first
        if first <= following <= last:
            return following, self._last is not None or first == last
        return (last, first == last) if first <= last else None

    def _learn_interval(self, epochs: Sequence[EpochMark], per_epoch: float) -> None:
        if self._interval or len(epochs) < 3:
            return
        inner = epochs[:-1]  # the last record of a run may come early
        estimate = (inner[-1].value - inner[0].value) * per_epoch / (len(inner) - 1)
        error = (inner[-1].error + inner[0].error) * per_epoch / (len(inner) - 1)
        if error < 0.45 and estimate > 0.5 and abs(estimate - round(estimate)) <= error + 0.01:
            self._interval = round(estimate)

    def _steps_per_epoch(self) -> tuple[float, float] | None:
        """Steps an epoch and the error of that."""
        announced = self._announced_steps_per_epoch()
        return self._learned if announced is None else (announced, 0.0)

    def _announced_steps_per_epoch(self) -> float | None:
        if self._announced:
            return self._announced
        if self._total and self._epochs:
            steps = self._total / self._epochs
            # With max_steps, or with half an epoch, the announced epochs are rounded up and the quotient is wrong.
            if self._examples and self._batch and abs(steps - self._examples / self._batch) <= 1.0:
                return steps
        return None


def _rounding(epoch: float) -> float:
    """By how much four significant digits may have moved it."""
    return 0.5 * 10.0 ** (math.floor(math.log10(epoch)) - 3) if epoch > 0 else 0.0

"""Figures derived from what a run has logged; pure functions, each None (or absent) where its inputs are not known. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

from trainer_exporter.runs.windows import median

EVALUATIONS = 6  # how many results of evaluations are remembered; they are rare, so their trend is read from few


def change(values: Sequence[float]) -> float | None:
    """(newest - median of the earlier ones) / abs(that median) over the last evaluations; None under three, or about 0."""
    if len(values) < 3:
        return None
    earlier = median(values[:-1])
    return (values[-1] - earlier) / abs(earlier) if earlier else None


def changes(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """``change`` of every named result that has one."""
    figures = {name: change(results) for name, results in values.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def throughput(
    logged: Mapping[str, float | None],
    constants: Mapping[str, float],
    *,
    step_duration: float | None,
    per_step: Mapping[str, float | None],
    tokens_per_second: float | None,
) -> dict[str, float | None]:
    """Samples and tokens per second of the whole job: what the trainer logs, else from differences; never a mean since the start.

    ``per_step`` is what a step adds to the trainer's totals; ``tokens_per_second`` comes from a total and a clock, for logs without steps.
    One follows from the other where a sample has a known length: data that is packed, or said to be so.
    """
    samples, tokens = logged.get("samples_per_second"), logged.get("tokens_per_second")
    length = constants.get("sequence_length")
    batch = constants.get("global_batch_size") or per_step.get("total_samples")
    if samples is None and step_duration and batch:
        samples = batch / step_duration
    added = per_step.get("total_tokens") or constants.get("tokens_per_step")
    if tokens is None and step_duration and added:
        tokens = added / step_duration
    if tokens is None:
        tokens = tokens_per_second
    if tokens is None and samples is not None and length:
        tokens = samples * length
    if samples is None and tokens is not None and length:
        samples = tokens / length
    return {"samples_per_second": samples, "tokens_per_second": tokens}


def progress(
    step: float | None, target: float | None, *, step_duration: float | None, logged_remaining: float | None
) -> dict[str, float | None]:
    """Step, target, share done, and seconds to go at the present pace (else the trainer's own estimate)."""
    remaining = logged_remaining
    ratio = None
    if step is not None and target:
        ratio = min(1.0, step / target)
        if step_duration is not None:
            remaining = max(0.0, target - step) * step_duration
    return {"step": step, "target_steps": target, "progress_ratio": ratio, "remaining_seconds": remaining}


class Goodput:
    """Share of the time since the first step seen that was spent on steps that counted.

    Time between two steps counts, time with a save or an evaluation in it does not, and a restart takes back the share of the attempt's
    time that its lost steps had.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._last: float | None = None
        self._productive = 0.0

    def seen(self, wall: float) -> None:
        """A step was reached at ``wall``."""
        self._first = wall if self._first is None else self._first
        self._last = wall

    def productive(self, seconds: float) -> None:
        """Time that led from one step to the next."""
        self._productive += seconds

    def productive_all(self, pauses: Iterable[float]) -> None:
        """As ``productive`` for each of them."""
        self._productive = reduce(add, pauses, self._productive)

    def lost(self, steps: float, *, of: float) -> None:
        """A restart threw away ``steps`` of the ``of`` reached."""
        if of > 0:
            self._productive *= max(0.0, 1.0 - steps / of)

    def ratio(self) -> float | None:
        """0..1; None before a minute has been seen."""
        if self._first is None or self._last is None or self._last - self._first < 60.0:
            return None
        return min(1.0, self._productive / (self._last - self._first))

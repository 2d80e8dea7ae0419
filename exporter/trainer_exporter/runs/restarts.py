"""When a run has started over. A step that goes back is a restart only if it is not a second writer lagging behind the first.

Every source (file) of a run keeps its own place here, because sources lag behind each other: a console that is block-buffered tells of
steps minutes after the trainer's own JSON file did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from trainer_exporter.model import Record
from trainer_exporter.runs.rows import WORK, Column, Rows
from trainer_exporter.runs.windows import PerStep, StepTimes

LAG_FACTOR = 3  # a step may fall behind by so many usual increments before it must be a restart
NONE = Column([], [])
TOTALS = ("total_tokens", "total_samples")
INCREMENTS = 10  # between records, of which the largest is the usual one
# No program starts, loads its model and trains a step so soon after the last one. Ranks that print the same into one file do.
SOONEST_S = 2.0
CONFIRMATIONS = 3  # records in a row below the highest step that prove a restart, however small the fall


class SourceState:
    """What one source has told in the present attempt."""

    def __init__(self) -> None:
        self.step: float | None = None
        self.exact = False
        self.step_times = StepTimes()
        self.token_times = StepTimes()
        self.per_step = {total: PerStep() for total in TOTALS}
        self._work: dict[str, float] = {}
        self._elapsed: float | None = None
        self._behind = 0
        self._increments: deque[float] = deque(maxlen=INCREMENTS)

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

    def advance_all(self, rows: Rows) -> None:
        """As ``advance`` for each of them; the first step is beyond this source's last one."""
        elapsed = rows.columns.get("elapsed_seconds")
        if elapsed is not None:
            most = max(elapsed.values)
            self._elapsed = most if self._elapsed is None else max(self._elapsed, most)
        self.exact = rows.last.step_exact
        steps = rows.steps if self.step is None else [self.step, *rows.steps]
        self._increments.extend(after - before for before, after in pairwise(steps[-INCREMENTS - 1 :]))
        self.step = steps[-1]
        self._behind = 0

    def measure(self, fields: Mapping[str, float], tick: float | None) -> None:
        """Durations and rates from one record; ``tick`` is its moment, None where that says nothing."""
        step = fields.get("step")
        self._notice_work(fields)
        if "step_duration_seconds" in fields:
            self.step_times.logged(fields["step_duration_seconds"])
        elif step is not None and tick is not None:
            self.step_times.seen(tick, step)
        for total in TOTALS:
            if step is not None and total in fields:
                self.per_step[total].seen(step, fields[total])
        if tick is not None and "total_tokens" in fields:
            self.token_times.seen(tick, fields["total_tokens"])

    def measure_all(self, rows: Rows) -> None:
        """As ``measure`` for each of them; their work is the same."""
        self._notice_work(rows.last.fields)
        ticks = rows.ticks
        durations = rows.columns.get("step_duration_seconds", NONE)
        if len(durations.values) == len(rows.steps):
            self.step_times.logged_all(durations.values)
        else:
            self._time_steps(rows.steps, ticks, dict(zip(*durations, strict=True)))
        for total in TOTALS:
            for step, value in zip(*rows.columns.get(total, NONE), strict=True):
                self.per_step[total].seen(step, value)
        if "total_tokens" in rows.columns:
            tokens = dict(zip(*rows.columns["total_tokens"], strict=True))
            for step, tick in zip(rows.steps, ticks, strict=True):
                if tick is not None and step in tokens:
                    self.token_times.seen(tick, tokens[step])

    def _time_steps(self, steps: Sequence[float], ticks: Sequence[float | None], durations: Mapping[float, float]) -> None:
        """Of steps some of which may be printed with their durations."""
        if not durations and None not in ticks:
            self.step_times.seen_all(ticks, steps)  # type: ignore[arg-type]  # none is None
            return
        for step, tick in zip(steps, ticks, strict=True):
            if step in durations:
                self.step_times.logged(durations[step])
            elif tick is not None:
                self.step_times.seen(tick, step)

    def _notice_work(self, fields: Mapping[str, float]) -> None:
        told = {name: fields[name] for name in WORK if name in fields}
        if any(self._work.get(name, value) != value for name, value in told.items()):
            self.step_times.other_work()
        self._work |= told


def step_duration(sources: Collection[SourceState]) -> tuple[float | None, float | None]:
    """(median, best) seconds a step, of the source whose steps can be trusted most."""
    told = [source for source in sources if source.step_times.median() is not None]
    if not told:
        return None, None
    times = max(told, key=lambda source: source.exact).step_times
    return times.median(), times.best


def tokens_per_second(sources: Collection[SourceState]) -> float | None:
    """Of the whole job, of the first source that has a clock and a total."""
    medians = (source.token_times.median() for source in sources)
    return next((1.0 / seconds for seconds in medians if seconds), None)


def per_step(sources: Collection[SourceState]) -> dict[str, float | None]:
    """What a step adds to each total, as the source tells whose steps can be trusted most."""
    amounts: dict[str, float | None] = {}
    for source in sorted(sources, key=lambda source: source.exact):
        amounts.update({total: amount for total in TOTALS if (amount := source.per_step[total].median()) is not None})
    return amounts

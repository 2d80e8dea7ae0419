"""The values of one field of a run: the last one, its windows, its baseline and spikes, and whose word counts.

Several sources may report the same field (a console and a JSON file of one trainer). The best one owns it; the others are heard only when
the owner has fallen silent, and no step is ever pushed twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from trainer_exporter.runs.rows import Column
from trainer_exporter.runs.windows import Baseline, Latch, StepWindow

WINDOWS = (100, 1000)
BASELINE_FLOOR = 0.05  # a ratio against a loss near 0 says nothing (fine-tunes that overfit, RL objectives crossing 0)
SUSTAINED_RECORDS = 5  # in a row above 1.5 x the baseline: no healthy language-model run in 77 real ones had so many
MOST_ROWS = 64  # sources of one attempt whose rows of non-finite values are told apart
OWNER_PATIENCE = 5  # records that another source may be ahead before the owner counts as silent


class FieldSeries:
    """One field of one attempt. Most have a last value alone; ``windows`` and ``spikes`` say what else is asked of it."""

    def __init__(self, *, latch_s: float, windows: bool = False, spikes: bool = False) -> None:
        self.value: float | None = None
        self._is_precise = False
        self._owner = ""
        self._owner_rank = -1
        self._ordinal = 0.0
        self._ahead = 0
        self.window = StepWindow(max(WINDOWS)) if windows else None
        self._baseline = Baseline() if spikes else None
        self._spikes = Latch(latch_s)
        self._ratios: deque[float] = deque(maxlen=SUSTAINED_RECORDS)
        self._sustained = Latch(latch_s)
        self.lowest_baseline: float | None = None
        self.highest: float | None = None  # finite value of this attempt

    def accepts(self, source: str, rank: int, step: float | None) -> bool:
        """Whether this source's record is the one that counts; taking over from a worse or a silent owner happens here."""
        is_owner = source == self._owner or rank > self._owner_rank
        if is_owner:
            self._own(source, rank)
        if step is not None and step <= self._ordinal:
            return False  # the second word on a step, or a source that lags behind
        if not is_owner:
            self._ahead += 1
            if self._ahead <= OWNER_PATIENCE:
                return False
            self._own(source, rank)
        return True

    def _own(self, source: str, rank: int) -> None:
        self._owner, self._owner_rank, self._ahead = source, rank, 0

    def correct(self, step: float | None, value: float) -> None:
        """A source that does not round tells of the step whose value is shown: then it is shown as it is."""
        if step is not None and step == self._ordinal and not self._is_precise:
            self.value, self._is_precise = value, True

    def is_owned_by(self, source: str, rank: int) -> bool:
        """Whether a record of this source counts, however far others are."""
        return source == self._owner or rank > self._owner_rank

    @property
    def ordinal(self) -> float:
        """The step of the last value."""
        return self._ordinal

    def extend(self, column: Column, source: str, rank: int, *, precise: bool, wall: float | None) -> None:
        """Take in finite values of steps that rise, the first beyond all before, from the source that owns the field or may."""
        self._own(source, rank)
        steps, values = column
        self.show(steps[-1], values[-1], precise=precise)
        most = max(values)
        self.highest = most if self.highest is None else max(self.highest, most)
        if self._baseline is not None:
            self._hold_all(self._baseline, values, wall=wall)
        if self.window is not None:
            self.window.extend(steps, values)

    def _hold_all(self, baseline: Baseline, values: Sequence[float], *, wall: float | None) -> None:
        medians = baseline.extend(values)
        news = values if wall is not None else values[-SUSTAINED_RECORDS:]  # of history only what is newest shows
        for usual, value in zip(medians[len(values) - len(news) : -1], news, strict=True):
            self._against(usual, value, wall=wall)
        known = [usual for usual in medians[1:] if usual is not None]
        if known:
            least = min(known)
            self.lowest_baseline = least if self.lowest_baseline is None else min(self.lowest_baseline, least)

    def show(self, step: float | None, value: float, *, precise: bool = False) -> None:
        """Make this the last value, whatever it is."""
        self.value, self._is_precise = value, precise
        self._ordinal = self._ordinal + 1 if step is None else step

    def push(self, value: float, *, wall: float | None) -> None:
        """Add a finite value (already shown) to windows and baseline; ``wall`` None means that it cannot be news."""
        if self.highest is None or value > self.highest:
            self.highest = value
        if self._baseline is not None:
            self._hold_against(self._baseline, value, wall=wall)
        if self.window is not None:
            self.window.push(self._ordinal, value)

    def _hold_against(self, baseline: Baseline, value: float, *, wall: float | None) -> None:
        self._against(baseline.median, value, wall=wall)
        baseline.push(value)
        now = baseline.median
        if now is not None and (self.lowest_baseline is None or now < self.lowest_baseline):
            self.lowest_baseline = now

    def _against(self, usual: float | None, value: float, *, wall: float | None) -> None:
        if usual is not None:
            ratio = value / max(usual, BASELINE_FLOOR)
            self._spikes.push(wall, ratio)
            self._ratios.append(ratio)
        if len(self._ratios) == SUSTAINED_RECORDS:
            self._sustained.push(wall, min(self._ratios))

    def baseline(self) -> float | None:
        """Median of the last 100 records, from 20 on: what the next record will be held against."""
        return None if self._baseline is None else self._baseline.median

    def spike_ratio(self, now: float) -> float | None:
        """Largest value / baseline of the last latch seconds."""
        return self._spikes.value(now)

    def sustained_ratio(self, now: float) -> float | None:
        """What all of five records in a row reached of their baseline: the largest such figure of the last latch seconds."""
        return self._sustained.value(now)


class Streaks:
    """Non-finite values of one field: how many ever, when last, and how many in a row each source has seen."""

    def __init__(self) -> None:
        self.total = 0
        self.wall: float | None = None
        self._bad_step: float | None = None
        self._rows: dict[str, int] = {}

    def finite(self, source: str) -> None:
        """A finite value came from this source."""
        self._rows.pop(source, None)

    def nonfinite(self, source: str, *, step: float | None, wall: float | None, number: int = 1) -> None:
        """A record that is not finite came, for ``number`` steps; two sources that tell of the same step count once."""
        self._rows[source] = self._rows.get(source, 0) + 1
        if len(self._rows) > MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        if step is None or self._bad_step is None or step > self._bad_step:
            self.total += number
        if step is not None:
            self._bad_step = step if self._bad_step is None else max(step, self._bad_step)
        if wall is not None:
            self.wall = wall

    @property
    def streak(self) -> int:
        """Records in a row that are not finite now, as the source tells that has seen most."""
        return max(self._rows.values(), default=0)

    def new_attempt(self) -> None:
        """Rows end with the attempt; what has been counted stays counted."""
        self._rows.clear()
        self._bad_step = None

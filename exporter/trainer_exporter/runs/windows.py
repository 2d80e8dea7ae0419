"""Rolling statistics over steps and records: push a value, read a figure. Pure; they know no clock and no meaning.

Only finite values are pushed (the state keeps NaN and Inf out, they are counted elsewhere), and steps only rise: whoever owns a window
makes a new one when a run starts over.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

MIN_RECORDS = 10  # fewer say nothing about a trend (design, section 4)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) of an ascending, non-empty sequence, linear between neighbours."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    # Written as a sum of two shares: the difference form can overflow where the ends have opposite signs.
    share = position - low
    return ordered[low] * (1 - share) + ordered[high] * share


def median(values: Iterable[float]) -> float:
    """The median of what is not empty, in any order."""
    return middle(sorted(values))


def middle(ordered: Sequence[float]) -> float:
    """The median of an ascending, non-empty sequence: as ``quantile`` has it, in less time."""
    half = len(ordered) >> 1
    return ordered[half] if len(ordered) & 1 else ordered[half - 1] * 0.5 + ordered[half] * 0.5


def _sliding(ordered: list[float], leaving: Sequence[float], values: Sequence[float]) -> list[float]:
    """The medians of a window that is full, behind each of the values; ``leaving`` are those that go, in order. ``ordered`` is kept up."""
    low, high = (len(ordered) - 1) >> 1, len(ordered) >> 1
    medians: list[float] = []
    for old, value in zip(leaving, values):  # noqa: B905 - as many go as come
        if old != value:
            del ordered[bisect_left(ordered, old)]
            insort(ordered, value)
        medians.append(ordered[low] * 0.5 + ordered[high] * 0.5)
    return medians


class StepWindow:
    """The values of the last ``span`` steps, the newest included; figures can be had of the last few of them too.

    Figures are None under ten records, and where their denominator is 0. Never holds more than ``span`` values: a step has one. What
    has left the window goes when a figure is asked for, because most values are pushed between two such moments.
    """

    def __init__(self, span: int) -> None:
        self.span = span
        self._steps: deque[float] = deque(maxlen=span)
        self._values: deque[float] = deque(maxlen=span)

    def push(self, step: float, value: float) -> None:
        """Add the value of a step larger than all before."""
        self._steps.append(step)
        self._values.append(value)

    def extend(self, steps: Sequence[float], values: Sequence[float]) -> None:
        """As ``push`` for each of them."""
        self._steps.extend(steps[-self.span :])
        self._values.extend(values[-self.span :])

    def values(self, span: int | None = None) -> list[float]:
        """Of the last ``span`` steps, or of all that the window holds, in order."""
        steps = self._steps
        if not steps:
            return []
        begin = bisect_right(steps, steps[-1] - (span or self.span))
        return list(islice(self._values, begin, None)) if begin else list(self._values)

    def change_ratio(self, span: int | None = None) -> float | None:
        """(mean of the newer half - mean of the older half) / abs(mean of the older half); negative = falling.

        With an odd number the middle record belongs to the newer half.
        """
        values = self.values(span)
        if len(values) < MIN_RECORDS:
            return None
        half = len(values) // 2
        older = sum(values[:half]) / half
        newer = sum(values[half:]) / (len(values) - half)
        return _finite((newer - older) / abs(older)) if older else None

    def oscillation_ratio(self, span: int | None = None) -> float | None:
        """(95th percentile - 5th percentile) / abs(median)."""
        ordered = sorted(self.values(span))
        if len(ordered) < MIN_RECORDS:
            return None
        middle = quantile(ordered, 0.5)
        return _finite((quantile(ordered, 0.95) - quantile(ordered, 0.05)) / abs(middle)) if middle else None


class Baseline:
    """The median of the previous ``size`` records, once there are ``minimum``; kept sorted so that reading costs nothing."""

    def __init__(self, size: int = 100, minimum: int = 20) -> None:
        self._size = size
        self._minimum = minimum
        self._arrived: deque[float] = deque(maxlen=size)
        self._ordered: list[float] = []
        self.median: float | None = None  # None while there are too few records

    def push(self, value: float) -> None:
        """Add the newest record; the oldest falls out when the window is full."""
        self.extend((value,))

    def extend(self, values: Sequence[float]) -> list[float | None]:
        """As ``push`` for each of them; the medians, the one before the first and that behind each."""
        ordered = self._ordered
        medians = [self.median]
        free = self._size - len(ordered)
        for value in values[:free]:
            insort(ordered, value)
            medians.append(middle(ordered) if len(ordered) >= self._minimum else None)
        medians += _sliding(ordered, [*self._arrived, *values], values[free:])
        self._arrived.extend(values)
        self.median = medians[-1]
        return medians


class Latch:
    """The largest value of the last ``seconds``, and never less than the newest one, however old it is.

    A scrape sees one record in many; the latch lets no scrape and no second Prometheus miss a spike.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._falling: deque[tuple[float, float]] = deque()  # values fall from left to right: each may still become the largest
        self._newest: float | None = None

    def push(self, wall: float | None, value: float) -> None:
        """Add a value; without a moment (history) it is the newest but does not stay."""
        self._newest = value
        if wall is None:
            return
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((wall, value))

    def value(self, now: float) -> float | None:
        """The largest value that is still held at ``now``; None when nothing was ever pushed."""
        while self._falling and self._falling[0][0] < now - self._seconds:
            self._falling.popleft()
        if self._falling and self._newest is not None:
            return max(self._falling[0][1], self._newest)
        return self._newest


class Gaps:
    """Pauses between signs of progress that turned out to be normal, in seconds: quantiles of the last ``size``, and the longest ever."""

    MINIMUM = 5  # before that an attempt has not shown what is normal for it (design, decision 2)

    def __init__(self, size: int = 1000) -> None:
        self._recent: deque[float] = deque(maxlen=size)
        self._longest = 0.0

    def push(self, seconds: float) -> None:
        """Add a pause that has ended with progress."""
        self._recent.append(seconds)
        self._longest = max(self._longest, seconds)

    def extend(self, seconds: Sequence[float]) -> None:
        """As ``push`` for each of them."""
        self._recent.extend(seconds)
        self._longest = max((self._longest, *seconds))

    def quantiles(self) -> dict[float, float]:
        """{0.5, 0.95, 1: seconds}; empty while there are under five."""
        if len(self._recent) < self.MINIMUM:
            return {}
        ordered = sorted(self._recent)
        return {0.5: quantile(ordered, 0.5), 0.95: quantile(ordered, 0.95), 1.0: self._longest}


class StepTimes:
    """Seconds a step, from pairs (clock, step) or from durations that the trainer prints itself.

    Arrival is seen once a second, so a pair of neighbours says little; spans of ``span_seconds`` or more are judged instead, and the
    figure is the median of the last ``size`` of them. ``best`` is the smallest median that ``sustained`` spans in a row have shown.
    """

    def __init__(self, *, span_seconds: float = 10.0, size: int = 20, sustained: int = 10) -> None:
        self._span = span_seconds
        self._sustained = sustained
        self._durations: deque[float] = deque(maxlen=size)
        self._anchor: tuple[float, float] | None = None
        self._newest: tuple[float, float] | None = None
        self.best: float | None = None

    def logged(self, seconds: float) -> None:
        """Add a step duration as the trainer prints it."""
        if seconds <= 0:
            return
        self._durations.append(seconds)
        if len(self._durations) >= self._sustained:
            current = median(self._durations)
            self.best = current if self.best is None else min(self.best, current)

    def logged_all(self, seconds: Sequence[float]) -> None:
        """As ``logged`` for each of them."""
        known = self._durations
        rest = deque(each for each in seconds if each > 0)
        while rest and (self.best is None or len(known) < (known.maxlen or 0)):
            self.logged(rest.popleft())
        if rest and self.best is not None and min(*rest, *known) < self.best:  # else no median is less
            self.best = min(self.best, *_sliding(sorted(known), [*known, *rest], [*rest]))
        known.extend(rest)

    def seen(self, clock: float, step: float) -> None:
        """Add a moment at which ``step`` was reached; a clock that steps back starts a new span."""
        if self._anchor is None or clock < self._anchor[0] or step < self._anchor[1]:
            self._anchor = self._newest = (clock, step)
            return
        self._newest = (clock, step)
        seconds, steps = clock - self._anchor[0], step - self._anchor[1]
        if seconds >= self._span and steps > 0:
            self._anchor = (clock, step)
            self.logged(seconds / steps)

    def seen_all(self, clocks: Sequence[float], steps: Sequence[float]) -> None:
        """As ``seen`` for each of them, where there are any."""
        begin, known = self._anchor or (clocks[0], steps[0])
        durations: list[float] = []
        for clock, step in zip(clocks, steps):  # noqa: B905 - as many of the ones as of the others
            if clock < begin or step < known:
                begin, known = clock, step
            elif clock - begin >= self._span and step > known:
                durations.append((clock - begin) / (step - known))
                begin, known = clock, step
        self._anchor, self._newest = (begin, known), (clocks[-1], steps[-1])
        self.logged_all(durations)

    def other_work(self) -> None:
        """From now on a step does more or less than before, so what was quick for it is no measure any more."""
        self._durations.clear()
        self.best = None

    def interrupt(self) -> None:
        """Forget the open span: a save or an evaluation lies in it."""
        self._anchor = self._newest = None

    def median(self) -> float | None:
        """The current seconds a step; from the open span alone while no span is complete; None before two moments differ."""
        if self._durations:
            return median(self._durations)
        if self._anchor is None or self._newest is None:
            return None
        seconds, steps = self._newest[0] - self._anchor[0], self._newest[1] - self._anchor[1]
        return seconds / steps if seconds > 0 and steps > 0 else None


class PerStep:
    """What a step adds to a running total (tokens, samples): the median over the last ``size`` records; None before two of them."""

    def __init__(self, *, size: int = 20) -> None:
        self._added: deque[float] = deque(maxlen=size)
        self._last: tuple[float, float] | None = None

    def seen(self, step: float, total: float) -> None:
        """Add the total that was reached with ``step``; where either goes back, counting starts anew from here."""
        if self._last is not None and step > self._last[0] and total > self._last[1]:
            self._added.append((total - self._last[1]) / (step - self._last[0]))
        elif self._last is not None and step == self._last[0]:
            return
        self._last = (step, total)

    def median(self) -> float | None:
        """The present amount a step."""
        return median(self._added) if self._added else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

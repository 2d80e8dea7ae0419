"""Checkpoints of one run, from log lines and from its directory: each is counted once, by its step, whoever tells of it first."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass

from trainer_exporter.model import Checkpoint, CheckpointEvent, Histogram

DURATION_BOUNDS = (
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1200.0,
    3600.0,
)  # blocking saves take 0.5 s to 10 min and more
REMEMBERED = 64  # checkpoints of which the end is known; a second word on them is ignored


@dataclass(slots=True)
class _Open:
    """A save in progress."""

    begun_wall: float | None
    blocking: bool
    witnessed: bool  # the directory is being watched: its end will be told


class Saves:
    """What is known about the checkpoints of a run."""

    def __init__(self) -> None:
        self._open: dict[int | None, _Open] = {}
        self._done: OrderedDict[int | None, CheckpointEvent] = OrderedDict()
        self._timed: set[int | None] = set()
        self._counts = [0] * (len(DURATION_BOUNDS) + 1)
        self._sum = 0.0
        self.failures = 0
        self.last_duration_s: float | None = None
        self.last_wall: float | None = None
        self.last_step: int | None = None
        self.last_bytes: int | None = None

    def fold(self, news: Checkpoint, wall: float | None) -> None:
        """Take in one piece of news that happened at ``wall`` (None: in the past, it is not known when)."""
        if news.event is CheckpointEvent.STARTED:
            self._start(news, wall)
        elif news.event is CheckpointEvent.FINISHED:
            self._finish(news, wall)
        elif self._done.get(news.step) is not CheckpointEvent.FAILED:
            self.failures += 1
            self._close(news.step, CheckpointEvent.FAILED)

    def progressed(self) -> None:
        """Training went on: a save whose end nobody tells is over, one that is watched goes on in the background."""
        if not self._open:
            return
        self._open = {step: save for step, save in self._open.items() if save.witnessed or not save.blocking}
        for save in self._open.values():
            save.blocking = False

    def abandon(self) -> None:
        """A new attempt began: what the old one was writing will not be finished by it."""
        self._open.clear()

    def resumed(self, step: float) -> None:
        """The new attempt goes on from ``step``: later checkpoints will be made once more, and count once more."""
        for known in [known for known in self._done if known is not None and known >= step]:
            del self._done[known]
            self._timed.discard(known)

    @property
    def blocks(self) -> bool:
        """Whether training waits for a save."""
        return any(save.blocking for save in self._open.values())

    @property
    def started_wall(self) -> float | None:
        """When the oldest save in progress began; None when none is, or its start is not known."""
        walls = [save.begun_wall for save in self._open.values() if save.begun_wall is not None]
        return min(walls, default=None)

    def durations(self) -> Histogram:
        """Durations of the saves that were timed, in seconds."""
        return Histogram(DURATION_BOUNDS, tuple(self._counts), self._sum)

    def _start(self, news: Checkpoint, wall: float | None) -> None:
        if news.step is not None and news.step in self._done:
            return
        begun = news.wall if news.wall is not None else wall
        known = self._open.setdefault(news.step, _Open(begun, news.blocking, witnessed=news.wall is not None))
        if len(self._open) > REMEMBERED:  # a trainer that saves in the background and never tells of an end
            del self._open[next(iter(self._open))]
        known.witnessed = known.witnessed or news.wall is not None
        known.blocking = known.blocking and news.blocking
        known.begun_wall = begun if known.begun_wall is None else known.begun_wall

    def _finish(self, news: Checkpoint, wall: float | None) -> None:
        ended = news.wall if news.wall is not None else wall
        begun = self._open[news.step].begun_wall if news.step in self._open else None
        duration = news.duration_seconds
        if duration is None and begun is not None and ended is not None and ended >= begun:
            duration = ended - begun
        if duration is not None and (news.step is None or news.step not in self._timed):
            self._observe(duration)
            self._timed.add(news.step)
        if self.last_step is None or news.step is None or news.step >= self.last_step:
            self.last_step = news.step if news.step is not None else self.last_step
            self.last_wall = ended if ended is not None else self.last_wall
            self.last_bytes = news.size_bytes if news.size_bytes is not None else self.last_bytes
        self._close(news.step, CheckpointEvent.FINISHED)

    def _observe(self, seconds: float) -> None:
        self._counts[bisect_left(DURATION_BOUNDS, seconds)] += 1
        self._sum += seconds
        self.last_duration_s = seconds

    def _close(self, step: int | None, how: CheckpointEvent) -> None:
        self._open.pop(step, None)
        self._done[step] = how
        while len(self._done) > REMEMBERED:
            forgotten, _ = self._done.popitem(last=False)
            self._timed.discard(forgotten)

"""The two clocks of the daemon, passed in so that a test or a backtest can move time by hand.

Wall time (``wall``) is what is published; monotonic time (``mono``) measures durations and never steps back.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where "now" comes from."""

    def wall(self) -> float:
        """Seconds since the Unix epoch."""

    def mono(self) -> float:
        """Seconds from an arbitrary start; never decreases."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still unless it is moved: for tests and for virtual time."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._mono = 0.0

    def wall(self) -> float:
        return self._wall

    def mono(self) -> float:
        return self._mono

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._wall += seconds
        self._mono += seconds

    def set_wall(self, wall: float) -> None:
        """Move to a moment; monotonic time follows forward moves only, as on a real machine."""
        self._mono += max(0.0, wall - self._wall)
        self._wall = wall

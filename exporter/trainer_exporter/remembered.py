"""The logs that were followed, for a while after their files have gone. Part of the composition.

In the middle of a rotation nothing stands at a path, and a run whose directory an epilog has removed must still be told to have ended.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.clock import Clock

REMEMBERED_S: Final = 3600.0
REMEMBERED: Final = 4  # times as many paths as are followed at most


@dataclass(frozen=True, slots=True)
class Last:
    """What was known of a path when it was followed last."""

    run: str
    led_by: str  # what led to it
    seen_mono: float


class Remembered:
    """Paths, those that have been away longest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, Last] = {}

    def see(self, path: str, *, run: str, led_by: str) -> None:
        """It is followed."""
        self._last.pop(path, None)
        self._last[path] = Last(run, led_by, self._clock.mono())

    def led_by(self, path: str) -> str:
        """What led to it; "" for one that is not remembered."""
        last = self._last.get(path)
        return last.led_by if last else ""

    def forget(self, followed: Collection[str], *, most: int, is_written_on: Callable[[str], bool]) -> Mapping[str, Sequence[str]]:
        """Let go of those that have been away too long, or are too many: path -> the runs of which none is remembered any more.

        A process that writes on into a file that was deleted keeps it in mind, and so does a file that the configuration names no more.
        """
        now = self._clock.mono()
        crowd = len(self._last) - REMEMBERED * most
        gone = []
        for at, path in enumerate(path for path in self._last if path not in followed):
            is_old = now - self._last[path].seen_mono > REMEMBERED_S
            if at < crowd or (is_old and is_away(path) and not is_written_on(path)):
                gone.append(path)
        runs = {path: self._last.pop(path).run for path in gone}
        left = {last.run for last in self._last.values()}
        return {path: () if run in left else (run,) for path, run in runs.items()}

    def by_run(self, followed: Collection[str]) -> Mapping[str, Sequence[str]]:
        """The paths that are not followed now, by run."""
        paths: dict[str, list[str]] = defaultdict(list)
        for path, last in self._last.items():
            if path not in followed:
                paths[last.run].append(path)
        return paths


def is_away(path: str) -> bool:
    """Whether no file stands at a path."""
    return path.startswith("/") and not os.path.lexists(path)

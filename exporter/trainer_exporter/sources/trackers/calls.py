"""Numbers that a trainer reported one by one -> records: what was reported in one call has one time and one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import stamp_of
from trainer_exporter.sources.trackers.meaning import Interpreter


class Calls:
    """The reports of one run, in the order of their times."""

    def __init__(self) -> None:
        self._interpreter = Interpreter()
        self._points: defaultdict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        self._number = 0

    def knows(self, name: str) -> bool:
        """Whether a number of this name can become part of a record."""
        return self._interpreter.knows(name)

    def add(self, name: str, *, milliseconds: int, step: int, value: float) -> None:
        """One number and when it was reported."""
        self._points[milliseconds, step][name] = value

    def records(self) -> Iterator[Record]:
        """What was added since the last time."""
        points, self._points = self._points, defaultdict(dict)
        for (milliseconds, step), values in sorted(points.items(), key=lambda point: point[0]):
            self._number += 1
            # The Hugging Face Trainer's mean over the whole run has the name under which others report each step.
            told = {name: value for name, value in values.items() if name != "train_loss" or "train_steps_per_second" not in values}
            made = self._interpreter.record(told, step=step, line=self._number, stamp=stamp_of(milliseconds / 1000))
            if made is not None:
                yield made

    def about(self, *, name: str, ended_ms: float | None, finished: bool) -> Record:
        """What the tracker says of the run itself."""
        self._number += 1
        stamp = stamp_of(ended_ms / 1000) if ended_ms is not None else None
        return Record(self._number, facts={"run_name": name} if name else {}, stamp=stamp, closes=finished)

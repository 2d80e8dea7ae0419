"""A tracker's file that is followed: reader -> moments -> run. Part of the composition.

All files of one tracker tell of a run as one source: a trainer that starts again writes new ones, and only side by side do they show that
the steps went back.
"""

from __future__ import annotations

import logging
from collections import Counter

from trainer_exporter.feed import Assignment, Feed, Tools
from trainer_exporter.model import FileStatus
from trainer_exporter.runs.timeline import Timeline
from trainer_exporter.sources.files import IrregularError, reason_of
from trainer_exporter.sources.trackers import MissingExtraError, Tracker

log = logging.getLogger(__name__)

POLL_S = 2.0
RETRY_S = 5.0
MISSING_S = 300.0  # a package that is installed while the daemon runs is found


class TrackerFeed(Feed):
    """One followed file of a tracker and its run."""

    def __init__(self, assignment: Assignment, tools: Tools, tracker: Tracker) -> None:
        self._tracker = tracker
        super().__init__(assignment, tools)

    def _begin(self, *, present_at_start: bool) -> None:
        self._reader = self._tracker.reader(self.assignment.path)
        self._settled = not present_at_start
        self._mtime = self.written_wall
        self._timeline = Timeline(last_stamp=None, mtime=self._mtime)
        self._taken: Counter[str] = Counter()
        self._error = ""
        self._next_mono = self._tools.clock.mono()

    @property
    def series(self) -> tuple[str, str]:
        """Feeds with the same are one source."""
        return self.assignment.run, self._tracker.name

    @property
    def written_wall(self) -> float:
        """When the file was written last; now, where that cannot be seen."""
        now = self._tools.clock.wall()
        try:
            return min(self._tracker.written(self.assignment.path).st_mtime, now)
        except OSError:
            return now

    @property
    def is_gone(self) -> bool:
        try:
            self._tracker.written(self.assignment.path)
        except OSError:
            return True
        return False

    @property
    def lag_bytes(self) -> int:
        extent = self._reader.extent
        return max(0, extent.size - extent.position)

    def poll(self) -> bool:
        now = self._tools.clock.mono()
        if now < self._next_mono:
            return False
        self._next_mono = now + POLL_S
        more = False
        try:
            more = self._read()
        except MissingExtraError as error:
            self._fail("missing_extra", str(error), retry_s=MISSING_S)
        except (OSError, IrregularError) as error:
            self._fail(reason_of(error), f"{self.assignment.path}: {error}", retry_s=RETRY_S)
        if not more and not self._settled:
            self._settle(self._tracker.name, lines=0)
        return more

    def status(self) -> FileStatus:
        extent = self._reader.extent
        return FileStatus(
            path=self.assignment.path,
            run=self.assignment.run,
            format=self._tracker.name,
            size_bytes=extent.size,
            lag_bytes=self.lag_bytes,
            lines=self._taken["parsed"],
            last_written_wall=extent.mtime,
            error=self._error,
            why=self.assignment.why,
            run_origin=self.assignment.run_origin,
        )

    def close(self) -> None:
        """Nothing is open between two looks."""

    def _counts(self) -> Counter[str]:
        return self._taken

    def _position(self) -> int:
        return self._reader.extent.position

    def _read(self) -> bool:
        batch = self._reader.poll()
        self._error = ""
        self._taken.update({"parsed": len(batch.records), "malformed": batch.malformed})
        name = self._tracker.name
        self._fold(batch.records, read_wall=self._tools.clock.wall(), live=self._settled, source=name, format_name=name)
        if batch.more:
            self._next_mono = self._tools.clock.mono()
        return batch.more

    def _fail(self, word: str, detail: str, *, retry_s: float) -> None:
        self._error = word
        self._next_mono = self._tools.clock.mono() + retry_s
        if self._tools.health.count(f"tracker_{self._tracker.name}", word, detail=detail):
            log.warning("%s; further ones are only counted", detail)

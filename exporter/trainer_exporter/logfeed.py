"""A followed log: follower -> intake -> moments -> run. Part of the composition."""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_exporter.claims import Said
from trainer_exporter.feed import Assignment, Feed, Tools
from trainer_exporter.model import Change, Chunk, FileStatus, Malformed, Stamp
from trainer_exporter.private import SLOW
from trainer_exporter.runs.timeline import Timeline
from trainer_exporter.sources.files import is_public
from trainer_exporter.sources.follow import Follower

log = logging.getLogger(__name__)

TAIL_BYTES = 64 << 10
PUBLIC_S = 10.0  # between two looks at who may read a file
NOT_SHOWN = "(not shown: not everybody on this node may read this file)"


class LogFeed(Feed):
    """One followed log and its run."""

    def _begin(self, *, present_at_start: bool) -> None:
        tools, path = self._tools, self.assignment.path
        self.follower = Follower(path, tools.clock, tools.health, present_at_start=present_at_start, limits=tools.limits)
        self._intake = tools.intake(self.assignment)
        self._renewed: Counter[str] = Counter()  # lines of what stood at the path before
        self._settled = not present_at_start
        self._is_public, self._next_look_mono = False, tools.clock.mono()
        last = _last_stamp(self.assignment, tools) if present_at_start else _LastStamp(0.0)
        self._mtime = last.mtime
        self._timeline = Timeline(last_stamp=last.stamp, mtime=last.mtime, is_latest=last.is_latest)

    @property
    def is_gone(self) -> bool:
        return self._settled and self.follower.inode == 0

    @property
    def lag_bytes(self) -> int:
        return self.follower.lag_bytes

    def poll(self) -> bool:
        polled = self.follower.poll()
        for item in polled.items:
            if isinstance(item, Chunk):
                self._take(self._intake.feed_tables(item), item)
            elif item is not Change.APPEARED:
                self._renew()
        if not self._settled and polled.caught_up and not polled.more:
            self._settle(self.assignment.path, lines=self.follower.lines)
        return polled.more

    def status(self) -> FileStatus:
        follower = self.follower
        return FileStatus(
            path=self.assignment.path,
            run=self.assignment.run,
            format=self._intake.format,
            size_bytes=follower.size,
            lag_bytes=follower.lag_bytes,
            lines=follower.lines,
            last_written_wall=follower.last_mtime,
            last_unrecognised=self._shown(self._intake.last_unrecognised),
            error=follower.error,
            why=self.assignment.why,
            run_origin=self.assignment.run_origin,
        )

    def _shown(self, line: str) -> str:
        """A line for the status page, which may show no more than everybody on the node may read: the daemon may read more, and a link of
        anybody's may lead to it.
        """
        now = self._tools.clock.mono()
        if line and now >= self._next_look_mono:
            self._next_look_mono, self._is_public = now + PUBLIC_S, is_public(self.assignment.path)
        return line if self._is_public or not line else NOT_SHOWN

    def close(self) -> None:
        self.follower.close()

    def _counts(self) -> Counter[str]:
        return self._renewed + Counter(self._intake.counts)

    def _position(self) -> int:
        return self.follower.read_bytes_total

    def _renew(self) -> None:
        """Other content stands at the path: its lines are news, and may be another program's."""
        self._take(self._intake.flush(), None)
        self._renewed += Counter(self._intake.counts)
        self._intake = self._tools.intake(self.assignment)

    def _take(self, events: Sequence[Said], chunk: Chunk | None) -> None:
        for event in events:
            if isinstance(event, Malformed) and event.reason == SLOW:
                self._report_slow(event)
        self._fold(
            events,
            read_wall=chunk.read_wall if chunk is not None else self._tools.clock.wall(),
            live=chunk.live if chunk is not None else True,
            source=self.assignment.path,
            format_name=self._intake.format,
        )

    def _report_slow(self, event: Malformed) -> None:
        where = (
            f"the format {event.format} is switched off for {self.assignment.path}: its pattern took too long, last on line {event.line}"
        )
        self._tools.health.count("format", SLOW, detail=where)
        log.warning("%s", where)


@dataclass(frozen=True, slots=True)
class _LastStamp:
    """When a file was written last, the last time that stands in it, and whether nothing without one follows it."""

    mtime: float
    stamp: Stamp | None = None
    is_latest: bool = True


def _last_stamp(assignment: Assignment, tools: Tools) -> _LastStamp:
    """Of a file as it is now; one that cannot be read was written now."""
    try:
        # A pipe that is called a log would block an ordinary open for ever.
        with open(assignment.path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode):
                return _LastStamp(tools.clock.wall())
            file.seek(max(0, seen.st_size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except OSError:
        return _LastStamp(tools.clock.wall())  # the follower counts it
    intake = tools.intake(assignment)
    events = [*intake.feed(Chunk(tail, 1, seen.st_mtime, live=False)), *intake.flush()]
    stamps = [event.stamp for event in events if not isinstance(event, Malformed)]
    known = [stamp for stamp in stamps if stamp is not None]
    mtime = min(seen.st_mtime, tools.clock.wall())
    return _LastStamp(mtime, known[-1], is_latest=stamps[-1] is not None) if known else _LastStamp(mtime)

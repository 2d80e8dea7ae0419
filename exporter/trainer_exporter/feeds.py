"""Followed files on their way into the store: follower -> intake -> moments -> run. Part of the composition; one thread calls it all.

One file belongs to one run. When it turns out later that it belongs to another (its console names the output directory of a run that is
already known), the file is read again from its beginning into that run: nothing has to be taken back from a fold.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from trainer_exporter.clock import Clock
from trainer_exporter.formats import Format
from trainer_exporter.health import Health
from trainer_exporter.intake import Intake
from trainer_exporter.model import Change, Chunk, FileStatus, Incident, Malformed, Record, Stamp
from trainer_exporter.private import SLOW
from trainer_exporter.runs.store import Store
from trainer_exporter.runs.timeline import Moment, Timeline
from trainer_exporter.sources.follow import Follower, Limits

log = logging.getLogger(__name__)

TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which run a file belongs to, and what the configuration or a process knows about that run."""

    path: str
    run: str
    present_at_start: bool
    labels: Mapping[str, str]
    facts: Mapping[str, str]
    format: str = ""  # the only one it can be of; "": its content tells
    why: str = ""  # the file is followed, in words
    run_origin: str = ""  # where the run's name comes from, in words


@dataclass(frozen=True, slots=True)
class Tools:
    """What every feed needs."""

    store: Store
    formats: Sequence[Format]
    clock: Clock
    health: Health
    limits: Limits

    def intake(self, assignment: Assignment) -> Intake:
        """A reader for one file."""
        pinned = [one for one in self.formats if one.name == assignment.format]
        return Intake(pinned or self.formats)


class Feed:
    """One followed file and its run."""

    def __init__(self, assignment: Assignment, tools: Tools) -> None:
        self.assignment = assignment
        self._tools = tools
        self._lines: Counter[str] = Counter()
        self._read_before = 0
        self._begin(present_at_start=assignment.present_at_start)
        tools.store.describe(assignment.run, labels=assignment.labels or None, facts=assignment.facts)

    def _begin(self, *, present_at_start: bool) -> None:
        tools, path = self._tools, self.assignment.path
        self.follower = Follower(path, tools.clock, tools.health, present_at_start=present_at_start, limits=tools.limits)
        self._intake = tools.intake(self.assignment)
        self._settled = not present_at_start
        last = _last_stamp(self.assignment, tools) if present_at_start else _LastStamp(0.0)
        self._mtime = last.mtime
        self._timeline = Timeline(last_stamp=last.stamp, mtime=last.mtime, is_latest=last.is_latest)

    @property
    def caught_up(self) -> bool:
        """Whether the past of the file has been read."""
        return self._settled

    @property
    def is_gone(self) -> bool:
        """Whether there is no file at the path any more."""
        return self._settled and self.follower.inode == 0

    @property
    def lines(self) -> Mapping[str, int]:
        """Lines by what became of them, over all that was read."""
        return self._lines + Counter(self._intake.counts)

    @property
    def read_bytes(self) -> int:
        """Bytes read over all, second readings included."""
        return self._read_before + self.follower.read_bytes_total

    def poll(self) -> bool:
        """Look at the file once and fold what is new; True when there is more to read at once."""
        polled = self.follower.poll()
        for item in polled.items:
            if isinstance(item, Chunk):
                self._fold(self._intake.feed(item), item)
            elif item is not Change.APPEARED:
                self._renew()
        if not self._settled and polled.caught_up and not polled.more:
            self._settled = True
            self._tools.store.caught_up(self.assignment.run, self.assignment.path, mtime=self._mtime, lines=self.follower.lines)
        return polled.more

    def reassign(self, assignment: Assignment, tools: Tools | None = None) -> None:
        """Read the file again: into another run, or with other formats."""
        self._tools = tools or self._tools
        self._lines += Counter(self._intake.counts)
        self._read_before += self.follower.read_bytes_total
        self.follower.close()
        self.assignment = assignment
        self._begin(present_at_start=True)
        self._tools.store.describe(assignment.run, labels=assignment.labels or None, facts=assignment.facts)

    def status(self) -> FileStatus:
        """For the status page."""
        follower = self.follower
        return FileStatus(
            path=self.assignment.path,
            run=self.assignment.run,
            format=self._intake.format,
            size_bytes=follower.size,
            lag_bytes=follower.lag_bytes,
            lines=follower.lines,
            last_written_wall=follower.last_mtime,
            last_unrecognised=self._intake.last_unrecognised,
            error=follower.error,
            why=self.assignment.why,
            run_origin=self.assignment.run_origin,
        )

    def _renew(self) -> None:
        """Other content stands at the path: its lines are news, and may be another program's."""
        self._fold(self._intake.flush(), None)
        self._lines += Counter(self._intake.counts)
        self._intake = self._tools.intake(self.assignment)

    def _fold(self, events: Sequence[Record | Malformed | Incident], chunk: Chunk | None) -> None:
        read_wall = chunk.read_wall if chunk is not None else self._tools.clock.wall()
        live = chunk.live if chunk is not None else True
        for event in events:
            if isinstance(event, Malformed) and event.reason == SLOW:
                self._report_slow(event)
        placed = [(event, self._moment(event, read_wall, live)) for event in events if not isinstance(event, Malformed)]
        if placed:
            run, path = self.assignment.run, self.assignment.path
            self._tools.store.fold(run, placed, source=path, format_name=self._intake.format)

    def _report_slow(self, event: Malformed) -> None:
        where = (
            f"the format {event.format} is switched off for {self.assignment.path}: its pattern took too long, last on line {event.line}"
        )
        self._tools.health.count("format", SLOW, detail=where)
        log.warning("%s", where)

    def _moment(self, event: Record | Incident, read_wall: float, live: bool) -> Moment:
        if isinstance(event, Record):
            return self._timeline.of_record(event, read_wall=read_wall, live=live)
        return self._timeline.moment(event.stamp, read_wall=read_wall, live=live)


class Feeds:
    """All followed files of this node."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._feeds: dict[str, Feed] = {}
        self._lines_of_gone: Counter[str] = Counter()
        self._bytes_of_gone = 0

    def __len__(self) -> int:
        return len(self._feeds)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Follow new files, re-read those whose run has changed; files that are no longer named stay until they have gone."""
        self._let_go({assignment.path for assignment in assignments})
        for assignment in assignments:
            feed = self._feeds.get(assignment.path)
            if feed is None:
                self._feeds[assignment.path] = Feed(assignment, self._tools)
            elif feed.assignment.run == assignment.run and feed.assignment.format != assignment.format:
                self._read_again({assignment.run}, {assignment.path: assignment})
            elif feed.assignment.run != assignment.run:
                left = feed.assignment.run
                feed.reassign(assignment)
                if not any(other.assignment.run == left for other in self._feeds.values()):
                    self._tools.store.forget(left)
            else:
                feed.assignment = assignment

    def use(self, formats: Sequence[Format]) -> None:
        """Read with these formats from now on; where they are others than before, everything is read again."""
        if formats is not self._tools.formats:
            self._tools = replace(self._tools, formats=formats)
            self._read_again({feed.assignment.run for feed in self._feeds.values()}, {})

    def _read_again(self, runs: Set[str], assignments: Mapping[str, Assignment]) -> None:
        """Build runs anew from all of their files, of which some have another assignment than before."""
        for run in runs:
            self._tools.store.forget(run)
        for path, feed in self._feeds.items():
            if feed.assignment.run in runs:
                feed.reassign(assignments.get(path, feed.assignment), self._tools)

    def _let_go(self, wanted: Set[str]) -> None:
        for path in [path for path, feed in self._feeds.items() if path not in wanted and feed.is_gone]:
            feed = self._feeds.pop(path)
            self._lines_of_gone.update(feed.lines)
            self._bytes_of_gone += feed.read_bytes
            feed.follower.close()

    def poll(self) -> bool:
        """Look at every file once; True when one of them has more to read at once."""
        more = False
        for feed in self._feeds.values():
            with self._tools.health.guard("tail"):
                more = feed.poll() or more
        return more

    @property
    def caught_up(self) -> bool:
        """Whether the past of every file has been read."""
        return all(feed.caught_up for feed in self._feeds.values())

    def status(self) -> tuple[FileStatus, ...]:
        """For the status page, by path."""
        return tuple(self._feeds[path].status() for path in sorted(self._feeds))

    def totals(self) -> tuple[Mapping[str, int], int, int]:
        """(lines by result, bytes read, bytes that wait) over all files."""
        lines = Counter(self._lines_of_gone)
        for feed in self._feeds.values():
            lines.update(feed.lines)
        read = self._bytes_of_gone + sum(feed.read_bytes for feed in self._feeds.values())
        return lines, read, sum(feed.follower.lag_bytes for feed in self._feeds.values())

    def close(self) -> None:
        """Give up all descriptors."""
        for feed in self._feeds.values():
            feed.follower.close()


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

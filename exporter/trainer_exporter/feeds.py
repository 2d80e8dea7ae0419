"""All followed files of this node. Part of the composition; one thread calls it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from trainer_exporter.catalogue import is_private
from trainer_exporter.feed import Assignment, Feed, Tools
from trainer_exporter.formats import Format
from trainer_exporter.logfeed import LogFeed
from trainer_exporter.model import FileStatus
from trainer_exporter.sources.trackers import tracker_for, tracker_named
from trainer_exporter.trackerfeed import TrackerFeed

__all__ = ["Assignment", "Feeds", "Tools"]

UNDECIDED_S = 30.0
MOST_UNNAMED = 1024  # files that are followed though nobody names them any more


class Feeds:
    """All followed files of this node."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._feeds: dict[str, Feed] = {}
        self._undecided: dict[str, float] = {}  # by path: when it is looked at again whether this is a tracker's file
        self._lines_of_gone: Counter[str] = Counter()
        self._bytes_of_gone = 0

    def __len__(self) -> int:
        return len(self._feeds)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Follow new files, re-read those whose run has changed; files that are no longer named stay until they have gone."""
        self._let_go({assignment.path for assignment in assignments})
        self._add([assignment for assignment in assignments if assignment.path not in self._feeds])
        for assignment in assignments:
            feed = self._feeds.get(assignment.path)
            if feed is None:
                continue
            if feed.assignment.run == assignment.run and feed.assignment.format != assignment.format:
                self._read_again({assignment.run}, {assignment.path: assignment})
            elif feed.assignment.run != assignment.run:
                left = feed.assignment.run
                feed.reassign(assignment)
                if not any(other.assignment.run == left for other in self._feeds.values()):
                    self._tools.store.forget(left)
            else:
                feed.take_over(assignment)

    def _add(self, assignments: Sequence[Assignment]) -> None:
        """Logs first, because they tell of starts; then trackers' files in the order in which they were written."""
        fresh = [feed for assignment in assignments if (feed := self._feed(assignment)) is not None]
        trackers = [feed for feed in fresh if isinstance(feed, TrackerFeed)]
        logs = [feed for feed in fresh if not isinstance(feed, TrackerFeed)]
        for feed in (*logs, *sorted(trackers, key=lambda feed: feed.written_wall)):
            self._feeds[feed.assignment.path] = feed

    def _feed(self, assignment: Assignment) -> Feed | None:
        """None for a file that has a tracker's name and is none of its files, or none yet."""
        path, now = assignment.path, self._tools.clock.mono()
        if assignment.format or is_private(path, self._tools.formats):
            return LogFeed(assignment, self._tools)
        if now < self._undecided.get(path, now):
            return None
        tracker = tracker_for(path)
        if tracker is not None:
            self._undecided.pop(path, None)
            return TrackerFeed(assignment, self._tools, tracker)
        if tracker_named(path) is None:
            return LogFeed(assignment, self._tools)
        self._undecided[path] = now + UNDECIDED_S
        return None

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
        unnamed = [path for path in self._feeds if path not in wanted]
        there = [path for path in unnamed if not self._feeds[path].is_gone]
        crowd = there[: max(0, len(there) - MOST_UNNAMED)]
        if crowd:
            self._tools.health.drop("unnamed_files", len(crowd))
        for path in [*crowd, *(path for path in unnamed if path not in set(there))]:
            feed = self._feeds.pop(path)
            self._lines_of_gone.update(feed.lines)
            self._bytes_of_gone += feed.read_bytes
            feed.close()
            if not any(other.assignment.run == feed.assignment.run for other in self._feeds.values()):
                self._tools.store.leave(feed.assignment.run)
        for path in self._undecided.keys() - wanted:
            del self._undecided[path]

    def poll(self) -> bool:
        """Look at every file once; True when one of them has more to read at once."""
        more = False
        for feed in self._in_turn():
            with self._tools.health.guard("tail"):
                more = feed.poll() or more
        return more

    def _in_turn(self) -> Iterable[Feed]:
        """All, but of the files that are one source only the first whose past has not been read: it is told in order."""
        behind: set[tuple[str, str]] = set()
        for feed in self._feeds.values():
            if not isinstance(feed, TrackerFeed):
                yield feed
            elif feed.series not in behind:
                yield feed
                if not feed.caught_up:
                    behind.add(feed.series)

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
        return lines, read, sum(feed.lag_bytes for feed in self._feeds.values())

    def close(self) -> None:
        """Give up all descriptors."""
        for feed in self._feeds.values():
            feed.close()

"""One followed file on its way into the store, whatever reads it. Part of the composition.

One file belongs to one run. When it turns out later that it belongs to another (its console names the output directory of a run that is
already known), the file is read again from its beginning into that run: nothing has to be taken back from a fold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer_exporter.clock import Clock
from trainer_exporter.formats import Format
from trainer_exporter.health import Health
from trainer_exporter.intake import Intake
from trainer_exporter.model import FileStatus, Incident, Malformed, Record, Table
from trainer_exporter.runs.rows import Placed, PlacedTable
from trainer_exporter.runs.store import Store
from trainer_exporter.runs.timeline import Timeline
from trainer_exporter.sources.follow import Limits


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


class Feed(ABC):
    """One followed file and its run."""

    def __init__(self, assignment: Assignment, tools: Tools) -> None:
        self.assignment = assignment
        self._tools = tools
        self._lines_before: Counter[str] = Counter()  # of earlier readings
        self._bytes_before = 0
        self._settled = not assignment.present_at_start
        self._mtime = 0.0
        self._timeline = Timeline(last_stamp=None, mtime=0.0)
        self._begin(present_at_start=assignment.present_at_start)
        self._describe()

    @property
    def caught_up(self) -> bool:
        """Whether the past of the file has been read."""
        return self._settled

    @property
    def lines(self) -> Mapping[str, int]:
        """Lines by what became of them, over all that was read."""
        return self._lines_before + self._counts()

    @property
    def read_bytes(self) -> int:
        """Bytes read over all, second readings included."""
        return self._bytes_before + self._position()

    @property
    @abstractmethod
    def is_gone(self) -> bool:
        """Whether there is no file at the path any more."""

    @property
    @abstractmethod
    def lag_bytes(self) -> int:
        """Bytes that wait to be read."""

    @abstractmethod
    def poll(self) -> bool:
        """Look at the file once and fold what is new; True when there is more to read at once."""

    @abstractmethod
    def status(self) -> FileStatus:
        """For the status page."""

    def reassign(self, assignment: Assignment, tools: Tools | None = None) -> None:
        """Read the file again: into another run, or with other formats."""
        self._tools = tools or self._tools
        self._lines_before += self._counts()
        self._bytes_before += self._position()
        self.close()
        self.assignment = assignment
        self._begin(present_at_start=True)
        self._describe()

    def take_over(self, assignment: Assignment) -> None:
        """Another word on the same run: a configuration that was loaded again may give it other labels."""
        before, self.assignment = self.assignment, assignment
        if assignment.labels and assignment.labels != before.labels:
            self._tools.store.describe(assignment.run, labels=assignment.labels)

    @abstractmethod
    def close(self) -> None:
        """Give up what is open."""

    @abstractmethod
    def _begin(self, *, present_at_start: bool) -> None:
        """Start at the beginning of the file."""

    @abstractmethod
    def _counts(self) -> Counter[str]:
        """Lines of this reading, by what became of them."""

    @abstractmethod
    def _position(self) -> int:
        """Bytes read in this reading."""

    def _describe(self) -> None:
        assignment = self.assignment
        self._tools.store.describe(assignment.run, labels=assignment.labels or None, facts=assignment.facts)

    def _settle(self, source: str, *, lines: int) -> None:
        """All that stood in the file at its opening has been folded."""
        self._settled = True
        self._tools.store.caught_up(self.assignment.run, source, mtime=self._mtime, lines=lines)

    def _fold(
        self, events: Sequence[Record | Table | Malformed | Incident], *, read_wall: float, live: bool, source: str, format_name: str
    ) -> None:
        placed = [self._placed(event, read_wall, live) for event in events if not isinstance(event, Malformed)]
        if placed and not self._tools.store.fold(self.assignment.run, placed, source=source, format_name=format_name):
            self._describe()  # the store had been full, and no word of this run had come so far

    def _placed(self, event: Record | Table | Incident, read_wall: float, live: bool) -> Placed | PlacedTable:
        if isinstance(event, Record):
            return event, self._timeline.of_record(event, read_wall=read_wall, live=live)
        if isinstance(event, Table):
            return event, self._timeline.of_table(event, read_wall=read_wall, live=live)
        return event, self._timeline.moment(event.stamp, read_wall=read_wall, live=live)

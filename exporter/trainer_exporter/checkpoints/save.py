"""One save as far as it is known: its moments by the files, its state, and what the last look into it found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from trainer_exporter.checkpoints.folder import Found
from trainer_exporter.checkpoints.layouts import Proof
from trainer_exporter.checkpoints.tree import EMPTY, Tree, beginning


class State(Enum):
    """Where a save stands. LEFT_ALONE: incomplete, but nobody's loss; a later mark still completes it."""

    SAVING = "saving"
    FINISHED = "finished"
    FAILED = "failed"
    LEFT_ALONE = "left alone"


@dataclass(slots=True)
class Save:
    """Moments called ``_mono`` are our clock's; the others are wall time as the files tell it, 0 while unknown."""

    found: Found
    met_mono: float
    tree: Tree = EMPTY
    state: State = State.SAVING
    started: float = 0.0
    ended: float = 0.0
    before: float = 0.0  # nothing up to here belongs to this save: an earlier one left it in the same directory
    duration_s: float | None = None
    size_bytes: int | None = None
    looked_mono: float = 0.0
    changed_mono: float = 0.0
    proved: Proof | None = None  # its marker is whole; it is over once nothing changes any more
    overtaken: bool = False  # a newer one has begun before this one was complete

    def __post_init__(self) -> None:
        self.looked_mono = self.changed_mono = self.met_mono

    @property
    def path(self) -> str:
        return str(self.found.place.path)

    @property
    def step(self) -> int | None:
        return self.found.place.step

    @property
    def layout(self) -> str:
        return self.found.layout.name

    def begin(self, *, seen: float | None) -> None:
        """Its start: the oldest moment it shows; ``seen`` is when the directory above had got the entry, at the latest."""
        moments = [ctime for _, ctime in self.tree.times]
        self.started = min([*moments, seen] if seen is not None else moments)

    def begin_by_files(self) -> None:
        """The start of a save that was under way before anybody watched."""
        self.started = beginning(self.tree.times, self.tree.newest) or self.tree.newest

    def compare(self, tree: Tree, *, mono: float) -> bool:
        """Keep a new look; True when nothing was written since the last."""
        unchanged = tree.same_as(self.tree)
        self.tree, self.looked_mono = tree, mono
        if not unchanged:
            self.changed_mono = mono
        return unchanged

    def finish(self, end: float) -> None:
        """Over at ``end``, wall time; the duration stays unknown where neither files nor watching give a start."""
        seen = self.started if self.state is State.SAVING and self.started else None
        start = beginning(self.tree.times, end, seen=seen, after=self.before)
        self.duration_s = None if start is None else end - start
        self.size_bytes = self.tree.size_bytes if self.tree.complete else None
        self.started, self.ended, self.before = start or end, end, end
        self.state = State.FINISHED
        self.proved = None
        self.tree = replace(self.tree, times=())  # thousands of moments for each of many checkpoints

    def fail(self) -> None:
        """It will not be completed; whatever is written from now on is another save."""
        self.state, self.proved, self.before = State.FAILED, None, self.tree.newest

    def resume(self) -> None:
        """A restarted trainer writes into the directory of a save that failed."""
        self.started = min((ctime for _, ctime in self.tree.times if ctime > self.before), default=self.tree.newest)
        self.state, self.overtaken = State.SAVING, False

    def is_older_than(self, other: Save) -> bool:
        """Whether the other belongs to the same sequence of saves and began later."""
        return other is not self and other.layout == self.layout and self.started < other.started

    def is_renamed(self, before: Save) -> bool:
        """Whether this is the other under its final name."""
        return (self.layout, self.step) == (before.layout, before.step)

"""News of the checkpoints in one run's output directory, told by its files alone: many trainers print nothing when they save.

A save starts when its directory or file appears and ends when what is written last is whole and nothing changes any more.
All moments come from the files, so that polling every second does not round a duration.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer_exporter.checkpoints.folder import Folder, Found
from trainer_exporter.checkpoints.layouts import Proof, mtime_of, proof
from trainer_exporter.checkpoints.save import Save, State
from trainer_exporter.checkpoints.tree import Tree, look
from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.model import Checkpoint, CheckpointEvent

SITE = "checkpoints"
REASONS = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ESTALE: "stale_handle",
    errno.EIO: "io_error",
    errno.ENOTDIR: "not_a_directory",
}


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Bounds on work, and how long silence must last before it means something."""

    entries: int = 10_000  # of an output directory
    tree_entries: int = 20_000  # inside one checkpoint; beyond it the size is not told
    history: int = 32  # complete checkpoints told at the first look, and looked at again for a save in place
    look_s: float = 10.0  # between two walks through a checkpoint that is being written
    recheck_s: float = 30.0  # between two looks for a save in place
    abandoned_s: float = 60.0  # without a change while a newer one has begun: it will never be complete
    unknown_s: float = 600.0  # without a change where its layout's mark was never seen: not a checkpoint we know
    blink_s: float = 5.0  # a save that came and was rotated away within this was a short one, not a lost one
    full_bytes: int = 2**20  # space left at which a save cannot go on


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint that is being written."""

    step: int | None
    path: str
    since_wall: float


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Space of the file system that the run saves to, as an unprivileged writer sees it."""

    avail_bytes: int
    size_bytes: int


class CheckpointWatcher:
    """Watches one output directory, which need not exist yet. What a file system does wrong is counted, never raised."""

    def __init__(self, directory: str, *, clock: Clock, health: Health, limits: CheckpointLimits = CheckpointLimits()) -> None:
        self.directory = directory
        self._clock = clock
        self._health = health
        self._limits = limits
        self._folder = Folder(Path(directory), limits.entries)
        self._saves: dict[str, Save] = {}
        self._witnessed: set[str] = set()  # layouts whose marker was seen here
        self._rechecked_mono = clock.mono()
        self._first = True
        self._dropped = 0  # as last counted: the same crowd is not counted at every look

    def poll(self) -> tuple[Checkpoint, ...]:
        """What happened since the last call. The first call tells the past: complete checkpoints, and one in progress."""
        try:
            return self._look()
        except OSError as error:
            self._count(error)
            return ()

    def _look(self) -> tuple[Checkpoint, ...]:
        found = self._folder.look(self._clock.wall(), always=bool(self.in_progress))
        if self._folder.dropped != self._dropped:
            self._dropped = self._folder.dropped
            self._health.drop("checkpoint_entries", self._dropped)
        if self._first or not found:
            # a directory that is not there, or not mounted, brings its past with it when it comes
            self._first = not found and mtime_of(Path(self.directory)) is None
            return (*self._leave(found, []), *self._past(found))
        new = self._meet(found)
        return (*self._leave(found, new), *self._appear(new), *self._advance(), *self._recheck())

    def restart(self) -> tuple[Checkpoint, ...]:
        """The trainer has started anew: what was being saved will not be completed, and is news as such."""
        return tuple(self._failure(save, "incomplete") for save in self._saving() if save.proved is None)

    @property
    def in_progress(self) -> tuple[Saving, ...]:
        """The checkpoints that are being written now, oldest first."""
        return tuple(Saving(save.step, save.path, save.started) for save in self._saving())

    def filesystem(self) -> Filesystem | None:
        """Space where the run saves to; None where it cannot be known."""
        try:
            stats = os.statvfs(self.directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._count(error)
            return None
        return Filesystem(stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize)

    def _past(self, found: Mapping[str, Found]) -> Iterator[Checkpoint]:
        """Complete ones are history, and so is an incomplete one after which another was completed."""
        newest = sorted(found.values(), key=lambda one: mtime_of(one.place.path) or 0.0, reverse=True)
        self._skip(newest[self._limits.history :])
        saves = [save for one in newest[: self._limits.history] if (save := self._made(one)) is not None]
        for save in saves:
            if (proved := self._proof(save)) is not None:
                self._witnessed.add(save.layout)
                save.finish(proved.mtime or save.tree.newest)
            else:
                save.begin_by_files()
        yield from self._told(sorted(saves, key=lambda save: save.ended or save.started))

    def _skip(self, found: Sequence[Found]) -> None:
        for one in found:
            ended = mtime_of(one.place.path) or 0.0
            self._saves[str(one.place.path)] = Save(one, self._clock.mono(), state=State.LEFT_ALONE, ended=ended)
        if found:
            self._health.drop("checkpoint_history", len(found))

    def _told(self, saves: list[Save]) -> Iterator[Checkpoint]:
        for save in saves:
            if save.state is State.FINISHED:
                yield self._news(save, CheckpointEvent.FINISHED)
            elif save is saves[-1]:
                yield self._news(save, CheckpointEvent.STARTED)
            else:
                save.state = State.LEFT_ALONE

    def _meet(self, found: Mapping[str, Found]) -> list[Save]:
        """Checkpoints seen for the first time; each began when it, or the entry in the directory above it, shows at the latest."""
        new = []
        for path, one in found.items():
            if path not in self._saves and (save := self._made(one)) is not None:
                save.begin(seen=mtime_of(one.place.folder))
                new.append(save)
        return sorted(new, key=lambda save: save.started)

    def _made(self, one: Found) -> Save | None:
        try:
            if not one.layout.begun(one.place):
                return None
            tree = look(one.place.path, max_entries=self._limits.tree_entries)
        except OSError as error:
            self._count(error)
            return None
        save = Save(one, self._clock.mono(), tree)
        self._saves[save.path] = save
        return save

    def _leave(self, found: Mapping[str, Found], new: list[Save]) -> Iterator[Checkpoint]:
        """One that is no longer there was renamed when complete, or rotated away, or lost in the middle of the save."""
        for save in [save for path, save in self._saves.items() if path not in found]:
            del self._saves[save.path]
            if save.state is not State.SAVING:
                continue
            heir = next((other for other in new if other.is_renamed(save)), None)
            if heir is not None:
                heir.started = save.started
                new.remove(heir)
            elif save.proved is not None:
                save.finish(save.proved.mtime or save.tree.newest)
                yield self._news(save, CheckpointEvent.FINISHED)
            elif self._was_short(save):
                yield self._news(save, CheckpointEvent.FINISHED)
            else:
                yield self._failure(save, "vanished")

    def _was_short(self, save: Save) -> bool:
        """Whether it may have been completed and rotated away between two looks, as a newer one suggests."""
        newer = any(save.is_older_than(other) for other in self._saves.values())
        return newer and self._clock.mono() - save.met_mono < self._limits.blink_s

    def _appear(self, new: list[Save]) -> Iterator[Checkpoint]:
        for save in new:
            for other in self._saving():
                other.overtaken |= other.is_older_than(save)
            yield self._news(save, CheckpointEvent.STARTED)

    def _advance(self) -> Iterator[Checkpoint]:
        for save in self._saving():
            try:
                if save.state is State.SAVING:  # a newer one of this very look may have ended it
                    yield from self._examine(save)
            except FileNotFoundError:
                continue  # gone since the listing; the next look tells what became of it
            except OSError as error:
                self._count(error)

    def _examine(self, save: Save) -> Iterator[Checkpoint]:
        proved = proof(save.found.layout, save.found.place)
        if proved is None:
            save.proved = None
            yield from self._doubt(save)
        elif save.overtaken and not proved.exact:
            yield self._failure(save, "incomplete")
        elif self._is_settled(save, proved):
            yield from self._complete(save, proved)

    def _is_settled(self, save: Save, proved: Proof) -> bool:
        """Other ranks may still write when rank 0 has set its mark: nothing must have changed between two looks."""
        was_proved, save.proved = save.proved is not None, proved
        now = self._clock.mono()
        unchanged = save.compare(self._tree(save), mono=now)
        return was_proved and unchanged and now - save.changed_mono >= proved.settle_s

    def _complete(self, save: Save, proved: Proof) -> Iterator[Checkpoint]:
        self._witnessed.add(save.layout)
        save.finish(max(proved.mtime or 0.0, save.tree.newest))
        for other in self._saving():
            if other.is_older_than(save) and other.proved is None:
                yield self._failure(other, "incomplete")
        yield self._news(save, CheckpointEvent.FINISHED)

    def _doubt(self, save: Save) -> Iterator[Checkpoint]:
        """Whether a save without its mark will ever get it."""
        space = self.filesystem()
        if space is not None and space.size_bytes and space.avail_bytes < self._limits.full_bytes:
            yield self._failure(save, "no_space")
            return
        now = self._clock.mono()
        if now - save.looked_mono < self._limits.look_s:
            return
        save.compare(self._tree(save), mono=now)
        quiet_s = now - save.changed_mono
        if save.layout not in self._witnessed:
            if quiet_s >= self._limits.unknown_s:
                save.state = State.LEFT_ALONE
        elif save.overtaken and quiet_s >= self._limits.abandoned_s:
            yield self._failure(save, "incomplete")

    def _recheck(self) -> Iterator[Checkpoint]:
        """A restarted trainer saves into the directory that is there already."""
        now = self._clock.mono()
        if now - self._rechecked_mono < self._limits.recheck_s:
            return
        self._rechecked_mono = now
        over = [save for save in self._saves.values() if save.state is not State.SAVING]
        for save in sorted(over, key=lambda save: save.started)[-self._limits.history :]:
            try:
                yield from self._look_again(save)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._count(error)

    def _look_again(self, save: Save) -> Iterator[Checkpoint]:
        proved = proof(save.found.layout, save.found.place, after=save.ended)
        if proved is not None and proved.exact:
            save.compare(self._tree(save), mono=self._clock.mono())
            save.finish(proved.mtime or save.tree.newest)
            yield self._news(save, CheckpointEvent.FINISHED)
        elif save.state is State.FAILED and not save.compare(self._tree(save), mono=self._clock.mono()):
            save.resume()
            yield self._news(save, CheckpointEvent.STARTED)

    def _tree(self, save: Save) -> Tree:
        return look(save.found.place.path, max_entries=self._limits.tree_entries)

    def _proof(self, save: Save) -> Proof | None:
        try:
            return proof(save.found.layout, save.found.place)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._count(error)
            return None

    def _saving(self) -> list[Save]:
        return sorted((s for s in self._saves.values() if s.state is State.SAVING), key=lambda save: save.started)

    def _failure(self, save: Save, reason: str) -> Checkpoint:
        save.fail()
        return self._news(save, CheckpointEvent.FAILED, reason=reason)

    def _news(self, save: Save, event: CheckpointEvent, *, reason: str = "") -> Checkpoint:
        moments = {CheckpointEvent.STARTED: save.started, CheckpointEvent.FINISHED: save.ended}
        now = self._clock.wall()
        return Checkpoint(
            event,
            step=save.step,
            path=save.path,
            duration_seconds=save.duration_s if event is CheckpointEvent.FINISHED else None,
            size_bytes=save.size_bytes if event is CheckpointEvent.FINISHED else None,
            wall=min(moments.get(event) or now, now),
            reason=reason,
        )

    def _count(self, error: OSError) -> None:
        self._health.count(SITE, REASONS.get(error.errno or 0, "os_error"), detail=str(error))

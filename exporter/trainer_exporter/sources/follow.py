"""One path -> complete lines, for ever. Polled by its owner; never sleeps and never looks into a line.

A stat of the path on each poll decides what happened; the situations are the methods of Follower that say what can be lost.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.files import (
    Files,
    IrregularError,
    Opened,
    RewrittenError,
    SystemFiles,
    identity_of,
    open_regular,
    reason_of,
)
from trainer_exporter.sources.output import Output
from trainer_exporter.sources.pieces import Splitter
from trainer_exporter.sources.siblings import RenamingError, Siblings

log = logging.getLogger(__name__)

_ABSENT: Final = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a follower; the defaults suit a node."""

    history_bytes: int = 1 << 30  # of the file found at start
    line_bytes: int = 64 << 10  # of one line or redraw; true lines of 485 kB exist, and are cut
    block_bytes: int = 1 << 20  # of one read
    poll_bytes: int = 4 << 20  # of one poll, so that many files share the thread
    linger_s: float = 5.0  # a file that left its path is watched until it has not grown for so long
    idle_close_s: float = 60.0  # thousands of idle files must not use up descriptors
    retry_s: float = 5.0  # after an error
    rotations: int = 1024  # files opened at once that were rotated away between two polls


@dataclass(frozen=True, slots=True)
class Polled:
    """What one look at the path gave."""

    items: tuple[Change | Chunk, ...] = ()  # in the order in which things happened
    more: bool = False  # the budget is used up: poll again at once
    caught_up: bool = True  # all that was there when the daemon came has been given out


_NOTHING: Final = Polled()


class Follower:
    """Gives out each complete line of one path once, in order, through growth, rotation and truncation.

    ``Chunk.first_line`` is 1 + the newlines given out of that file before the chunk. A chunk that ends in a carriage return
    ends within a line, so the next one begins with the same number. Text after the last carriage return or newline is held
    back. Where the beginning of a file was too old to be read, lines count from the first that was.
    """

    def __init__(
        self,
        path: str,
        clock: Clock,
        health: Health,
        *,
        present_at_start: bool,
        limits: Limits = Limits(),
        files: Files | None = None,
    ) -> None:
        self.path = path
        self.error = ""  # a short fixed word while the path cannot be read
        self._clock = clock
        self._health = health
        self._limits = limits
        self._out = Output(clock, health)
        self._files: Files = files if files is not None else SystemFiles()
        self._siblings = Siblings(self._files, path, health, line_bytes=limits.line_bytes, most=limits.rotations)
        self._history = present_at_start
        self._queue: deque[Opened] = deque()  # files to read one after the other; the last is the one at the path
        self._old: Opened | None = None  # read to its end, but its writer may not have noticed the rotation yet
        self._key: tuple[int, int, int, int] | None = None
        self._unclear = False  # the last look fell into the middle of a rotation
        self._quiet = False  # nothing can have changed unless the key does
        self._retry_mono = 0.0
        self._grown_mono = clock.mono()  # last time that the current file gave something
        self._old_grown_mono = 0.0
        self._missing_mono: float | None = None

    @property
    def lines(self) -> int:
        """Newlines given out so far, over all files that stood at the path."""
        return self._out.lines

    @property
    def read_bytes_total(self) -> int:
        """Of all files that stood at the path, what was skipped or dropped included."""
        return self._out.read_bytes

    @property
    def position(self) -> int:
        """Bytes read of the file at the path."""
        return self._queue[-1].position if self._queue else 0

    @property
    def size(self) -> int:
        """Bytes of the file at the path, when it was last looked at."""
        return self._queue[-1].size if self._queue else 0

    @property
    def inode(self) -> int:
        """Of the file at the path; 0 while there is none."""
        return self._queue[-1].identity[1] if self._queue else 0

    @property
    def lag_bytes(self) -> int:
        """Bytes that wait to be read, rotated files included."""
        return sum(max(0, each.size - each.position) for each in self._queue)

    @property
    def last_mtime(self) -> float | None:
        """Wall seconds of the last write, by the file system's clock."""
        return self._queue[-1].seen_mtime_ns / 1e9 if self._queue else None

    @property
    def caught_up(self) -> bool:
        """Whether the history has been given out; true also where there is none."""
        return all(each.position >= each.history_end for each in self._queue)

    def poll(self) -> Polled:
        """Look once. Costs one stat where nothing changed; a failure to read is counted, never raised."""
        try:
            seen = self._files.stat(self.path)
        except _ABSENT:
            seen = None
        except OSError as error:
            self._fail(error)
            return self._read()
        key = None if seen is None else (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if self._quiet and key == self._key:
            self._close_when_idle()
            return _NOTHING
        self._unclear = False
        if self._clock.mono() >= self._retry_mono and self._attempt(self._situation(seen)):
            self.error = ""
        if seen is not None:
            self._missing_mono = None
        self._key = key
        return self._read()

    def close(self) -> None:
        """Give up the descriptors."""
        for each in (*self._queue, *([self._old] if self._old else [])):
            each.close()

    def _situation(self, seen: os.stat_result | None) -> Callable[[], None]:
        if seen is None:
            return self._vanish
        if not self._queue:
            return self._appear
        if identity_of(seen) != self._queue[-1].identity:
            return self._rotate
        if seen.st_size < self._queue[-1].position:
            return self._truncate
        return lambda: self._grow(seen)

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except (*_ABSENT, RenamingError):
            self._unclear = True  # between two steps of a rotation: the next look sees its end
            return False
        except (OSError, IrregularError) as error:
            self._fail(error)
            return False
        return True

    def _appear(self) -> None:
        """The path leads to a file for the first time, or again after it vanished. Its beginning beyond the bound is not read."""
        opened = self._open()
        if self._history:
            opened.history_end = opened.size
        self._history = False
        if opened.size > self._limits.history_bytes:
            opened.skip_to(opened.size - self._limits.history_bytes)
            self._health.drop("history_bytes", opened.position)
        self._queue.append(opened)
        self._grown_mono = self._clock.mono() - max(0.0, self._clock.wall() - opened.seen_mtime_ns / 1e9)
        self._out.change(Change.APPEARED)

    def _grow(self, seen: os.stat_result) -> None:
        """Same file, as long as before or longer. Nothing can be lost: whether it is longer because it was truncated and
        refilled shows when the bytes before our place are read again.
        """
        current = self._queue[-1]
        if self._reopen(current):
            current.size, current.seen_mtime_ns = seen.st_size, seen.st_mtime_ns

    def _rotate(self) -> None:
        """Another file stands at the path. The one we hold is read to its end first, then those that came and went
        between two looks, if their names are a rotation's, then the new one. Lost is what was deleted or compressed in
        between.
        """
        left = self._queue[-1]
        fresh = self._open()
        if fresh.identity == left.identity:
            fresh.close()
            return
        try:
            between = self._siblings.between(left, fresh.identity)
        except (OSError, RenamingError):
            fresh.close()
            raise
        later = between if left.fd is not None else between[1:]
        for each in (*later, fresh):
            each.change = Change.ROTATED
        if left.fd is None:
            self._replace_closed(between[:1])
        self._queue.extend((*later, fresh))
        if self._queue[0] is fresh:
            self._out.change(Change.ROTATED)

    def _replace_closed(self, again: list[Opened]) -> None:
        """The last file was closed while idle and is read on under its new name, if it has one."""
        left = self._queue.pop()
        self._queue.extend(again)
        if not again:
            self._out.half(left)

    def _truncate(self) -> None:
        """The file is shorter than what we read, or its bytes before our place are others: it begins anew. What was
        written between our last look and the cut is taken from the copy beside it (copytruncate); lost where there is none,
        and what a writer adds between copy and cut is lost to everybody.
        """
        cut = self._queue[0]
        if not self._reopen(cut):
            return
        copies = self._siblings.copies(cut, without={each.identity for each in self._queue})
        self._queue.popleft()
        again = cut.begin_again(Splitter(self._limits.line_bytes))
        for each in (*copies, again):
            each.change, each.continues = Change.TRUNCATED, bool(copies)
        if not copies:
            self._out.change(Change.TRUNCATED)
            if cut.splitter.held:
                self._health.drop("half_line")
        self._queue.extendleft((again, *reversed(copies)))

    def _vanish(self) -> None:
        """Nothing stands at the path: deleted, or in the middle of a rotation. The open file is read on, and given up when it has not
        grown for a while; what is written into it later is lost."""
        self._history = False
        if not self._queue:
            return
        now = self._clock.mono()
        current = self._queue[-1]
        if self._missing_mono is None:
            if current.fd is None and (again := self._siblings.renamed(current)) is not None:
                current = self._queue[-1] = again
            self._missing_mono = now
        since = max(self._missing_mono, self._grown_mono)
        if now - since < self._limits.linger_s or len(self._queue) > 1:
            return
        self._let_go_of_old()
        self._queue.clear()
        self._out.half(current)
        current.close()
        self._missing_mono = None
        self._out.change(Change.VANISHED)

    def _read(self) -> Polled:
        more = False
        try:
            more = self._read_queue(self._limits.poll_bytes)
        except RewrittenError:
            more = self._attempt(self._truncate)
        except OSError as error:
            self._fail(error)
            self._queue[0].close()
            if len(self._queue) > 1:  # not to be found again under its new name
                self._pass_on()
                self._let_go_of_old()
        else:
            self._confirm()
        self._quiet = not (more or self._old is not None or self._missing_mono is not None or self.error or self._unclear)
        return Polled(self._out.take(), more, self.caught_up)

    def _confirm(self) -> None:
        """What was read is what had been written by then: a copy or a rotated file with more in it is younger."""
        for each in self._queue:
            each.mtime_ns = each.seen_mtime_ns

    def _read_queue(self, budget: int) -> bool:
        """Read files in their order; True when the budget ended it."""
        self._watch_old()
        while self._queue and self._queue[0].fd is not None:
            if budget <= 0:
                return True
            front = self._queue[0]
            got, at_end = self._read_block(front, min(self._limits.block_bytes, budget))
            budget -= got
            if at_end:
                if len(self._queue) == 1:
                    return False
                self._pass_on()
        return False

    def _read_block(self, front: Opened, limit: int) -> tuple[int, bool]:
        live = front.position >= front.history_end
        wanted = limit if live else min(limit, front.history_end - front.position)
        before = front.position
        data = front.read(wanted)
        got = front.position - before
        at_end = got < wanted
        if got:
            # A writer reopens after its last write to the old file: with the new bytes in hand, that is complete.
            self._watch_old()
            if live:
                self._grown_mono = self._clock.mono()
        if at_end:  # it may be shorter by now than it was when the daemon came
            front.history_end = min(front.history_end, front.position)
        self._out.block(front, data, at_end=at_end or front.position == front.history_end, live=live)
        return got, at_end

    def _pass_on(self) -> None:
        """The front is read to its end: the next file's turn. Late writes to the front are still looked for."""
        front = self._queue.popleft()
        following = self._queue[0]
        self._let_go_of_old()
        if following.continues:
            following.splitter.hold(front.splitter.flush())
            front.close()
        else:
            self._old, self._old_grown_mono = front, self._clock.mono()
        self._out.change(following.change)

    def _watch_old(self) -> None:
        """Late writes to the file before the front: a writer needs a moment to notice a rotation, and one that never does
        is followed as long as nobody writes to the new file.
        """
        old = self._old
        if old is None:
            return
        try:
            while data := old.read(self._limits.block_bytes):
                self._old_grown_mono = self._clock.mono()
                self._out.block(old, data, at_end=True, live=True)
            seen = old.look()
        except (OSError, RewrittenError):
            self._let_go_of_old()
            return
        deserted = self._queue[0].size > 0 or seen is None or seen.st_nlink == 0
        if deserted and self._clock.mono() - self._old_grown_mono >= self._limits.linger_s:
            self._let_go_of_old()

    def _let_go_of_old(self) -> None:
        old, self._old = self._old, None
        if old is not None:
            self._out.half(old)
            old.close()

    def _open(self) -> Opened:
        return open_regular(self._files, self.path, line_bytes=self._limits.line_bytes)

    def _reopen(self, current: Opened) -> bool:
        """False where the path leads elsewhere by now: the next look sees to it."""
        if current.fd is not None:
            return True
        again = self._open()
        if again.identity != current.identity:
            again.close()
            return False
        current.fd = again.fd
        return True

    def _close_when_idle(self) -> None:
        """Where it is found again by its inode and the bytes before our place; an inode alone may be used again."""
        current = self._queue[-1] if self._queue else None
        if current is None or current.fd is None or (current.splitter.held and not current.tail):
            return
        if self._clock.mono() - self._grown_mono >= self._limits.idle_close_s:
            current.close()

    def _fail(self, error: OSError | IrregularError) -> None:
        word = self.error = reason_of(error)
        self._quiet = False
        self._retry_mono = self._clock.mono() + self._limits.retry_s
        if self._health.count("follow", word, detail=f"{self.path}: {error}"):
            log.warning("%s cannot be read (%s); it is tried again, and further ones are only counted", self.path, error)

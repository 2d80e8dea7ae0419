"""The few system calls by which log files are read, and one open file that is read in order.

A file is recognised by device and inode, and its content by the bytes just before the place that was reached: the size
alone cannot tell a file that was truncated and grew past that place again, and first lines are the same in every run.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, Protocol

from trainer_exporter.model import Change
from trainer_exporter.sources.pieces import Splitter

Identity = tuple[int, int]  # st_dev, st_ino

TAIL_BYTES: Final = 256
_MUCH_BYTES: Final = 1 << 17

_REASONS: Final = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EIO: "io",
    errno.ESTALE: "stale",
    errno.EMFILE: "too_many_files",
    errno.ENFILE: "too_many_files",
    errno.ELOOP: "symlink_loop",
}


class RewrittenError(Exception):
    """What stood before the place reached is not there any more."""


class IrregularError(Exception):
    """A directory, device, pipe or socket: opening one can block or have effects."""


def reason_of(error: OSError | IrregularError) -> str:
    """Why a file could not be read, as a fixed word that can be a label."""
    return "irregular" if isinstance(error, IrregularError) else _REASONS.get(error.errno or 0, "os")


class Files(Protocol):
    """What a follower needs of a file system; failures are OSError."""

    def stat(self, path: str) -> os.stat_result:
        """Of what the path leads to, symbolic links followed."""

    def open(self, path: str) -> int:
        """A descriptor for reading that never blocks on a pipe."""

    def fstat(self, fd: int) -> os.stat_result: ...

    def pread(self, fd: int, size: int, offset: int) -> bytes: ...

    def close(self, fd: int) -> None: ...

    def names(self, directory: str) -> list[str]: ...


class SystemFiles:
    """The real ones."""

    stat = staticmethod(os.stat)
    fstat = staticmethod(os.fstat)
    pread = staticmethod(os.pread)
    close = staticmethod(os.close)
    names = staticmethod(os.listdir)

    @staticmethod
    def open(path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def identity_of(seen: os.stat_result) -> Identity:
    return seen.st_dev, seen.st_ino


class Opened:
    """One file, its place reached, and the half piece behind that place. May be closed meanwhile and opened again."""

    def __init__(self, files: Files, fd: int, seen: os.stat_result, *, splitter: Splitter) -> None:
        self._files = files
        self.fd: int | None = fd
        self.identity = identity_of(seen)
        self.size = seen.st_size
        self.seen_mtime_ns = seen.st_mtime_ns
        self.mtime_ns = seen.st_mtime_ns  # the same, but of a moment after which the file was still found to be what it was
        self.splitter = splitter
        self.position = 0
        self.tail = b""
        self.history_end = 0  # up to here the file is older than the daemon
        self.change = Change.APPEARED  # how it came to be read; told when its turn comes
        self.continues = False  # its writer goes on where the file before it ended, even inside a line
        self.hole = False  # NULs at its beginning are a hole that a truncation left under a writer

    def skip_to(self, position: int) -> None:
        """Start at the first line that begins behind this place."""
        self.position = position
        self.splitter.start_inside()

    def read(self, limit: int) -> bytes:
        """The next bytes, none at the end. Raises RewrittenError, and OSError."""
        assert self.fd is not None
        before, fresh = self._read_on(limit)
        if before != self.tail and not _fits_late(self.tail, before):
            raise RewrittenError
        if fresh:
            self.position += len(fresh)
            self.tail = (before + fresh[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self.hole and fresh:
            fresh = fresh.lstrip(b"\0")
            self.hole = not fresh
        return fresh

    def _read_on(self, limit: int) -> tuple[bytes, bytes]:
        """What stands before the place now, and what follows. Of much the first is read last, to see what was rewritten meanwhile: to take
        them apart would copy it.
        """
        assert self.fd is not None
        known, fd, position = len(self.tail), self.fd, self.position
        if self.size - position >= _MUCH_BYTES:
            fresh = self._files.pread(fd, limit, position)
            return self._files.pread(fd, known, position - known), fresh
        data = self._files.pread(fd, known + limit, position - known)
        return data[:known], data[known:]

    def holds_place_of(self, other: Opened) -> bool:
        """Whether this file has, where the other one was left, the bytes that stood there."""
        if self.fd is None or not other.tail or self.size < other.position:
            return False
        at = other.position - len(other.tail)
        return self._files.pread(self.fd, len(other.tail), at) == other.tail

    def continue_from(self, other: Opened) -> None:
        """This is the other one under a new name, or a copy of it: go on where that was left."""
        self.position, self.tail, self.history_end = other.position, other.tail, other.history_end
        self.mtime_ns = other.mtime_ns
        self.splitter = other.splitter

    def begin_again(self, splitter: Splitter) -> Opened:
        """The same open file from its first byte, after it was truncated; this one gives it up."""
        assert self.fd is not None
        again = Opened(self._files, self.fd, self._files.fstat(self.fd), splitter=splitter)
        again.hole = True
        self.fd = None
        return again

    def look(self) -> os.stat_result | None:
        """Size and time as the open file says; None while it is closed."""
        if self.fd is None:
            return None
        seen = self._files.fstat(self.fd)
        self.size = seen.st_size
        return seen

    def close(self) -> None:
        if self.fd is not None:
            fd, self.fd = self.fd, None
            self._files.close(fd)


def open_regular(files: Files, path: str, *, line_bytes: int) -> Opened:
    """Open a file for reading in order. Raises IrregularError for what is no regular file, and OSError."""
    if not stat.S_ISREG(files.stat(path).st_mode):
        raise IrregularError(path)
    fd = files.open(path)
    try:
        seen = files.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise IrregularError(path)
        return Opened(files, fd, seen, splitter=Splitter(line_bytes))
    except BaseException:
        files.close(fd)
        raise


def is_public(path: str) -> bool:
    """Whether everybody on the node may read what a path leads to; False where that cannot be seen."""
    place = os.path.realpath(path)
    try:
        public = bool(os.stat(place).st_mode & stat.S_IROTH)  # noqa: PTH116
        while public and place != "/":
            place = os.path.dirname(place)  # noqa: PTH120
            public = bool(os.stat(place).st_mode & stat.S_IXOTH)  # noqa: PTH116
    except OSError:
        return False
    return public


def _fits_late(expected: bytes, found: bytes) -> bool:
    """Network file systems show NULs where another client's bytes have not arrived yet: those may turn into text."""
    if b"\0" not in expected or len(found) != len(expected):
        return False
    return all(old in (0, new) for old, new in zip(expected, found, strict=True))

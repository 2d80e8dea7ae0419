"""New bytes of a file that grows, and its complete lines: what the readers of appended files share.

A reader of a tracker looks every few seconds, so the file is opened for each look that has something to read and closed again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainer_exporter.sources.files import Files, Opened, RewrittenError, SystemFiles, open_regular
from trainer_exporter.sources.trackers.base import Extent

READ_BYTES: Final = 1 << 20
LINE_BYTES: Final = 1 << 20
_Key = tuple[int, int, int, int]


def key_of(seen: os.stat_result) -> _Key:
    """Changes whenever the file may have."""
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Fresh:
    """What was added to a file since the last look."""

    data: bytes = b""
    renewed: bool = False  # it is another file, or its old bytes are others: ``data`` begins at its beginning
    more: bool = False


class Tail:
    """The bytes of one path, each once, in order, for as long as the file only grows."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self._path = path
        self._files: Files = files if files is not None else SystemFiles()
        self._opened: Opened | None = None
        self._key: _Key | None = None

    @property
    def extent(self) -> Extent:
        """Of the file that was last looked into."""
        opened = self._opened
        return Extent() if opened is None else Extent(opened.size, opened.position, opened.seen_mtime_ns / 1e9)

    def read(self, limit: int = READ_BYTES) -> Fresh:
        """At most ``limit`` new bytes. A path that leads nowhere gives none: what comes there later is another file. Raises OSError."""
        try:
            seen = self._files.stat(self._path)
            if (key := key_of(seen)) == self._key:
                return Fresh()
            opened = open_regular(self._files, self._path, line_bytes=LINE_BYTES)
        except FileNotFoundError:
            self._key = None
            return Fresh()
        try:
            fresh = self._read(opened, limit)
        finally:
            opened.close()
        self._opened, self._key = opened, None if fresh.more else key
        return fresh

    def rewind(self, size: int) -> None:
        """Give the last ``size`` bytes once more: network file systems show NULs where bytes have not arrived yet."""
        if self._opened is not None:
            self._opened.position -= size
            self._opened.tail = b""
            self._key = None

    def _read(self, opened: Opened, limit: int) -> Fresh:
        before = self._opened
        renewed = before is not None
        if before is not None and opened.identity == before.identity and opened.size >= before.position:
            opened.continue_from(before)
            renewed = False
        try:
            data = opened.read(limit)
        except RewrittenError:
            opened.position, opened.tail, renewed = 0, b"", True
            data = opened.read(limit)
        return Fresh(data, renewed, more=len(data) == limit)


class Lines:
    """The complete lines of one path. A line is given out when its newline has come; one that is too long is left out."""

    def __init__(self, path: str) -> None:
        self.tail = Tail(path)
        self.more = False
        self.renewals = 0  # how often another file was found: lines count from 1 again
        self.number = 0  # of the last line given out
        self._rest = b""
        self._too_long = False

    def read(self) -> Iterator[str]:
        """What is new. Raises OSError."""
        fresh = self.tail.read()
        self.more = fresh.more
        if fresh.renewed:
            self.renewals += 1
            self.number, self._rest, self._too_long = 0, b"", False
        *complete, rest = (self._rest + fresh.data).split(b"\n")
        for raw in complete:
            self.number += 1
            if self._too_long:
                self._too_long = False
                continue
            yield raw.decode("utf-8", "replace").rstrip("\r")
        if len(rest) > LINE_BYTES:
            rest, self._too_long = b"", True
        self._rest = rest

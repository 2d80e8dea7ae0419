"""Which entries of a file that is rewritten have been told already."""

from __future__ import annotations

import zlib
from array import array
from typing import Final

from trainer_exporter.model import Record

_MOST: Final = 1 << 20  # entries remembered: 4 MiB


class Told:
    """Remembers what was told, entry by entry, so that a file that is read again from its beginning tells only what is new.

    A trainer that goes on from an earlier checkpoint writes a file that begins like the old one and then differs: from there on all is new.
    """

    def __init__(self) -> None:
        self._sums = array("I")
        self._at = 0

    def begin_again(self) -> None:
        """The next entry is the file's first."""
        self._at = 0

    def is_new(self, record: Record) -> bool:
        """Whether this entry, the next of the file, was not told before."""
        known = zlib.crc32(repr((sorted(record.fields.items()), sorted(record.metrics.items()))).encode())
        at, self._at = self._at, self._at + 1
        if at < len(self._sums):
            if self._sums[at] == known:
                return False
            del self._sums[at:]
        if len(self._sums) < _MOST:
            self._sums.append(known)
        return True

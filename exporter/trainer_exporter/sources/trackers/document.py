"""JSON documents that their writer replaces or rewrites as a whole, read when they have changed."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from trainer_exporter.regular import start_of
from trainer_exporter.sources.trackers.base import Extent
from trainer_exporter.sources.trackers.tail import key_of

MOST_BYTES: Final = 64 << 20
_TRIES: Final = 5  # looks at a document that is not complete, before it counts as broken


class Document:
    """The document at a path, whenever it is another one than at the last look."""

    def __init__(self) -> None:
        self.extent = Extent()
        self.malformed = 0  # found by the last look: 1 for a document that stays broken
        self._key: tuple[object, ...] | None = None
        self._tries = 0

    def read(self, path: str) -> Any:
        """The parsed document; None where it is as before, not there, or still being written. Raises OSError."""
        self.malformed = 0
        try:
            seen = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return None
        key = (path, *key_of(seen))
        if key == self._key:
            return None
        self.extent = Extent(seen.st_size, seen.st_size, seen.st_mtime)
        document = self._parsed(path) if seen.st_size <= MOST_BYTES else None
        if document is None and seen.st_size <= MOST_BYTES and self._tries < _TRIES:
            self._tries += 1
            return None  # looked at again, though nothing changes: file servers show new sizes before new bytes
        self.malformed = int(document is None)
        self._key, self._tries = key, 0
        return document

    def _parsed(self, path: str) -> Any:
        try:
            return json.loads(start_of(path, MOST_BYTES + 1))
        except (ValueError, RecursionError):
            return None


def number(value: object) -> float | None:
    """A JSON value as a number; None for what is none (True and False included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Those of an object's values that are numbers."""
    return {key: read for key, value in values.items() if (read := number(value)) is not None}

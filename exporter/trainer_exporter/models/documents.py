"""JSON objects in files that users own: bounded in size, read again only when changed, and one that is broken is counted and absent."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainer_exporter.health import Health

SITE: Final = "models"
LARGEST_BYTES: Final = 4 << 20
MOST_DOCUMENTS: Final = 8  # a look at one directory reads four; of checkpoints that have been overtaken nothing is wanted any more
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_SAFETENSORS: Final = ".safetensors"  # begins with the length of its JSON head, 8 bytes, little endian

Document = Mapping[str, Any]


class Documents:
    """Reads, and remembers what it has read of each path."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._read: dict[Path, tuple[tuple[int, int, int], Document | None]] = {}

    def object_in(self, path: Path) -> Document | None:
        """The object; None where there is no such file or it cannot be used."""
        try:
            # A pipe of this name would block an ordinary open for ever.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
                return self._object(path, file)
        except OSError as error:
            self._read.pop(path, None)
            if error.errno not in _ABSENT:
                self._health.count(SITE, "unreadable", detail=str(error))
            return None
        except ValueError:
            return None  # a path that another file names need not be one that the system can have

    def _object(self, path: Path, file: BinaryIO) -> Document | None:
        seen = os.fstat(file.fileno())
        key = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
        known = self._read.pop(path, None)
        if known is None or known[0] != key:
            usable = stat.S_ISREG(seen.st_mode)
            known = (key, self._parsed(path, file) if usable else None)
        self._read[path] = known
        while len(self._read) > MOST_DOCUMENTS:
            del self._read[next(iter(self._read))]
        return known[1]

    def _parsed(self, path: Path, file: BinaryIO) -> Document | None:
        length = int.from_bytes(file.read(8), "little") if path.suffix == _SAFETENSORS else -1
        text = file.read(min(length, LARGEST_BYTES + 1) if length >= 0 else LARGEST_BYTES + 1)
        if len(text) > LARGEST_BYTES:
            self._health.count(SITE, "too_large", detail=str(path))
            return None
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._health.count(SITE, "broken_json", detail=f"{path}: {error}")
            return None
        return tree if isinstance(tree, dict) else None

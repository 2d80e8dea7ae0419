"""Files of evidence: a folder for each stall, in one directory that never grows beyond its limit. The oldest stalls go first.

Only folders that were named here are ever counted or removed. Nothing is readable for others, and a file is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_FOLDER = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]{1,80}")
FOLDER_MODE: Final = 0o700


def folder_name(run: str, wall: float) -> str:
    """Sorts by time; letters that a path cannot have, or that a shell would stumble over, are left out."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", run)[:80] or "run"
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(wall))}-{plain}"


class Keeper:
    """The files of one stall. OSError where the directory cannot be used."""

    def __init__(self, directory: str | Path, folder: str, *, maximum_bytes: int) -> None:
        self._root = Path(directory)
        self._folder = self._root / folder
        self._maximum = maximum_bytes

    def write(self, name: str, data: bytes) -> bool:
        """Put a file into the stall's folder; False where the limit leaves no room for it."""
        self._root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if not self._make_room(len(data), replaced=self._folder / name):
            return False
        handle, temporary = tempfile.mkstemp(prefix=".", dir=self._folder)  # 0600, and never through a link
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(self._folder / name)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        return True

    def _make_room(self, size: int, *, replaced: Path) -> bool:
        kept = {folder: _size(folder) for folder in self._folders()}
        total = sum(kept.values()) + size - (replaced.lstat().st_size if os.path.lexists(replaced) else 0)
        for folder in sorted(kept):
            if total <= self._maximum:
                break
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)
                total -= kept[folder] - _size(folder)
        return total <= self._maximum

    def _folders(self) -> list[Path]:
        return [each for each in self._root.iterdir() if _FOLDER.fullmatch(each.name) and each.is_dir() and not each.is_symlink()]


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            total += each.lstat().st_size
    return total

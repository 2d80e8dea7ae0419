"""The checkpoints that lie in one output directory, listed again only when that can tell something new."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer_exporter.checkpoints import layouts

RACY_S = 3.0  # an entry made in the same clock tick as our look leaves the directory's time as we saw it


@dataclass(frozen=True, slots=True)
class Found:
    """An entry whose name is a checkpoint's."""

    layout: layouts.Layout
    place: layouts.Place


@dataclass(slots=True)
class Folder:
    """One directory, and the one below it where some trainers keep the checkpoints."""

    path: Path
    max_entries: int
    dropped: int = 0  # entries beyond the bound at the last look
    _mtime: float | None = None
    _entries: Mapping[str, Found] = field(default_factory=dict)
    _below: dict[str, Folder] = field(default_factory=dict)

    def look(self, wall: float, *, always: bool) -> Mapping[str, Found]:
        """By path; empty when the directory is not there. Any OSError but that one is the caller's to count."""
        found = dict(self._own(wall, always=always))
        for folder in self._below.values():
            found.update(folder.look(wall, always=always))
        return found

    def _own(self, wall: float, *, always: bool) -> Mapping[str, Found]:
        mtime = layouts.mtime_of(self.path)
        if mtime is None:
            self._mtime, self._entries = None, {}
            self._below.clear()
            return self._entries
        if always or mtime != self._mtime or wall - mtime < RACY_S:
            self._mtime = mtime  # as it was before the listing: what comes during it is found by the next look
            self._list()
        return self._entries

    def _list(self) -> None:
        self.dropped = 0
        entries: dict[str, Found] = {}
        for name, is_directory in self._names():
            if name in layouts.FOLDERS and is_directory and self.path.name not in layouts.FOLDERS:
                self._below.setdefault(name, Folder(self.path / name, self.max_entries))
                continue
            known = layouts.layout_of(name)
            if known is not None and (is_directory or known[0].name == "lightning"):
                place = layouts.Place(self.path, self.path / name, known[1])
                entries[str(place.path)] = Found(known[0], place)
        self._entries = entries

    def _names(self) -> Iterator[tuple[str, bool]]:
        """Names with whether each is a directory; links are left out, a link to a checkpoint is not a second one."""
        try:
            with os.scandir(self.path) as listing:
                for number, entry in enumerate(listing):
                    if number >= self.max_entries:
                        self.dropped += 1
                    elif not entry.is_symlink():
                        yield entry.name, entry.is_dir(follow_symlinks=False)
        except FileNotFoundError:
            return

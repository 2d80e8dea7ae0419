"""The files that a rotation left beside a log, opened in the order in which they were written.

Between two looks a log can be rotated more than once. What came between is found by names, but only from a file that we
know: the one that we were reading (same inode), or a copy of it (same bytes where we stopped). Where that one is gone, what
came between is lost, which is what a rotation that keeps too few files means.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from trainer_exporter.health import Health
from trainer_exporter.sources.files import Files, Identity, IrregularError, Opened, identity_of, open_regular
from trainer_exporter.sources.rotation import Rotated, newer_than, rotated_of

_TRIES: Final = 20  # a rotation renames many files one after the other; a listing in its midst can miss one
_RACES: Final = 100  # looks in a row that may end so before what came between is given up


@dataclass(frozen=True, slots=True)
class _Seen:
    identity: Identity
    mtime_ns: int


class RenamingError(Exception):
    """Files were renamed all the time while we looked; a later look will see more."""


class _MovingError(Exception):
    """Files were renamed while we looked."""


class Siblings:
    """Looks beside one log; keeps nothing between two looks. All opened files belong to the caller."""

    def __init__(self, files: Files, path: str, health: Health, *, line_bytes: int, most: int) -> None:
        self._files = files
        self._directory, self._name = os.path.split(path)
        self._health = health
        self._line_bytes = line_bytes
        self._most = most
        self._races = 0

    def renamed(self, left: Opened) -> Opened | None:
        """The file that we had closed, opened under its new name. Raises RenamingError, as all of these."""
        found = self._steady(lambda look: look.renamed(left))
        return found[0] if found else None

    def between(self, left: Opened, fresh: Identity) -> list[Opened]:
        """What came after ``left`` and before ``fresh``; begins with ``left`` itself where that is closed."""
        return self._steady(lambda look: look.between(left, fresh))

    def copies(self, cut: Opened, *, without: set[Identity]) -> list[Opened]:
        """The copy that was made before ``cut`` was truncated, and those made after that one."""
        return self._steady(lambda look: look.copies(cut, without))

    def _steady(self, choose: Callable[[_Look], list[Opened]]) -> list[Opened]:
        """What is chosen from a listing during which nothing was renamed."""
        for _ in range(_TRIES):
            look = _Look(self._open, most=self._most)
            try:
                look.seen = self._listing()
                chosen = choose(look)
                if self._identities() == {sibling: each.identity for sibling, each in look.seen.items()}:
                    self._count(look)
                    self._races = 0
                    return chosen
            except (_MovingError, FileNotFoundError, IrregularError):
                pass
            except OSError as error:  # mostly a directory that may be entered but not listed: rotations are still followed, one by one
                look.close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise  # none is lost: the caller tries again
                self._health.count("follow", "siblings", detail=str(error))
                return []
            look.close()
        self._races += 1
        if self._races < _RACES:
            raise RenamingError
        self._races = 0
        self._health.count("follow", "rotation_race")
        return []

    def _count(self, look: _Look) -> None:
        if look.packed:  # compressed at once, without delaycompress
            self._health.drop("rotated_compressed", look.packed)
        if look.too_many:
            self._health.drop("rotated_files", look.too_many)

    def _listing(self) -> dict[Rotated, _Seen]:
        listing: dict[Rotated, _Seen] = {}
        try:
            names = self._files.names(self._directory or ".")
        except (FileNotFoundError, NotADirectoryError):
            return listing  # the directory has gone as a whole
        for sibling in rotated_of(self._name, names):
            seen = self._files.stat(self._path(sibling))
            listing[sibling] = _Seen(identity_of(seen), seen.st_mtime_ns)
        return listing

    def _identities(self) -> dict[Rotated, Identity]:
        return {sibling: each.identity for sibling, each in self._listing().items()}

    def _open(self, sibling: Rotated) -> Opened:
        return open_regular(self._files, self._path(sibling), line_bytes=self._line_bytes)

    def _path(self, sibling: Rotated) -> str:
        return os.path.join(self._directory, sibling.name)  # noqa: PTH118 - paths stay strings, as they were given


class _Look:
    """One listing, and the files opened from it."""

    def __init__(self, opener: Callable[[Rotated], Opened], *, most: int) -> None:
        self._opener = opener
        self._most = most
        self._opened: list[Opened] = []
        self.seen: Mapping[Rotated, _Seen] = {}
        self.packed = 0
        self.too_many = 0

    def renamed(self, left: Opened) -> list[Opened]:
        mine = self._named(left)
        if mine is None:
            return []
        again = self._open(mine)
        again.continue_from(left)
        return [again]

    def between(self, left: Opened, fresh: Identity) -> list[Opened]:
        mine = self._named(left)
        if mine is None:
            return []
        again = self.renamed(left) if left.fd is None else []
        newer = self._newer(mine, self._written_since(left, {left.identity}))
        # Rotated away itself since it was opened: what came after it is found from it, at the next look.
        rotated = next((at for at, each in enumerate(newer) if self.seen[each].identity == fresh), len(newer))
        return again + self._open_all(newer[:rotated])

    def copies(self, cut: Opened, without: set[Identity]) -> list[Opened]:
        later = self._written_since(cut, without)
        for sibling in sorted(later, key=lambda each: self.seen[each].mtime_ns):
            copy = self._open(sibling)
            if copy.holds_place_of(cut):
                copy.continue_from(cut)
                return [copy, *self._open_all(self._newer(sibling, later))]
            copy.close()
        return []

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def _named(self, left: Opened) -> Rotated | None:
        return next((sibling for sibling, each in self.seen.items() if each.identity == left.identity), None)

    def _written_since(self, left: Opened, without: set[Identity]) -> list[Rotated]:
        since = [sibling for sibling, each in self.seen.items() if each.mtime_ns >= left.mtime_ns and each.identity not in without]
        self.packed = sum(sibling.packed for sibling in since)
        return [sibling for sibling in since if not sibling.packed]

    def _newer(self, mine: Rotated, later: list[Rotated]) -> list[Rotated]:
        final = self.seen[mine].mtime_ns
        return newer_than(mine, [each for each in later if mine.may_precede(each, by_time=self.seen[each].mtime_ns > final)])

    def _open_all(self, newer: list[Rotated]) -> list[Opened]:
        self.too_many = max(0, len(newer) - self._most)
        return [self._open(sibling) for sibling in newer[self.too_many :]]

    def _open(self, sibling: Rotated) -> Opened:
        opened = self._opener(sibling)
        self._opened.append(opened)
        if opened.identity != self.seen[sibling].identity:
            raise _MovingError
        return opened

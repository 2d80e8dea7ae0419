"""Directories listed again only when they changed, and globs matched against those lists.

The standard glob follows symbolic links below ** and lists everything each time; a training tree has loops, a million
checkpoint shards, and lies on a file system where each list is a request.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health

_MAGIC: Final = re.compile(r"[*?\[]")
# Below these no log of a run is looked for: weights, code, and what trackers keep.
_CLOSED: Final = re.compile(
    r"\..+|(?:checkpoint|ckpt|iter|global_step|step|epoch)[-_]?\d+|__pycache__|node_modules|site-packages"
    r"|wandb|mlruns|swanlog|huggingface_hub|tmp-checkpoint-\d+",
    re.IGNORECASE,
)
_CHECKPOINT: Final = re.compile(r"checkpoint-\d+")
_FRESH_S: Final = 5.0  # a directory's time has a grain: a list made so soon after a change may miss the next one


def has_magic(path: str) -> bool:
    """Whether it is a pattern rather than a path."""
    return bool(_MAGIC.search(path))


@dataclass(frozen=True, slots=True)
class _Listing:
    mtime_ns: int
    listed_wall: float
    files: tuple[str, ...]
    directories: tuple[str, ...]  # no symbolic links: loops
    links: tuple[str, ...]  # symbolic links, to whatever


class Walk:
    """One search of the file system at a time, between ``begin`` and ``finish``."""

    def __init__(self, clock: Clock, health: Health, *, depth: int = 8, most_directories: int = 5000, most_entries: int = 200_000) -> None:
        self._clock = clock
        self._health = health
        self._depth = depth
        self._most_directories = most_directories
        self._most_entries = most_entries
        self._listings: dict[str, _Listing] = {}
        self._used: set[str] = set()
        self._entries = 0
        self._ended_early = False
        self.lists_made = 0  # directories read so far, as opposed to found unchanged

    @property
    def directories(self) -> Collection[str]:
        """Those looked into in the last search."""
        return self._listings.keys()

    def begin(self) -> None:
        self._used = set()
        self._entries = 0
        self._ended_early = False

    def finish(self) -> None:
        """Forget what this search did not come by."""
        self._listings = {path: each for path, each in self._listings.items() if path in self._used}

    def below(self, directory: str, depth: int | None = None) -> Iterator[str]:
        """All files in and below a directory, closed directories left out; links to files are given too."""
        depth = self._depth if depth is None else depth
        listing = self._listing(directory)
        if listing is None:
            return
        for name in (*listing.files, *listing.links):
            yield _join(directory, name)
        for name in listing.directories if depth > 0 else ():
            if not _CLOSED.fullmatch(name):
                yield from self.below(_join(directory, name), depth - 1)

    def kept_by_trackers(self, directory: str, depth: int | None = None) -> Iterator[str]:
        """Paths in the closed directories below a directory at which trackers keep files; whether one is there is for the caller to see."""
        depth = self._depth if depth is None else depth
        listing = self._listing(directory)
        for name in listing.directories if listing is not None and depth > 0 else ():
            path = _join(directory, name)
            if _CHECKPOINT.fullmatch(name):
                yield f"{path}/trainer_state.json"  # not listed: it holds shards by the thousand
            elif name == "wandb":
                yield from (file for run in self._directories(path) for file in self._files(run, "run-*.wandb"))
            elif name == "mlruns":
                yield from (f"{run}/meta.yaml" for experiment in self._directories(path) for run in self._directories(experiment))
            elif not _CLOSED.fullmatch(name):
                yield from self.kept_by_trackers(path, depth - 1)

    def _directories(self, directory: str) -> Iterator[str]:
        listing = self._listing(directory)
        for name in listing.directories if listing is not None else ():
            if not name.startswith("."):
                yield _join(directory, name)

    def glob(self, pattern: str) -> Iterator[str]:
        """Files that an absolute pattern matches; ``**`` stands for any directories but closed ones, ``*`` for no dot file."""
        parts = pattern.strip("/").split("/")
        fixed = next(at for at, part in enumerate(parts) if has_magic(part))
        seen: set[str] = set()
        for path in self._match("/" + "/".join(parts[:fixed]), parts[fixed:], self._depth):
            if path not in seen:
                seen.add(path)
                yield path

    def _match(self, directory: str, parts: list[str], depth: int) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._match_any_depth(directory, rest, depth)
        elif not rest:
            yield from self._files(directory, part)
        elif not has_magic(part):
            yield from self._match(_join(directory, part), rest, depth)
        else:
            listing = self._listing(directory)
            for name in (*listing.directories, *listing.links) if listing else ():
                if _matches(name, part):
                    yield from self._match(_join(directory, name), rest, depth)

    def _match_any_depth(self, directory: str, rest: list[str], depth: int) -> Iterator[str]:
        if not rest:
            yield from self.below(directory, depth)
            return
        yield from self._match(directory, rest, depth)
        listing = self._listing(directory)
        for name in listing.directories if listing and depth > 0 else ():
            if not _CLOSED.fullmatch(name):
                yield from self._match_any_depth(_join(directory, name), rest, depth - 1)

    def _files(self, directory: str, part: str) -> Iterator[str]:
        listing = self._listing(directory)
        for name in (*listing.files, *listing.links) if listing else ():
            if _matches(name, part):
                yield _join(directory, name)

    def _listing(self, directory: str) -> _Listing | None:
        known = self._listings.get(directory)
        if known is not None and directory in self._used:
            return known
        if len(self._used) >= self._most_directories or self._entries >= self._most_entries:
            self._end_early(directory)
            return None
        try:
            listing = self._current(directory, known)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._health.count("discovery", "unreadable_directory", detail=f"{directory}: {error}")
            return None
        self._used.add(directory)
        self._entries += len(listing.files) + len(listing.directories) + len(listing.links)
        self._listings[directory] = listing
        return listing

    def _end_early(self, directory: str) -> None:
        if not self._ended_early:
            self._ended_early = True
            self._health.count("discovery", "too_many_entries", detail=directory)

    def _current(self, directory: str, known: _Listing | None) -> _Listing:
        mtime_ns = os.stat(directory).st_mtime_ns  # noqa: PTH116
        if known and known.mtime_ns == mtime_ns and known.listed_wall - mtime_ns / 1e9 > _FRESH_S:
            return known
        self.lists_made += 1
        return self._listed(directory, mtime_ns)

    def _listed(self, directory: str, mtime_ns: int) -> _Listing:
        files: list[str] = []
        directories: list[str] = []
        links: list[str] = []
        listed_wall = self._clock.wall()
        with os.scandir(directory) as entries:
            for entry in entries:
                kind = links if entry.is_symlink() else directories if entry.is_dir() else files
                kind.append(entry.name)
                if len(files) + len(directories) + len(links) >= self._most_entries:
                    break
        return _Listing(mtime_ns, listed_wall, tuple(sorted(files)), tuple(sorted(directories)), tuple(sorted(links)))


def _matches(name: str, part: str) -> bool:
    if name.startswith(".") and not part.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, part)


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"

"""One bounded look into a checkpoint: how big it is, and when its files came. Links are not followed.

The moments that a save leaves behind give its duration even when nobody watched. They come from the file server's clock,
all of them, so that a difference between two is right where that clock and ours disagree.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_GAP_S = 1800.0  # between two moments of one save: a single file of a terabyte on a slow store stays under it


@dataclass(frozen=True, slots=True)
class Tree:
    """What one look found."""

    entries: int
    size_bytes: int
    newest: float  # latest modification of anything in it, wall time
    times: tuple[tuple[float, float], ...]  # (mtime, ctime) of each entry and of the top itself
    complete: bool  # False: there were more entries than the bound, so the size is unknown

    def same_as(self, other: Tree) -> bool:
        """Whether nothing was written between two looks."""
        return (self.entries, self.size_bytes, self.newest) == (other.entries, other.size_bytes, other.newest)


EMPTY = Tree(0, 0, 0.0, (), False)


def look(path: Path, *, max_entries: int) -> Tree:
    """Walk a file or directory once; what vanishes meanwhile is left out. OSError only for the top itself."""
    top = path.stat(follow_symlinks=False)
    size = 0 if stat.S_ISDIR(top.st_mode) else top.st_size
    times = [(top.st_mtime, top.st_ctime)]
    complete = True
    for child in _below(path) if stat.S_ISDIR(top.st_mode) else ():
        if len(times) > max_entries:
            complete = False
            break
        try:
            found = child.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        times.append((found.st_mtime, found.st_ctime))
        size += 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return Tree(len(times), size, max(mtime for mtime, _ in times), tuple(times), complete)


def _below(path: Path) -> Iterator[Path]:
    """Everything under a directory, a directory before its children."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            children = list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for child in children:
            yield child
            if not child.is_symlink() and child.is_dir():
                waiting.append(child)


def beginning(times: Iterable[tuple[float, float]], end: float, *, seen: float | None = None, after: float = 0.0) -> float | None:
    """When the save that ended at ``end`` began; None when the files cannot tell (a single moment is no interval).

    Going back from the end, the save reaches as far as there is no gap longer than LONGEST_GAP_S: files of an earlier attempt
    in the same directory, and files copied with their old times, belong to no save of ours. ``seen`` is the start as watched;
    nothing up to ``after`` belongs to this save.
    """
    moments = {_moment(mtime, ctime, end) for mtime, ctime in times}
    if seen is not None:
        moments.add(seen)
    start = end
    for moment in sorted((m for m in moments if after < m <= end), reverse=True):
        if start - moment > LONGEST_GAP_S:
            break
        start = moment
    return start if start < end else None


def _moment(mtime: float, ctime: float, end: float) -> float:
    """When an entry was there. ctime cannot be set by a copy, but a chmod after the save moves it past the end."""
    return ctime if ctime <= end else mtime

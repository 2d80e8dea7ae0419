"""What a tracker is: which files it keeps, and the reader that tells what is new in one of them.

A tracker is a library to which a trainer reports its numbers for other programs to read. Its files are found and followed like logs, but
a reader of their own reads them: they hold no lines, are rewritten as a whole, or spread a run over many files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.model import Record, Stamp

_MOST_SECONDS: Final = 1e11  # a larger number is no time


class MissingExtraError(TrainerExporterError):
    """The package that reads these files is not installed."""

    def __init__(self, tracker: str, extra: str) -> None:
        super().__init__(f"{tracker} files are not read: their reader is missing; install it with: pip install 'trainer-exporter[{extra}]'")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one look at a tracker's file gave."""

    records: Sequence[Record] = ()
    more: bool = False  # there is more to read at once
    malformed: int = 0  # entries that could not be read


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is to read, and how much of it has been read."""

    size: int = 0  # bytes, as last looked at
    position: int = 0
    mtime: float | None = None  # when it was last written, by the file system's clock; None before the first look


def stamp_of(seconds: float | None) -> Stamp | None:
    """A time as a tracker tells it; None for what can be none: 0 stands for an unknown one, and a broken file has NaN."""
    return Stamp(seconds, zoned=True) if seconds is not None and 0 < seconds < _MOST_SECONDS else None


class Reader(Protocol):
    """Reads one file (or one run's files) of a tracker, each entry once."""

    @property
    def extent(self) -> Extent: ...

    def poll(self) -> Batch:
        """What is new; costs a stat where nothing is. Raises OSError for what cannot be read, MissingExtraError."""


class Lister(Protocol):
    """Knows the runs that are kept together at one place."""

    def sources(self, since_wall: float) -> Sequence[str]:
        """A path for each run that goes on, or ended since then; never waits. Raises OSError, MissingExtraError."""


def _own(path: str) -> str:
    return path


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - called for each candidate of each look


@dataclass(frozen=True, slots=True)
class Tracker:
    """One tracker. A module's constant TRACKER is found by walking this package.

    ``paths`` finds this tracker's files by where they lie and what they are called; ``on_request`` further ones that count only where a
    user names the file itself. ``opens``: where names are shared with others, whether the first bytes are this tracker's; ``lone``:
    likewise for a file whose name says nothing. ``source``: the path that stands for a file (a trainer's state lies in each of its
    checkpoints, and is one source). ``written``: size and time of what that path stands for; raises OSError. ``below``: where its files
    lie under a run's own directory; ``apart``: there they tell runs apart, because that is where programs are started, not where they save.
    ``holds``: places that hold many runs, whose paths a ``lister`` gives.
    """

    name: str
    summary: str
    paths: re.Pattern[str]
    reader: Callable[[str], Reader]
    extra: str = ""  # the extra of the distribution that reads it; "" where none is needed
    on_request: re.Pattern[str] | None = None
    opens: Callable[[bytes], bool] | None = None
    lone: Callable[[bytes], bool] | None = None
    source: Callable[[str], str] = _own
    written: Callable[[str], os.stat_result] = _stat
    below: re.Pattern[str] | None = None
    apart: bool = False
    holds: re.Pattern[str] | None = None
    lister: Callable[[str], Lister] | None = None
    held_open: bool = False  # its writer keeps the file open for as long as it lives

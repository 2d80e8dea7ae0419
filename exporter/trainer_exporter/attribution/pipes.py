"""The other end of a pipe, and the files that a process writes: for a trainer whose output goes through ``tee`` or a supervisor."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.attribution.proc import Open, Proc
from trainer_exporter.clock import Clock

RETRY_S: Final = 30.0  # for a pipe that nobody was seen to read
PAUSE_S: Final = 5.0
SHARE: Final = 0.01  # of the time may go into searches: each goes through the descriptors of every process


@dataclass(frozen=True, slots=True)
class _End:
    pid: int
    descriptor: str


class Pipes:
    """Finds readers. A reader that was found costs one look; a search serves all pipes, and is not repeated soon."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._ends: Mapping[str, Sequence[_End]] = {}
        self._next_mono = clock.mono()
        self._missed: dict[str, float] = {}

    def reader(self, pipe: str, *, writer: int) -> int | None:
        """The process that reads a pipe, of the writer's user or of root; None where there is none to be found."""
        found = self._reader(pipe, writer)
        now = self._clock.mono()
        if found is not None or now < self._next_mono or now - self._missed.get(pipe, -RETRY_S) < RETRY_S:
            return found
        self._search()
        self._missed = {missed: at for missed, at in self._missed.items() if now - at < RETRY_S} | {pipe: now}
        return self._reader(pipe, writer)

    def _reader(self, pipe: str, writer: int) -> int | None:
        users = {0, self._proc.uid(writer)}
        for end in self._ends.get(pipe, ()):
            if end.pid != writer and self._proc.pipe(end.pid, end.descriptor) == pipe and self._proc.uid(end.pid) in users:
                return end.pid
        return None

    def _search(self) -> None:
        """Note the ends of all pipes that are read from."""
        began = self._clock.mono()
        ends: dict[str, list[_End]] = defaultdict(list)
        for pid in self._proc.pids():
            for descriptor, pipe in self._proc.pipes(pid):
                if _reads(self._proc.flags(pid, descriptor)):
                    ends[pipe].append(_End(pid, descriptor))
        self._ends = ends
        ended = self._clock.mono()
        self._next_mono = ended + max(PAUSE_S, (ended - began) / SHARE)


def written(proc: Proc, pid: int) -> Sequence[Open]:
    """The regular files that a process has open for writing alone or at their end, which is how logs are written and data bases are not."""
    found: dict[Open, None] = {}
    for descriptor in sorted(proc.descriptors(pid), key=lambda name: (len(name), name)):
        opened = proc.regular(pid, descriptor)
        if opened is not None and _writes(proc.flags(pid, descriptor)):
            found[opened] = None
    return tuple(found)


def _reads(flags: int | None) -> bool:
    return flags is not None and flags & os.O_ACCMODE == os.O_RDONLY


def _writes(flags: int | None) -> bool:
    if flags is None:
        return False
    return flags & os.O_ACCMODE == os.O_WRONLY or (flags & os.O_ACCMODE == os.O_RDWR and bool(flags & os.O_APPEND))

"""The other end of a pipe, and the files that a process writes: for a trainer whose output goes through ``tee`` or a supervisor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.attribution.proc import Open, Proc
from trainer_exporter.clock import Clock

RETRY_S: Final = 30.0  # a search goes through the descriptors of every process of a user
KNOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class _End:
    pid: int
    descriptor: str


class Pipes:
    """Finds readers; searches again only for pipes that it has not looked for lately."""

    def __init__(self, proc: Proc, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._readers: dict[str, _End] = {}
        self._missed: dict[str, float] = {}

    def reader(self, pipe: str, *, writer: int) -> int | None:
        """The process that reads a pipe, of the writer's user or of root; None where there is none to be found."""
        known = self._readers.get(pipe)
        if known is not None and self._proc.pipe(known.pid, known.descriptor) == pipe:
            return known.pid
        now = self._clock.mono()
        if now - self._missed.get(pipe, -RETRY_S) < RETRY_S:
            return None
        self._tidy(now)
        found = self._search(pipe, writer)
        if found is None:
            self._missed[pipe] = now
            return None
        self._readers[pipe] = found
        return found.pid

    def _search(self, pipe: str, writer: int) -> _End | None:
        users = {0, self._proc.uid(writer)}
        for pid in self._proc.pids():
            if pid == writer or self._proc.uid(pid) not in users:
                continue
            for descriptor in self._proc.descriptors(pid):
                if self._proc.pipe(pid, descriptor) == pipe and _reads(self._proc.flags(pid, descriptor)):
                    return _End(pid, descriptor)
        return None

    def _tidy(self, now: float) -> None:
        self._missed = {pipe: at for pipe, at in self._missed.items() if now - at < RETRY_S}
        if len(self._readers) > KNOWN:
            self._readers.clear()


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

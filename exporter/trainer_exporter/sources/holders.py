"""Which processes of this node hold a file open for writing, from /proc.

Absence proves nothing unless every process could be looked into: see ``Held.complete``. A writer that was seen once can
always be asked for with ``alive``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.sources.files import Identity, identity_of

_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of linux/sched.h, in field 9 of /proc/PID/stat
_KTHREADD: Final = 2  # visible only where the whole machine is: in the first PID namespace, without hidepid
_DESCRIPTORS: Final = 4096  # of one process
_PROCESSES: Final = 20_000
_ACCESS: Final = os.O_WRONLY | os.O_RDWR
_NO_FILE: Final = ("socket:", "pipe:", "anon_inode:", "/dev/", "/memfd:", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from a later one with the same PID by its start."""

    pid: int
    started_ticks: int  # since boot


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds what, as far as could be seen."""

    by: Mapping[Identity, tuple[Process, ...]]
    complete: bool  # False: some process could not be looked into, so a file without a holder may have one


@dataclass(frozen=True, slots=True)
class _Status:
    process: Process
    parent: int
    empty: bool  # kernel threads and zombies: no descriptors


@dataclass(frozen=True, slots=True)
class _Examined:
    at_mono: float
    wanted: frozenset[Identity]
    holds: frozenset[Identity]
    complete: bool


class Holders:
    """Looks through /proc. Processes without interest are looked into again only after a while or for new files."""

    def __init__(self, clock: Clock, *, proc_root: str = "/proc", own_pid: int | None = None, revisit_s: float = 30.0) -> None:
        self._clock = clock
        self._root = proc_root
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._revisit_s = revisit_s
        self._examined: dict[Process, _Examined] = {}

    def scan(self, identities: Collection[Identity]) -> Held:
        """The processes that write these files, our own and its children left out."""
        wanted = frozenset(identities)
        statuses = {status.process.pid: status for status in self._statuses()}
        kthreadd = statuses.get(_KTHREADD)
        complete = kthreadd is not None and kthreadd.empty and len(statuses) < _PROCESSES
        examined: dict[Process, _Examined] = {}
        for status in statuses.values():
            if not status.empty and not self._is_ours(status.process.pid, statuses):
                examined[status.process] = self._examination(status.process, wanted)
        self._examined = examined
        by: dict[Identity, list[Process]] = {}
        for process, each in examined.items():
            complete &= each.complete
            for identity in each.holds & wanted:
                by.setdefault(identity, []).append(process)
        return Held({identity: tuple(found) for identity, found in by.items()}, complete)

    def process(self, pid: int) -> Process | None:
        """The process that has this PID now."""
        status = self._status(pid)
        return status.process if status else None

    def alive(self, process: Process) -> bool:
        """Whether this very process still runs; a zombie does not."""
        status = self._status(process.pid)
        return status is not None and status.process == process and not status.empty

    def started_wall(self, pid: int) -> float | None:
        """Seconds since the epoch at which the process started; None where that cannot be known."""
        status = self._status(pid)
        boot = self._boot_wall()
        if status is None or boot is None:
            return None
        return boot + status.process.started_ticks / os.sysconf("SC_CLK_TCK")

    def working_directory(self, pid: int) -> str:
        """Of the process; "" where it may not be known."""
        try:
            return os.readlink(f"{self._root}/{pid}/cwd")  # noqa: PTH115
        except OSError:
            return ""

    def _boot_wall(self) -> float | None:
        try:
            for line in Path(self._root, "stat").read_text().splitlines():
                if line.startswith("btime "):
                    return float(line.split()[1])
        except OSError:
            return None
        return None

    def _statuses(self) -> Iterator[_Status]:
        pids = sorted(int(name) for name in os.listdir(self._root) if name.isdigit())  # noqa: PTH208
        for pid in pids[:_PROCESSES]:
            if (status := self._status(pid)) is not None:
                yield status

    def _status(self, pid: int) -> _Status | None:
        try:
            text = Path(self._root, str(pid), "stat").read_text(errors="replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
        if len(fields) < 20:
            return None
        state, parent, flags, started = fields[0], int(fields[1]), int(fields[6]), int(fields[19])
        return _Status(Process(pid, started), parent, empty=state in "ZX" or bool(flags & _KERNEL_THREAD))

    def _is_ours(self, pid: int, statuses: Mapping[int, _Status]) -> bool:
        for _ in range(len(statuses)):
            if pid == self._own_pid:
                return True
            status = statuses.get(pid)
            if status is None or status.parent == pid:
                return False
            pid = status.parent
        return False

    def _examination(self, process: Process, wanted: frozenset[Identity]) -> _Examined:
        known = self._examined.get(process)
        now = self._clock.mono()
        if known and not known.holds and wanted <= known.wanted and now - known.at_mono < self._revisit_s:
            return known
        holds: set[Identity] = set()
        complete = True
        try:
            names = os.listdir(f"{self._root}/{process.pid}/fd")  # noqa: PTH208
            complete = len(names) <= _DESCRIPTORS
            for name in names[:_DESCRIPTORS]:
                identity = self._written(process.pid, name, wanted)
                if identity is not None:
                    holds.add(identity)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended meanwhile
        except OSError:
            complete = False
        return _Examined(now, wanted, frozenset(holds), complete)

    def _written(self, pid: int, name: str, wanted: frozenset[Identity]) -> Identity | None:
        link = f"{self._root}/{pid}/fd/{name}"
        try:
            if os.readlink(link).startswith(_NO_FILE):  # noqa: PTH115
                return None
            identity = identity_of(os.stat(link))  # noqa: PTH116
            if identity in wanted and self._for_writing(pid, name):
                return identity
        except FileNotFoundError:
            return None  # closed meanwhile
        return None

    def _for_writing(self, pid: int, name: str) -> bool:
        for line in Path(self._root, str(pid), "fdinfo", name).read_text().splitlines():
            if line.startswith("flags:"):
                return bool(int(line.split()[1], 8) & _ACCESS)
        return False

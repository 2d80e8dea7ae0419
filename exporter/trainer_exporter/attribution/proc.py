"""Single looks into /proc. Whatever vanished, died or may not be read shows nothing; that is no error.

What is read here is raw, and may hold secrets (environ, cmdline): who calls picks out what it may keep.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Identity = tuple[int, int]  # device and inode

READ_BYTES: Final = 1 << 20  # of one file of /proc; an environment of many exported functions has some 100 KiB
DESCRIPTORS: Final = 4096  # of one process
PROCESSES: Final = 20_000
_PIPE = re.compile(r"pipe:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of /proc/PID/stat that matters here."""

    parent: int
    state: str
    start_ticks: int  # since boot; with the PID it names a process for good, since PIDs are used again

    @property
    def is_dead(self) -> bool:
        """Whether only its entry is left."""
        return self.state in "ZX"


@dataclass(frozen=True, slots=True)
class Open:
    """A regular file that a process has open, by the name that the process knows it by."""

    path: str
    identity: Identity


class Proc:
    """Reads /proc, wherever it is (a container may have the host's elsewhere)."""

    def __init__(self, root: str | Path = "/proc") -> None:
        self.root = Path(root)

    def pids(self) -> list[int]:
        """All processes, oldest PIDs first, bounded."""
        try:
            names = os.listdir(self.root)  # noqa: PTH208
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())[:PROCESSES]

    def stat(self, pid: int) -> Stat | None:
        """Of a process; its zombie is given too."""
        # The name of the program is in brackets and may hold anything, brackets too.
        words = self.text(pid, "stat").rpartition(") ")[2].split()
        try:
            return Stat(int(words[1]), words[0], int(words[19]))
        except (IndexError, ValueError):
            return None

    def uid(self, pid: int) -> int | None:
        """The effective user of a process."""
        for line in self.text(pid, "status").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
        return None

    def inner_pid(self, pid: int) -> int:
        """What a process in a container takes itself for; 0 where that is not known."""
        for line in self.text(pid, "status").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return 0

    def link(self, pid: int | str, name: str) -> str:
        """Where a link below /proc/PID points to; "" where there is none."""
        try:
            return os.readlink(f"{self.root}/{pid}/{name}")  # noqa: PTH115 - asked for each descriptor of a node
        except OSError:
            return ""

    def text(self, *names: str | int) -> str:
        """A file below /proc, its beginning."""
        try:
            with open("/".join((str(self.root), *map(str, names))), "rb") as file:  # noqa: PTH123 - as above
                return file.read(READ_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def pipes(self, pid: int) -> Iterator[tuple[str, str]]:
        """(descriptor, number) of each pipe that a process has open."""
        for descriptor in self.descriptors(pid):
            if number := self.pipe(pid, descriptor):
                yield descriptor, number

    def pipe(self, pid: int, descriptor: str) -> str:
        """The number of the pipe behind a descriptor; "" where something else is."""
        found = _PIPE.fullmatch(self.link(pid, f"fd/{descriptor}"))
        return found[1] if found else ""

    def descriptors(self, pid: int) -> list[str]:
        """Of a process, bounded."""
        try:
            return os.listdir(self.root / str(pid) / "fd")[:DESCRIPTORS]  # noqa: PTH208
        except OSError:
            return []

    def regular(self, pid: int, descriptor: str) -> Open | None:
        """The regular file behind a descriptor, unless it was deleted."""
        path = self.link(pid, f"fd/{descriptor}")
        if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/")):
            return None
        try:
            seen = (self.root / str(pid) / "fd" / descriptor).stat()
        except OSError:
            return None
        if not stat.S_ISREG(seen.st_mode) or not seen.st_nlink:
            return None
        return Open(path, (seen.st_dev, seen.st_ino))

    def flags(self, pid: int, descriptor: str) -> int | None:
        """The flags that a descriptor was opened with; None where they cannot be known."""
        for line in self.text(pid, "fdinfo", descriptor).splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
        return None

    def ancestors(self, pid: int, most: int) -> Iterator[int]:
        """The nearest ancestors, init left out."""
        for _ in range(most):
            seen = self.stat(pid)
            if seen is None or seen.parent <= 1:
                return
            pid = seen.parent
            yield pid

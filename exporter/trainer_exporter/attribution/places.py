"""Where the path that a process knows is found from here: a container sees other mounts than we do.

A path that both sides see wins over /proc/PID/root, which ends with the process: a log that is followed by a path of its own is
not read again when its trainer is started anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainer_exporter.attribution.proc import Identity, Proc

_ESCAPE = re.compile(r"\\([0-7]{3})")  # the kernel writes blanks in paths as octal escapes


@dataclass(frozen=True, slots=True)
class _Mount:
    device: str
    root: str  # of the file system, what is mounted
    point: str


class Places:
    """Finds out anew each time; keeps nothing."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc

    def seen(self, pid: int, path: str, identity: Identity | None = None) -> str:
        """``path`` of a process as a path of ours; "" where it cannot be reached.

        ``identity`` is the file's where it is known. Without it a path of our own mounts is given as it is, there or not.
        """
        if not self._is_foreign(pid):
            return path if identity is None or _identity(path) == identity else ""
        inside = f"{self._proc.root}/{pid}/root{path}"
        wanted = identity or _identity(inside)
        if wanted is None:
            return ""
        return next((place for place in (path, *self._mounted(pid, path), inside) if _identity(place) == wanted), "")

    def _is_foreign(self, pid: int) -> bool:
        own, other = self._proc.link("self", "ns/mnt"), self._proc.link(pid, "ns/mnt")
        return bool(own and other) and own != other

    def _mounted(self, pid: int, path: str) -> Iterator[str]:
        """Where our own mounts show the same part of the same file system."""
        theirs = [mount for mount in self._mounts(pid) if _is_below(path, mount.point)]
        if not theirs:
            return
        mount = max(reversed(theirs), key=lambda each: len(each.point))  # the last of two in one place covers the first
        inside = _joined(mount.root, path[len(mount.point.rstrip("/")) :])
        for ours in self._mounts("self"):
            if ours.device == mount.device and _is_below(inside, ours.root):
                yield _joined(ours.point, inside[len(ours.root.rstrip("/")) :])

    def _mounts(self, pid: int | str) -> Iterator[_Mount]:
        for line in self._proc.text(pid, "mountinfo").splitlines():
            fields = line.split(" ")
            if len(fields) > 4:
                yield _Mount(fields[2], _plain(fields[3]), _plain(fields[4]))


def _identity(path: str) -> Identity | None:
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _joined(directory: str, rest: str) -> str:
    return directory.rstrip("/") + rest or "/"


def _plain(escaped: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), escaped)

"""What the kernel says of its GPUs: the Xid lines of its log, and the folder in which the driver lists them.

Neither asks the driver anything, so neither can hang. Formats of the lines: open-gpu-kernel-modules, kernel_rc.c and os-interface.c;
the bus id comes with four or eight digits of domain, with or without its function, and on MIG with the numbers of the instances.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

OFF_THE_BUS: Final = 79
LONGEST_RECORD: Final = 8192  # of /dev/kmsg; a shorter buffer makes the read fail
MOST_RECORDS: Final = 4096  # in one look

_BUS: Final = r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"
XID: Final = re.compile(rf"NVRM: Xid \((?:PCI:)?{_BUS}(?: GPU-I:(?P<gi>\d+)(?: GPU-CI:(?P<ci>\d+))?)?\): (?P<xid>\d{{1,4}})(?:,|$)")
# Said with and without an Xid. The second form is two lines in one record, and begins as many a harmless one does.
FALLEN: Final = re.compile(
    rf"NVRM: (?:GPU {_BUS}: GPU has fallen off the bus|The NVIDIA GPU {_BUS.replace('bus', 'other')} .*fallen off the bus)"
)


class KernelXid(NamedTuple):
    """An Xid error of the GPU at a bus id (domain, bus, device); the instances are "" but on MIG."""

    bus: tuple[int, ...]
    xid: int
    gpu_instance: str = ""
    compute_instance: str = ""


def xid(line: str) -> KernelXid | None:
    """The Xid error that a line of the kernel's log tells, None where it tells none. A card that fell off the bus counts as 79."""
    found = XID.search(line)
    if found:
        instances = (str(int(found[name])) if found[name] else "" for name in ("gi", "ci"))
        return KernelXid(bus_id(found["bus"]), int(found["xid"]), *instances)
    fallen = FALLEN.search(line)
    return KernelXid(bus_id(fallen["bus"] or fallen["other"]), OFF_THE_BUS) if fallen else None


def bus_id(text: str) -> tuple[int, ...]:
    """Domain, bus and device of a bus id in any spelling. Raises ValueError for what is none."""
    numbers = [int(part, 16) for part in text.partition(".")[0].split(":")]
    if not 2 <= len(numbers) <= 3:
        raise ValueError(text)
    return tuple([0] * (3 - len(numbers)) + numbers)


def gpus(folder: str) -> frozenset[str]:
    """Names of the GPUs that the driver lists in its folder of /proc, by bus id; none where there is no such folder."""
    try:
        return frozenset(entry.name for entry in os.scandir(folder)) if folder else frozenset()
    except OSError:
        return frozenset()


class KernelLog:
    """The lines that come to the kernel's log from now on. ``is_readable`` is False where it is not ours to read (dmesg_restrict)."""

    def __init__(self, path: str) -> None:
        self._rest = b""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if path else -1
        except OSError:
            self._descriptor = -1
            return
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:  # a pipe has nothing old
            return

    @property
    def is_readable(self) -> bool:
        return self._descriptor >= 0

    def lines(self) -> list[str]:
        """What has come since the last look; never waits."""
        data = [self._rest]
        for _ in range(MOST_RECORDS if self.is_readable else 0):
            try:
                part = os.read(self._descriptor, LONGEST_RECORD)
            except BrokenPipeError:  # records were overwritten before we came; the next read goes on with the oldest one left
                continue
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            if not part:
                break
            data.append(part)
        *lines, self._rest = b"".join(data).split(b"\n")
        self._rest = self._rest[-LONGEST_RECORD:]
        return [line.decode(errors="replace") for line in lines]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

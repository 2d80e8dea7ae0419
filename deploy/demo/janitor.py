"""Ends the demo's programs and removes its directory once the demo is gone, however it went, SIGKILL included.

It learns on standard input what there is (``process PID``, ``directory PATH``) and acts when that input ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 5.0


def is_running(pid: int) -> bool:
    """Whether the process still runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)  # each program leads a group of its own, its children included
    except ProcessLookupError:
        return


def end(pids: list[int]) -> None:
    """Ask, wait, then insist. A stopped process hears nothing until it is continued."""
    for pid in pids:
        send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and any(map(is_running, pids)):
        time.sleep(0.05)
    for pid in pids:
        send(pid, signal.SIGKILL)


def main() -> None:
    pids: list[int] = []
    directories: list[str] = []
    for line in sys.stdin:
        kind, _, value = line.rstrip("\n").partition(" ")
        if kind == "process":
            pids.append(int(value))
        elif kind == "directory":
            directories.append(value)
    end(pids)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Where the Python code of a trainer stands, by py-spy where it is installed. ``--nonblocking``: the trainer is read, never stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STACK_BYTES: Final = 256 << 10
SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Stack:
    """``word``: ``taken``, ``denied``, ``timeout`` or ``failed`` (the process has gone, or runs no Python)."""

    word: str
    text: bytes = b""


def program() -> str:
    """Where py-spy is: beside our own Python, else on the path; "" where it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def take(pid: int, py_spy: str, *, seconds: float = SECONDS) -> Stack:
    """The stacks of one process."""
    words = (py_spy, "dump", "--nonblocking", "--pid", str(pid))
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return Stack("failed")
    try:
        text, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: what hangs in the kernel does not die
        return Stack("timeout")
    if process.returncode == 0 and text:
        return Stack("taken", text[:STACK_BYTES])
    return Stack("denied" if b"ermission denied" in complaint or b"not permitted" in complaint else "failed", complaint[:STACK_BYTES])

"""Files under a name that anybody on the node may have put something else behind. For all parts."""

from __future__ import annotations

import os
import stat


def start_of(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The first bytes of a regular file, none of anything else: a pipe of that name must not keep its reader waiting. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        with open(fd, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(fd)

"""Whether a file lies on a file system that other nodes see too: there only the node that writes a file publishes it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

# As /proc/mounts spells them; FUSE file systems carry the program's name behind a dot.
_SHARED: Final = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|9p|afs|pvfs2|orangefs|glusterfs|panfs|wekafs|quobyte|daos|vastnfs"
    r"|fuse\.(?:sshfs|glusterfs|ceph|juicefs|gcsfuse|s3fs|goofys|mount-s3|blobfuse2?|alluxio|cvmfs2|beegfs|seaweedfs|dfuse)"
)
# A path as another process sees it, in a container most likely.
_INSIDE: Final = re.compile(r"(?P<process>(?:/.*)?/proc/\d+)/root(?P<path>/.*)", re.DOTALL)


def is_shared(path: str, mounts: str | Path = "/proc/self/mounts") -> bool:
    """Whether the file system that holds ``path`` is one of those that a cluster shares; False where that cannot be known."""
    return _SHARED.fullmatch(file_system(path, mounts)) is not None


def file_system(path: str, mounts: str | Path = "/proc/self/mounts") -> str:
    """Type of the file system that holds ``path`` (symbolic links followed), as the table of mounts says; "" where it is not said."""
    real = os.path.realpath(path)
    if inside := _INSIDE.fullmatch(path):  # the link "root" says "/", whatever is mounted there
        real, mounts = inside["path"], f"{inside['process']}/mounts"
    best, found = "", ""
    try:
        table = Path(mounts).read_text(errors="replace")
    except OSError:
        return ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # The kernel writes blanks in mount points as octal escapes.
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        is_inside = real == place or real.startswith(place.rstrip("/") + "/")
        if is_inside and len(place) >= len(best):
            best, found = place, fields[2]
    return found

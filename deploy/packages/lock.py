"""A lock for one Python: ``lock.py LOCK 3.10`` prints what of a lock for all of them is meant for it, hashes kept, conditions taken off.

pip asks conditions of the Python that it runs on, even where it downloads for another.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.markers import Marker


def entries(lock: str) -> list[str]:
    """The requirements of a lock, each with its lines of hashes."""
    return re.split(r"(?m)^(?=[\w.-]+==)", lock)[1:]


def meant_for(entry: str, version: str) -> str | None:
    """The entry without its condition; None where the condition does not hold for this Python on Linux."""
    found = re.match(r"(?P<pinned>[\w.-]+==\S+) *(?:; *(?P<marker>[^\\\n]+?))? *(?P<rest>\\\n.*)", entry, re.DOTALL)
    if found is None:
        raise ValueError(f"found {entry.splitlines()[0]!r}, expected NAME==VERSION and its hashes")
    place = {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }
    if found["marker"] and not Marker(found["marker"]).evaluate(place):
        return None
    return f"{found['pinned']} {found['rest']}"


def main(path: str, version: str) -> int:
    kept = [meant_for(entry, version) for entry in entries(Path(path).read_text(encoding="utf-8"))]
    sys.stdout.write("".join(entry for entry in kept if entry))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

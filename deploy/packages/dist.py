"""Builds wheel and sdist of what is committed into dist/, twice and from two places, and fails where the two differ by a byte.

Times come from the commit (or SOURCE_DATE_EPOCH), so anybody who builds the same commit with the same setuptools gets the same files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def commit() -> tuple[str, int]:
    """The commit, asked for once since somebody may commit meanwhile, and the time that the files get."""
    name, time = subprocess.check_output(["git", "-C", REPOSITORY, "log", "-1", "--format=%H %ct"], text=True).split()
    return name, int(os.environ.get("SOURCE_DATE_EPOCH") or time)


def build(place: Path, name: str, moment: int) -> list[Path]:
    """Wheel and sdist, built in a copy of a commit at ``place``."""
    archive = subprocess.check_output(["git", "-C", REPOSITORY, "archive", name])
    place.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(place)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
    subprocess.run([sys.executable, "-m", "build", "--outdir", place / "dist", place], env=environment, check=True, stdout=subprocess.PIPE)
    for sdist in (place / "dist").glob("*.tar.gz"):
        settle(sdist, moment)
    return sorted((place / "dist").iterdir())


def settle(sdist: Path, moment: int) -> None:
    """Takes out of an sdist what depends on who built it and when: setuptools keeps SOURCE_DATE_EPOCH for wheels alone."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = moment, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
            new.addfile(member, content)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=moment))


def main() -> int:
    name, moment = commit()
    with tempfile.TemporaryDirectory() as above:
        first, second = (build(Path(above, place), name, moment) for place in ("here", "elsewhere"))
        differing = [one.name for one, other in zip(first, second, strict=True) if one.read_bytes() != other.read_bytes()]
        if differing:
            sys.stderr.write(f"two builds of one commit differ: {', '.join(differing)}\n")
            return 1
        target = REPOSITORY / "dist"
        target.mkdir(exist_ok=True)
        sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in first]
        for one in first:
            shutil.copy(one, target)
    (target / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    sys.stdout.write("\n".join(sums) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

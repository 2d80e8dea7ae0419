"""Which file systems other nodes see too, from tables of mounts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_exporter.sources.mounts import is_shared

TABLE = "/dev/sda1 / ext4 rw 0 0\nserver:/e /data nfs4 rw 0 0\n/dev/sdb /data/local\\040disk xfs rw 0 0\ngcs /buckets fuse.gcsfuse rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/data/run/log", True),
        ("/data", True),
        ("/database/log", False),
        ("/data/local disk/log", False),
        ("/buckets/log", True),
        ("/x", False),
    ],
)
def test_the_nearest_mount_decides(tmp_path: Path, path: str, shared: bool) -> None:
    (tmp_path / "mounts").write_text(TABLE)

    assert is_shared(path, tmp_path / "mounts") is shared


def test_a_path_through_another_process_is_judged_by_its_mounts(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("/dev/sda1 / ext4 rw 0 0\n")
    process = tmp_path / "proc/40"
    process.mkdir(parents=True)
    (process / "mounts").write_text(TABLE)

    assert is_shared(f"{process}/root/data/run/log", tmp_path / "mounts")
    assert not is_shared(f"{process}/root/home/run/log", tmp_path / "mounts")

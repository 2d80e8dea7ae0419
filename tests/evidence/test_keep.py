"""The directory of evidence: bounded, private, and nobody else's files are touched."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from trainer_exporter.evidence.keep import Keeper, folder_name

NOON = 1_796_040_000.0


def names(directory: Path) -> list[str]:
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file())


def test_a_file_is_whole_and_private(tmp_path: Path) -> None:
    root = tmp_path / "evidence"
    keeper = Keeper(root, folder_name("llama", NOON), maximum_bytes=1000)

    kept = keeper.write("ras.json", b"{}")

    (file,) = [each for each in root.rglob("*") if each.is_file()]
    assert (kept, file.read_bytes()) == (True, b"{}")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent, root)] == [0o600, 0o700, 0o700]


def test_the_oldest_stalls_make_room(tmp_path: Path) -> None:
    for hour in range(4):
        Keeper(tmp_path, folder_name("llama", NOON + 3600 * hour), maximum_bytes=1000).write("a", b"x" * 300)

    Keeper(tmp_path, folder_name("llama", NOON + 3600 * 4), maximum_bytes=1000).write("a", b"x" * 500)

    assert [name.rpartition("Z-")[0] for name in names(tmp_path)] == ["20261130T150000", "20261130T160000"]


def test_a_file_that_is_larger_than_all_room_is_not_kept(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, folder_name("llama", NOON), maximum_bytes=1000)
    keeper.write("small", b"x" * 600)

    kept = keeper.write("large", b"x" * 600)

    assert not kept
    assert [name.rpartition("/")[2] for name in names(tmp_path)] == ["small"]


def test_a_file_that_is_written_anew_counts_once(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, folder_name("llama", NOON), maximum_bytes=1000)

    kept = [keeper.write("a", b"x" * 600) for _ in range(3)]

    assert kept == [True, True, True]


def test_the_files_of_others_neither_count_nor_go(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_bytes(b"x" * 5000)
    (tmp_path / "20261130T000000Z-elsewhere").symlink_to(tmp_path / "mine")

    kept = Keeper(tmp_path, folder_name("llama", NOON), maximum_bytes=1000).write("a", b"x" * 900)

    assert kept
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file stands there")

    with pytest.raises(OSError, match=r"exists|Not a directory"):
        Keeper(tmp_path / "evidence", folder_name("llama", NOON), maximum_bytes=1000).write("a", b"x")


@pytest.mark.parametrize(
    ("run", "folder"),
    [("llama-3.1", "llama-3.1"), ("../../etc", ".._.._etc"), ("ada's run\n", "ada_s_run_"), ("", "run"), ("x" * 200, "x" * 80)],
    ids=["plain", "path", "shell", "empty", "long"],
)
def test_a_folder_has_a_name_that_leads_nowhere(run: str, folder: str) -> None:
    assert folder_name(run, NOON).partition("Z-")[2] == folder

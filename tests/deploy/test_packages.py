"""What is installed is what is declared: locks, hashes, extras, and what a wheel has to carry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trainer_exporter.sources import trackers

REPOSITORY = Path(__file__).parents[2]
LOCKS = REPOSITORY / "deploy" / "container"
PROJECT = (REPOSITORY / "pyproject.toml").read_text()


def declared(key: str) -> list[Requirement]:
    """The requirements of a list in pyproject.toml."""
    (body,) = re.findall(rf"(?ms)^{key} = \[(.*?)\]$", PROJECT) or re.findall(rf"(?m)^{key} = \[(.*?)\]", PROJECT)
    return [Requirement(text) for text in re.findall(r'"([^"]+)"', body)]


def locked(name: str) -> dict[str, set[str]]:
    """The versions that a lock holds of each distribution; several where they depend on Python's."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"(?m)^([\w.-]+)==([\w.]+)", (LOCKS / name).read_text()):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


@pytest.mark.parametrize(
    ("lock", "keys"),
    [
        pytest.param("requirements.txt", ("dependencies", "kubernetes"), id="the container"),
        pytest.param("requirements-all.txt", ("dependencies", "kubernetes", "tensorboard", "mlflow"), id="the container with all extras"),
    ],
)
def test_a_lock_holds_what_the_project_needs(lock: str, keys: tuple[str, ...]) -> None:
    wanted = [requirement for key in keys for requirement in declared(key)]

    versions = locked(lock)

    for requirement in wanted:
        found = versions.get(canonicalize_name(requirement.name), set())
        assert found, f"{requirement.name} is not in {lock}: make lock"
        assert all(requirement.specifier.contains(version) for version in found), f"{requirement} and {found}: make lock"


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-all.txt"])
def test_nothing_is_locked_without_a_hash(lock: str) -> None:
    entries = re.split(r"(?m)^(?=[\w.-]+==)", (LOCKS / lock).read_text())[1:]

    assert len(entries) >= len(declared("dependencies"))
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_every_extra_that_a_tracker_names_can_be_installed() -> None:
    extras = set(re.findall(r"(?m)^(\w+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]))
    (everything,) = declared("all")

    needed = {tracker.extra for tracker in trackers.registry() if tracker.extra} | {"kubernetes", "wandb"}

    assert needed <= extras
    assert needed <= everything.extras


def test_the_container_is_checked_by_a_path_that_the_daemon_answers() -> None:
    text = (LOCKS / "Containerfile").read_text()

    from trainer_exporter.metrics import server

    (path,) = re.findall(r"127\.0\.0\.1:19400(/\S+?)'", text)
    assert path in Path(server.__file__).read_text()
    assert re.findall(r"(?m)^USER (\d+)", text) == ["65532"]

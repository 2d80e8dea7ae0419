"""What is installed is what is declared: locks, hashes, extras, and what a wheel has to carry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from daemon import Daemon
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
        pytest.param("requirements.txt", ("dependencies", "kubernetes", "basic-auth"), id="the container"),
        pytest.param(
            "requirements-all.txt",
            ("dependencies", "kubernetes", "basic-auth", "tensorboard", "mlflow", "report"),
            id="the container with all extras",
        ),
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


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.14"])
def test_of_a_lock_each_python_gets_one_version_of_all_that_it_needs(python: str) -> None:
    command = [sys.executable, REPOSITORY / "deploy" / "packages" / "lock.py", LOCKS / "requirements.txt", python]

    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    names = [canonicalize_name(name) for name in re.findall(r"(?m)^([\w.-]+)==", told)]
    assert len(names) == len(set(names))
    assert {canonicalize_name(one.name) for one in declared("dependencies")} <= set(names)
    assert ";" not in told
    assert told.count("--hash=sha256:") >= len(names)


def test_every_extra_that_a_tracker_names_can_be_installed() -> None:
    extras = set(re.findall(r"(?m)^([\w-]+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]))
    (everything,) = declared("all")

    needed = {tracker.extra for tracker in trackers.registry() if tracker.extra} | {"kubernetes", "wandb", "report", "basic-auth"}

    assert needed <= extras
    assert needed <= everything.extras


def test_the_containers_health_check_passes_while_the_daemon_lives_and_fails_after(tmp_path: Path) -> None:
    (command,) = re.findall(r"(?ms)^HEALTHCHECK .*?CMD (\[.*?\])$", (LOCKS / "Containerfile").read_text())
    program, *arguments = json.loads(command)
    assert program == "python3"

    with Daemon("--no-gpu", tmp_path, log=tmp_path / "daemon.log") as daemon:
        check = [sys.executable, *(argument.replace(":19400/", f":{daemon.port}/") for argument in arguments)]
        alive = subprocess.run(check, capture_output=True, text=True, check=False)
        daemon.stop()
        dead = subprocess.run(check, capture_output=True, text=True, check=False)

    assert (alive.returncode, dead.returncode) == (0, 1), alive.stderr


def test_the_container_runs_as_nobody_unless_it_is_told_otherwise() -> None:
    assert re.findall(r"(?m)^USER (\S+)", (LOCKS / "Containerfile").read_text()) == ["65532:65532"]

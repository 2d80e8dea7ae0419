"""Prolog and epilog as slurmd runs them: by their path, with the job in the environment; judged by what the exporter then reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trainer_exporter.attribution.job_mapping import JobMapping
from trainer_exporter.health import Health

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"


class Node:
    """A node's directory of jobs, and the two scripts over it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, script: str, job: str | None, gpus: str | None) -> int:
        given = {"SLURM_JOB_ID": job, "SLURM_JOB_GPUS": gpus, "TRAINER_EXPORTER_JOBS": str(self.directory)}
        environment = {"PATH": os.environ["PATH"], **{name: value for name, value in given.items() if value is not None}}
        return subprocess.run([SLURM / f"{script}.sh"], env=environment, check=False, timeout=60).returncode

    def jobs(self) -> dict[str, tuple[str, ...]]:
        """What trainer-exporter makes of it."""
        return dict(JobMapping(self.directory, Health()).jobs())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "jobs")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param("0", ["0"], id="one"),
        pytest.param("0,1,2,3", ["0", "1", "2", "3"], id="a list"),
        pytest.param("0,4-6,12", ["0", "12", "4", "5", "6"], id="a list with a range"),
        pytest.param("", [], id="none, a job without GPUs"),
        pytest.param(None, [], id="not said"),
        pytest.param("../../etc/passwd,$(reboot),-1,3-,0", ["0"], id="nonsense is left out"),
    ],
)
def test_the_prolog_gives_a_job_its_gpus(node: Node, gpus: str | None, expected: list[str]) -> None:
    code = node.run("prolog", "4711", gpus)

    assert code == 0
    assert node.jobs() == dict.fromkeys(expected, ("4711",))


def test_jobs_share_a_gpu_and_the_one_that_ends_takes_only_itself_away(node: Node) -> None:
    node.run("prolog", "4711", "0,1")
    node.run("prolog", "47", "1")
    both = node.jobs()

    node.run("epilog", "4711", "0,1")

    assert both == {"0": ("4711",), "1": ("4711", "47")}
    assert node.jobs() == {"1": ("47",)}


def test_a_requeued_job_is_written_down_once(node: Node) -> None:
    for _ in range(2):
        node.run("prolog", "4711", "0")

    assert node.jobs() == {"0": ("4711",)}


def test_the_epilog_needs_no_list_of_gpus(node: Node) -> None:
    node.run("prolog", "4711", "0-7")

    node.run("epilog", "4711", None)

    assert node.jobs() == {}
    assert [path.name for path in node.directory.iterdir()] == [".lock"]


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_node_is_never_drained_for_the_sake_of_a_note(script: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "odd" / ".lock").mkdir(parents=True)
    (tmp_path / "odd" / "0").mkdir()

    no_directory = Node(tmp_path / "file" / "jobs").run(script, "4711", "0")
    no_lock = Node(tmp_path / "odd").run(script, "4711", "0")
    no_job = Node(tmp_path / "jobs").run(script, None, None)

    assert (no_directory, no_lock, no_job) == (0, 0, 0)


def test_jobs_that_start_at_once_do_not_lose_one_another(node: Node) -> None:
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_GPUS": "0", "TRAINER_EXPORTER_JOBS": str(node.directory)}

    started = [subprocess.Popen([SLURM / "prolog.sh"], env={**environment, "SLURM_JOB_ID": str(job)}) for job in range(100, 108)]
    codes = [process.wait(timeout=60) for process in started]

    assert codes == [0] * 8
    assert sorted(node.jobs()["0"]) == [str(job) for job in range(100, 108)]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed here")
def test_shellcheck_has_nothing_to_say_against_them() -> None:
    checked = subprocess.run(["shellcheck", *sorted(SLURM.glob("*.sh"))], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout) == (0, "")

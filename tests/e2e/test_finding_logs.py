"""``serve`` without a path finds the logs of the processes that it is to look at, says why, and tells none of their secrets.

The trainers are real processes; the driver that lists them on cards is ours (tests/gpu/fake_nvml.c).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually

sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "gpu"))
import fake

pytestmark = pytest.mark.e2e

SECRET = "hunter2-do-not-tell"
TRAINER = """
import json, os, sys, time
print(os.getpid(), file=open("pid", "w"), flush=True)
os.makedirs("saves/ibis", exist_ok=True)
for step in range(1, 99999):
    print(f"step: {step}, loss: 2.5", flush=True)
    with open("saves/ibis/trainer_log.jsonl", "a") as log:
        print(json.dumps({"current_steps": step, "total_steps": 99999, "loss": 2.5, "lr": 1e-4, "epoch": 0.1}), file=log)
    time.sleep(0.2)
"""


class Trainer:
    """A trainer that a shell started, as users do; the folder is its working directory."""

    def __init__(self, folder: Path, ending: str, **environment: str) -> None:
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(TRAINER)
        self.folder = folder
        command = f"{sys.executable} train.py --hub_token {SECRET} --output_dir saves/ibis {ending}"
        self.shell = subprocess.Popen(
            ["bash", "-c", f"{command}; true"],
            cwd=folder,
            env={**os.environ, "WANDB_API_KEY": SECRET, **environment},
            start_new_session=True,
        )
        eventually(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip(), within_s=15, what="a trainer")
        self.pid = int((folder / "pid").read_text())

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self.shell.wait(timeout=10)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.build(tmp_path_factory.mktemp("driver"))


def why(daemon: Daemon, run: str) -> dict[str, str]:
    """File names and reasons of a run, as the API tells them."""
    for each in json.loads(daemon.get("/api/v1/runs"))["runs"]:
        if each["run"] == run:
            return {Path(file["path"]).name: file["why"] for file in each["files"]}
    return {}


def everything_said(daemon: Daemon) -> str:
    return "".join((daemon.get("/"), daemon.get("/metrics"), daemon.get("/api/v1/runs"), daemon.log()))


def on_cards(tmp_path: Path, library: Path, trainer: Trainer) -> Daemon:
    driver = fake.FakeDriver(library, tmp_path, gpus=1)
    driver.set(util=97, processes=f"{trainer.pid}:60000000000")
    config = tmp_path / "config.yml"
    config.write_text("gpu: {interval: 1s, deadline: 2s}\n")
    return Daemon(f"--config.file={config}", log=tmp_path / "log", env=driver.env())


@pytest.mark.parametrize(
    ("ending", "file", "reason"),
    [
        ("> console.log 2>&1", "console.log", "standard output of PID {pid} on GPU 0"),
        ("2>&1 | tee console.log > /dev/null", "console.log", "tee behind standard output of PID {pid} on GPU 0"),
    ],
    ids=["a file", "tee"],
)
def test_the_log_of_a_process_on_a_gpu_is_found_and_its_run_named(
    tmp_path: Path, library: Path, ending: str, file: str, reason: str
) -> None:
    with (
        Trainer(tmp_path / "work", ending, SLURM_JOB_ID="77", SLURM_JOB_NAME="heron") as trainer,
        on_cards(tmp_path, library, trainer) as daemon,
    ):
        both = {
            file: reason.format(pid=trainer.pid),
            "trainer_log.jsonl": f"trainer_log.jsonl in the output_dir of PID {trainer.pid} on GPU 0",
        }
        eventually(lambda: why(daemon, "heron-77") == both, within_s=30, what="both of its logs")
        eventually(lambda: daemon.value("trainer_step", run="heron-77"), within_s=20, what="its steps")
        page = daemon.get("/")

        assert reason.format(pid=trainer.pid) in page
        assert "named from Slurm job 77" in page
        empty = dict.fromkeys(("rank", "local_rank", "pod", "namespace", "container"), "")
        assert daemon.value("gpu_run_info", uuid=fake.uuid(0), gpu="0", run="heron-77", job_id="77", **empty) == 1
        assert "hunter2" not in everything_said(daemon)


def test_a_run_whose_process_has_gone_has_no_writer_any_more(tmp_path: Path, library: Path) -> None:
    with (
        Trainer(tmp_path / "work", "> console.log 2>&1", TRAINER_RUN_NAME="heron") as trainer,
        on_cards(tmp_path, library, trainer) as daemon,
    ):
        eventually(lambda: daemon.value("trainer_writer_alive", run="heron") == 1, within_s=30, what="a writer")

        trainer.stop()

        eventually(lambda: daemon.value("trainer_writer_alive", run="heron") == 0, within_s=30, what="no writer")


def test_the_logs_of_a_process_given_by_pid_are_found_without_gpus(tmp_path: Path) -> None:
    with (
        Trainer(tmp_path / "work", "2>&1 | tee console.log > /dev/null") as trainer,
        Daemon("--no-gpu", f"--pid={trainer.shell.pid}", log=tmp_path / "log") as daemon,
    ):
        eventually(lambda: daemon.value("trainer_step", run="ibis"), within_s=30, what="its steps")

        assert why(daemon, "ibis") == {
            "console.log": f"tee behind standard output of PID {trainer.pid}",
            "trainer_log.jsonl": f"trainer_log.jsonl in the output_dir of PID {trainer.pid}",
        }
        assert "named from output_dir of its command line" in daemon.get("/")
        assert "hunter2" not in everything_said(daemon)


def test_a_pid_that_is_nobodys_stops_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer_exporter", "serve", "--no-gpu", "--pid", str(2**22 + 1)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert ended.returncode == 2
    assert "--pid: found 4194305, expected the PID of a process that runs here" in ended.stderr

"""Real trainers write, the real daemon follows: at the end both must say the same. Needs torch: ``make test-live``.

What the trainer knows of itself stands in its trainer_state.json; the console prints four significant digits of it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRAINING_PYTHON = Path(os.environ.get("TRAINER_LIVE_PYTHON", ROOT / ".venv-live" / "bin" / "python"))
PRINTED = 6e-4  # relative error of a number printed with four significant digits, and a little
EXACT = 1e-9
SETTLED_S = 30.0

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not TRAINING_PYTHON.exists(), reason=f"no training environment at {TRAINING_PYTHON}"),
]


@dataclass(frozen=True)
class Trainer:
    """How one trainer is started and how exactly its files let its numbers be known."""

    script: str
    unbuffered: bool
    tolerance: Mapping[str, float]


HF_PRINTED = {"loss": PRINTED, "grad_norm": PRINTED, "learning_rate": PRINTED, "epoch": PRINTED}
LLAMA_FACTORY = {"loss": EXACT, "grad_norm": PRINTED, "learning_rate": EXACT, "epoch": EXACT}
TRAINERS = [
    pytest.param(Trainer("train_hf.py", True, HF_PRINTED), id="hf_trainer"),
    pytest.param(Trainer("train_hf.py", False, HF_PRINTED), id="hf_trainer_with_block_buffered_stdout"),
    pytest.param(Trainer("train_llama_factory.py", True, LLAMA_FACTORY), id="llama_factory"),
]


class Daemon:
    """The exporter as a user starts it."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [Path(sys.executable).parent / "trainer-exporter", "serve", directory, "--no-gpu"]
        self.process = subprocess.Popen([*map(str, command), "--web.listen-address", self.address])

    def samples(self) -> dict[str, dict[str, float]]:
        """Every sample that names a run and has no other label, by metric and run."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.keys() == {"run"}:
                    found.setdefault(sample.name, {})[sample.labels["run"]] = sample.value
        return found

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the daemon ended by itself"
            try:
                urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).close()
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
            else:
                return
        pytest.fail("the daemon was not ready in time")


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    directory = tmp_path / "runs"
    directory.mkdir()
    return directory


@pytest.fixture
def daemon(watched: Path) -> Iterator[Daemon]:
    started = Daemon(watched)
    try:
        started.wait_until_ready()
        yield started
        started.process.terminate()
        assert started.process.wait(timeout=15) == 0
    finally:
        started.process.kill()
        started.process.wait()


def environment(*, unbuffered: bool) -> dict[str, str]:
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return bare | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {})


def steps_seen_while_training(trainer: Trainer, run_dir: Path, daemon: Daemon) -> list[float]:
    """Train to the end with both streams in one file; answers the steps that the daemon showed meanwhile."""
    command: Sequence[object] = [TRAINING_PYTHON, HERE / trainer.script, run_dir, "--material", run_dir.parents[1]]
    pace = ["--steps", 80] + (["--step-seconds", 0.15] if trainer.script == "train_hf.py" else ["--accumulation", 16])
    seen: list[float] = []
    with (run_dir / "train.log").open("wb") as log:
        process = subprocess.Popen(
            ["nice", *map(str, command), *map(str, pace)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(unbuffered=trainer.unbuffered),
        )
    while process.poll() is None:
        seen += daemon.samples().get("trainer_step", {}).values()
        time.sleep(0.5)
    assert process.returncode == 0, (run_dir / "train.log").read_text(errors="replace")[-3000:]
    return sorted(set(seen))


def last_logged(state: Mapping[str, object], field: str) -> float:
    history = state["log_history"]
    assert isinstance(history, list)
    values = [entry[field] for entry in history if field in entry]
    assert values, f"the trainer logged no {field}"
    return float(values[-1])


def settled(daemon: Daemon, expected: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    """The samples, once they agree with what is expected or the time for it is over."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        samples = daemon.samples()
        agree = (
            math.isclose(value, wanted, rel_tol=tolerance)
            for name, (wanted, tolerance) in expected.items()
            for value in samples.get(name, {"": math.nan}).values()
        )
        if all(agree) or time.monotonic() > deadline:
            return samples
        time.sleep(0.5)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_exported_is_what_the_trainer_says_of_itself(trainer: Trainer, watched: Path, daemon: Daemon) -> None:
    run_dir = watched / "wren-7b-sft"
    run_dir.mkdir()

    seen = steps_seen_while_training(trainer, run_dir, daemon)

    state = json.loads((run_dir / "trainer_state.json").read_text())
    expected = {f"trainer_{field}": (last_logged(state, field), rel) for field, rel in trainer.tolerance.items()}
    expected |= {"trainer_step": (state["global_step"], 0.0), "trainer_target_steps": (state["max_steps"], 0.0)}
    expected["trainer_eval_loss"] = (last_logged(state, "eval_loss"), PRINTED)
    samples = settled(daemon, expected)
    assert len([step for step in seen if 0 < step < state["global_step"]]) >= 3, "followed at the end only"
    for name, (wanted, tolerance) in expected.items():
        assert samples[name] == {"wren-7b-sft": pytest.approx(wanted, rel=tolerance)}, name

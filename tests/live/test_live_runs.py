"""Real trainers write, the real daemon follows: at the end both must say the same. Needs torch: ``make test-live``.

What the trainer knows of itself stands in its trainer_state.json; the console prints four significant digits of it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon import Daemon

HERE = Path(__file__).resolve().parent
TRAINING_PYTHON = Path(os.environ.get("TRAINER_LIVE_PYTHON", HERE.parents[1] / ".venv-live" / "bin" / "python"))
PRINTED = 6e-4  # relative error of a number printed with four significant digits, and a little
EXACT = 1e-9
SINGLE = 1e-6  # TensorBoard keeps numbers in single precision
SETTLED_S = 15.0
RUN = "wren-7b-sft"

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not TRAINING_PYTHON.exists(), reason=f"no training environment at {TRAINING_PYTHON}"),
]


@dataclass(frozen=True)
class Trainer:
    """How one trainer is started and how exactly its files let its numbers be known."""

    script: str
    options: tuple[str, ...]
    unbuffered: bool
    tolerance: Mapping[str, float]


HF_OPTIONS = ("--steps", "80", "--step-seconds", "0.15")
HF_PRINTED = {"loss": PRINTED, "grad_norm": PRINTED, "learning_rate": PRINTED, "epoch": PRINTED}
LLAMA_FACTORY_OPTIONS = ("--steps", "80", "--accumulation", "16")
LLAMA_FACTORY = {"loss": EXACT, "grad_norm": PRINTED, "learning_rate": EXACT, "epoch": EXACT}
WITH_TRACKER = {"loss": SINGLE, "grad_norm": SINGLE, "learning_rate": SINGLE, "epoch": SINGLE}
TRAINERS = [
    pytest.param(Trainer("train_hf.py", HF_OPTIONS, True, HF_PRINTED), id="hf_trainer"),
    pytest.param(Trainer("train_hf.py", HF_OPTIONS, False, HF_PRINTED), id="hf_trainer_with_block_buffered_stdout"),
    pytest.param(Trainer("train_llama_factory.py", LLAMA_FACTORY_OPTIONS, True, LLAMA_FACTORY), id="llama_factory"),
    pytest.param(
        Trainer("train_llama_factory.py", (*LLAMA_FACTORY_OPTIONS, "--report-to", "tensorboard"), True, WITH_TRACKER),
        id="llama_factory_with_tensorboard",
    ),
]


def environment(*, unbuffered: bool) -> dict[str, str]:
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return bare | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {})


def steps_seen_while_training(trainer: Trainer, run_dir: Path, daemon: Daemon) -> set[float]:
    """Train to the end with both streams in one file; answers the steps that the daemon showed meanwhile."""
    command = ["nice", TRAINING_PYTHON, HERE / trainer.script, run_dir, "--material", run_dir.parents[1], *trainer.options]
    seen: set[float] = set()
    with (run_dir / "train.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(unbuffered=trainer.unbuffered))
    try:
        while process.poll() is None:
            step = daemon.value("trainer_step", run=RUN)
            seen |= set() if step is None else {step}
            time.sleep(0.5)
    finally:
        process.kill()
    assert process.returncode == 0, (run_dir / "train.log").read_text(errors="replace")[-3000:]
    return seen


def last_logged(state: Mapping[str, list[dict[str, float]]], field: str) -> float:
    values = [entry[field] for entry in state["log_history"] if field in entry]
    assert values, f"the trainer logged no {field}"
    return values[-1]


def differences(daemon: Daemon, expected: Mapping[str, tuple[float, float]]) -> list[str]:
    """What the page does not say as expected, once it has had time to settle."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        samples = daemon.samples()
        wrong = [
            f"{name}: {found}, expected {wanted}"
            for name, (wanted, tolerance) in expected.items()
            if not math.isclose(found := samples.get(f'{name}{{run="{RUN}"}}', math.nan), wanted, rel_tol=tolerance)
        ]
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.5)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_exported_is_what_the_trainer_says_of_itself(trainer: Trainer, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / RUN
    run_dir.mkdir(parents=True)

    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "daemon.log") as daemon:
        seen = steps_seen_while_training(trainer, run_dir, daemon)

        state = json.loads((run_dir / "trainer_state.json").read_text())
        expected = {f"trainer_{field}": (last_logged(state, field), rel) for field, rel in trainer.tolerance.items()}
        expected |= {"trainer_step": (state["global_step"], 0.0), "trainer_target_steps": (state["max_steps"], 0.0)}
        expected["trainer_eval_loss"] = (last_logged(state, "eval_loss"), PRINTED)
        assert differences(daemon, expected) == []
        assert len([step for step in seen if 0 < step < state["global_step"]]) >= 3, f"followed at the end only: {seen}"
        assert daemon.value("trainer_run_attempts_total", run=RUN) == 1  # several sources, no step twice
        assert {name for name in daemon.samples() if name.startswith("trainer_step{")} == {f'trainer_step{{run="{RUN}"}}'}

"""The real Weights & Biases and the real MLflow write, replay reads: each number once and exact. Needs both: ``make test-live``."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from live import write_trackers

TRAINING_PYTHON = Path(os.environ.get("TRAINER_LIVE_PYTHON", Path(__file__).resolve().parents[2] / ".venv-live" / "bin" / "python"))
WRITER = Path(write_trackers.__file__)

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not TRAINING_PYTHON.exists(), reason=f"no training environment at {TRAINING_PYTHON}"),
]


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_what_is_read_is_what_was_reported(library: str, tmp_path: Path) -> None:
    written = subprocess.run([TRAINING_PYTHON, WRITER, library, tmp_path], capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stderr[-3000:]

    replay = [sys.executable, "-m", "trainer_exporter", "replay", "--json", tmp_path]
    items = [json.loads(line) for line in subprocess.run(replay, capture_output=True, text=True, check=True).stdout.splitlines()]

    steps = range(2, write_trackers.STEPS + 1, 2)
    training = {item["step"]: item for item in items if "loss" in item}
    assert sorted(training) == list(steps)
    for step in steps:
        for field, value in write_trackers.training(step).items():
            found = float(training[step][field])
            assert found == value or (math.isnan(found) and math.isnan(value)), (step, field)
    assert [item["eval_loss"] for item in items if "eval_loss" in item] == [
        write_trackers.evaluation(step)["loss"] for step in range(40, 201, 40)
    ]

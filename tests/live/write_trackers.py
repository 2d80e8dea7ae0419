"""Reports one invented training to the real Weights & Biases (offline) or MLflow (file store), as the Trainer's callbacks do."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

STEPS = 200
NAN_STEP = 120  # its gradient norm is none


def training(step: int) -> dict[str, float]:
    return {
        "loss": 3.0 / step,
        "grad_norm": math.nan if step == NAN_STEP else 1.0 + 0.01 * step,
        "learning_rate": 1e-4,
        "epoch": step / STEPS,
    }


def evaluation(step: int) -> dict[str, float]:
    return {"loss": 2.0 / step, "accuracy": step / STEPS, "runtime": 1.25}


def to_wandb(directory: Path) -> None:
    import wandb

    run = wandb.init(
        project="birds", dir=str(directory), name="heron", id="heron0001", mode="offline", config={"output_dir": "/data/heron"}
    )
    for step in range(2, STEPS + 1, 2):
        run.log({f"train/{key}": value for key, value in training(step).items()} | {"train/global_step": step})
        if step % 40 == 0:
            run.log({f"eval/{key}": value for key, value in evaluation(step).items()} | {"train/global_step": step})
    run.finish()


def to_mlflow(directory: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri((directory / "mlruns").as_uri())
    with mlflow.start_run(run_name="heron"):
        for step in range(2, STEPS + 1, 2):
            mlflow.log_metrics(training(step), step=step)
            if step % 40 == 0:
                mlflow.log_metrics({f"eval_{key}": value for key, value in evaluation(step).items()}, step=step)
        mlflow.log_metrics({"train_runtime": 61.5, "train_steps_per_second": 3.25, "train_loss": 0.25}, step=STEPS)


if __name__ == "__main__":
    os.environ |= {"WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}  # MLflow 3 has to be asked for its old store
    {"wandb": to_wandb, "mlflow": to_mlflow}[sys.argv[1]](Path(sys.argv[2]))

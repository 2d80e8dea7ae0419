"""Train the tiny model with the real LLaMA-Factory: writes the YAML that a user would and hands over to its command.

torchaudio is imported by LLaMA-Factory for audio models only; an empty module of that name stands in for it here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import tiny


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--material", type=Path, help="where model and data are made; default: beside the output")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--logging-steps", type=int, default=2)
    parser.add_argument("--eval-steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--report-to", default="none")
    return parser.parse_args(argv)


def settings(chosen: argparse.Namespace, model_dir: Path, data_dir: Path) -> dict[str, object]:
    return {
        "model_name_or_path": str(model_dir),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "dataset_dir": str(data_dir),
        "dataset": "sentences",
        "template": "default",
        "cutoff_len": 96,
        "output_dir": str(chosen.output_dir),
        "run_name": chosen.output_dir.name,
        "max_steps": chosen.steps,
        "logging_steps": chosen.logging_steps,
        "save_steps": chosen.save_steps,
        "save_total_limit": 2,
        "per_device_train_batch_size": chosen.batch_size,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": chosen.accumulation,
        "val_size": 0.1,
        "eval_strategy": "steps",
        "eval_steps": chosen.eval_steps,
        "learning_rate": chosen.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "ddp_timeout": 180000000,
        "include_num_input_tokens_seen": True,
        "report_to": chosen.report_to,
        "use_cpu": True,
        "bf16": False,
        "fp16": False,
    }


def main(argv: list[str]) -> None:
    chosen = parsed(argv)
    chosen.output_dir = chosen.output_dir.absolute()
    material = (chosen.material or chosen.output_dir.parent).absolute()
    model_dir, data_dir, stand_in = material / "tiny-llama", material / "data", material / "stand-in"
    if not model_dir.exists():
        tiny.save_model(model_dir)
    tiny.save_instructions(data_dir, number=chosen.examples)
    stand_in.mkdir(exist_ok=True)
    (stand_in / "torchaudio.py").write_text('"""Nothing here trains on sound."""\n', encoding="utf-8")
    config = material / f"{chosen.output_dir.name}.yaml"
    config.write_text(json.dumps(settings(chosen, model_dir, data_dir), indent=1), encoding="utf-8")  # JSON is YAML
    environment = dict(os.environ, PYTHONPATH=str(stand_in), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    command = Path(sys.executable).parent / "llamafactory-cli"
    os.execve(command, [str(command), "train", str(config)], environment)


if __name__ == "__main__":
    main(sys.argv[1:])

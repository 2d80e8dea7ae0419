"""Train the tiny model with the real Hugging Face Trainer, as a user's script would; works with transformers 4 and 5.

Knobs beyond the Trainer's own: a pace, since the model would be through in seconds, and weights in half precision, in
which a learning rate that is far too high ends in a real overflow.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import tiny
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Pace(TrainerCallback):
    """Holds every step back, so that a run lasts as long as a bigger one would."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_end(self, *_args: object, **_named: object) -> None:
        time.sleep(self._seconds)


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--material", type=Path, help="where model and data are made; default: beside the output")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--logging-steps", type=int, default=2)
    parser.add_argument("--eval-steps", type=int, default=40)
    parser.add_argument("--save-steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--schedule", default="linear")
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--half", action="store_true", help="keep the weights in float16")
    parser.add_argument("--show-nan", action="store_true", help="switch logging_nan_inf_filter off")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(argv)


def arguments(chosen: argparse.Namespace) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(chosen.output_dir),
        max_steps=chosen.steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type=chosen.schedule,
        warmup_steps=chosen.warmup_steps,
        adam_epsilon=1e-4 if chosen.half else 1e-8,  # 1e-8 is 0 in float16
        logging_steps=chosen.logging_steps,
        logging_nan_inf_filter=not chosen.show_nan,
        eval_strategy="steps",
        eval_steps=chosen.eval_steps,
        save_steps=chosen.save_steps,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        seed=7,
    )


def main(argv: list[str]) -> None:
    chosen = parsed(argv)
    torch.set_num_threads(1)
    model_dir = (chosen.material or chosen.output_dir.parent) / "tiny-llama"
    if not model_dir.exists():
        tiny.save_model(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    rows = [tokenizer(text + "</s>", truncation=True, max_length=64) for text in tiny.sentences(640)]
    trainer = Trainer(
        model=model.half() if chosen.half else model.float(),
        args=arguments(chosen),
        train_dataset=rows[:560],
        eval_dataset=rows[560:],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[Pace(chosen.step_seconds)],
    )
    trainer.train(resume_from_checkpoint=True if chosen.resume else None)
    trainer.save_state()


if __name__ == "__main__":
    main(sys.argv[1:])

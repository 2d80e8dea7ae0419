"""What the names mean under which trainers report."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackers.reading import everything
from trackers.writers import Events


@pytest.mark.parametrize(
    ("tag", "field"),
    [
        ("train/loss", "loss"),
        ("lm loss", "loss"),
        ("lm-loss-training/lm loss", "loss"),
        ("reduced_train_loss", "loss"),
        ("loss_metrics/global_avg_loss", "loss"),
        ("grad-norm", "grad_norm"),
        ("grad_2.0_norm_total", "grad_norm"),
        ("learning-rate", "learning_rate"),
        ("lr-AdamW", "learning_rate"),
        ("lm loss validation", "eval_loss"),
        ("val_loss_epoch", "eval_loss"),
        ("validation-default/loss", "eval_loss"),
        ("train_step_timing in s", "step_duration_seconds"),
        ("consumed_samples", "total_samples"),
    ],
)
def test_a_name_means_the_field(tmp_path: Path, tag: str, field: str) -> None:
    events = Events(tmp_path)
    events.step(3, {tag: 0.5})

    (record,) = everything(events.path)

    assert record.fields == {field: 0.5, "step": 3}


@pytest.mark.parametrize(
    "tag",
    [
        "lm loss vs samples",
        "Train/Samples/train_loss",
        "train/train_loss",
        "eval/runtime",
        "eval/samples_per_second",
        "throughput",
        "batch-size",
    ],
)
def test_a_name_that_means_something_else_is_left_alone(tmp_path: Path, tag: str) -> None:
    events = Events(tmp_path)
    events.step(3, {tag: 0.5})

    assert everything(events.path) == []


def test_of_two_names_for_a_loss_the_better_one_counts(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("step,train_loss,loss\n1,9.0,2.0\n2,9.0,\n3,9.0,1.5\n")

    assert [(record.fields["step"], record.fields["loss"]) for record in everything(table)] == [(1, 2.0), (3, 1.5)]

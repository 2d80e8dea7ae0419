"""Troubles in a file count where a trainer speaks in it."""

from __future__ import annotations

from pathlib import Path

from trainer_exporter import replay

TROUBLE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEP = "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"


def test_a_trouble_in_a_trainers_log_counts_be_it_before_its_first_word(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(TROUBLE + STEP + TROUBLE)

    counts = replay.summary(log)

    assert counts["incidents"] == {"cuda_oom": 2}
    assert counts["troubles_without_a_trainer"] == {}
    assert [item["line"] for item in replay.lines(log)] == [1, 2, 3]


def test_a_trouble_where_no_trainer_speaks_is_shown_and_not_counted(tmp_path: Path) -> None:
    log = tmp_path / "tests.log"
    log.write_text("collected 40 items\n" + TROUBLE + "Traceback (most recent call last):\n")

    counts = replay.summary(log)
    shown = [replay.text(item) for item in replay.lines(log)]

    assert (counts["records"], counts["incidents"]) == (0, {})
    assert counts["troubles_without_a_trainer"] == {"cuda_oom": 1, "traceback": 1}
    assert all("not counted: no trainer speaks in this file" in line for line in shown)

"""DeepSpeed's word that a save has failed counts, whichever program runs above it."""

from __future__ import annotations

import pytest

from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import CheckpointEvent, Chunk, Record

FAILED = "[2026-02-03 10:02:25,000] [ERROR] [engine.py:3000:save] Failed saving model checkpoint to /ckpt/plover with tag global_step170"
PROGRAMS = {
    "megatron": " iteration      170/    1000 | consumed samples:       170000 | elapsed time per iteration (ms): 5321.4 | "
    "learning rate: 1.382E-05 | global batch size:  1000 | lm loss: 2.432485E+00 | loss scale: 1.0 | grad norm: 0.432 |",
    "hf_trainer": "{'loss': 1.8421, 'grad_norm': 0.7312498688697815, 'learning_rate': 4.829e-05, 'epoch': 0.34}",
    "gpt_neox": " samples/sec: 48.120 | iteration      170/    1000 | elapsed time per iteration (ms): 5321.4 | learning rate: 1.382E-05 | "
    "approx flops per GPU: 121.9TFLOPS | lm_loss: 2.432485E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "deepspeed": "[2026-02-03 10:02:20,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=170, skipped=0, lr=[5e-05], mom=[(0.9, 0.999)]",
}


@pytest.mark.parametrize(("program", "line"), PROGRAMS.items(), ids=PROGRAMS.keys())
def test_a_failed_save_is_told_beneath_each_program(program: str, line: str) -> None:
    intake = Intake(registry())

    said = [*intake.feed(Chunk(f"{line}\n{FAILED}\n{line}\n".encode(), 1, 0.0, live=False)), *intake.flush()]

    assert intake.format == program
    (news,) = (one.checkpoint for one in said if isinstance(one, Record) and one.checkpoint)
    assert (news.event, news.step, news.path) == (CheckpointEvent.FAILED, 170, "/ckpt/plover/global_step170")

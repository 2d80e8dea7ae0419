"""A script that prints the Trainer's banner and then draws a bar of its own."""

from __future__ import annotations

from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Record

BANNER = "***** Running training *****\n  Num examples = 240\n  Total optimization steps = 60\n"
BARS = (
    "\rSteps:   0%|          | 0/60 [00:00<?, ?it/s]\rSteps:   2%|▏         | 1/60 [00:02<02:07,  2.16s/it, loss=2.11, lr=0.002]"
    "\rSteps:   3%|▎         | 2/60 [00:04<02:05,  2.17s/it, loss=2.07, lr=0.00197]\n"
)


def said(text: str) -> tuple[Intake, list[Record]]:
    intake = Intake(registry())
    events = intake.feed(Chunk(text.encode(), 1, 0.0, live=False))
    return intake, [event for event in events if isinstance(event, Record)]


def test_values_behind_a_bar_are_read_after_the_banner_of_the_trainer() -> None:
    intake, records = said(BANNER + BARS)

    losses = {record.fields["step"]: record.fields["loss"] for record in records if "loss" in record.fields}

    assert intake.format == "accelerate"
    assert losses == {1: 2.11, 2: 2.07}


def test_a_bar_without_values_stays_the_trainers() -> None:
    intake, records = said(BANNER + "\r  2%|▏         | 1/60 [00:02<02:07,  2.16s/it]\r  3%|▎         | 2/60 [00:04<02:05,  2.17s/it]\n")

    assert intake.format == "hf_trainer"
    assert [record.fields["step"] for record in records if "step" in record.fields] == [2]


def test_a_scripts_hand_written_lines_are_read_after_the_banner_of_the_trainer() -> None:
    intake, records = said(BANNER + "train acc = 0.8750, training loss = 0.0312\ntrain acc = 0.9010, training loss = 0.0218\n")

    assert intake.format == "plain"
    assert [record.fields["loss"] for record in records if "loss" in record.fields] == [0.0312, 0.0218]


def test_hand_written_lines_behind_a_trainers_own_are_nobodys() -> None:
    own = "{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n"

    intake, records = said(BANNER + own + "step 5: loss 9.5\n")

    assert intake.format == "hf_trainer"
    assert [record.fields["loss"] for record in records if "loss" in record.fields] == [2.25]


def test_the_trainers_own_lines_take_the_file_back_from_hand_written_ones() -> None:
    own = "{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n"

    intake, records = said(BANNER + "step 1: loss 9.5\n" + own + "step 2: loss 9.5\n")

    assert intake.format == "hf_trainer"
    assert [record.fields["loss"] for record in records if "loss" in record.fields] == [9.5, 2.25]

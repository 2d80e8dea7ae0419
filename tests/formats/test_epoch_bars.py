"""Bars that count the batches of an epoch: the steps go on from one epoch to the next."""

from __future__ import annotations

from itertools import pairwise

from formats.told import records

BAR = "Epoch {}: {:3d}%|█████     | {}/20 [00:00<00:01, 63.87it/s, train_loss={}]"


def redraws(epoch: int) -> list[str]:
    """Of an epoch; the bar is reset before its title changes, as Lightning does it."""
    losses = [f"{epoch + 1}.{count:02d}" for count in range(21)]
    drawn = [BAR.format(epoch, count * 5, count, loss) for count, both in enumerate(pairwise(losses), 1) for loss in both]
    return [BAR.format(epoch, 0, 0, losses[0]), *drawn, BAR.format(epoch, 0, 0, losses[-1])]


def test_a_bar_that_is_reset_at_the_end_of_its_epoch_is_no_trainer_that_starts_over() -> None:
    told = records(*redraws(0), *redraws(1), *redraws(2))

    assert [record.fields["step"] for record in told if "loss" in record.fields] == list(range(1, 61))


def test_lightning_without_a_logger_is_known_by_its_sanity_check() -> None:
    sanity = ["Sanity Checking DataLoader 0:   0%|          | 0/2 [00:00<?, ?it/s]"]
    validation = ["Validation DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 90.1it/s]", BAR.format(0, 100, 20, "1.20, val_loss=1.5")]

    told = records(*sanity, *redraws(0)[:-1], *validation, *redraws(1))

    assert [record.fields["step"] for record in told if "loss" in record.fields] == list(range(1, 41))
    assert [(record.fields["step"], record.fields["eval_loss"]) for record in told if "eval_loss" in record.fields] == [(20, 1.5)]

"""Steps of trainers that print a position within an epoch, ``Epoch: [2]  [ 20/1250]``: one count that goes on from epoch to epoch."""

from __future__ import annotations


def place(epoch: int, iteration: int, length: int, *, epochs: int | None = None, first: int = 0) -> dict[str, float]:
    """Step and epoch as fields, and the target where the number of epochs is known.

    The iteration is counted as the trainer counts it. ``length``: iterations an epoch; ``first``: the number of the first epoch.
    """
    fields: dict[str, float] = {"step": (epoch - first) * length + iteration, "epoch": epoch}
    if epochs is not None and epochs > epoch - first:
        fields["target_steps"] = epochs * length - 1
    return fields

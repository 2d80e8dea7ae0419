"""DeepSpeed, v0.5 to v0.19, under a program that no other format knows (see ``engine``).

    [2025-01-01 00:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[5e-05], mom=[(0.9, 0.999)]
    steps: 200 loss: 2.1234 iter time (s): 1.877 samples/sec: 136.421                                      (pipeline engine)

Odd: no closing word; no loss unless by the pipeline engine; since v0.15.2 no step lines and since v0.17.6 no INFO lines unless asked for.
"""

from __future__ import annotations

from typing import Final

from trainer_exporter.formats import engine
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.engine import Engine
from trainer_exporter.model import Line


class DeepSpeed:
    """One stream of an engine's lines."""

    def __init__(self) -> None:
        self._engine = Engine()

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        return self._engine.read(line)

    def flush(self) -> Reading:
        return NOTHING


FORMAT: Final = Format(
    name="deepspeed",
    summary="DeepSpeed's engine under a program of one's own: steps, throughput, loss scale, saves; its pipeline engine's loss",
    hints=(LOSS, engine.STEP),
    details=(*engine.DETAILS, b"with Perplexity: "),  # the latter is how its own example scripts show themselves
    sniff=engine.is_step,
    parser=DeepSpeed,
    beneath=True,
)

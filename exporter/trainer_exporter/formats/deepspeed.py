"""DeepSpeed, v0.5 to v0.19, under a program that no other format knows (see ``engine``), and perplexities of its example scripts.

    [2025-01-01 00:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[5e-05], mom=[(0.9, 0.999)]
    steps: 200 loss: 2.1234 iter time (s): 1.877 samples/sec: 136.421                                      (pipeline engine)
    Step at 10 with Perplexity: 61.5                                                                       (DeepSpeedExamples)

Odd: no closing word; no loss unless by the pipeline engine; since v0.15.2 no step lines and since v0.17.6 no INFO lines unless asked for.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats import engine
from trainer_exporter.formats.base import LOSS, Format, Reading
from trainer_exporter.formats.engine import Engine
from trainer_exporter.model import Line, Record
from trainer_exporter.numbers import NUMBER, number

_PERPLEXITY: Final = re.compile(rf"^(?:Before cleaning, )?(?:Step|Epoch) at \d+ with Perplexity: (?P<value>{NUMBER})$")


class DeepSpeed:
    """One stream of an engine's lines."""

    def __init__(self) -> None:
        self._engine = Engine()

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        if "with Perplexity: " in line.text and (found := _PERPLEXITY.match(line.text)) is not None:
            value = number(found["value"])  # its step counts micro steps of the epoch: not the engine's
            return [Record(line.number, metrics={"perplexity": value}, stamp=line.stamp)] if value is not None else None
        return self._engine.read(line)

    def flush(self) -> Reading:
        return ()


FORMAT: Final = Format(
    name="deepspeed",
    summary="DeepSpeed's engine under a program of one's own: steps, throughput, loss scale, saves; its pipeline engine's loss",
    hints=(LOSS, engine.STEP),
    details=(*engine.DETAILS, b"with Perplexity: "),
    sniff=engine.is_step,
    parser=DeepSpeed,
    beneath=True,
)

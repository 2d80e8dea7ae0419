"""JSON lines of mmengine's ``scalars.json`` and Detectron2's ``metrics.json``.

    {"lr": 0.005, "data_time": 0.0125, "loss": 0.875, "time": 0.25, "epoch": 1, "memory": 5000, "step": 10}
    {"coco/bbox_mAP": 0.25, "data_time": 0.05, "time": 0.5, "step": 1}
    {"data_time": 0.005, "eta_seconds": 5400.5, "iteration": 39, "lr": 0.002, "time": 0.25, "total_loss": 1.25}

A line without loss and rate is a validation's; where mmengine counts epochs, its step is the epoch.
"""

from __future__ import annotations

import json
import re
from typing import Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Tracker
from trainer_exporter.sources.trackers.document import numbers
from trainer_exporter.sources.trackers.meaning import MAX_METRICS, MAX_NAME, Interpreter
from trainer_exporter.sources.trackers.rows import Rows

_STEPS: Final = ("step", "iteration", "iter")
_ALSO: Final = {"time": "step_duration_seconds", "total_loss": "loss", "eta_seconds": "remaining_seconds"}
_TRAINS: Final = frozenset({"loss", "total_loss", "lr", "base_lr"})
_NO_RESULT: Final = frozenset({"step", "iteration", "iter", "epoch", "time", "data_time", "memory", "eta_seconds"})


class Scalars:
    """The lines of one file."""

    def __init__(self) -> None:
        self._interpreter = Interpreter(also=_ALSO)

    def record(self, text: str, line: int) -> Record | None:
        if not text.strip():
            return None
        row = json.loads(text)
        if not isinstance(row, dict):
            raise ValueError("a line is no object")
        values = numbers(row)
        step = next((values[name] for name in _STEPS if name in values), None)
        if not _TRAINS.isdisjoint(values):
            return self._interpreter.record(values, step=step, line=line)
        told = {name[:MAX_NAME]: value for name, value in values.items() if name not in _NO_RESULT}
        bounded = dict(list(told.items())[:MAX_METRICS])
        return self._interpreter.record({}, step=step, line=line, results=bounded)


def _reader(path: str) -> Rows:
    return Rows(path, Scalars)


def _opens(head: bytes) -> bool:
    """Whether the file begins with an object of numbers on a line of its own."""
    line, newline, _ = head.partition(b"\n")
    try:
        row = json.loads(line) if newline else None
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and any(name in row for name in _STEPS)


TRACKER: Final = Tracker(
    name="scalars_json",
    summary="scalars.json of mmengine, metrics.json of Detectron2: JSON lines",
    paths=re.compile(r"(?:^|/)(?:scalars|metrics)\.json$"),
    on_request=re.compile(r"scalars[^/]*\.json$"),
    opens=_opens,
    below=re.compile(r"/vis_data$"),
    reader=_reader,
)

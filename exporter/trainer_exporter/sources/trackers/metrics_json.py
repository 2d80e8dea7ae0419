"""One JSON object of a column a metric, as NeMo-RL writes at the end of a run and other tools dump their histories.

    {"train/loss": {"1": 0.51, "2": 0.42}, "train/grad_norm": {"1": 0.9, "2": 0.8}, "validation/accuracy": {"2": 0.75}}

Steps are text and in no order; the columns under ``ray/`` count seconds. The file is rewritten as a whole: exact, but late.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, Tracker
from trainer_exporter.sources.trackers.document import Document, number
from trainer_exporter.sources.trackers.meaning import Interpreter
from trainer_exporter.sources.trackers.told import Told

_MOST_STEPS: Final = 1 << 20


class Columns:
    """One such document."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._document = Document()
        self._told = Told()

    @property
    def extent(self) -> Extent:
        return self._document.extent

    def poll(self) -> Batch:
        columns = self._document.read(self._path)
        if not isinstance(columns, dict):
            return Batch(malformed=max(self._document.malformed, int(columns is not None)))
        self._told.begin_again()
        return Batch(tuple(record for record in _records(columns) if self._told.is_new(record)))


def _records(columns: dict[str, Any]) -> list[Record]:
    interpreter = Interpreter(late=True)
    steps: dict[int, dict[str, float]] = {}
    for name, column in columns.items():
        if not isinstance(column, dict) or not interpreter.knows(name):
            continue
        for text, value in column.items():
            read = number(value)
            if read is not None and text.isdecimal() and len(text) < 16 and (len(steps) < _MOST_STEPS or int(text) in steps):
                steps.setdefault(int(text), {})[name] = read
    made = (interpreter.record(steps[step], step=step, line=line) for line, step in enumerate(sorted(steps), 1))
    return [record for record in made if record is not None]


def _opens(head: bytes) -> bool:
    """Whether the first value of the object is an object with a number for a key."""
    return re.match(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{\s*(?:"\d+"\s*:|\})', head) is not None


TRACKER: Final = Tracker(
    name="metrics_json",
    summary="metrics.json of a column a metric, as NeMo-RL writes it",
    paths=re.compile(r"(?:^|/)metrics\.json$"),
    on_request=re.compile(r"metrics[^/]*\.json$"),
    opens=_opens,
    reader=Columns,
)

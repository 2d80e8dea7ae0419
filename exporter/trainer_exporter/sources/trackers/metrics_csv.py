"""Lightning's ``metrics.csv`` and other tables of a column a metric, such as histories exported from Weights & Biases.

    epoch,step,train_loss_step,val_loss
    0,49,7.63,
    0,99,7.53,
    0,99,,7.41

Cells of what was not reported at that step are empty. Lightning rewrites the file when a metric comes that the header lacks, and writes
every 100 steps unless told otherwise: exact, but late.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.model import Record, Stamp
from trainer_exporter.numbers import number
from trainer_exporter.sources.trackers.base import Tracker, stamp_of
from trainer_exporter.sources.trackers.meaning import Interpreter
from trainer_exporter.sources.trackers.rows import Rows

# Best first: where the trainer names its own step, the library's count of reports is not one.
_STEPS: Final = (
    "trainer/global_step",
    "train/global_step",
    "global_step",
    "step",
    "stitched_step",
    "_step",
    "rl_step",
    "source/original_step",
    "iteration",
)
_STAMPS: Final = ("_timestamp", "source/timestamp")


class Table:
    """The rows of one table; the first line is its header, and another may follow."""

    def __init__(self) -> None:
        self._header: Sequence[str] = ()
        self._step = self._stamp = -1
        self._interpreter = Interpreter(late=True)

    def record(self, text: str, line: int) -> Record | None:
        cells = _cells(text)
        if not self._header or _STEPS_AS_CELLS.intersection(cells):
            self._read_header(cells)
            return None
        if len(cells) != len(self._header):
            raise ValueError("a row has other columns than its header")
        if self._step < 0:
            return None
        step = number(cells[self._step])
        values = {
            name: value
            for at, (name, cell) in enumerate(zip(self._header, cells, strict=True))
            if at != self._step and cell and self._interpreter.knows(name) and (value := number(cell)) is not None
        }
        return self._interpreter.record(values, step=step, line=line, stamp=self._moment(cells))

    def _read_header(self, cells: Sequence[str]) -> None:
        self._header = cells
        self._step = next((cells.index(name) for name in _STEPS if name in cells), -1)
        self._stamp = next((cells.index(name) for name in _STAMPS if name in cells), -1)

    def _moment(self, cells: Sequence[str]) -> Stamp | None:
        return stamp_of(number(cells[self._stamp]) if self._stamp >= 0 else None)


_STEPS_AS_CELLS: Final = frozenset(_STEPS)


def _cells(text: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text]), [])]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _reader(path: str) -> Rows:
    return Rows(path, Table)


TRACKER: Final = Tracker(
    name="metrics_csv",
    summary="metrics.csv of PyTorch Lightning; by name also other tables with a step column",
    paths=re.compile(r"(?:^|/)metrics\.csv$"),
    on_request=re.compile(r"\.csv$", re.IGNORECASE),
    below=re.compile(r"/lightning_logs/version_\d+$"),
    reader=_reader,
)

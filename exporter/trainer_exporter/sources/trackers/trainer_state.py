"""The Hugging Face Trainer's own state: ``trainer_state.json`` in each ``checkpoint-N`` and, at the end, in the output directory.

    {"global_step": 40, "max_steps": 60, "log_history": [{"epoch": 0.1, "grad_norm": 0.8, "loss": 1.8, "step": 2}, ...]}

Its history holds all since the beginning, so the newest one is enough, and only what it has more than the one before is news. It is
written when a checkpoint is: complete and exact, but late.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, Tracker
from trainer_exporter.sources.trackers.document import Document, number, numbers
from trainer_exporter.sources.trackers.meaning import Interpreter
from trainer_exporter.sources.trackers.told import Told

_NAME: Final = "trainer_state.json"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_TOGETHER_S: Final = 60.0
_LOOKED_AT: Final = 64  # checkpoints with the highest steps; those of one run are rarely so many


class TrainerState:
    """The states of one output directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._document = Document()
        self._told = Told()
        self._interpreter = Interpreter(late=True)

    @property
    def extent(self) -> Extent:
        return self._document.extent

    def poll(self) -> Batch:
        newest = _newest(self._path)
        state: Any = self._document.read(newest) if newest else None
        history = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(history, list):
            return Batch(malformed=max(self._document.malformed, int(state is not None)))
        self._told.begin_again()
        return Batch(tuple(record for record in self._records(state, history) if self._told.is_new(record)))

    def _records(self, state: dict[str, Any], history: list[Any]) -> Iterator[Record]:
        target = number(state.get("max_steps"))
        for line, entry in enumerate(history, 1):
            if not isinstance(entry, dict):
                continue
            # The entry that ends a history means the whole run by train_loss.
            values = {key: value for key, value in numbers(entry).items() if key != "train_loss"}
            step = values.pop("step", None)
            made = self._interpreter.record(values, step=step, line=line, target=target if target and target > 0 else None)
            if made is not None:
                yield made


def _newest(path: str) -> str | None:
    """Of the states in an output directory and its checkpoints the one that was written last.

    Of those with about the same time, the directory's own, else that of the highest step: a copy of a run has no times of its own.
    """
    states = list(_states(path))
    last = max((written for written, _ in states), default=0.0)
    return next((each for written, each in states if written >= last - _TOGETHER_S), None)


def _states(path: str) -> Iterator[tuple[float, str]]:
    """(time, path): the directory's own, then its checkpoints from the highest step down."""
    directory, _, name = path.rpartition("/")
    for each in (path, *(f"{directory}/{checkpoint}/{_NAME}" for checkpoint in _checkpoints(directory, name))):
        try:
            yield os.stat(each).st_mtime, each  # noqa: PTH116
        except FileNotFoundError:
            continue


def _checkpoints(directory: str, name: str) -> list[str]:
    if name != _NAME:
        return []  # a copy under a name of its own stands for itself
    try:
        names = os.listdir(directory or "/")  # noqa: PTH208
    except OSError:
        return []
    found = [(int(match[1]), each) for each in names if (match := _CHECKPOINT.fullmatch(each))]
    return [each for _, each in sorted(found, reverse=True)[:_LOOKED_AT]]


def _source(path: str) -> str:
    """The output directory's state stands for those of its checkpoints."""
    directory, _, name = path.rpartition("/")
    parent, _, last = directory.rpartition("/")
    return f"{parent}/{name}" if name == _NAME and _CHECKPOINT.fullmatch(last) else path


def _written(path: str) -> os.stat_result:
    return os.stat(_newest(path) or path)  # noqa: PTH116


TRACKER: Final = Tracker(
    name="trainer_state",
    summary="trainer_state.json of the Hugging Face Trainer, the newest of a run's checkpoints",
    paths=re.compile(r"(?:^|/)trainer_state\.json$"),
    on_request=re.compile(r"trainer_state[^/]*\.json$"),
    reader=TrainerState,
    source=_source,
    written=_written,
)

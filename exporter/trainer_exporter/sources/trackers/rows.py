"""A file of one row a line, whatever a row is: each row is told once, also where its writer rewrites the file with more columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent
from trainer_exporter.sources.trackers.tail import Lines
from trainer_exporter.sources.trackers.told import Told


class Columns(Protocol):
    """Understands the rows of one file, from its first on."""

    def record(self, text: str, line: int) -> Record | None:
        """What a line says; None for nothing. Raises ValueError for one that cannot be read."""


class Rows:
    """One such file."""

    def __init__(self, path: str, columns: Callable[[], Columns]) -> None:
        self._lines = Lines(path)
        self._columns = columns
        self._current = columns()
        self._told = Told()
        self._renewals = 0

    @property
    def extent(self) -> Extent:
        return self._lines.tail.extent

    def poll(self) -> Batch:
        records: list[Record] = []
        malformed = 0
        for text in self._lines.read():
            if self._lines.renewals != self._renewals:
                self._renewals = self._lines.renewals
                self._current = self._columns()
                self._told.begin_again()
            try:
                record = self._current.record(text, self._lines.number)
            except (ValueError, RecursionError):
                malformed += 1
                continue
            if record is not None and self._told.is_new(record):
                records.append(record)
        return Batch(tuple(records), self._lines.more, malformed)

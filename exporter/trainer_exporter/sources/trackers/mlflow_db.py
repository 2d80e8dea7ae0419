"""MLflow's database, ``mlflow.db`` in the directory where programs are started: the default since version 3.7. Read without MLflow.

A run in it has the path ``mlflow.db#RUN``. NaN is kept as 0 with a mark, infinities as the largest numbers. Anybody may have written the
file: columns may hold any type, tables may be views that never end, and a pipe may bear its name.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, Tracker
from trainer_exporter.sources.trackers.calls import Calls
from trainer_exporter.sources.trackers.tail import key_of

_WAIT_S: Final = 0.5  # for a writer that has locked the database
_MOST_S: Final = 10.0  # for one query
_LOOK_EVERY: Final = 10_000  # of SQLite's own instructions: whether the time is over
_MOST_BYTES: Final = 1 << 20  # of one value
_MOST_RUNS: Final = 64
_MOST_ROWS: Final = 20_000  # a look
_MOST_NAMES: Final = 64
_INFINITY: Final = 1.7e308

_RUNS: Final = """SELECT run_uuid FROM runs WHERE typeof(run_uuid) = 'text' AND lifecycle_stage = 'active'
    AND (end_time IS NULL OR end_time >= ?) ORDER BY start_time DESC LIMIT ?"""
_RUN: Final = "SELECT name, status, end_time FROM runs WHERE run_uuid = ?"
_NAMES: Final = "SELECT DISTINCT key FROM latest_metrics WHERE run_uuid = ? AND typeof(key) = 'text'"
_POINTS: Final = """SELECT rowid, key, value, timestamp, step, is_nan FROM metrics
    WHERE run_uuid = ? AND rowid > ? AND key IN (%s) AND typeof(value) IN ('real', 'integer') AND typeof(timestamp) = 'integer'
    AND typeof(step) = 'integer' ORDER BY rowid LIMIT ?"""


class Runs:
    """The runs of one database."""

    def __init__(self, path: str, *, most_s: float = _MOST_S) -> None:
        self._path = path
        self._most_s = most_s

    def sources(self, since_wall: float) -> Sequence[str]:
        since_ms = since_wall * 1000 if since_wall > 0 else 0
        rows = _rows(self._path, _RUNS, (since_ms, _MOST_RUNS), most_s=self._most_s)
        return [f"{self._path}#{run}" for (run,) in rows if re.fullmatch("[0-9a-f]{32}", run)]


class Run:
    """The metrics of one run."""

    def __init__(self, path: str) -> None:
        self._path, _, self._run = path.partition("#")
        self._calls = Calls()
        self._seen: tuple[object, ...] | None = None
        self._row = 0  # rows are numbered in the order in which they were written
        self._about: tuple[object, ...] | None = None
        self.extent = Extent()

    def poll(self) -> Batch:
        seen = os.stat(self._path)  # noqa: PTH116
        if key_of(seen) == self._seen:
            return Batch()
        about = tuple(self._news_of_run())
        rows = self._points()
        for row, name, value, milliseconds, step, is_nan in rows:
            self._row = max(self._row, row)
            told = float("nan") if is_nan else float("inf") * value if abs(value) >= _INFINITY else value
            self._calls.add(name, milliseconds=milliseconds, step=step, value=told)
        more = len(rows) >= _MOST_ROWS
        self._seen = None if more else key_of(seen)
        self.extent = Extent(seen.st_size, 0 if more else seen.st_size, seen.st_mtime)
        return Batch((*self._calls.records(), *about), more)

    def _points(self) -> list[tuple[Any, ...]]:
        names = [name for (name,) in _rows(self._path, _NAMES, (self._run,)) if self._calls.knows(name)][:_MOST_NAMES]
        places = ",".join("?" * len(names))
        return _rows(self._path, _POINTS % places, (self._run, self._row, *names, _MOST_ROWS))

    def _news_of_run(self) -> Iterator[Record]:
        for about in _rows(self._path, _RUN, (self._run,)):
            if about != self._about:
                self._about = about
                name, status, ended = about
                ended_ms = ended if isinstance(ended, int) else None
                finished = status == "FINISHED" and ended_ms is not None
                yield self._calls.about(name=name if isinstance(name, str) else "", ended_ms=ended_ms, finished=finished)


def _rows(path: str, query: str, values: tuple[object, ...], *, most_s: float = _MOST_S) -> list[tuple[Any, ...]]:
    """What a query gives; a database that is locked, broken or without end is an OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise OSError(errno.EINVAL, "no regular file", path)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S)) as database:
            end = time.monotonic() + most_s
            database.set_progress_handler(lambda: time.monotonic() > end, _LOOK_EVERY)
            if sys.version_info >= (3, 11):
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise OSError(errno.EIO, str(error), path) from error


def _written(path: str) -> os.stat_result:
    return os.stat(path.partition("#")[0])  # noqa: PTH116


TRACKER: Final = Tracker(
    name="mlflow_db",
    summary="MLflow's database, mlflow.db: each of its runs",
    paths=re.compile(r"(?:^|/)[^/]+\.db#[0-9a-f]{32}$"),
    reader=Run,
    written=_written,
    holds=re.compile(r"(?:^|/)mlflow\.db$"),
    lister=Runs,
    apart=True,
)

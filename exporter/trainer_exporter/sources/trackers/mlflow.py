"""MLflow's file store: ``mlruns/EXPERIMENT/RUN/metrics/NAME``, a file a metric, appended.

    1700000000123 1.8421 10
    1700000000123 1.7 30 ds-train 0f3a9c21

Time in milliseconds, value, step (absent: 0), from version 3 on data set and digest. A run's metrics are read together, in the order of
their times, so that what was reported in one call is one record. The run's ``meta.yaml`` stands for it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from trainer_exporter.model import Record
from trainer_exporter.numbers import number
from trainer_exporter.regular import start_of
from trainer_exporter.sources.trackers.base import Batch, Extent, Reader, Tracker, stamp_of
from trainer_exporter.sources.trackers.calls import Calls
from trainer_exporter.sources.trackers.meaning import MAX_NAME, Interpreter
from trainer_exporter.sources.trackers.tail import Lines

_LINE: Final = re.compile(r"(?P<ms>\d{12,14}) (?P<value>[-+.\w]+)(?: (?P<step>-?\d{1,15}))?(?: \S+ \S+)?")
_META: Final = re.compile(r"^(?P<key>run_name|status|end_time): *'?(?P<value>[^'\n]*)'?$", re.MULTILINE)
_FINISHED: Final = ("3", "FINISHED")
_META_BYTES: Final = 16 << 10
_MOST_METRICS: Final = 256
_MOST_DEPTH: Final = 4
_FIRST_LINE: Final = re.compile(rb"\d{12,14} [-+.\w]+(?: \d+)?(?: \S+ \S+)?\r?\n")


class _Metric:
    """One metric's file."""

    def __init__(self, path: str) -> None:
        self.lines = Lines(path)
        self.malformed = 0

    def read(self) -> Iterator[tuple[int, int, float]]:
        """(milliseconds, step, value) of what is new."""
        self.malformed = 0
        for text in self.lines.read():
            found = _LINE.fullmatch(text)
            value = number(found["value"]) if found else None
            if found is None or value is None:
                self.malformed += 1
                continue
            yield int(found["ms"]), int(found["step"] or 0), value


class Run:
    """The metrics of one run, by the path of its ``meta.yaml``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = os.path.dirname(path)  # noqa: PTH120 - text only
        self._metrics: dict[str, _Metric] = {}
        self._calls = Calls()
        self._meta: _Meta | None = None

    @property
    def extent(self) -> Extent:
        extents = [metric.lines.tail.extent for metric in self._metrics.values()]
        mtime = max((each.mtime for each in extents if each.mtime is not None), default=None)
        return Extent(sum(each.size for each in extents), sum(each.position for each in extents), mtime)

    def poll(self) -> Batch:
        self._look_for_metrics()
        about = self._about()  # read first: what a finished run has reported is there then
        for name, metric in self._metrics.items():
            for milliseconds, step, value in metric.read():
                self._calls.add(name, milliseconds=milliseconds, step=step, value=value)
        more = any(metric.lines.more for metric in self._metrics.values())
        malformed = sum(metric.malformed for metric in self._metrics.values())
        return Batch((*self._calls.records(), *about), more, malformed)

    def _look_for_metrics(self) -> None:
        for name, path in _files(f"{self._directory}/metrics"):
            if name not in self._metrics and self._calls.knows(name) and len(self._metrics) < _MOST_METRICS:
                self._metrics[name] = _Metric(path)

    def _about(self) -> Sequence[Record]:
        """The run's name when it is new, and MLflow's word that it has finished."""
        meta = _meta(self._path)
        if meta is None or meta == self._meta:
            return ()
        self._meta = meta
        return (self._calls.about(name=meta.name, ended_ms=meta.ended_ms, finished=meta.finished),)


class OneMetric:
    """A single metric's file, named by its user; the file's name is the metric's."""

    def __init__(self, path: str) -> None:
        self._metric = _Metric(path)
        self._name = path.rpartition("/metrics/")[2] if "/metrics/" in path else path.rpartition("/")[2]
        self._interpreter = Interpreter()

    @property
    def extent(self) -> Extent:
        return self._metric.lines.tail.extent

    def poll(self) -> Batch:
        records = tuple(record for point in self._metric.read() if (record := self._record(*point)) is not None)
        return Batch(records, self._metric.lines.more, self._metric.malformed)

    def _record(self, milliseconds: int, step: int, value: float) -> Record | None:
        known = self._interpreter.knows(self._name)
        return self._interpreter.record(
            {self._name: value} if known else {},
            results={} if known else {self._name[:MAX_NAME]: value},
            step=step,
            line=self._metric.lines.number,
            stamp=stamp_of(milliseconds / 1000),
        )


@dataclass(frozen=True, slots=True)
class _Meta:
    name: str
    finished: bool
    ended_ms: float | None


def _meta(path: str) -> _Meta | None:
    """What a run's ``meta.yaml`` says; None where there is none. A few plain lines: no need for a YAML reader."""
    try:
        text = start_of(path, _META_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    found = {match["key"]: match["value"] for match in _META.finditer(text)}
    ended = number(found.get("end_time", ""))
    ended = ended if ended is not None and math.isfinite(ended) else None  # NaN would be another one at each look
    return _Meta(
        name=found.get("run_name", "")[:MAX_NAME],
        finished=found.get("status", "") in _FINISHED and ended is not None,
        ended_ms=ended,
    )


def _files(directory: str, prefix: str = "", depth: int = _MOST_DEPTH) -> Iterator[tuple[str, str]]:
    """(metric's name, path) of the files of metrics; a name with a slash lies in a directory."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_file():
            yield prefix + entry.name, entry.path
        elif depth > 0 and entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{prefix}{entry.name}/", depth - 1)


def _source(path: str) -> str:
    """A run's ``meta.yaml`` stands for what lies beside it."""
    run, beside, _ = path.partition("/metrics/")
    meta = f"{run}/meta.yaml"
    return meta if beside and os.path.exists(meta) else path  # noqa: PTH110


def _written(path: str) -> os.stat_result:
    """A running run's ``meta.yaml`` is as old as the run: the youngest of the metrics tells whether it still is one."""
    seen = os.stat(path)  # noqa: PTH116
    meta = _meta(path) if path.endswith("/meta.yaml") else None
    if meta is None or meta.ended_ms is not None:
        return seen
    written = [os.stat(each) for _, each in islice(_files(os.path.dirname(path) + "/metrics"), _MOST_METRICS)]  # noqa: PTH116, PTH120
    return max([seen, *written], key=lambda each: each.st_mtime)


def _reader(path: str) -> Reader:
    return Run(path) if path.endswith("/meta.yaml") else OneMetric(path)


def _is_metric(head: bytes) -> bool:
    return _FIRST_LINE.match(head) is not None


TRACKER: Final = Tracker(
    name="mlflow",
    summary="MLflow's file store, mlruns",
    paths=re.compile(r"(?:^|/)[0-9a-f]{32}/(?:meta\.yaml|metrics/.+)$"),
    lone=_is_metric,
    below=re.compile(r"/mlruns/\d+/[0-9a-f]{32}$"),
    apart=True,
    reader=_reader,
    source=_source,
    written=_written,
)

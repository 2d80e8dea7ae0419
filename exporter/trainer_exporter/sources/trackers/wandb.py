"""Local run directories of Weights & Biases: ``wandb/run-20260130_082021-ab12cd34/run-ab12cd34.wandb``, offline runs too.

A LevelDB log behind 7 bytes of its own: blocks of 32 KiB, counted from the file's beginning, with chunks of checksum, length, type, data;
joined chunks are a protobuf Record. wandb has no reader for Python any more (it is in its Go program), and its messages cost a daemon
50 MB to import, so the few fields that matter are read here. Older versions leave ``wandb-history.jsonl`` and ``wandb-summary.json`` too.
The library writes in units of blocks: exact, but late.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, Reader, Tracker, stamp_of
from trainer_exporter.sources.trackers.document import Document, number
from trainer_exporter.sources.trackers.meaning import MAX_NAME, Interpreter
from trainer_exporter.sources.trackers.rows import Rows
from trainer_exporter.sources.trackers.tail import Tail

_FILE_HEAD: Final = re.compile(rb":W&B..[\x00-\x0f]", re.DOTALL)
_CHUNK: Final = struct.Struct("<IHB")
_BLOCK: Final = 32 << 10
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_BYTES: Final = 4 << 20  # of a record that is looked into
_TRIES: Final = 5
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18  # fields of Record
_RUN_CONFIG, _DISPLAY_NAME = 4, 8  # of RunRecord
_ITEM, _KEY, _NESTED_KEY, _VALUE = 1, 1, 2, 16
_NUMBER_BYTES: Final = 64  # a number is short; tables and histograms are not
_PATH_BYTES: Final = 1024
# Best first: the library's own count goes up with every report, also with one that is not the trainer's step.
_STEPS: Final = ("train/global_step", "trainer/global_step", "global_step", "_step")


class History:
    """Makes records of rows that name their step themselves."""

    def __init__(self) -> None:
        self._interpreter = Interpreter(late=True)
        self._best = len(_STEPS) - 1

    def made(self, row: dict[str, Any], line: int) -> Record | None:
        named = next((at for at, name in enumerate(_STEPS) if name in row), len(_STEPS))
        self._best = min(self._best, named)
        step = number(row[_STEPS[named]]) if named == self._best else None
        values = {name: read for name, value in row.items() if self._interpreter.knows(name) and (read := _told(value)) is not None}
        return self._interpreter.record(values, step=step, line=line, stamp=stamp_of(number(row.get("_timestamp"))))

    def record(self, text: str, line: int) -> Record | None:
        """Of a line of JSON."""
        row = json.loads(text) if text.strip() else {}
        if not isinstance(row, dict):
            raise ValueError("a line is no object")
        return self.made(row, line)


class TransactionLog:
    """One ``.wandb`` file."""

    def __init__(self, path: str) -> None:
        self._tail = Tail(path)
        self._begin()

    def _begin(self) -> None:
        self._log = Log()
        self._history = History()
        self._number = 0
        self._tries = 0

    @property
    def extent(self) -> Extent:
        return self._tail.extent

    def poll(self) -> Batch:
        fresh = self._tail.read()
        if fresh.renewed:
            self._begin()
        if self._tries > _TRIES:
            return Batch(more=fresh.more)
        self._log.push(fresh.data)
        records: list[Record] = []
        malformed = 0
        for data in self._log.records():
            self._number += 1
            self._tries = 0
            try:
                record = self._record(data)
            except (ValueError, RecursionError):
                malformed += 1
                continue
            if record is not None:
                records.append(record)
        if self._log.torn:
            self._tries += 1
            self._tail.rewind(self._log.give_back())
            return Batch(tuple(records), malformed=malformed + int(self._tries > _TRIES))
        return Batch(tuple(records), fresh.more, malformed)

    def _record(self, data: bytes) -> Record | None:
        for field, value in fields(data):
            if not isinstance(value, bytes):
                continue
            if field == _HISTORY:
                return self._history.made(_row(value, _NUMBER_BYTES), self._number)
            if field in (_CONFIG, _RUN):
                facts = _facts(value) if field == _RUN else _output_dir(value)
                return Record(self._number, facts=facts) if facts else None
            if field == _EXIT:
                failed = any(inner == 1 and code for inner, code in fields(value))
                return None if failed else Record(self._number, closes=True)
        return None


class Log:
    """Bytes -> joined records of the log."""

    def __init__(self) -> None:
        self.torn = False
        self._held = b""
        self._begin = 0  # offset of the held bytes in the file
        self._joined: list[bytes] | None = None
        self._joined_bytes = 0

    def push(self, data: bytes) -> None:
        """Add what was read."""
        self._held += data
        self.torn = False

    def give_back(self) -> int:
        """Forget what was not taken; how many bytes that are."""
        size, self._held = len(self._held), b""
        return size

    def records(self) -> Iterator[bytes]:
        """The records that are complete; what is behind the last whole chunk stays."""
        at = 0
        if self._begin == 0:
            if len(self._held) < 7:
                return
            self.torn = _FILE_HEAD.match(self._held) is None
            at = 7
        while not self.torn:
            left = _BLOCK - (self._begin + at) % _BLOCK
            if left < _CHUNK.size:
                if len(self._held) < at + left:
                    break
                at += left  # padding
                continue
            if len(self._held) < at + _CHUNK.size:
                break
            check, length, kind = _CHUNK.unpack_from(self._held, at)
            data = self._held[at + _CHUNK.size : at + _CHUNK.size + length]
            if len(data) < length:
                break
            if not _FULL <= kind <= _LAST or zlib.crc32(bytes((kind,)) + data) != check:
                self.torn = True
                break
            at += _CHUNK.size + length
            yield from self._join(kind, data)
        taken = 0 if self.torn and self._begin == 0 and at == 7 else at
        self._begin, self._held = self._begin + taken, self._held[taken:]

    def _join(self, kind: int, data: bytes) -> Iterator[bytes]:
        if kind == _FULL:
            self._joined = None
            yield data
            return
        if kind == _FIRST:
            self._joined, self._joined_bytes = [], 0
        if self._joined is None:
            return  # the rest of a record whose beginning was left out
        self._joined_bytes += len(data)
        if self._joined_bytes > _MOST_BYTES:
            self._joined = None
            return
        self._joined.append(data)
        if kind == _LAST:
            whole, self._joined = b"".join(self._joined), None
            yield whole


class Summary:
    """``wandb-summary.json``: the last values alone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._document = Document()
        self._history = History()
        self._number = 0

    @property
    def extent(self) -> Extent:
        return self._document.extent

    def poll(self) -> Batch:
        row = self._document.read(self._path)
        if not isinstance(row, dict):
            return Batch(malformed=max(self._document.malformed, int(row is not None)))
        self._number += 1
        record = self._history.made(row, self._number)
        return Batch((record,) if record is not None else ())


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message; ValueError for bytes that are none."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + size > len(data):
            raise ValueError("a field ends behind its message")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number has no end")


def _facts(run: bytes) -> dict[str, str]:
    facts: dict[str, str] = {}
    for field, value in fields(run):
        if field == _DISPLAY_NAME and isinstance(value, bytes):
            facts["run_name"] = value.decode("utf-8", "replace")[:MAX_NAME]
        elif field == _RUN_CONFIG and isinstance(value, bytes):
            facts |= _output_dir(value)
    return facts


def _output_dir(config: bytes) -> dict[str, str]:
    """Where the Hugging Face Trainer saves: it reports all of its arguments."""
    path = _row(config, _PATH_BYTES).get("output_dir")
    return {"output_dir": path} if isinstance(path, str) and path else {}


def _row(history: bytes, most_bytes: int) -> dict[str, Any]:
    """The items of a history or configuration whose values are no longer than that."""
    row: dict[str, Any] = {}
    for field, item in fields(history):
        if field != _ITEM or not isinstance(item, bytes):
            continue
        parts = list(fields(item))
        key = [part.decode("utf-8", "replace") for inner, part in parts if inner in (_KEY, _NESTED_KEY) and isinstance(part, bytes)]
        value = next((part for inner, part in parts if inner == _VALUE and isinstance(part, bytes)), None)
        if key and value is not None and len(value) <= most_bytes:
            row[".".join(key)] = _json(value)
    return row


def _json(value: bytes) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _told(value: object) -> float | None:
    """A number, or one of those that JSON lacks, which the library writes as text."""
    if isinstance(value, str):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(value)
    return number(value)


def _reader(path: str) -> Reader:
    if path.endswith(".jsonl"):
        return Rows(path, History)
    return Summary(path) if path.endswith(".json") else TransactionLog(path)


TRACKER: Final = Tracker(
    name="wandb",
    summary="local run directories of Weights & Biases (run-*.wandb), offline runs too",
    paths=re.compile(r"(?:^|/)run-[^/]+\.wandb$"),
    on_request=re.compile(r"\.wandb$|wandb-history\.jsonl$|wandb-summary\.json$"),
    reader=_reader,
    below=re.compile(r"/wandb/(?:offline-)?run-[^/]+$"),
    apart=True,
)

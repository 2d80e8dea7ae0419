"""TensorBoard event files: ``events.out.tfevents.1738224000.node7.4242.0``, records of length, checksum, data, checksum.

The tensorboard package's messages say what is in a record. The framing is read here: the package's own reader starts each file at its
beginning, holds whatever length a record claims in memory, and takes bytes that have not arrived yet for a broken file.
A writer's events of one step follow each other, one value each.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, MissingExtraError, Tracker, stamp_of
from trainer_exporter.sources.trackers.meaning import Interpreter
from trainer_exporter.sources.trackers.tail import Tail

_HEAD: Final = struct.Struct("<QI")
_SUM: Final = struct.Struct("<I")
_VALUES: Final = {1: ("float_val", struct.Struct("<f")), 2: ("double_val", struct.Struct("<d"))}  # by tensorflow's DataType
_MOST_BYTES: Final = 256 << 10  # of an event that is looked into; images and graphs are larger
_TRIES: Final = 5  # looks at a record that does not fit its checksum, before the file is given up
# fairseq, Keras and others keep a writer a split, each in a directory of that name, and call the values the same.
_EVALUATION: Final = re.compile(r"valid\w*|val|eval\w*|dev|test", re.IGNORECASE)


class Events:
    """One event file."""

    def __init__(self, path: str) -> None:
        directory = os.path.basename(os.path.dirname(path))  # noqa: PTH119, PTH120 - text only
        self._evaluation = _EVALUATION.fullmatch(directory) is not None
        self._tail = Tail(path)
        self._begin()

    def _begin(self) -> None:
        self._interpreter = Interpreter(evaluation=self._evaluation)
        self._frames = Frames()
        self._tries = 0
        self._number = 0  # events so far

    @property
    def extent(self) -> Extent:
        return self._tail.extent

    def poll(self) -> Batch:
        event_class = _event_class()
        fresh = self._tail.read()
        if fresh.renewed:
            self._begin()
        if self._tries > _TRIES:
            return Batch(more=fresh.more)
        before = self._number
        self._frames.push(fresh.data)
        records = tuple(self._records(event_class))
        if not self._frames.torn:
            self._tries = 0 if self._number > before else self._tries
            return Batch(records, fresh.more)
        self._tries += 1
        self._tail.rewind(self._frames.give_back())
        return Batch(records, malformed=int(self._tries > _TRIES))

    def _records(self, event_class: Callable[[], Any]) -> Iterator[Record]:
        step, stamp = 0, 0.0
        values: dict[str, float] = {}
        for event, found in self._events(event_class):
            if values and event.step != step:
                yield from self._record(values, step, stamp)
                values = {}
            step, stamp = event.step, event.wall_time
            values |= found
        if values:
            yield from self._record(values, step, stamp)

    def _record(self, values: dict[str, float], step: int, stamp: float) -> Iterator[Record]:
        made = self._interpreter.record(values, step=step, line=self._number, stamp=stamp_of(stamp))
        if made is not None:
            yield made

    def _events(self, event_class: Callable[[], Any]) -> Iterator[tuple[Any, dict[str, float]]]:
        """Events with values of interest; only those are worth the time of a checksum."""
        from google.protobuf.message import DecodeError

        while (data := self._frames.take()) is not None:
            event = event_class()
            try:
                event.ParseFromString(data)
            except DecodeError:
                self._frames.refuse()
                return
            found = {
                item.tag: value
                for item in event.summary.value
                if self._interpreter.knows(item.tag) and (value := _scalar(item)) is not None
            }
            if found and not self._frames.fits(data):
                self._frames.refuse()
                return
            self._number += 1
            if found:
                yield event, found


class Frames:
    """Bytes -> the data of whole records; what is too large is passed over without being held."""

    def __init__(self) -> None:
        self.torn = False  # what stands next is no record
        self._held = b""
        self._at = self._last = 0
        self._skip = 0

    def push(self, data: bytes) -> None:
        """Add what was read."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._held = self._held[self._at :] + data[skipped:]
        self._at, self.torn = 0, False

    def take(self) -> bytes | None:
        """The next record's data; None while it is not complete, or torn."""
        while len(self._held) - self._at >= _HEAD.size and not self.torn:
            length, check = _HEAD.unpack_from(self._held, self._at)
            end = self._at + _HEAD.size + length + _SUM.size
            if masked_crc(self._held[self._at : self._at + 8]) != check:
                self.torn = True
            elif length > _MOST_BYTES:
                self._skip = max(0, end - len(self._held))
                self._at = min(end, len(self._held))
            elif end > len(self._held):
                return None
            else:
                self._last, self._at = self._at, end
                return self._held[self._last + _HEAD.size : end - _SUM.size]
        return None

    def fits(self, data: bytes) -> bool:
        """Whether the data of the last record have its checksum."""
        (check,) = _SUM.unpack_from(self._held, self._at - _SUM.size)
        return bool(masked_crc(data) == check)

    def refuse(self) -> None:
        """The last record cannot be what was written: it is the next one again."""
        self._at, self.torn = self._last, True

    def give_back(self) -> int:
        """Forget what was not taken; how many bytes that are."""
        size, self._held, self._at = len(self._held) - self._at, b"", 0
        return size


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C (Castagnoli), rotated by 15 bits, plus a constant."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _scalar(item: Any) -> float | None:
    """The number of a summary's value, in the old form or as the tensor of the new one; None for what is no number."""
    if item.WhichOneof("value") == "simple_value":
        return float(item.simple_value)
    if item.WhichOneof("value") != "tensor" or item.tensor.dtype not in _VALUES:
        return None
    name, packed = _VALUES[item.tensor.dtype]
    numbers = getattr(item.tensor, name)
    if len(numbers) == 1:
        return float(numbers[0])
    content = item.tensor.tensor_content
    return float(packed.unpack(content)[0]) if len(content) == packed.size else None


@cache
def _event_class() -> Callable[[], Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        raise MissingExtraError("TensorBoard", "tensorboard") from error
    found: Callable[[], Any] = Event
    return found


TRACKER: Final = Tracker(
    name="tensorboard",
    summary="TensorBoard event files, by the names of Hugging Face, Megatron, NeMo, Lightning, torchtitan and others",
    paths=re.compile(r"(?:^|/)events\.out\.tfevents\.[^/]+$"),
    reader=Events,
    extra="tensorboard",
    below=re.compile(
        r"/(?:runs(?:/[^\W\d]+\d\d_\d\d-\d\d-\d\d_[^/]+)?|lightning_logs/version_\d+|tb_logs|tensorboard|tb/[^/]+)"
        r"(?:/(?:train|train_inner|valid\w*|val|eval\w*|test))?$"
    ),
    held_open=True,
)

"""The trackers' part of the guided fuzzer: what their readers begin with, and what must hold for all that they tell.

Where a format is sealed by checksums, input is bytes as they lie, or pieces that are sealed here: changed bytes alone would never get
behind the seal. Nothing of the package is imported before a target is asked for: the fuzzer instruments it while it is imported.
"""

from __future__ import annotations

import math
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "trackers" / "recorded"
NOW = 2_000_000_000.0  # when everything is read
SEED_BYTES = 2000
QUIET_LOOKS = 8  # then there is no more to come
MOST_LOOKS = 1000
Once = Callable[[bytes], None]

TEXTS = {
    "trainer_state": ("trainer_state.json", b'{"global_step": 7, "max_steps": 9, "log_history": [{"loss": 1.5, "step": 5, "epoch": 0.1}]}'),
    "metrics_csv": ("lightning_logs/version_0/metrics.csv", b"epoch,step,train_loss\n0,5,1.5\n0,6,nan\n"),
    "metrics_json": ("metrics.json", b'{"iteration": 19, "total_loss": 1.5, "lr": 0.1, "eta_seconds": 9}\n'),
    "scalars_json": ("20260101_000000/vis_data/scalars.json", b'{"lr": 0.1, "loss": 1.5, "step": 5, "iter": 5}\n'),
}


def texts() -> Iterator[bytes]:
    """The first byte says whose file it is."""
    for place, (_, data) in enumerate(TEXTS.values()):
        yield bytes([place]) + data


def text() -> Once:
    """Trackers that keep lines or a document."""
    names, folder = list(TEXTS), Path(tempfile.mkdtemp())
    paths = {name: folder / name / TEXTS[name][0] for name in names}
    for path in paths.values():
        path.parent.mkdir(parents=True)
    told = {name: _told(name) for name in names}

    def once(data: bytes) -> None:
        name = names[data[0] % len(names)] if data else names[0]
        paths[name].write_bytes(data[1:])
        told[name](paths[name])

    return once


def event_files() -> Iterator[bytes]:
    """The first byte says whether pieces follow, the second where the file was cut when it was looked at first."""
    for path in sorted(RECORDED.rglob("events.out.tfevents.*")):
        data = path.read_bytes()[:SEED_BYTES]
        yield b"\0\x50" + data
        pieces, at = [], 0
        while at + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            pieces.append(data[at + 12 : at + 12 + length])
            at += length + 16
        yield b"\1\x50" + b"".join(struct.pack("<H", len(piece)) + piece for piece in pieces)


def event_file() -> Once:
    """TensorBoard's files: read as they grow, their records are those of the whole file."""
    told = _told("tensorboard")
    from trainer_exporter.sources.trackers import tensorboard

    path = Path(tempfile.mkdtemp()) / "events.out.tfevents.1700000000.n1.7.0"

    def taken(*parts: bytes) -> list[bytes]:
        frames, found = tensorboard.Frames(), list[bytes]()
        for part in parts:
            frames.push(part)
            found += iter(frames.take, None)
        return found

    def sealed(pieces: bytes) -> bytes:
        found = []
        for head, piece in _pieces(pieces, struct.Struct("<H")):
            length = struct.pack("<Q", head[0])
            found += [length, struct.pack("<I", tensorboard.masked_crc(length)), piece, struct.pack("<I", tensorboard.masked_crc(piece))]
        return b"".join(found)

    def once(data: bytes) -> None:
        content, cut = _content(data, sealed)
        assert taken(content) == taken(content[:cut], content[cut:])
        told(path, content, cut)

    return once


CHUNK = struct.Struct("<HB")  # length and kind
BLOCK_BYTES = 32 << 10
ROWS = {
    "summary.json": b'{"_step": 7, "_timestamp": 1700000000.5, "train/loss": 1.5, "eval/accuracy": "NaN"}',
    "history.jsonl": b'{"_step": 7, "train/global_step": 70, "train/loss": 1.5}\n{"_step": 8, "train/loss": "Infinity"}\n',
}
HEAD = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


def run_files() -> Iterator[bytes]:
    """As those of TensorBoard; or the rows that the library also keeps, behind the first letter of their file's name."""
    for path in sorted(RECORDED.rglob("*.wandb")):
        data = path.read_bytes()[:SEED_BYTES]
        yield b"\0\x50" + data
        pieces, at = [], len(HEAD)
        while at + 7 <= len(data):
            _, length, kind = struct.unpack_from("<IHB", data, at)
            pieces.append(CHUNK.pack(length, kind) + data[at + 7 : at + 7 + length])
            at += 7 + length
        yield b"\1\x50" + b"".join(pieces)
        for place in (len(pieces) // 2, len(pieces) - 1):
            yield b"\1\x50" + CHUNK.pack(BLOCK_BYTES - 300, 1) + b"".join(pieces[place:])

    yield from (name[:1].encode() + row for name, row in ROWS.items())


def run_file() -> Once:
    """The ``.wandb`` file of a run: read as it grows, it says what it says at once."""
    told = _told("wandb")
    folder = Path(tempfile.mkdtemp())
    path, grown = folder / "run-heron.wandb", folder / "run-crane.wandb"
    kept = {name[:1].encode(): folder / f"wandb-{name}" for name in ROWS}

    def sealed(pieces: bytes) -> bytes:
        content = bytearray(HEAD)
        for (length, kind), piece in _pieces(pieces, CHUNK):
            left = BLOCK_BYTES - len(content) % BLOCK_BYTES
            if left < 7:
                content += bytes(left)
                left = BLOCK_BYTES
            whole = piece.ljust(length, b"\0")[: left - 7]  # what is missing is filled up, so that few bytes reach the next block
            content += struct.pack("<IHB", zlib.crc32(bytes((kind,)) + whole), len(whole), kind) + whole
        return bytes(content)

    def once(data: bytes) -> None:
        if data[:1] in kept:
            kept[data[:1]].write_bytes(data[1:])
            told(kept[data[:1]])
            return
        content, cut = _content(data, sealed)
        path.write_bytes(content)
        at_once = told(path)
        assert repr(told(grown, content, cut)) == repr(at_once)

    return once


METRICS = ("loss", "eval_loss", "learning_rate", "val/accuracy", "train_steps_per_second")
PART = b"\0"


def stores() -> Iterator[bytes]:
    """A run's meta.yaml and the files of its metrics, in the order of METRICS."""
    (meta,) = (each for each in RECORDED.rglob("meta.yaml") if (each.parent / "metrics").is_dir())
    files = [meta.parent / "metrics" / name for name in METRICS]
    yield PART.join([meta.read_bytes(), *(path.read_bytes()[:400] if path.exists() else b"" for path in files)])
    lines = b"1700000000123 1.5 10\n1700000000123 nan 30 ds 0f\n"
    yield PART.join([b"run_name: 'heron'\nstatus: 3\nend_time: 1700000009999\n", lines, lines, lines])
    yield PART.join([b"status: FINISHED\nend_time: null", b"1700000000123 1.5", b"\n\n-1 2 3\n170000000000 inf -7\r\n"])


def store() -> Once:
    """MLflow's file store: a run, and each of its files by itself."""
    told = _told("mlflow")
    run = Path(tempfile.mkdtemp()) / ("ab" * 16)
    paths = [run / "meta.yaml", *(run / "metrics" / name for name in METRICS)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)

    def once(data: bytes) -> None:
        parts = data.split(PART)
        for place, path in enumerate(paths):
            path.write_bytes(parts[place] if place < len(parts) else b"")
        told(paths[0])
        told(paths[1], parts[-1], len(parts[-1]) // 2)

    return once


def _content(data: bytes, sealed: Callable[[bytes], bytes]) -> tuple[bytes, int]:
    """What stands in the file, and where it ended at the first look."""
    first, second, rest = data[:1], data[1:2], data[2:]
    content = sealed(rest) if first and first[0] % 2 else rest
    return content, len(content) * (second[0] if second else 0) // 256


def _pieces(data: bytes, head: struct.Struct) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """The piece behind each head, whose first number is its length; the last may be shorter than that."""
    at = 0
    while at + head.size <= len(data):
        numbers = head.unpack_from(data, at)
        at += head.size
        yield numbers, data[at : at + numbers[0]]
        at += numbers[0]


def _told(name: str) -> Callable[..., list[Any]]:
    """Reads a file, or ``content`` that had grown to ``cut`` at the first look; a run and a page are made of what it tells."""
    from trainer_exporter.metrics.lines import Lines
    from trainer_exporter.metrics.runs import Runs
    from trainer_exporter.model import FIELDS
    from trainer_exporter.runs.state import RunState, StateSettings
    from trainer_exporter.runs.timeline import Timeline
    from trainer_exporter.sources import trackers

    (tracker,) = (each for each in trackers.registry() if each.name == name)
    lines, figures = Lines(), Runs()

    def told(path: Path, content: bytes | None = None, cut: int = 0) -> list[Any]:
        batches = trackers.whole(tracker, str(path)) if content is None else _grown(tracker, path, content, cut)
        records = [record for batch in batches for record in batch.records]
        run, times = RunState("run", StateSettings(), daemon_start=NOW - 60), Timeline(last_stamp=None, mtime=NOW)
        for at, record in enumerate(records):
            assert record.fields.keys() <= FIELDS
            assert record.stamp is None or math.isfinite(record.stamp.seconds), record
            run.fold(record, times.of_record(record, read_wall=NOW, live=at % 2 == 1), source="tracker", format_name=name)
        seen = run.snapshot(NOW)
        assert seen.progress_wall is None or seen.progress_wall <= NOW, seen
        lines.page(figures.collect([seen], NOW), openmetrics=False).encode()
        return records

    return told


def _grown(tracker: Any, path: Path, content: bytes, cut: int) -> Iterator[Any]:
    reader, quiet = tracker.reader(str(path)), 0
    path.write_bytes(content[:cut])
    yield reader.poll()
    with path.open("ab") as file:
        file.write(content[cut:])
    for _ in range(MOST_LOOKS):
        batch = reader.poll()
        yield batch
        quiet = 0 if batch.more or batch.records else quiet + 1
        if quiet > QUIET_LOOKS:
            return
    raise AssertionError("there is always more to read")

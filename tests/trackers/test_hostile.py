"""Whatever bytes stand in a tracker's file: no exception, nothing invented, no memory for what a length claims."""

from __future__ import annotations

import contextlib
import math
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trackers.writers import RECORDED, Events, mangle, valid
from trainer_exporter.model import FIELDS, Record
from trainer_exporter.sources.files import IrregularError
from trainer_exporter.sources.trackers import registry, tensorboard, whole

CUTS = 20  # of each file, spread over it, and as many at its end; the long run makes them all
FILES = {
    "tensorboard": "events.out.tfevents.1700000000.n1.7.0",
    "trainer_state": "trainer_state.json",
    "metrics_csv": "metrics.csv",
    "metrics_json": "metrics.json",
    "scalars_json": "scalars.json",
    "wandb": "run-heron.wandb",
    "mlflow": f"{'ab' * 16}/meta.yaml",
}
BINARY = {"tensorboard": next((RECORDED / "llama_factory" / "runs").rglob("*.1")), "wandb": next((RECORDED / "wandb").rglob("*.wandb"))}
shared_folder = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(name: str, path: Path) -> list[Record]:
    tracker = next(each for each in registry() if each.name == name)
    return [record for batch in whole(tracker, str(path)) for record in batch.records]


def values(records: list[Record]) -> set[tuple[object, str, str]]:
    return {(record.fields.get("step"), field, repr(value)) for record in records for field, value in record.fields.items()}


def test_every_tracker_that_reads_files_is_tried_here() -> None:
    others = {"mlflow_db", "mlflow_server"}  # a database, and no file at all

    assert FILES.keys() == {tracker.name for tracker in registry()} - others


@pytest.mark.parametrize("name", FILES)
@shared_folder
@given(data=st.binary(max_size=2000) | st.text(alphabet='{}[]",:.0123456789eE-+ \nnaNIfty', max_size=2000).map(str.encode))
def test_any_bytes_are_survived(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    path.parent.mkdir(exist_ok=True)
    (path.parent / "metrics").mkdir(exist_ok=True)
    (path.parent / "metrics" / "loss").write_bytes(data)
    path.write_bytes(data)

    records = read(name, path)

    assert all(isinstance(record, Record) for record in records)


@pytest.mark.parametrize("name", BINARY)
@shared_folder
@given(data=st.data())
def test_a_byte_that_is_not_what_was_written_invents_nothing(name: str, data: st.DataObject, tmp_path: Path) -> None:
    good = BINARY[name].read_bytes()
    said = values(read(name, BINARY[name]))
    at, value = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 255))
    path = tmp_path / FILES[name]
    path.write_bytes(good[:at] + bytes((value,)) + good[at + 1 :])

    found = values(read(name, path))

    assert found <= said


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), times=st.integers(1, 3))
def test_a_valid_file_that_is_mangled_is_survived(name: str, seed: int, times: int) -> None:
    with TemporaryDirectory() as folder:
        followed, damaged = valid(name, Path(folder))
        chance = random.Random(seed)
        for path in sorted({followed, damaged}):
            for _ in range(times):
                path.write_bytes(mangle(path.read_bytes(), chance))

        records = read(name, followed)

    assert all(record.fields.keys() <= FIELDS for record in records)


@pytest.mark.parametrize("name", FILES)
def test_a_valid_file_cut_anywhere_says_nothing_that_the_whole_does_not_say(name: str, tmp_path: Path) -> None:
    followed, damaged = valid(name, tmp_path)
    data = damaged.read_bytes()
    said = values(read(name, followed))
    cuts = {*range(0, len(data), max(1, len(data) // CUTS)), *range(max(0, len(data) - CUTS), len(data))}

    invented = {}
    for cut in cuts:
        damaged.write_bytes(data[:cut])
        if wrong := values(read(name, followed)) - said:
            invented[cut] = wrong

    assert said
    assert invented == {}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["directory", "pipe", "device"])
def test_what_is_no_regular_file_tells_nothing_and_keeps_nobody_waiting(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    path.parent.mkdir(exist_ok=True)
    make(path)
    tracker = next(each for each in registry() if each.name == name)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with contextlib.suppress(OSError, IrregularError):
        tracker.written(str(path))
        assert not values(read(name, path))

    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["scalars_json", "trainer_state", "metrics_json"])
def test_brackets_without_end_are_survived(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    path.write_text('{"step": 1, "loss": ' + "[" * 100_000 + "\n")

    assert read(name, path) == []


def test_a_length_that_claims_all_memory_takes_none(tmp_path: Path) -> None:
    path = tmp_path / FILES["tensorboard"]
    length = struct.pack("<Q", 1 << 40)
    with path.open("wb") as file:
        file.write(length + struct.pack("<I", tensorboard.masked_crc(length)))
        file.truncate(64 << 20)  # as much as is there, and no more, may be read
    tracemalloc.start()

    read("tensorboard", path)

    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["metrics_csv", "scalars_json"])
def test_a_line_without_an_end_takes_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    with path.open("wb") as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"step": 3, "loss": 1.5, "lr": 0.1}\n')
    tracemalloc.start()

    records = read(name, path)

    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert [record.fields["step"] for record in records] == ([3] if name == "scalars_json" else [])


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e300, 0.0, -7.0])
def test_a_time_that_is_none_is_not_told(time: float, tmp_path: Path) -> None:
    events = Events(tmp_path / "runs")
    events.step(1, {"loss": 2.5}, wall=time)
    (tmp_path / "metrics").mkdir()
    run = tmp_path / ("ab" * 16) / "meta.yaml"
    run.parent.mkdir()
    run.write_text(f"run_name: heron\nstatus: 3\nend_time: {time}\n")

    (step,), (about,) = read("tensorboard", events.path), read("mlflow", run)

    assert (step.fields["loss"], step.stamp) == (2.5, None)
    assert (about.facts["run_name"], about.stamp) == ("heron", None)


def test_a_checksum_is_the_packages_own(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.step(1, {"loss": 2.5})
    data = events.path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)

    assert tensorboard.masked_crc(data[:8]) == struct.unpack_from("<I", data, 8)[0]
    assert tensorboard.masked_crc(data[12 : 12 + length]) == struct.unpack_from("<I", data, 12 + length)[0]

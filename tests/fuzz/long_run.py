"""The long run of what the tests of hostile input show in seconds; ``make fuzz`` starts it. Minutes, on one core."""

from __future__ import annotations

import random
import resource
import timeit
from functools import partial
from itertools import islice
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings

from hostile import CASES, KEPT_BYTES, LONG, UNITS, case_id, events_of_every_cut, mutants, readers, truth, unprinted, untrue
from odd_configs import TEXTS, verdict
from trackers.writers import mangle, valid
from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import FIELDS, Chunk, Record
from trainer_exporter.sources import trackers
from trainer_exporter.sources.pieces import Splitter
from trainer_exporter.sources.trackers import whole

HOSTILE_LINES = 1_000_000
BATCH_LINES = 500
KEPT_LINES = 50_000  # a rank's interrupted line may be completed long after it began
NEAR_LINES = 260  # before a record's line, in which its values stand
ENDLESS_BYTES = 100_000_000
BLOCK_BYTES = 1 << 20
MANGLED_FILES = 2000
ODD_CONFIGURATIONS = 20_000
SLOW_S = 0.25  # of this process's time
ONE_BY_ONE = [path for path in CASES if path.name != "torn"]  # there two lines stand in one, of which the first may be read up to a cut


def resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("seed", range(4))
def test_a_million_hostile_lines_break_nothing_and_invent_no_value(seed: int) -> None:
    stream, reader, lines = mutants(seed), Intake(registry()), list[bytes]()
    before, gone = resident_mb(), 0

    for first_line in range(1, HOSTILE_LINES // 4, BATCH_LINES):
        batch = list(islice(stream, BATCH_LINES))
        lines += batch
        if len(lines) > 2 * KEPT_LINES:
            gone += len(lines) - KEPT_LINES
            del lines[:-KEPT_LINES]
        for event in reader.feed(Chunk(b"".join(line + b"\n" for line in batch), first_line, 0.0, live=True)):
            assert event.line >= 1
            if isinstance(event, Record):
                end = event.line - gone
                assert end >= 1, "a record was held back for longer than lines are kept"
                assert event.fields.keys() <= FIELDS
                assert not unprinted(event, lines[max(0, end - NEAR_LINES) : end]), event

    assert resident_mb() - before < 100


@pytest.mark.parametrize("piece", [b"x", b"loss: 1 ", b"'a': 1, ", b"9", b"[", b"\x1b[", b"\xff", b"\x00"])
def test_100_mb_without_a_line_end_are_held_in_little_memory(piece: bytes) -> None:
    splitter, reader = Splitter(LONG), Intake(registry())
    block = (piece * BLOCK_BYTES)[:BLOCK_BYTES]
    before = resident_mb()

    for _ in range(ENDLESS_BYTES // BLOCK_BYTES):
        if data := splitter.feed(block, at_end=True):
            reader.feed(Chunk(data, 1, 0.0, live=True))
    reader.feed(Chunk(splitter.flush(), 1, 0.0, live=True))

    assert not [event for event in reader.flush() if isinstance(event, Record)]
    assert resident_mb() - before < 50


@pytest.mark.parametrize("path", ONE_BY_ONE, ids=case_id)
def test_a_file_cut_at_every_byte_says_nothing_that_the_whole_does_not_say(path: Path) -> None:
    data = (path / "input.log").read_bytes()[:KEPT_BYTES]
    said = truth(data)

    assert {cut: wrong for cut, found in events_of_every_cut(data) if (wrong := untrue(found, said))} == {}


@pytest.mark.parametrize("unit", UNITS)
def test_no_pattern_goes_through_a_long_line_again_and_again(unit: str) -> None:
    text = (unit * LONG)[:LONG]

    for name, read in readers():
        assert min(timeit.repeat(partial(read, text), timer=process_time, number=1, repeat=2)) < SLOW_S, name


FILES = ["tensorboard", "trainer_state", "metrics_csv", "metrics_json", "scalars_json", "wandb", "mlflow"]


def records(name: str, path: Path) -> list[Record]:
    tracker = next(each for each in trackers.registry() if each.name == name)
    return [record for batch in whole(tracker, str(path)) for record in batch.records]


@pytest.mark.parametrize("name", FILES)
def test_a_trackers_file_that_is_mangled_is_survived(name: str, tmp_path: Path) -> None:
    followed, damaged = valid(name, tmp_path)
    good = {path: path.read_bytes() for path in (followed, damaged)}
    chance = random.Random(name)

    for _ in range(MANGLED_FILES):
        for path, data in good.items():
            path.write_bytes(mangle(mangle(data, chance), chance))
        assert all(record.fields.keys() <= FIELDS for record in records(name, followed))


@pytest.mark.parametrize("name", FILES)
def test_a_trackers_file_cut_at_every_byte_says_nothing_that_the_whole_does_not_say(name: str, tmp_path: Path) -> None:
    followed, damaged = valid(name, tmp_path)
    data = damaged.read_bytes()
    said = {(key, repr(value)) for record in records(name, followed) for key, value in record.fields.items()}

    for cut in range(len(data)):
        damaged.write_bytes(data[:cut])
        found = {(key, repr(value)) for record in records(name, followed) for key, value in record.fields.items()}
        assert found <= said, cut


@settings(max_examples=ODD_CONFIGURATIONS, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_no_text_makes_the_loader_fail_without_a_message(text: str) -> None:
    assert "\n" not in verdict(text)

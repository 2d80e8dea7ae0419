"""What a tracker's reader tells of a file, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers import Reader, tracker_for, whole

RECORDED = Path(__file__).parent / "recorded"
STATE = json.loads((RECORDED / "llama_factory" / "trainer_state.json").read_text())


def reader(path: Path) -> Reader:
    tracker = tracker_for(str(path))
    assert tracker is not None
    return tracker.reader(str(path))


def told(by: Reader) -> list[Record]:
    """All that is new, as a follower would come to know it."""
    records: list[Record] = []
    for _ in range(10):
        records += by.poll().records
    return records


def everything(path: Path) -> list[Record]:
    tracker = tracker_for(str(path))
    assert tracker is not None
    return [record for batch in whole(tracker, str(path)) for record in batch.records]


def steps(records: Sequence[Record]) -> list[float]:
    return [record.fields["step"] for record in records]

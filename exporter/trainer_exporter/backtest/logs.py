"""Recorded logs as the daemon would read them: trainers' logs and trackers' files, an event for each thing that is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trainer_exporter.backtest.values import Event, Log
from trainer_exporter.catalogue import is_private
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.formats import Format
from trainer_exporter.intake import Intake
from trainer_exporter.model import Malformed
from trainer_exporter.replay import chunks
from trainer_exporter.sources.naming import run_names
from trainer_exporter.sources.trackers import Tracker, tracker_for, whole

Told = Callable[[str, float], None]  # what is being done, and how much of it is done (0 to 1)


def silent(_what: str, _share: float) -> None:
    """Tells nobody."""


def read(paths: Sequence[str], formats: Sequence[Format], *, told: Told = silent) -> list[Log]:
    """The logs as they are, one for each file; an unreadable one is a TrainerExporterError."""
    named = run_names([os.path.abspath(path) for path in paths], {})  # noqa: PTH100 - text only: links are kept as the user wrote them
    return [_read(path, named[os.path.abspath(path)].run, formats, told) for path in paths]  # noqa: PTH100


def _read(path: str, run: str, formats: Sequence[Format], told: Told) -> Log:
    tracker = tracker_for(os.path.abspath(path))  # noqa: PTH100 - idem
    if tracker is not None and not is_private(path, formats):
        return _read_tracker(path, run, tracker)
    intake = Intake(formats)
    events: list[Event] = []
    lines = done = 0
    for chunk in chunks(path):
        events += [event for event in intake.feed(chunk) if not isinstance(event, Malformed)]
        lines = chunk.first_line + chunk.data.count(b"\n") - 1
        done += len(chunk.data)
        told(f"reading {path}", done / max(1, Path(path).stat().st_size))
    events += [event for event in intake.flush() if not isinstance(event, Malformed)]
    return Log(path, run, events, lines, Path(path).stat().st_mtime)


def _read_tracker(path: str, run: str, tracker: Tracker) -> Log:
    try:
        written = Path(path).stat()
        records = [record for batch in whole(tracker, os.path.abspath(path)) for record in batch.records]  # noqa: PTH100 - idem
    except OSError as error:
        raise TrainerExporterError(f"{path}: cannot be read ({error.strerror}); name a log file") from error
    return Log(path, run, records, records[-1].line if records else 0, written.st_mtime)


def quoted(path: str, numbers: Collection[int]) -> dict[int, str]:
    """The text of some lines of a log, by number; a tracker's file has none."""
    if not numbers or tracker_for(os.path.abspath(path)) is not None:  # noqa: PTH100 - idem
        return {}
    found: dict[int, str] = {}
    for chunk in chunks(path):
        lines = chunk.data.split(b"\n")
        for number in numbers:
            if 0 <= number - chunk.first_line < len(lines):
                found[number] = lines[number - chunk.first_line].decode("utf-8", "replace")
    return found

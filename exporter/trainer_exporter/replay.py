"""A file read once from beginning to end, and what each of its lines was read as. For people and for other programs.

A tracker's file is read by its reader: a line is then an entry of it. A directory stands for all files that would be followed in it, and
a file that keeps many runs for each of them.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainer_exporter.catalogue import is_private
from trainer_exporter.claims import Event
from trainer_exporter.clock import SystemClock
from trainer_exporter.envelope import MAX_TEXT
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.formats import Format, registry
from trainer_exporter.health import Health
from trainer_exporter.intake import Intake
from trainer_exporter.model import FIELDS, Checkpoint, Chunk, Incident, Malformed, Record
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Spec
from trainer_exporter.sources.pieces import Splitter
from trainer_exporter.sources.trackers import holder_named, tracker_for, whole

_BLOCK_BYTES: Final = 1 << 20
_MAX_WAITING: Final = 100_000  # troubles at a file's beginning
Item = dict[str, Any]


def chunks(path: str | Path) -> Iterator[Chunk]:
    """The file in blocks of whole lines, as history; cut where a follower cuts what is over long."""
    splitter = Splitter(MAX_TEXT)
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                number, at_end = splitter.line, len(block) < _BLOCK_BYTES
                data = splitter.feed(block, at_end=at_end) + (splitter.flush() if at_end else b"")
                if data:
                    yield Chunk(data, number, 0.0, live=False)
    except OSError as error:
        raise TrainerExporterError(f"{path}: cannot be read ({error.strerror}); name a log file") from error
    if rest := splitter.flush():
        yield Chunk(rest, splitter.line, 0.0, live=False)


def items(stream: Iterable[Chunk], intake: Intake | None = None) -> Iterator[Item]:
    """What the chunks of one file say, one dictionary an event, ready for JSON."""
    intake = intake or Intake(registry())
    for chunk in stream:
        for event in intake.feed(chunk):
            yield item(event, intake.format)
    for event in intake.flush():
        yield item(event, intake.format)


def _judged(read: Iterable[Item]) -> Iterator[Item]:
    """Troubles count where a trainer speaks, be it later; in a file without one they are another program's, as the daemon has it."""
    waiting: list[Item] = []
    has_spoken = False
    for each in read:
        has_spoken = has_spoken or not each.keys() & {"incident", "malformed"}
        if not has_spoken and len(waiting) < _MAX_WAITING:
            waiting.append(each)
            continue
        yield from waiting
        waiting.clear()
        yield each
    yield from ({**each, "counted": False} if "incident" in each else each for each in waiting)


def lines(path: str | Path, formats: Sequence[Format] | None = None, *, trackers: bool = True) -> Iterator[Item]:
    """What the file says, one dictionary an event; an unreadable file is a TrainerExporterError.

    ``trackers`` False: it is a log, whatever it is called. Of a directory each event says its ``file``.
    """
    if trackers and _is_many(path):
        for file in _followed(path):
            yield from ({"file": _shortened(file, path), **read} for read in lines(file, formats))
        return
    reading = _Reading(path, formats, trackers=trackers)
    yield from reading.items()


class _Reading:
    """One file's items, and the counts that they leave behind."""

    def __init__(self, path: str | Path, formats: Sequence[Format] | None, *, trackers: bool) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - text only
        self._shown = path
        self._intake = Intake(formats or registry())
        self.tracker = tracker_for(self._path) if trackers and not is_private(self._path, formats or ()) else None
        self._malformed = 0

    def items(self) -> Iterator[Item]:
        if self.tracker is None:
            yield from _judged(items(chunks(self._shown), self._intake))
            return
        try:
            self.tracker.written(self._path)
            for batch in whole(self.tracker, self._path):
                self._malformed += batch.malformed
                yield from (item(record, self.tracker.name) for record in batch.records)
        except OSError as error:
            raise TrainerExporterError(f"{self._shown}: cannot be read ({error.strerror}); name a log file") from error

    def counts(self) -> Item:
        """What was not read, once all has been."""
        counts = self._intake.counts
        return {
            "malformed": counts.get("malformed", 0) + self._malformed,
            "unmatched": counts.get("unmatched", 0),
            "last_unrecognised": self._intake.last_unrecognised,
        }


def _is_many(path: str | Path) -> bool:
    """Whether several sources are found there: in a directory, or in a file that keeps many runs."""
    return Path(path).is_dir() or (Path(path).is_file() and holder_named(os.path.abspath(path)) is not None)  # noqa: PTH100 - text only


def _followed(directory: str | Path) -> list[str]:
    """What a daemon would follow there, however old."""
    discovery = Discovery([Spec(str(directory))], SystemClock(), Health(), limits=DiscoveryLimits(max_age_s=math.inf))
    found = sorted(each.path for each in discovery.scan(now=True))
    if not found:
        raise TrainerExporterError(f"{directory}: there is no log in this directory; name a log file")
    return found


def _shortened(file: str, place: str | Path) -> str:
    return os.path.relpath(file, place if Path(place).is_dir() else Path(place).parent)


def item(event: Event, name: str) -> Item:
    """One event for JSON: field names as in ``model``, numbers that are not finite as strings."""
    if isinstance(event, Incident):
        return {"line": event.line, "incident": event.kind}
    if isinstance(event, Malformed):
        return {"line": event.line, "format": event.format or name, "malformed": event.reason}
    return {"line": event.line, "format": event.format or name, **_said(event)}


def summary(path: str | Path, formats: Sequence[Format] | None = None, *, trackers: bool = True) -> Item:
    """Counts of what was read, with the ends of the run; of a directory, those of its files."""
    if trackers and _is_many(path):
        return {"files": {_shortened(file, path): summary(file, formats) for file in _followed(path)}}
    reading = _Reading(path, formats, trackers=trackers)
    by_format: Counter[str] = Counter()
    incidents: Counter[str] = Counter()
    others: Counter[str] = Counter()
    out: Item = {"records": 0, "records_with_loss": 0, "first_step": None, "last_step": None, "last_loss": None}
    for read in reading.items():
        if "incident" in read:
            (incidents if read.get("counted", True) else others)[read["incident"]] += 1
            continue
        by_format[read["format"]] += 1
        out["records"] += 1
        _follow(out, read)
    return {
        **out,
        "formats": dict(by_format),
        "incidents": dict(incidents),
        "troubles_without_a_trainer": dict(others),
        **reading.counts(),
    }


def text(read: Mapping[str, Any]) -> str:
    """One event for a person."""
    head = f"{read['file']}: " if "file" in read else ""
    head += f"{read['line']:>7}  "
    if "incident" in read:
        return f"{head}incident  {read['incident']}{'' if read.get('counted', True) else '  (not counted: no trainer speaks in this file)'}"
    rest = "  ".join(f"{key}={_shown(value)}" for key, value in read.items() if key not in {"file", "line", "format"})
    return f"{head}{read['format']}  {rest}"


def summary_text(counts: Item) -> str:
    """A summary for a person."""
    if "files" in counts:
        return "\n\n".join(f"{file}\n{_block(each)}" for file, each in counts["files"].items())
    return _block(counts)


def _block(counts: Item) -> str:
    return "\n".join(f"{key.replace('_', ' ')}: {_shown(value)}" for key, value in counts.items())


def _follow(out: Item, read: Item) -> None:
    if "loss" in read:
        out["records_with_loss"] += 1
        out["last_loss"] = read["loss"]
        if "step" in read:
            out["first_step"] = read["step"] if out["first_step"] is None else out["first_step"]
            out["last_step"] = read["step"]


def _said(record: Record) -> Item:
    out: Item = {name: _number(record.fields[name]) for name in _ORDER if name in record.fields}
    out |= {name: _number(value) for name, value in record.fields.items() if name not in out}
    if not record.step_exact:
        out["step_exact"] = False
    if record.metrics:
        out["metrics"] = {name: _number(value) for name, value in sorted(record.metrics.items())}
    if record.hidden_nonfinite:
        out["hidden_nonfinite"] = sorted(record.hidden_nonfinite)
    if record.phase:
        out["phase"] = record.phase.value
    if record.checkpoint:
        out["checkpoint"] = _checkpoint(record.checkpoint)
    if record.facts:
        out["facts"] = dict(sorted(record.facts.items()))
    out |= {name: True for name in ("starts", "closes") if getattr(record, name)}
    if record.stamp:
        out["stamp"] = round(record.stamp.seconds, 6)
        out["stamp_zoned"] = record.stamp.zoned
    return out


_FIRST: Final = ("step", "target_steps", "epoch", "loss", "eval_loss", "grad_norm", "learning_rate", "loss_scale")
_ORDER: Final = (*_FIRST, *sorted(FIELDS.difference(_FIRST)))


def _checkpoint(news: Checkpoint) -> Item:
    out: Item = {"event": news.event.value}
    if news.step is not None:
        out["step"] = news.step
    if news.path:
        out["path"] = news.path
    if news.duration_seconds is not None:
        out["duration_seconds"] = round(news.duration_seconds, 6)
    if not news.blocking:
        out["blocking"] = False
    return out


def _number(value: float) -> int | float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15) else value


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown}" for key, shown in value.items()) or "none"
    return "none" if value is None or value == "" else str(value)

"""Recorded logs -> virtual time -> the shipped rules -> what would have paged, when.

The log is told to the real run state as if it were live, the real collectors are scraped on a virtual clock, and promtool evaluates the
rule files over those series: nothing of PromQL is written again here. (promtool's ``test rules`` is the one of Prometheus's programs that
runs alerting rules in virtual time; its block builder ignores them.)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from trainer_exporter import incidents
from trainer_exporter.catalogue import is_private
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.formats import Format
from trainer_exporter.intake import Intake
from trainer_exporter.metrics import runs as run_metrics
from trainer_exporter.model import Incident, Malformed, Record
from trainer_exporter.replay import chunks
from trainer_exporter.rulefiles import group_order
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.sources.naming import run_names
from trainer_exporter.sources.trackers import Tracker, tracker_for, whole

Event = Record | Incident

INTERVAL_S: Final = 15
AFTER_S: Final = 60.0  # enough for an incident to be judged, too short for a stall
MAX_GAP_S: Final = 3 * 3600.0  # a pause in the log; every rule about silence has fired before that
SOURCE: Final = "log"
SHIPPED: Final = Path(__file__).with_name("alertmanager")

_GOT: Final = re.compile(r"(?m), time: (\w+), *\n +exp:.*\n +got:(.*)$")
_ALERT: Final = re.compile(r'\{((?:\w+="(?:[^"\\]|\\.)*"(?:, )?)*)\}')
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


@dataclass(frozen=True, slots=True)
class Log:
    """What one run's log says, in the order of its lines."""

    path: str
    run: str
    events: Sequence[Event]
    lines: int
    ended_wall: float  # when the file was written last, for logs without times


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert that would have fired."""

    alert: str
    severity: str
    run: str
    line: int  # the last line read when it fired
    step: float | None
    wall: float
    resolved_wall: float | None  # None: it was firing at the end
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What a backtest found."""

    firings: Sequence[Firing]
    clock: str  # where the virtual time came from: stamps, elapsed, durations, steps
    seconds: float  # from the first line to the last


class VirtualTime:
    """Seconds since the start of the log, for each of its events.

    Taken from the stamps of the lines where most records have one, else from the time elapsed that the trainer prints, else from the step
    times that it prints, else ``step_s`` a step. Never runs backwards.
    """

    def __init__(self, events: Sequence[Event], *, step_s: float | None = None) -> None:
        records = [event for event in events if isinstance(event, Record) and event.fields]
        self.kind = "steps" if step_s is not None else _clock_of(records)
        self.first_stamp = next((event.stamp for event in events if event.stamp is not None), None) if self.kind == "stamps" else None
        self._step_s = 1.0 if step_s is None else step_s
        self.now = 0.0
        self._mark: float | None = None
        self._step: float | None = None

    def at(self, event: Event) -> float:
        """When this event happened; events are told in order."""
        if self.kind == "stamps":
            self._advance_to(None if event.stamp is None else event.stamp.seconds)
        elif isinstance(event, Record) and self.kind == "elapsed":
            self._advance_to(event.fields.get("elapsed_seconds"))
        elif isinstance(event, Record):
            self._advance_by_steps(event)
        return self.now

    def _advance_to(self, mark: float | None) -> None:
        if mark is None:
            return
        if self._mark is not None and mark > self._mark:
            self.now += min(mark - self._mark, MAX_GAP_S)
        self._mark = mark

    def _advance_by_steps(self, record: Record) -> None:
        step = record.fields.get("step")
        if step is None:
            if "loss" in record.fields and self._step is None:
                self.now += self._step_s
            return
        steps = step - self._step if self._step is not None and step > self._step else 0.0 if step == self._step else 1.0
        self._step = step
        self.now += min(steps * self._seconds_a_step(record), MAX_GAP_S)

    def _seconds_a_step(self, record: Record) -> float:
        return record.fields.get("step_duration_seconds", self._step_s) if self.kind == "durations" else self._step_s


def backtest(log: Log, *, rules: Sequence[Path], after_s: float = AFTER_S, step_s: float | None = None) -> Result:
    """What the rules would have said while this log was written, and for ``after_s`` after its last line."""
    clock = VirtualTime(log.events, step_s=step_s)
    tape = Tape()
    marks = _play(log, clock, tape, after_s=after_s)
    base = clock.first_stamp.seconds if clock.first_stamp is not None else log.ended_wall - clock.now
    firings = [firing for episode in _episodes(evaluate(tape, rules)) if (firing := _firing(episode, marks, base)) is not None]
    return Result(firings, clock.kind, clock.now)


class Tape:
    """Series as Prometheus would have scraped them, every ``INTERVAL_S`` from 0 on."""

    def __init__(self) -> None:
        self.scrapes = 0
        self._series: dict[str, list[str]] = {}

    def scrape(self, samples: Mapping[str, float]) -> None:
        """Add one scrape: series -> value. A series that is missing after it was there goes stale, as with Prometheus."""
        for series, value in samples.items():
            values = self._series.setdefault(series, ["_"] * self.scrapes)
            values.append(repr(value))
        self.scrapes += 1
        for values in self._series.values():
            if len(values) < self.scrapes:
                values.append("stale" if values[-1] not in {"_", "stale"} else "_")

    def input_series(self) -> list[dict[str, str]]:
        """As promtool's unit tests have it."""
        return [{"series": series, "values": " ".join(_compressed(values))} for series, values in self._series.items()]


def evaluate(tape: Tape, rules: Sequence[Path]) -> list[tuple[float, Mapping[str, str]]]:
    """(seconds since the start, labels) of every alert that fires at an evaluation, in the order of time; by the real Prometheus."""
    promtool = shutil.which("promtool")
    if promtool is None:
        raise TrainerExporterError("promtool is missing: it comes with Prometheus (on Debian: apt-get install prometheus)")
    moments = [number * INTERVAL_S for number in range(tape.scrapes)]
    asked = [{"expr": 'ALERTS{alertstate="firing",alertname!="Watchdog"}', "eval_time": f"{moment}s"} for moment in moments]
    test = {"interval": f"{INTERVAL_S}s", "input_series": tape.input_series(), "promql_expr_test": asked}
    document = {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": f"{INTERVAL_S}s",
        "group_eval_order": group_order(rules),
        "tests": [test],
    }
    with tempfile.TemporaryDirectory(prefix="trainer-exporter-backtest-") as folder:
        path = Path(folder, "backtest.yml")
        path.write_text(json.dumps(document))  # JSON is YAML
        done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    # It takes every alert for a failed expectation, and says what it got.
    said = done.stdout + done.stderr
    found = [(_seconds(match[1]), dict(_LABEL.findall(alert))) for match in _GOT.finditer(said) for alert in _ALERT.findall(match[2])]
    if done.returncode != 0 and not found:
        raise TrainerExporterError(f"promtool cannot evaluate the rules: {said.strip()[:500]}")
    return sorted(found, key=lambda each: each[0])


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far the log had been read at a scrape."""

    at_s: float
    line: int
    step: float | None


def _play(log: Log, clock: VirtualTime, tape: Tape, *, after_s: float) -> list[_Mark]:
    """Tell the log to a run's state and scrape it on the way; what had been read at each scrape."""
    state = RunState(log.run, StateSettings(incident_kinds=incidents.KINDS), daemon_start=0.0)
    marks: list[_Mark] = []
    line, step, now = 0, None, 0.0

    def scrape_until(moment: float) -> None:
        while tape.scrapes * INTERVAL_S < moment:
            at = float(tape.scrapes * INTERVAL_S)
            tape.scrape(_samples(state, at))
            marks.append(_Mark(at, line, step))

    for event in log.events:
        now = clock.at(event)
        scrape_until(now)
        state.fold(event, Moment(now, live=True, tick=now, clock="arrival"), source=SOURCE)
        line = event.line
        if isinstance(event, Record):
            step = event.fields.get("step", step)
    line = max(line, log.lines)
    scrape_until(now + after_s + INTERVAL_S)
    return marks


def _samples(state: RunState, now: float) -> dict[str, float]:
    target = {"job": "trainer-exporter", "instance": "backtest"}
    found = {_series("up", target): 1.0}
    if not state.has_record:
        return found
    for sample in run_metrics.samples([state.snapshot(now)], now):
        labels = {**dict(zip(sample.family.labels, sample.labels, strict=True)), **(sample.extra or {}), **target}
        found[_series(sample.family.name + sample.suffix, labels)] = sample.value
    return found


def _series(name: str, labels: Mapping[str, str]) -> str:
    shown = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in sorted(labels.items()) if value)
    return f"{name}{{{shown}}}"


def _compressed(values: Sequence[str]) -> Iterator[str]:
    """Equal values in a row as promtool writes them: ``2+0x5`` is the value 2 and five more."""
    start = 0
    while start < len(values):
        end = start + 1
        while end < len(values) and values[end] == values[start]:
            end += 1
        value = values[start]
        if end - start == 1 or value in {"stale", "nan", "inf", "-inf"}:
            yield from [_literal(value)] * (end - start)
        elif value == "_":
            yield f"_x{end - start}"
        else:
            yield f"{value}+0x{end - start - 1}"
        start = end


def _literal(value: str) -> str:
    return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(value, value)


def _clock_of(records: Sequence[Record]) -> str:
    """The best clock that at least half of the records carry."""
    enough = max(1, len(records) / 2)
    if sum(record.stamp is not None for record in records) >= enough:
        return "stamps"
    if sum("elapsed_seconds" in record.fields for record in records) >= enough:
        return "elapsed"
    if sum("step_duration_seconds" in record.fields for record in records) >= enough:
        return "durations"
    return "steps"


def _episodes(found: Iterable[tuple[float, Mapping[str, str]]]) -> list[tuple[Mapping[str, str], float, float]]:
    """(labels, first, last evaluation) of each time that an alert fired without a pause."""
    open_: dict[tuple[tuple[str, str], ...], list[float]] = {}
    done: list[tuple[Mapping[str, str], float, float]] = []
    for moment, labels in found:
        key = tuple(sorted(labels.items()))
        ends = open_.get(key)
        if ends is not None and moment - ends[1] <= INTERVAL_S:
            ends[1] = moment
            continue
        if ends is not None:
            done.append((dict(key), *ends))  # type: ignore[arg-type]
        open_[key] = [moment, moment]
    done += [(dict(key), first, last) for key, (first, last) in open_.items()]
    return sorted(done, key=lambda episode: (episode[1], episode[0].get("alertname", "")))


def _firing(episode: tuple[Mapping[str, str], float, float], marks: Sequence[_Mark], base: float) -> Firing | None:
    labels, first, last = episode
    if not (labels.get("run") or labels.get("uuid")):
        return None
    mark = marks[round(first / INTERVAL_S)]
    resolved = None if last >= marks[-1].at_s else base + last + INTERVAL_S
    shown = {name: value for name, value in labels.items() if name not in {"__name__", "alertstate"}}
    return Firing(
        alert=labels.get("alertname", ""),
        severity=labels.get("severity", ""),
        run=labels.get("run", ""),
        line=mark.line,
        step=mark.step,
        wall=base + first,
        resolved_wall=resolved,
        labels=shown,
    )


def read(paths: Sequence[str], formats: Sequence[Format]) -> list[Log]:
    """The logs as they are, one for each file; an unreadable one is a TrainerExporterError."""
    named = run_names([os.path.abspath(path) for path in paths], {})  # noqa: PTH100 - text only: links are kept as the user wrote them
    return [_read(path, named[os.path.abspath(path)].run, formats) for path in paths]  # noqa: PTH100


def _read(path: str, run: str, formats: Sequence[Format]) -> Log:
    tracker = tracker_for(os.path.abspath(path))  # noqa: PTH100 - idem
    if tracker is not None and not is_private(path, formats):
        return _read_tracker(path, run, tracker)
    intake = Intake(formats)
    events: list[Event] = []
    lines = 0
    for chunk in chunks(path):
        events += [event for event in intake.feed(chunk) if not isinstance(event, Malformed)]
        lines = chunk.first_line + chunk.data.count(b"\n") - 1
    events += [event for event in intake.flush() if not isinstance(event, Malformed)]
    return Log(path, run, events, lines, Path(path).stat().st_mtime)


def _read_tracker(path: str, run: str, tracker: Tracker) -> Log:
    try:
        written = Path(path).stat()
        records = [record for batch in whole(tracker, os.path.abspath(path)) for record in batch.records]  # noqa: PTH100 - idem
    except OSError as error:
        raise TrainerExporterError(f"{path}: cannot be read ({error.strerror}); name a log file") from error
    return Log(path, run, records, records[-1].line if records else 0, written.st_mtime)


def rule_files(folder: str | None) -> list[Path]:
    """The shipped rule files, or those in a folder of one's own."""
    place = SHIPPED / "rules" if folder is None else Path(folder)
    found = sorted(place.glob("*.yml"))
    if not found:
        raise TrainerExporterError(f"{place}: no rule files (*.yml) there; name a directory with --rules")
    return found


def remedy(alert: str) -> str:
    """What the alert's runbook says to do first; "" for an alert without one."""
    try:
        text = (SHIPPED / "runbooks" / f"{alert}.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"## Mitigation\n+[*-] (.+)", text)
    return match[1] if match else ""


def document(firings: Iterable[Firing]) -> list[dict[str, Any]]:
    """For JSON: times as RFC 3339, ``resolved_time`` null while firing."""
    return [
        {
            "alert": firing.alert,
            "severity": firing.severity,
            "run": firing.run,
            "line": firing.line,
            "step": None if firing.step is None else int(firing.step) if firing.step == int(firing.step) else firing.step,
            "time": rfc3339(firing.wall),
            "resolved_time": None if firing.resolved_wall is None else rfc3339(firing.resolved_wall),
        }
        for firing in firings
    ]


def text(log: Log, result: Result) -> str:
    """For a person: a line for each alert, and the first remedy of its runbook."""
    clocks = {"stamps": "its stamps", "elapsed": "the time it prints", "durations": "the step times it prints", "steps": "its steps"}
    head = f"{log.path}: run {log.run}, {result.seconds / 3600:.2f} h by {clocks[result.clock]}"
    if not result.firings:
        return f"{head}: no alert would have fired"
    lines = [head]
    for firing in result.firings:
        until = "still firing at the end" if firing.resolved_wall is None else f"until {rfc3339(firing.resolved_wall)}"
        step = "" if firing.step is None else f", step {firing.step:.0f}"
        lines.append(f"  {rfc3339(firing.wall)}  {firing.severity:8}  {firing.alert}  at line {firing.line}{step}, {until}")
        if first := remedy(firing.alert):
            lines.append(f"      first: {first}")
    return "\n".join(lines)


def rfc3339(wall: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(duration: str) -> float:
    return sum(float(number) * _UNIT_S[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhdwy])", duration))

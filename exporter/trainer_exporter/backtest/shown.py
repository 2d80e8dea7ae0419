"""What a backtest found, as a timeline for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from trainer_exporter.backtest.runbooks import runbook
from trainer_exporter.backtest.values import Firing, Log, Result

CLOCKS = {"stamps": "its stamps", "elapsed": "the time it prints", "durations": "the step times it prints", "steps": "its steps"}


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
    """For a person: a line for each alert, and the first remedy of its runbook where it is named first."""
    head = f"{log.path}: run {log.run}, {result.seconds / 3600:.2f} h by {CLOCKS[result.clock]}"
    if not result.firings:
        return f"{head}: no alert would have fired"
    lines = [head]
    told: set[str] = set()
    for firing in result.firings:
        lines.append(f"  {entry(firing)}")
        if firing.alert not in told and (first := runbook(firing.alert).first):
            lines.append(f"      first: {first}")
        told.add(firing.alert)
    return "\n".join(lines)


def entry(firing: Firing) -> str:
    """One alert on one line: when, severity, which, where in the log, for how long its condition had held, until when."""
    until = "still firing at the end" if firing.resolved_wall is None else f"until {rfc3339(firing.resolved_wall)}"
    step = "" if firing.step is None else f", step {firing.step:.0f}"
    held = "" if firing.pending in {"", "0s"} else f", for {firing.pending}"
    card = f" on {firing.labels['uuid']}" if "uuid" in firing.labels else ""
    return f"{rfc3339(firing.wall)}  {firing.severity:8}  {firing.alert}{card}  at line {firing.line}{step}{held}, {until}"


def rfc3339(wall: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

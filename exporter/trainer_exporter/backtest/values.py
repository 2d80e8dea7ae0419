"""What a backtest takes in and gives out. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer_exporter.model import Incident, Record

Event = Record | Incident


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
    at_s: float = 0.0  # since the start of the log, as Result.times
    pending: str = ""  # the rule's ``for``: how long its condition had held by then
    annotations: Mapping[str, str] = field(default_factory=dict)  # as the page would have said them; empty unless asked for


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the log had been read at a scrape, and how fast the run was."""

    at_s: float
    line: int
    step: float | None
    speed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What a backtest found."""

    firings: Sequence[Firing]
    clock: str  # where the virtual time came from: stamps, elapsed, durations, steps
    seconds: float  # from the first line to the last
    times: Sequence[float] = ()  # when each of the log's events happened, in seconds since its start
    marks: Sequence[Mark] = ()
    phase: str = ""  # what the run was doing at the end
    attempts: int = 1
    seen: frozenset[str] = frozenset()  # metrics that had a value at any time
    asked: frozenset[str] = frozenset()  # those that the rules ask for
    unjudged: Sequence[str] = ()  # alerts for which there was no input at all

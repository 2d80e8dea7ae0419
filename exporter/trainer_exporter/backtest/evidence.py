"""What the log itself says for an alert: figures with their lines and steps, and the trouble that it tells of."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.backtest.runbooks import Runbook
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.model import VALUE_FIELDS, Incident, Record

BEFORE: Final = 100  # records that show what was usual, as the exporter's baseline
RECENT_S: Final = 180.0  # trouble that is told that long before an alert belongs to it
_BY_LENGTH: Final = sorted(VALUE_FIELDS, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Value:
    """One figure as the log has it."""

    line: int
    step: float | None
    value: float

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return f"line {self.line}" + ("" if self.step is None else f", step {self.step:.0f}")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble that the log tells of."""

    kind: str
    first: int  # line
    times: int


def values_of(events: Iterable[Record | Incident], field: str) -> list[Value]:
    """All values of a field, in the order of the log."""
    found: list[Value] = []
    step: float | None = None
    for event in events:
        if isinstance(event, Record):
            step = event.fields.get("step", step)
            if field in event.fields:
                hidden = field in event.hidden_nonfinite
                found.append(Value(event.line, step, math.nan if hidden else event.fields[field]))
    return found


def troubles(events: Iterable[Record | Incident]) -> list[Trouble]:
    """Every kind of trouble, in the order in which the kinds appear."""
    found: dict[str, Trouble] = {}
    for event in events:
        if isinstance(event, Incident):
            before = found.get(event.kind)
            found[event.kind] = Trouble(event.kind, before.first if before else event.line, (before.times if before else 0) + 1)
    return list(found.values())


class Evidence:
    """The evidence for the alerts of one log."""

    def __init__(self, log: Log, result: Result) -> None:
        self._log = log
        self._result = result
        self._values: dict[str, list[Value]] = {}

    def figures(self, firing: Firing, book: Runbook) -> Iterator[str]:
        """One line a figure that the alert's runbook asks for and that the log has."""
        for field in dict.fromkeys(field_of(metric) for metric in book.metrics):
            if field and (values := self.until(firing, field)):
                yield f"{field}: {_story(values)}"
        yield from self._pause(firing, book)

    def until(self, firing: Firing, field: str) -> list[Value]:
        """A field's values up to the line at which the alert fired."""
        values = self._values.setdefault(field, values_of(self._log.events, field))
        return values[: bisect_right(values, firing.line, key=lambda value: value.line)]

    def trouble(self, firing: Firing) -> list[Trouble]:
        """What the log told within the minutes before the alert."""
        recent = [
            event
            for event, at_s in zip(self._log.events, self._result.times, strict=True)
            if event.line <= firing.line and firing.at_s - RECENT_S <= at_s <= firing.at_s
        ]
        return troubles(recent)

    def _pause(self, firing: Firing, book: Runbook) -> Iterator[str]:
        """How long no step had come, for the alerts that are about that."""
        if not any(metric.startswith("trainer_progress") for metric in book.metrics):
            return
        last = _last_progress(self._log.events, self._result.times, firing.at_s)
        if last is not None:
            value, at_s = last
            yield f"no step for {firing.at_s - at_s:.0f} s: the last is on {value.place}"


def _last_progress(events: Sequence[Record | Incident], times: Sequence[float], now: float) -> tuple[Value, float] | None:
    found: tuple[Value, float] | None = None
    for event, at_s in zip(events, times, strict=True):
        if at_s > now:
            break
        if isinstance(event, Record) and (step := event.fields.get("step")) is not None and (found is None or step != found[0].value):
            found = Value(event.line, step, step), at_s
    return found


def field_of(metric: str) -> str:
    """The field of the log from which a metric comes, by its name; "" where it comes from none."""
    name = metric.removeprefix("trainer_").removeprefix("nonfinite_").removeprefix("run_")
    return next((field for field in _BY_LENGTH if name.startswith(field)), "loss" if metric.startswith("trainer_nonfinite") else "")


def _story(values: Sequence[Value]) -> str:
    """What happened to a figure, as short as it can be told."""
    last = values[-1]
    if not math.isfinite(last.value):
        return _no_number(values)
    before = [value.value for value in values[-BEFORE - 1 : -1] if math.isfinite(value.value)]
    if not before:
        return f"{shown(last.value)} on {last.place}"
    window = [value for value in values[-BEFORE:] if math.isfinite(value.value)]
    low, high = (pick(window, key=lambda value: value.value) for pick in (min, max))
    if low.value == high.value:
        return f"{shown(last.value)} on {last.place}, the same in all of the last {len(window)} records"
    return (
        f"{shown(last.value)} on {last.place}; in the {len(window)} records up to it median {shown(median(before))}, "
        f"lowest {shown(low.value)} (line {low.line}), highest {shown(high.value)} (line {high.line})"
    )


def _no_number(values: Sequence[Value]) -> str:
    start = len(values)
    while start and not math.isfinite(values[start - 1].value):
        start -= 1
    first, count = values[start], len(values) - start
    since = f"{shown(first.value)} from {first.place} on, {count} record{'s' if count > 1 else ''} in a row"
    before = f"; the last number is {shown(values[start - 1].value)} on {values[start - 1].place}" if start else "; never a number"
    return since + before


def median(values: Iterable[float]) -> float:
    """The middle one of some finite values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def shown(value: float) -> str:
    """A figure in four digits."""
    return "NaN" if math.isnan(value) else f"{value:.4g}"

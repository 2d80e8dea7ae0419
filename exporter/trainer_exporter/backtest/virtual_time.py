"""Seconds since the start of a log, for each of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_exporter.backtest.values import Event
from trainer_exporter.model import Record

MAX_GAP_S: Final = 3 * 3600.0  # a pause in the log; every rule about silence has fired before that


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

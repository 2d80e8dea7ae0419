"""A log told to the real run state as if it were live, and the real collectors scraped on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainer_exporter import incidents
from trainer_exporter.backtest.gpus import GpuSeries
from trainer_exporter.backtest.logs import Told, silent
from trainer_exporter.backtest.tape import INTERVAL_S, Tape, series
from trainer_exporter.backtest.values import Log, Mark
from trainer_exporter.metrics import runs as run_metrics
from trainer_exporter.model import Record
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

SOURCE = "log"
INSTANCE = "backtest"
SPEEDS = ("tokens_per_second", "samples_per_second", "step_duration_seconds")
_TELL_EVERY = 1000  # events


class Play:
    """One log's play; ``times`` says when each of its events happens, ``base`` the Unix time of the first.

    ``marks`` says how far it had been read at each scrape.
    """

    def __init__(
        self, log: Log, times: Sequence[float], *, base: float, clock: str, instance: str = INSTANCE, gpus: GpuSeries | None = None
    ) -> None:
        self.tape = Tape()
        self.marks: list[Mark] = []
        self.times = times
        self.base = base
        self.clock = clock
        self._log = log
        self._target = {"job": "trainer-exporter", "instance": instance}
        self._gpus = gpus
        self._state = RunState(log.run, StateSettings(incident_kinds=incidents.KINDS), daemon_start=0.0)
        self._line = 0
        self._step: float | None = None

    def to_the_end(self, *, after_s: float, told: Told = silent) -> None:
        """Tell the whole log, and scrape on for ``after_s`` after its last line."""
        now = 0.0
        for number, (event, now) in enumerate(zip(self._log.events, self.times, strict=True)):
            self._scrape_until(now)
            self._state.fold(event, Moment(now, live=True, tick=now, clock="arrival"), source=SOURCE)
            self._line = event.line
            if isinstance(event, Record):
                self._step = event.fields.get("step", self._step)
            if number % _TELL_EVERY == 0:
                told(f"playing {self._log.path}", number / len(self._log.events))
        self._line = max(self._line, self._log.lines)
        self._scrape_until(now + after_s + INTERVAL_S)

    def own(self, found: Iterable[tuple[float, Mapping[str, str]]]) -> Iterator[tuple[float, Mapping[str, str]]]:
        """Of the alerts of all plays at once, those of this one while it lasted."""
        for at_s, labels in found:
            is_own = labels["run"] == self._log.run if labels.get("run") else labels.get("instance") == self._target["instance"]
            if is_own and at_s <= self.marks[-1].at_s:
                yield at_s, labels

    @property
    def phase(self) -> str:
        """What the run was doing at the end; "" of a log in which no trainer spoke."""
        return self._state.phase(self.marks[-1].at_s).value if self._state.has_record else ""

    @property
    def attempts(self) -> int:
        """Starts of the trainer seen in the log."""
        return self._state.attempts

    def _scrape_until(self, moment: float) -> None:
        while self.tape.scrapes * INTERVAL_S < moment:
            at = float(self.tape.scrapes * INTERVAL_S)
            samples, speed = self._samples(at)
            self.tape.scrape(
                samples if self._gpus is None else {**samples, **self._gpus.at(at, run=self._log.run, instance=self._target["instance"])}
            )
            self.marks.append(Mark(at, self._line, self._step, speed))

    def _samples(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        found = {series("up", self._target): 1.0}
        if not self._state.has_record:
            return found, {}
        snapshot = self._state.snapshot(now)
        for sample in run_metrics.samples(snapshot, now):
            labels = {**dict(zip(sample.family.labels, sample.labels, strict=True)), **(sample.extra or {}), **self._target}
            found[series(sample.family.name + sample.suffix, labels)] = sample.value
        return found, {name: snapshot.gauges[name] for name in SPEEDS if name in snapshot.gauges}

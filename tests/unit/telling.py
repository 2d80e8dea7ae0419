"""A run that is told record by record, for the tests of its state."""

from __future__ import annotations

from trainer_exporter.model import Incident, Record
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

START = 1_700_000_000.0
CONSOLE, JSON = "console.log", "trainer_log.jsonl"


class Story:
    """A run that is told record by record, live, ten seconds a record unless said otherwise."""

    def __init__(self) -> None:
        self.state = RunState("demo", StateSettings(incident_kinds=("cuda_oom", "time_limit")), daemon_start=START)
        self.now = START
        self.line = 0

    def record(self, *, after: float = 10.0, source: str = CONSOLE, live: bool = True, **about: object) -> None:
        self.line += 1
        self.now += after
        special = {"precise", "starts", "closes", "phase", "hidden_nonfinite", "step_exact", "checkpoint", "metrics", "facts"}
        fields = {name: value for name, value in about.items() if name not in special}
        record = Record(line=self.line, fields=fields, **{name: value for name, value in about.items() if name in special})  # type: ignore[arg-type]
        moment = Moment(self.now, True, tick=self.now, clock="arrival") if live else Moment(None, False)
        self.state.fold(record, moment, source=source, format_name="plain")

    def incident(self, kind: str, *, fatal: bool = True, wall: float | None = None) -> None:
        self.line += 1
        moment = Moment(self.now if wall is None else wall, True)
        self.state.fold(Incident(self.line, kind, fatal), moment, source=CONSOLE)

    def steps(self, *steps: int, loss: float = 2.0, **about: object) -> None:
        for step in steps:
            self.record(step=step, loss=loss, **about)  # type: ignore[arg-type]

    @property
    def seen(self):
        return self.state.snapshot(self.now)

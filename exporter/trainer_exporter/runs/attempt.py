"""One attempt of a run: from a start of the trainer to its end or the next start. Each is a new object, so no window spans two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trainer_exporter.model import Incident, Phase, Record
from trainer_exporter.runs import signals
from trainer_exporter.runs.restarts import SourceState
from trainer_exporter.runs.rows import Rows, gaps, rank
from trainer_exporter.runs.series import WINDOWS, FieldSeries
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.runs.windows import Gaps

SERIES_FIELDS = (
    "loss",
    "eval_loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "samples_per_second",
    "tokens_per_second",
    "tflops_per_gpu",
    "mfu_ratio",
)
SPIKING = ("loss", "grad_norm")
WINDOWED = (
    ("loss", "change"),
    ("loss", "oscillation"),
    ("grad_norm", "change"),
    ("learning_rate", "change"),
)
MAX_EVAL_METRICS = 32
USER_CANCELLED = "cancelled"


class Attempt:
    """Place, values and signs of life of one attempt."""

    def __init__(self, *, latch_s: float) -> None:
        windowed = {name for name, _ in WINDOWED}
        self.series = {name: FieldSeries(latch_s=latch_s, windows=name in windowed, spikes=name in SPIKING) for name in SERIES_FIELDS}
        self.eval_metrics: dict[str, list[float]] = {}
        self.eval_losses: list[float] = []
        self.started_wall: float | None = None  # None: of the first attempt, or unknown
        self._result_steps: dict[str, float] = {}
        self.gaps = Gaps()
        self.step: float | None = None
        self.target: float | None = None
        self.epoch: float | None = None
        self.remaining_s: float | None = None
        self.has_progress = False
        self.progress_wall: float | None = None
        self.progress_source = ""
        self.progress_line = 0
        self.closed = False
        self.fatal_wall: float | None = None
        self.cancelled = False
        self.note = ""
        self.stage = Phase.STARTING  # what the log says; whether the run has died is judged by the run
        self._tick: tuple[str, str, float] | None = None
        self._interrupted = False

    def advances(self, record: Record) -> bool:
        """Whether this record is progress: a step that is higher; without any step in the log, another loss or a later epoch."""
        step = record.fields.get("step")
        if step is None:
            epoch = record.fields.get("epoch")
            later = epoch is not None and (self.epoch is None or epoch > self.epoch)
            return self.step is None and ("loss" in record.fields or later)
        return self.step is None or step > self.step

    def progress(self, record: Record, moment: Moment, *, source: str) -> float | None:
        """Take over the place of a record that advances; the pause before it, in seconds, where it was training and is known."""
        gap = None if self._interrupted else self._gap(moment, source)
        if gap is not None:
            self.gaps.push(gap)
        self._reach(record, moment, source)
        return gap

    def _reach(self, record: Record, moment: Moment, source: str) -> None:
        self.step = record.fields.get("step", self.step)
        self.has_progress = True
        self.stage = Phase.TRAINING
        self.closed = False
        self.fatal_wall = None
        self.cancelled = False
        self.note = ""
        self.progress_wall, self.progress_source, self.progress_line = moment.wall, source, record.line
        self._tick = None if moment.tick is None else (source, moment.clock, moment.tick)
        self._interrupted = False

    def can_take(self, rows: Rows, *, source: str) -> bool:
        """Whether all of these records are progress, and their values are the ones that count."""
        if not self.has_progress or self._interrupted or self.step is None or rows.steps[0] <= self.step:
            return False
        told = ((self.series[name], column) for name, column in rows.columns.items() if name in self.series)
        return all(series.is_owned_by(source, rows.rank) and column.steps[0] > series.ordinal for series, column in told)

    def progress_all(self, rows: Rows, *, source: str) -> list[float]:
        """As ``progress`` for each of them; the pauses between them."""
        if rows.is_live:
            pauses = gaps(self.progress_wall, rows.walls)
        else:
            is_same_clock = self._tick is not None and self._tick[:2] == (source, rows.moment.clock)
            pauses = gaps(self._tick[2] if is_same_clock and self._tick else None, rows.ticks)
        self.gaps.extend(pauses)
        self._reach(rows.last, rows.moment, source)
        return pauses

    def take_all(self, rows: Rows, *, source: str) -> None:
        """As ``take`` for each of them, where ``can_take`` has said so."""
        wall = rows.moment.wall if rows.is_live else None
        for name, column in rows.columns.items():
            series = self.series.get(name)
            if series is not None:
                series.extend(column, source, rows.rank, precise=rows.last.precise, wall=wall)
        said = {name: column.values[-1] for name, column in rows.columns.items()}
        self.target = said.get("target_steps", self.target)
        self.remaining_s = said.get("remaining_seconds", self.remaining_s)
        self.epoch = said.get("epoch", self.epoch)

    def _gap(self, moment: Moment, source: str) -> float | None:
        if not self.has_progress:
            return None
        if moment.live:
            before, now = self.progress_wall, moment.wall
        elif self._tick is not None and self._tick[:2] == (source, moment.clock):
            before, now = self._tick[2], moment.tick
        else:
            return None
        return now - before if before is not None and now is not None and now > before else None

    def interrupt(self) -> None:
        """A save or an evaluation lies between the last step and the next: the pause is not normal training."""
        self._interrupted = True

    def enter(self, stage: Phase) -> None:
        """The log says that the trainer now does something else."""
        if stage is Phase.STARTING and self.has_progress:
            return  # another source told of a step before this one announced the start
        self.stage = stage
        if stage is not Phase.TRAINING:
            self.interrupt()

    def caught_up(self, source: str, *, mtime: float, lines: int, daemon_start: float) -> None:
        """Place the last progress in time, where its line carried none (design, decision 6)."""
        if self.progress_wall is not None or (self.has_progress and self.progress_source != source):
            return
        if self.has_progress and self.progress_line >= lines:
            self.progress_wall = mtime
        else:
            self.progress_wall = daemon_start
            self.note = "age counts from the daemon's start: the log has no times, and other lines followed the last step"

    def take(self, record: Record, moment: Moment, *, source: str, state: SourceState) -> None:
        """Take over the values of a record."""
        fields = record.fields
        step = fields.get("step", state.step)
        trust = rank(record, is_exact=state.exact)
        wall = moment.wall if moment.live else None
        for field, value in fields.items():
            series = self.series.get(field)
            if series is None:
                continue
            if series.accepts(source, trust, step):
                self._show(series, field, record, step=step, wall=wall)
            elif record.precise:
                series.correct(step, value)
        self.target = fields.get("target_steps", self.target)
        self.remaining_s = fields.get("remaining_seconds", self.remaining_s)
        if "epoch" in fields and (step is None or self.step is None or step >= self.step):
            self.epoch = fields["epoch"]
        if record.metrics:
            self._take_results(record.metrics, step)
        if (record.metrics or "eval_loss" in fields) and self.stage is Phase.EVALUATING:
            self.stage = Phase.TRAINING  # the result has come: the next sign is a step or a save

    def _take_results(self, metrics: Mapping[str, float], step: float | None) -> None:
        """Evaluation results that no source has told of for this step."""
        for name, value in metrics.items():
            told = self._result_steps.get(name)
            if name not in self.eval_metrics and len(self.eval_metrics) >= MAX_EVAL_METRICS:
                continue
            if step is not None and told is not None and step <= told:
                continue
            if step is not None:
                self._result_steps[name] = step
            self.eval_metrics[name] = [*self.eval_metrics.get(name, [])[-signals.EVALUATIONS + 1 :], value]

    def _show(self, series: FieldSeries, field: str, record: Record, *, step: float | None, wall: float | None) -> None:
        value = record.fields[field]
        series.show(step, value, precise=record.precise)
        if not math.isfinite(value) or field in record.hidden_nonfinite:
            return
        series.push(value, wall=wall)
        if field == "eval_loss":
            self.eval_losses = [*self.eval_losses[-signals.EVALUATIONS + 1 :], value]

    def fail(self, incident: Incident, wall: float) -> None:
        """An incident happened at ``wall``; whether it was the end shows when no step follows."""
        self.cancelled = self.cancelled or incident.kind == USER_CANCELLED
        if incident.fatal:
            self.fatal_wall = wall

    @property
    def is_complete(self) -> bool:
        """Whether the target is known and reached."""
        return self.target is not None and self.step is not None and self.step >= self.target

    def window_figures(self) -> Iterable[tuple[tuple[str, str], float]]:
        """((metric name without prefix, window in steps), value) of every figure that has one."""
        for name, figure in WINDOWED:
            for span in WINDOWS:
                window = self.series[name].window
                if window is None:
                    continue
                value = window.change_ratio(span) if figure == "change" else window.oscillation_ratio(span)
                if value is not None:
                    yield (f"{name}_{figure}_ratio", str(span)), value

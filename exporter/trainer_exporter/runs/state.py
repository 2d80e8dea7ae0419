"""The state of one run, folded from what its sources say. No clock and no lock in here: moments come in, a frozen snapshot goes out.

Progress is a step that advanced (design, decision 1); the past of a file is history and fires no latch (decision 6); NaN is data, counted
and kept out of all arithmetic (decision 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainer_exporter.model import CONSTANT_FIELDS, Checkpoint, Incident, Phase, Record, RunSnapshot, Table, Workload
from trainer_exporter.runs import signals
from trainer_exporter.runs.attempt import SPIKING, Attempt
from trainer_exporter.runs.flops import efficiency, logged_shape
from trainer_exporter.runs.restarts import SOONEST_S, SourceState, per_step, step_duration, tokens_per_second
from trainer_exporter.runs.rows import Placed, PlacedTable, Rows, parts, rows, rows_of, told_before
from trainer_exporter.runs.saving import Saves
from trainer_exporter.runs.series import Streaks
from trainer_exporter.runs.timeline import Moment, Moments
from trainer_exporter.runs.troubles import Troubles

NONFINITE_FIELDS = ("loss", "eval_loss", "grad_norm", "learning_rate")
SHOWN_CONSTANTS = ("vocabulary_size", "world_size", "collective_timeout_seconds")
MAX_FACTS = 16
MAX_SOURCES = 64


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What holds for every run. ``incident_kinds`` are shown from 0 on."""

    latch_s: float = 120.0
    fatal_grace_s: float = 60.0  # after a fatal incident, without a step: the run has failed (design, decision 16)
    incident_kinds: Sequence[str] = ()


class RunState:
    """One run, all of its attempts. ``daemon_start`` is the moment from which nothing is history any more."""

    def __init__(self, run: str, settings: StateSettings, *, daemon_start: float) -> None:
        self.run = run
        self.attempts = 1
        self.attempt = Attempt(latch_s=settings.latch_s)
        self.saves = Saves()
        self.has_record = False  # a file in which no trainer has spoken yet is no run
        self.touched_wall = daemon_start
        self._settings = settings
        self._daemon_start = daemon_start
        self._sources: dict[str, SourceState] = {}
        self._formats: set[str] = set()
        self._facts: dict[str, str] = {}
        self._labels: Mapping[str, str] = {}
        self._constants: dict[str, float] = {}
        self._streaks = {name: Streaks() for name in NONFINITE_FIELDS}
        self._troubles = Troubles(settings.incident_kinds)
        self._writer_alive: bool | None = None
        self._skipped: int | None = None
        self._lost_steps = 0
        self._step_before_restart: float | None = None
        self._goodput = signals.Goodput()
        self._space: Mapping[str, float] = {}
        self._workload = Workload()

    def describe(self, *, labels: Mapping[str, str] | None = None, facts: Mapping[str, str] | None = None) -> None:
        """Static labels of the configuration, and identity that a process or the configuration knows."""
        if labels is not None:
            self._labels = dict(labels)
        self._learn(facts or {})

    def fold(self, event: Record | Incident, moment: Moment, *, source: str, format_name: str = "") -> None:
        """Take in what one line says."""
        if moment.wall is not None:
            self.touched_wall = max(self.touched_wall, moment.wall)
        if isinstance(event, Incident):
            self._fold_incident(event, moment, source)
        else:
            self._formats.add(format_name)
            self._fold_record(event, moment, source)

    def fold_all(self, events: Sequence[Placed | PlacedTable], *, source: str, format_name: str = "") -> None:
        """As ``fold`` for each of them, and for each record of a table."""
        waiting: list[Placed] = []
        for event, when in events:
            if not isinstance(event, Table):
                waiting.append((event, when))  # type: ignore[arg-type]  # only a table has moments
                continue
            self._fold_placed(waiting, source, format_name)
            waiting = self._fold_table(event, when, source, format_name)  # type: ignore[arg-type]  # idem
        self._fold_placed(waiting, source, format_name)

    def _fold_table(self, table: Table, moments: Moments, source: str, format_name: str) -> list[Placed]:
        """Take it in as it is; where that cannot be, its records."""
        told = rows_of(table, moments)
        if told is None or not self._can_take(told, source):
            return list(zip(table.records(), moments.each(), strict=True))
        self._formats.add(format_name)
        self._fold_rows(told, source)
        return []

    def _fold_placed(self, events: Sequence[Placed], source: str, format_name: str) -> None:
        for part in parts(events):
            self.fold(*part[0], source=source, format_name=format_name)
            known = 1 + told_before(part[1:], self.attempt.step or 0.0)
            for event, moment in part[1:known]:
                self.fold(event, moment, source=source, format_name=format_name)
            rest = part[known:]
            told = rows(rest)
            if told is not None and self._can_take(told, source):
                self._fold_rows(told, source)
            else:
                for event, moment in rest:
                    self.fold(event, moment, source=source, format_name=format_name)

    def fold_checkpoint(self, news: Checkpoint) -> None:
        """Take in what the directory of checkpoints says."""
        self.saves.fold(news, news.wall)
        self._interrupt()

    def note_writer(self, alive: bool | None) -> None:
        """Whether a process still holds the log or the GPUs; None: it cannot be known."""
        self._writer_alive = alive

    def note_space(self, *, avail_bytes: int, size_bytes: int) -> None:
        """Space of the file system that the run saves to."""
        self._space = {"checkpoint_filesystem_avail_bytes": avail_bytes, "checkpoint_filesystem_size_bytes": size_bytes}

    def note_workload(self, workload: Workload) -> None:
        """What is known of its computation beyond its log."""
        self._workload = workload

    def new_process(self, wall: float) -> None:
        """Another process writes the log than before: a new attempt, unless the present one has not begun."""
        if self.attempt.has_progress:
            self._open_attempt(wall)

    def caught_up(self, source: str, *, mtime: float, lines: int) -> None:
        """All that stood in this source at its opening has been folded; the file has ``lines`` lines and was last written at ``mtime``."""
        for incident in self._troubles.unplaced(source):
            if incident.line >= self.attempt.progress_line:
                self._troubles.place(incident, mtime)
                self.attempt.fail(incident, mtime)
        self.attempt.caught_up(source, mtime=mtime, lines=lines, daemon_start=self._daemon_start)

    @property
    def facts(self) -> Mapping[str, str]:
        """Identity: output_dir, job_id, user, ...; a copy."""
        return dict(self._facts)

    def phase(self, now: float) -> Phase:
        """What the run is doing at ``now``."""
        attempt = self.attempt
        if attempt.closed:
            return Phase.ENDED
        gone = self._writer_alive is False
        fatal = attempt.fatal_wall is not None and now - max(attempt.fatal_wall, attempt.progress_wall or 0) >= self._settings.fatal_grace_s
        if gone or fatal:
            return Phase.ENDED if attempt.is_complete or attempt.cancelled else Phase.FAILED
        return Phase.CHECKPOINTING if self.saves.blocks else attempt.stage

    def snapshot(self, now: float) -> RunSnapshot:
        """A frozen copy of everything, with the figures derived."""
        attempt = self.attempt
        gauges = self._gauges(now)
        return RunSnapshot(
            run=self.run,
            info={"format": "+".join(sorted(self._formats - {""})), **self._facts},
            labels=self._labels,
            phase=self.phase(now),
            attempts=self.attempts,
            gauges=gauges,
            progress_wall=attempt.progress_wall,
            progress_gaps=attempt.gaps.quantiles(),
            windows=dict(attempt.window_figures()),
            nonfinite_total={name: streak.total for name, streak in self._streaks.items()},
            nonfinite_wall={name: streak.wall for name, streak in self._streaks.items() if streak.wall is not None},
            nonfinite_streak={name: streak.streak for name, streak in self._streaks.items()},
            eval_metrics={name: values[-1] for name, values in attempt.eval_metrics.items()},
            eval_metric_changes=signals.changes(attempt.eval_metrics),
            incidents=self._troubles.counts,
            incident_wall=self._troubles.walls,
            checkpoint_durations=self.saves.durations(),
            checkpoint_failures=self.saves.failures,
            checkpoint_started_wall=self.saves.started_wall,
            skipped_steps=self._skipped,
            lost_steps=self._lost_steps,
            writer_alive=self._writer_alive,
            notes=tuple(note for note in (attempt.note, self._missing(gauges)) if note),
        )

    def _open_attempt(self, wall: float | None) -> None:
        self._step_before_restart = self.attempt.step
        self.attempts += 1
        self.attempt = Attempt(latch_s=self._settings.latch_s)
        self.attempt.started_wall = wall
        self.attempt.progress_wall = wall  # the age of a run that hangs before its first step counts from its start
        self.saves.abandon()
        for source in self._sources.values():
            source.new_attempt()
        for streak in self._streaks.values():
            streak.new_attempt()

    def _fold_record(self, record: Record, moment: Moment, name: str) -> None:
        source = self._source(name)
        if self._is_past(moment):
            self._learn(record.facts)
            return
        if self._starts_over(source, record, moment, name):
            self._open_attempt(moment.wall)
        if record.starts and not self.attempt.has_progress and self.attempt.progress_wall is None:
            self.attempt.progress_wall = moment.wall
        self.has_record = True
        self._learn(record.facts)
        if not CONSTANT_FIELDS.isdisjoint(record.fields):
            self._constants.update({key: record.fields[key] for key in CONSTANT_FIELDS & record.fields.keys()})
        self._measure(source, record, moment)
        if self.attempt.advances(record):
            self._progress(record, moment, name)
        self.attempt.take(record, moment, source=name, state=source)
        self._count_nonfinite(record, moment, name, step=source.step)
        if record.checkpoint is not None:
            self.saves.fold(record.checkpoint, moment.wall)
            self._interrupt()
        if record.phase is not None:
            self._enter(record.phase)
        if record.closes and not self._is_behind(moment):
            self.attempt.closed = True

    def _can_take(self, told: Rows, name: str) -> bool:
        """Whether these records change figures alone: all of them are progress of this attempt, and known to be."""
        started, before = self.attempt.started_wall, self._source(name).step
        is_past = started is not None and any(wall < started for wall in told.walls)
        is_ahead = before is None or told.steps[0] > before
        return is_ahead and not is_past and self._step_before_restart is None and self.attempt.can_take(told, source=name)

    def _fold_rows(self, told: Rows, name: str) -> None:
        source, walls, columns = self._source(name), told.walls, told.columns
        self.touched_wall = max((self.touched_wall, *walls))
        self._constants.update({key: columns[key].values[-1] for key in CONSTANT_FIELDS & columns.keys()})
        source.advance_all(told)
        source.measure_all(told)
        if "skipped_steps" in columns:
            self._skipped = (self._skipped or 0) + sum(map(round, columns["skipped_steps"].values))
        self._goodput.productive_all(self.attempt.progress_all(told, source=name))
        self.saves.progressed()
        for wall in (*walls[:1], *walls[-1:]):
            self._goodput.seen(wall)
        self.attempt.take_all(told, source=name)
        for field in self._streaks.keys() & columns.keys():
            self._streaks[field].finite(name)

    def _is_past(self, moment: Moment) -> bool:
        """Whether it happened in an earlier attempt: a source that is read later than the others tells of those first."""
        started = self.attempt.started_wall
        return started is not None and moment.wall is not None and moment.wall < started

    def _is_behind(self, moment: Moment) -> bool:
        """Whether another source has told of a later moment."""
        before = self.attempt.progress_wall
        return before is not None and moment.wall is not None and moment.wall < before

    def _starts_over(self, source: SourceState, record: Record, moment: Moment, name: str) -> bool:
        if not self.attempt.has_progress:
            return False
        if source.has_gone_back(record):
            before = self.attempt.progress_wall
            is_later = moment.wall is not None and before is not None and moment.wall > before
            if self.attempt.progress_source == name and moment.wall is not None and before is not None and moment.wall < before + SOONEST_S:
                return False
            if moment.live or is_later or self.attempt.progress_source == name:
                return True
            source.new_attempt()  # it catches up: a source that was read before it has told of this restart
            return False
        if not record.starts:
            return False
        # A source that has told nothing of this attempt may only be catching up with what another has told already.
        before = self.attempt.progress_wall
        return source.contributed or (moment.wall is not None and before is not None and moment.wall > before)

    def _measure(self, source: SourceState, record: Record, moment: Moment) -> None:
        fields = record.fields
        source.advance(record)
        # When a late record was told says nothing about when it happened.
        source.measure(fields, None if record.late and moment.clock == "arrival" else moment.tick)
        if "skipped_steps" in fields:
            self._skipped = (self._skipped or 0) + round(fields["skipped_steps"])

    def _progress(self, record: Record, moment: Moment, name: str) -> None:
        gap = self.attempt.progress(record, moment, source=name)
        self.saves.progressed()
        if gap is not None:
            self._goodput.productive(gap)
        if moment.wall is not None:
            self._goodput.seen(moment.wall)
        if self._step_before_restart is not None and self.attempt.step is not None:
            lost = max(0, round(self._step_before_restart - self.attempt.step))
            self._lost_steps += lost
            self._goodput.lost(lost, of=self._step_before_restart)
            self.saves.resumed(self.attempt.step)
            self._step_before_restart = None

    def _count_nonfinite(self, record: Record, moment: Moment, name: str, *, step: float | None) -> None:
        fields, hidden = record.fields, record.hidden_nonfinite
        for field, streak in self._streaks.items():
            value = fields.get(field)
            if (hidden and field in hidden) or (value is not None and not math.isfinite(value)):
                reported = max(1, round(fields.get("nonfinite_steps", 0))) if field == "loss" else 1
                streak.nonfinite(name, step=fields.get("step", step), wall=moment.wall, number=reported)
            elif value is not None:
                streak.finite(name)

    def _enter(self, stage: Phase) -> None:
        self.attempt.enter(stage)
        if stage is not Phase.TRAINING:
            self._interrupt()

    def _interrupt(self) -> None:
        self.attempt.interrupt()
        for source in self._sources.values():
            source.step_times.interrupt()
            source.token_times.interrupt()

    def _source(self, name: str) -> SourceState:
        known = self._sources.get(name)
        if known is not None:
            return known
        if len(self._sources) >= MAX_SOURCES:
            self._sources.pop(next(iter(self._sources)))
        return self._sources.setdefault(name, SourceState())

    def _learn(self, facts: Mapping[str, str]) -> None:
        for key, value in facts.items():
            if value and (key in self._facts or len(self._facts) < MAX_FACTS):
                self._facts[key] = value[:200]

    def _fold_incident(self, incident: Incident, moment: Moment, source: str) -> None:
        self._troubles.fold(incident, moment, source=source, place=(self.attempts, self.attempt.step))
        if moment.wall is not None:
            self.attempt.fail(incident, moment.wall)

    def _rates(self, figures: Mapping[str, float | None], step_duration: float | None) -> dict[str, float | None]:
        """Throughput and efficiency; what the configuration says is believed before the log."""
        workload = self._workload
        said = {"global_batch_size": workload.global_batch_size, "sequence_length": workload.sequence_length}
        constants = {**self._constants, **{name: float(value) for name, value in said.items() if value is not None}}
        sources = self._sources.values()
        rates = signals.throughput(
            figures,
            constants,
            step_duration=step_duration,
            per_step=per_step(sources),
            tokens_per_second=tokens_per_second(sources),
        )
        samples, tokens = rates["samples_per_second"], rates["tokens_per_second"]
        length = constants.get("sequence_length") or (tokens / samples if samples and tokens else None)
        gpus = workload.gpus or constants.get("world_size")
        if workload.shape is None:
            workload = replace(workload, shape=logged_shape(constants))
        return rates | efficiency({**figures, **rates}, workload, sequence_length=length, gpus=gpus)

    def _missing(self, gauges: Mapping[str, float]) -> str:
        """Why there are no TFLOPS though the model is known; "" where there are some, or there is no model."""
        if self._workload.shape is None or "tflops_per_gpu" in gauges or not self.attempt.has_progress:
            return ""
        if "tokens_per_second" not in gauges:
            return "no TFLOPS: neither tokens nor batch and sequence length are known (model in the configuration)"
        if not self._workload.gpus and "world_size" not in gauges:
            return "no TFLOPS: it is not known how many GPUs the whole job has (model.gpus in the configuration)"
        return "no TFLOPS: the length of the sequences is not known (model.sequence_length in the configuration)"

    def _gauges(self, now: float) -> dict[str, float]:
        attempt = self.attempt
        duration, best = step_duration(self._sources.values())
        figures: dict[str, float | None] = {name: series.value for name, series in attempt.series.items()}
        figures |= self._rates(figures, duration)
        figures |= signals.progress(attempt.step, attempt.target, step_duration=duration, logged_remaining=attempt.remaining_s)
        for name in SPIKING:
            figures[f"{name}_baseline"] = attempt.series[name].baseline()
            figures[f"{name}_spike_ratio"] = attempt.series[name].spike_ratio(now)
        figures["loss_baseline_min"] = attempt.series["loss"].lowest_baseline
        figures["loss_sustained_ratio"] = attempt.series["loss"].sustained_ratio(now)
        figures |= {f"{name}_max": attempt.series[name].highest for name in ("learning_rate", "loss_scale")}
        figures |= {name: self._constants.get(name) for name in SHOWN_CONSTANTS}
        figures |= self._space
        figures |= {
            "epoch": attempt.epoch,
            "step_duration_seconds": duration,
            "step_duration_baseline_seconds": best,
            "eval_loss_change_ratio": signals.change(attempt.eval_losses),
            "goodput_ratio": self._goodput.ratio(),
            "checkpoint_last_duration_seconds": self.saves.last_duration_s,
            "checkpoint_timestamp_seconds": self.saves.last_wall,
            "checkpoint_step": self.saves.last_step,
            "checkpoint_bytes": self.saves.last_bytes,
        }
        return {name: value for name, value in figures.items() if value is not None}

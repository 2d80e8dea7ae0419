"""The families of runs, and the samples of a snapshot. What a run cannot say has no sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from trainer_exporter.metrics.family import Batch, Collected, Family, Sample
from trainer_exporter.model import Phase, RunSnapshot

RUN = ("run",)
INFO_LABELS = ("run", "format", "job_id", "user", "output_dir")


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"trainer_{name}", "gauge", text, (*RUN, *labels))


_PLAIN = (
    _gauge("step", "Optimizer steps completed in the present attempt, as the trainer counts them."),
    _gauge("target_steps", "Steps at which the trainer will end."),
    _gauge("epoch", "Passes over the training data completed, as logged."),
    _gauge("progress_ratio", "Step divided by target steps."),
    _gauge("remaining_seconds", "Time to the target at the present step duration, else the trainer's own estimate."),
    _gauge("loss", "Training loss as last logged, NaN and Inf included; the mean over the trainer's logging interval, nats per token."),
    _gauge("eval_loss", "Loss of the last evaluation as logged."),
    _gauge("grad_norm", "Global gradient norm before clipping, as last logged."),
    _gauge("learning_rate", "Learning rate of the first parameter group as last logged."),
    _gauge("learning_rate_max", "Highest learning rate logged in the present attempt."),
    _gauge("loss_scale", "Loss scale of mixed precision as last logged."),
    _gauge("loss_scale_max", "Highest loss scale logged in the present attempt, the one that it began with included."),
    _gauge("samples_per_second", "Samples per second of the whole job over the recent window: logged, else global batch / step duration."),
    _gauge(
        "tokens_per_second",
        "Tokens per second of the whole job over the recent window: logged, else tokens a step / step duration, else samples x length.",
    ),
    _gauge(
        "tflops_per_gpu",
        "Model FLOPs per second and GPU in units of 1e12: logged, else tokens per second x FLOPs per token (6N, 4N where frozen, and 12 x "
        "layers x attention width x sequence length) / GPUs.",
    ),
    _gauge("mfu_ratio", "Model FLOPs utilization: logged, else TFLOPS per GPU / the card's dense peak for the data type."),
    _gauge("step_duration_seconds", "Time a step takes: median over the recent window, saves and evaluations excluded."),
    _gauge(
        "step_duration_baseline_seconds", "Best sustained median of the step duration in this attempt, with as much work a step as now."
    ),
    _gauge("loss_baseline", "Median loss of the previous 100 records, from 20 on."),
    _gauge("loss_baseline_min", "Lowest loss baseline of the present attempt: the best level that the loss has held."),
    _gauge(
        "loss_sustained_ratio",
        "What all of five records in a row reached of loss / baseline: the largest such figure of the last latch seconds, never less than "
        "the newest.",
    ),
    _gauge("loss_spike_ratio", "Largest loss / baseline of the last latch seconds (120 by default), never less than the newest record's."),
    _gauge("grad_norm_baseline", "Median gradient norm of the previous 100 records, from 20 on."),
    _gauge("grad_norm_spike_ratio", "Largest gradient norm / baseline of the last latch seconds, never less than the newest record's."),
    _gauge("eval_loss_change_ratio", "Last evaluation loss against the median of up to five before it, as a share; negative = falling."),
    _gauge("vocabulary_size", "Entries of the vocabulary: an untrained model's loss is their natural logarithm."),
    _gauge("world_size", "Processes (ranks) of the job."),
    _gauge("collective_timeout_seconds", "Time after which the trainer itself gives up a collective; 180000000 means never."),
    _gauge("checkpoint_last_duration_seconds", "Duration of the last checkpoint that could be timed."),
    _gauge("checkpoint_timestamp_seconds", "When the last checkpoint was complete, Unix time."),
    _gauge("checkpoint_step", "Step of the last complete checkpoint."),
    _gauge("checkpoint_bytes", "Size of the last complete checkpoint."),
    _gauge("checkpoint_filesystem_avail_bytes", "Space left for unprivileged users on the file system that the run saves to."),
    _gauge("checkpoint_filesystem_size_bytes", "Size of the file system that the run saves to."),
    _gauge("goodput_ratio", "Share of the time since the first step seen that was spent on steps that counted."),
)
GAUGES = {family.name.removeprefix("trainer_"): family for family in _PLAIN}

_WINDOWED = (
    _gauge(
        "loss_change_ratio", "Mean loss of the newer half of the window against the older half, as a share; negative = falling.", "window"
    ),
    _gauge("loss_oscillation_ratio", "(95th - 5th percentile) / abs(median) of the loss within the window of steps.", "window"),
    _gauge("grad_norm_change_ratio", "Mean gradient norm of the newer half of the window against the older half, as a share.", "window"),
    _gauge(
        "learning_rate_change_ratio", "Mean learning rate of the newer half of the window against the older half, as a share.", "window"
    ),
)
WINDOWED = {family.name.removeprefix("trainer_"): family for family in _WINDOWED}

INFO = Family(
    "trainer_run_info", "gauge", "Identity of a run, and the static labels that the configuration gives it; always 1.", INFO_LABELS
)
PHASE = _gauge("run_phase", "1 for what the run is doing now, 0 for every other phase.", "phase")
ATTEMPTS = Family("trainer_run_attempts_total", "counter", "Starts of the trainer seen in this run; the first counts 1.", RUN)
STEP_TIMESTAMP = _gauge("step_timestamp_seconds", "When the step last advanced (before the first step: when the attempt began), Unix time.")
AGE = _gauge("progress_age_seconds", "Time since the step last advanced, as the node's clock has it at the scrape.")
GAPS = Family(
    "trainer_progress_gap_seconds",
    "summary",
    "Pauses between signs of progress that were normal in this attempt, from five on; quantile 1 is the longest.",
    RUN,
)
WRITER = _gauge("writer_alive", "Whether a process still holds the log or the run's GPUs; absent where it cannot be known.")
EVAL_METRIC = _gauge("eval_metric", "Other results of the last evaluation, by the trainer's name for them.", "name")
EVAL_METRIC_CHANGE = _gauge("eval_metric_change_ratio", "Last result against the median of up to five before it, as a share.", "name")
SKIPPED = Family("trainer_skipped_steps_total", "counter", "Optimizer steps that the trainer skipped (overflow of the loss scale).", RUN)
NONFINITE = Family(
    "trainer_nonfinite_steps_total", "counter", "Records with a value that is not finite, hidden ones included.", (*RUN, "field")
)
NONFINITE_TIMESTAMP = _gauge("nonfinite_timestamp_seconds", "When the last value that is not finite came, Unix time.", "field")
NONFINITE_STREAK = _gauge("nonfinite_streak_records", "Records in a row whose value is not finite now, hidden ones included.", "field")
CHECKPOINT_DURATION = Family(
    "trainer_checkpoint_duration_seconds", "histogram", "Time from the start of a checkpoint to its last file.", RUN
)
CHECKPOINT_IN_PROGRESS = _gauge(
    "checkpoint_in_progress_seconds", "Time since the start of the checkpoint that is being written; 0 when none is."
)
CHECKPOINT_FAILURES = Family(
    "trainer_checkpoint_failures_total", "counter", "Checkpoints that vanished, were never completed or failed.", RUN
)
INCIDENTS = Family("trainer_incidents_total", "counter", "Lines that tell of trouble, by kind.", (*RUN, "kind"))
INCIDENT_TIMESTAMP = _gauge("incident_timestamp_seconds", "When the last trouble of this kind was told, Unix time.", "kind")
LOST_STEPS = Family("trainer_lost_steps_total", "counter", "Steps that restarts have thrown away.", RUN)

FAMILIES = (
    INFO,
    PHASE,
    ATTEMPTS,
    *_PLAIN,
    STEP_TIMESTAMP,
    AGE,
    GAPS,
    WRITER,
    EVAL_METRIC,
    EVAL_METRIC_CHANGE,
    *_WINDOWED,
    SKIPPED,
    NONFINITE,
    NONFINITE_TIMESTAMP,
    NONFINITE_STREAK,
    CHECKPOINT_DURATION,
    CHECKPOINT_IN_PROGRESS,
    CHECKPOINT_FAILURES,
    INCIDENTS,
    INCIDENT_TIMESTAMP,
    LOST_STEPS,
)


class Runs:
    """The samples of runs. They are made once for all snapshots that say the same; what grows by itself is told beside them."""

    def __init__(self) -> None:
        self._made: Mapping[str, tuple[RunSnapshot, Batch]] = {}

    def collect(self, runs: Sequence[RunSnapshot], now: float) -> Iterator[Collected]:
        """All samples of all runs; ``now`` is the wall time of the scrape."""
        before, made = self._made, dict[str, tuple[RunSnapshot, Batch]]()
        for run in runs:
            known = before.get(run.run)
            if known is None or known[0] != run:
                known = run, Batch(run.run, tuple(_lasting(run)))
            made[run.run] = known
            yield known[1]
            yield from _growing(run, now)
        self._made = made


def samples(run: RunSnapshot, now: float) -> Iterator[Sample]:
    """All samples of one run; ``now`` is the wall time of the scrape."""
    yield from _lasting(run)
    yield from _growing(run, now)


def _lasting(run: RunSnapshot) -> Iterator[Sample]:
    yield from _identity(run)
    yield from _progress(run)
    yield from _figures(run)
    yield from _trouble(run)
    yield from _checkpoints(run)


def _growing(run: RunSnapshot, now: float) -> Iterator[Sample]:
    if run.progress_wall is not None:
        yield Sample(AGE, (run.run,), max(0.0, now - run.progress_wall))
    started = run.checkpoint_started_wall
    yield Sample(CHECKPOINT_IN_PROGRESS, (run.run,), 0.0 if started is None else max(0.0, now - started))


def _identity(run: RunSnapshot) -> Iterator[Sample]:
    fixed = [run.run, *(run.info.get(name, "") for name in INFO_LABELS[1:])]
    yield Sample(INFO, fixed, 1, extra={name: value for name, value in run.labels.items() if name not in INFO_LABELS})
    for phase in Phase:
        yield Sample(PHASE, (run.run, phase.value), int(phase is run.phase))
    yield Sample(ATTEMPTS, (run.run,), run.attempts)
    if run.writer_alive is not None:
        yield Sample(WRITER, (run.run,), int(run.writer_alive))


def _progress(run: RunSnapshot) -> Iterator[Sample]:
    if run.progress_wall is not None:
        yield Sample(STEP_TIMESTAMP, (run.run,), run.progress_wall)
    for quantile, seconds in run.progress_gaps.items():
        yield Sample(GAPS, (run.run,), seconds, extra={"quantile": f"{quantile:g}"})
    yield Sample(LOST_STEPS, (run.run,), run.lost_steps)


def _figures(run: RunSnapshot) -> Iterator[Sample]:
    for name, value in run.gauges.items():
        yield Sample(GAUGES[name], (run.run,), value)
    for (name, window), value in run.windows.items():
        yield Sample(WINDOWED[name], (run.run, window), value)
    for name, value in run.eval_metrics.items():
        yield Sample(EVAL_METRIC, (run.run, name), value)
    for name, value in run.eval_metric_changes.items():
        yield Sample(EVAL_METRIC_CHANGE, (run.run, name), value)


def _trouble(run: RunSnapshot) -> Iterator[Sample]:
    if run.skipped_steps is not None:
        yield Sample(SKIPPED, (run.run,), run.skipped_steps)
    for field, total in run.nonfinite_total.items():
        yield Sample(NONFINITE, (run.run, field), total)
    for field, streak in run.nonfinite_streak.items():
        yield Sample(NONFINITE_STREAK, (run.run, field), streak)
    for field, wall in run.nonfinite_wall.items():
        yield Sample(NONFINITE_TIMESTAMP, (run.run, field), wall)
    for kind, total in run.incidents.items():
        yield Sample(INCIDENTS, (run.run, kind), total)
    for kind, wall in run.incident_wall.items():
        yield Sample(INCIDENT_TIMESTAMP, (run.run, kind), wall)


def _checkpoints(run: RunSnapshot) -> Iterator[Sample]:
    histogram = run.checkpoint_durations
    for bound, total in zip([*map(str, histogram.bounds), "+Inf"], accumulate(histogram.counts), strict=True):
        yield Sample(CHECKPOINT_DURATION, (run.run,), total, extra={"le": bound}, suffix="_bucket")
    yield Sample(CHECKPOINT_DURATION, (run.run,), sum(histogram.counts), suffix="_count")
    yield Sample(CHECKPOINT_DURATION, (run.run,), histogram.sum, suffix="_sum")
    yield Sample(CHECKPOINT_FAILURES, (run.run,), run.checkpoint_failures)

"""The values that cross the borders between parts. Frozen, without behaviour beyond small derived facts.

All quantities are in base units (seconds, bytes, ratios of 1); a trainer that prints milliseconds is converted where its
line is read. A value that the log does not have is absent, never 0.
"""

from __future__ import annotations

import enum
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from trainer_exporter.model_gpu import GpuOwner, GpuSnapshot

EMPTY: Final[Mapping[str, float]] = MappingProxyType({})
NO_FACTS: Final[Mapping[str, str]] = MappingProxyType({})

PROGRESS_FIELDS: Final = frozenset(
    {
        "step",  # optimizer steps completed, as the trainer counts them
        "target_steps",  # steps at which the trainer will end
        "epoch",
        "elapsed_seconds",  # since the start of this process, as the trainer prints it: a clock for logs without stamps
        "remaining_seconds",  # the trainer's own estimate
    }
)
VALUE_FIELDS: Final = frozenset(
    {
        "loss",
        "eval_loss",
        "grad_norm",
        "learning_rate",
        "loss_scale",
        "samples_per_second",  # instantaneous or of the logging interval, of the whole job; never a cumulative mean
        "tokens_per_second",  # idem
        "tflops_per_gpu",  # model FLOPs, 1e12 per second and GPU
        "mfu_ratio",
        "step_duration_seconds",  # of the logging interval
        "skipped_steps",  # in this logging interval
        "nonfinite_steps",  # in this logging interval, as the trainer counts them
        "total_tokens",  # cumulative: rates come from its differences
        "total_samples",  # cumulative
    }
)
CONSTANT_FIELDS: Final = frozenset(
    {
        "global_batch_size",  # samples an optimizer step
        "tokens_per_step",  # of the whole job
        "sequence_length",
        "world_size",
        "vocabulary_size",
        "parameters",
        "token_weights",  # of these, what every token is multiplied with: no input embeddings, of experts those that it is sent to
        "layers",
        "attention_width",  # heads x head size
        "causal_attention",  # 1: the trainer's own count of FLOPs leaves out what a causal mask hides
        "collective_timeout_seconds",
        "epochs",  # how many the run will make
    }
)
FIELDS: Final = PROGRESS_FIELDS | VALUE_FIELDS | CONSTANT_FIELDS


class Phase(str, enum.Enum):
    """What a run is doing, as far as its log or its files say."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time that stood in the log. Without a zone it serves for differences only, until it is lined up with arrival."""

    seconds: float  # since the epoch; of a stamp without zone: as if it were UTC
    zoned: bool


# A tuple like Record and Moment: there is one a line, and a frozen dataclass takes three times as long to make.
class Line(NamedTuple):
    """One complete line, with what launchers wrap around it taken off."""

    text: str
    number: int  # newlines counted from 1; redraws of a progress bar share the number of the line they stand in
    stamp: Stamp | None = None
    rank: int | None = None  # global rank where the wrapper names it
    stream: str = ""  # key of the rank or task whose lines are interleaved in this file; "" where there is one
    whole: str = ""  # with its wrappers, colours apart: a pattern that a user wrote may begin with the time


class CheckpointEvent(str, enum.Enum):
    """What happened to a checkpoint."""

    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """News of one checkpoint, from a log line or from its directory."""

    event: CheckpointEvent
    step: int | None = None
    path: str = ""
    duration_seconds: float | None = None  # where the source knows it; else from the moments of start and end
    size_bytes: int | None = None
    wall: float | None = None  # when it happened, where the source is a directory
    blocking: bool = True  # False: training goes on meanwhile (asynchronous save)
    reason: str = ""  # of a failure: vanished, incomplete, no_space


class Record(NamedTuple):
    """What one line (or block of lines) of a trainer says."""

    line: int
    fields: Mapping[str, float] = EMPTY  # keys from FIELDS; NaN and Inf are data
    metrics: Mapping[str, float] = EMPTY  # evaluation results by name, other than eval_loss
    facts: Mapping[str, str] = NO_FACTS  # output_dir, run_name, job_id, ...: identity, never numbers
    stamp: Stamp | None = None
    phase: Phase | None = None  # the phase that the run has entered with this line
    checkpoint: Checkpoint | None = None
    hidden_nonfinite: frozenset[str] = frozenset()  # fields that are not finite though the trainer prints otherwise
    precise: bool = False  # from a file that the trainer keeps for programs: its values are not rounded for people
    late: bool = False  # told long after its step (a file that is written at checkpoints only): heard where nobody told of it sooner
    step_exact: bool = True  # False: the step was taken from a bar beside the line and may lag
    starts: bool = False  # the trainer announces a start: whatever follows is a new attempt
    closes: bool = False  # the trainer's closing word: it ended by itself
    format: str = ""  # the private format that read it; "": the format of the file


class Column(NamedTuple):
    """The values of one field in a table, and the places of the records that have it."""

    places: range
    values: Sequence[float]


class Table(NamedTuple):
    """Many ordinary records as columns: each says finite values of its step, and nothing else.

    All have a step, and ``elapsed_seconds`` where one has it.
    """

    lines: Sequence[int]  # of the records, in order
    columns: Mapping[str, Column]
    precise: bool = False  # as in Record
    times: Sequence[float] = ()  # of their stamps; empty where they have none
    zoned: bool = False  # as in Stamp

    @property
    def line(self) -> int:
        """Of the first record."""
        return self.lines[0]

    def records(self) -> list[Record]:
        """The same, one by one."""
        fields: list[dict[str, float]] = [{} for _ in self.lines]
        for name, (places, values) in self.columns.items():
            for place, value in zip(places, values, strict=True):
                fields[place][name] = value
        stamps: Sequence[Stamp | None] = [Stamp(time, self.zoned) for time in self.times] or [None] * len(fields)
        return [Record(line, said, stamp=stamp, precise=self.precise) for line, said, stamp in zip(self.lines, fields, stamps, strict=True)]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that looks like the format's own but cannot be read."""

    line: int
    reason: str  # one of a few fixed words, it becomes a label
    format: str = ""  # as in Record


@dataclass(frozen=True, slots=True)
class Place:
    """Where one figure of a private format stands, and what it is."""

    key: str  # a group of the pattern, a key of the line, or a column
    field: str  # of FIELDS, or the name of an evaluation result
    is_metric: bool = False
    scale: float = 1.0  # from the printed unit to the field's
    unit: str = ""  # as it may be glued to the number


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A user's pattern that has been found harmless."""

    pattern: re.Pattern[str]
    contains: str  # stands in every line that it can match: searched for first
    longest: int  # characters of a line that it can be let loose on


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """A private format as the configuration defines it."""

    name: str
    kind: str  # pattern, json, csv or key_value
    places: Sequence[Place]
    line: LinePattern | None = None  # of kind pattern
    contains: Sequence[str] = ()  # of the other kinds: one of them stands in every line of this format, of csv in its header
    columns: Sequence[str] = ()  # of a CSV file without a header
    separator: str = ","
    starts: LinePattern | None = None
    closes: LinePattern | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """Trouble that any log may show, by the name of its row in the table."""

    line: int
    kind: str
    fatal: bool  # ends the run unless a new attempt follows
    stamp: Stamp | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Complete lines of one file, as they were found in one look at it."""

    data: bytes  # whole lines, each with its newline (the last may lack it when the file is certainly over)
    first_line: int  # number of the first line in it
    read_wall: float
    live: bool  # False: stood in the file before the daemon came, history (design: the past is not news)
    newlines: int = -1  # in ``data``, where they have been counted already, because that costs a look at each byte


class Change(str, enum.Enum):
    """Why a file was opened anew or given up."""

    APPEARED = "appeared"
    ROTATED = "rotated"
    TRUNCATED = "truncated"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """What the processes of a run on this node are doing, as the kernel sees it."""

    run: str
    states: Mapping[str, int]  # processes by state: running, sleeping, uninterruptible, stopped, zombie
    waits: Mapping[str, int]  # of the uninterruptible ones, by what they wait for: nfs, block, driver, ...


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that seems to hold the others up."""

    rank: int
    source: str  # ras or flight_recorder
    reason: str  # a fixed word: dead, unresponsive, missing, behind, no_dump


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was collected of a run while it made no step; it stands until the run makes one."""

    run: str
    collected_wall: float
    folder: str  # where its files are
    suspects: Sequence[Suspect] = ()
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # in words, by source: ras, stacks, flight_recorder


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides how much a token of training computes."""

    weights: float  # multiplied with every token: no input embeddings; of a mixture of experts those that a token is sent to
    layers: int  # with attention
    attention_width: float  # heads x head size
    frozen: float = 0.0  # of the weights, those that get no gradient
    windowed_layers: int = 0  # of the layers, those whose attention reaches ``window`` tokens at most
    window: int = 0
    causal: bool = False  # half of its attention counts, as its trainer has it


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of a run's computation beyond its log: from the configuration, the model's files and the GPUs. None: not known."""

    shape: ModelShape | None = None
    sequence_length: int | None = None
    global_batch_size: int | None = None  # samples an optimizer step
    gpus: int | None = None  # of the whole job
    peak_tflops: float | None = None  # dense, of one of these GPUs, for the data type that is computed in
    causal: bool = False  # count half of the attention, as trainers do that leave out what a causal mask hides


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper bound (not cumulative, the last is for everything above), and the sum of what was observed."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One run as it was a moment ago; readers never see it change.

    ``gauges`` holds the figures that have the label ``run`` alone, by metric name without its prefix. What a clock changes by itself (ages)
    is left to the reader, who has the newer clock.
    """

    run: str
    info: Mapping[str, str]  # format, job_id, user, output_dir, ...
    labels: Mapping[str, str]  # static labels of the configuration
    phase: Phase
    attempts: int
    gauges: Mapping[str, float]
    progress_wall: float | None
    progress_gaps: Mapping[float, float]  # by quantile
    windows: Mapping[tuple[str, str], float]  # by (metric name without prefix, window in steps)
    nonfinite_total: Mapping[str, int]
    nonfinite_wall: Mapping[str, float]
    nonfinite_streak: Mapping[str, int]
    eval_metrics: Mapping[str, float]
    eval_metric_changes: Mapping[str, float]
    incidents: Mapping[str, int]
    incident_wall: Mapping[str, float]
    checkpoint_durations: Histogram
    checkpoint_failures: int
    checkpoint_started_wall: float | None
    skipped_steps: int | None  # None: this trainer does not say
    lost_steps: int
    writer_alive: bool | None
    notes: Sequence[str] = ()  # for the status page: what could not be known, and what is shown instead


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A followed file, for the status page."""

    path: str
    run: str
    format: str
    size_bytes: int
    lag_bytes: int
    lines: int
    last_written_wall: float | None
    last_unrecognised: str = ""
    error: str = ""
    why: str = ""  # it is followed: a short reason in words
    run_origin: str = ""  # where the run's name comes from, in words


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """All that the status page shows."""

    version: str
    now: float
    started_wall: float
    ready: bool
    runs: Sequence[RunSnapshot]
    files: Sequence[FileStatus]
    gpus: GpuSnapshot
    owners: Sequence[GpuOwner]
    errors: Mapping[tuple[str, str], int]
    latest: Mapping[tuple[str, str], str]
    dropped: Mapping[str, int]
    gpu_enabled: bool = True
    evidence: Sequence[Evidence] = ()


@dataclass(frozen=True, slots=True)
class WebSecurity:
    """Who may talk to the daemon, and how. With all defaults: anybody, in plain HTTP."""

    context: ssl.SSLContext | None = None  # None: no TLS
    allowed_sans: frozenset[str] = frozenset()  # names of which a client's certificate must bear one; none: it needs no name
    users: Mapping[str, str] = field(default_factory=dict)  # name -> bcrypt hash; none: nobody is asked
    headers: Mapping[str, str] = field(default_factory=dict)  # of every response
    interval_s: float = 0.0  # between two requests in the long run; 0: as many as come
    burst: int = 0  # requests that may come at once
    files: tuple[str, ...] = ()  # that it was made of, beside its own

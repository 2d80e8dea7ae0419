"""NVIDIA Megatron-LM, v1.0 to core_v0.19 and HEAD, and its forks: Megatron-DeepSpeed, Megatron-Bridge, Megatron-SWIFT 3.8 to 3.12.

     [2025-03-14 09:21:07.482913] iteration     2400/  500000 | consumed samples:      1228800 | ... | lm loss: 2.318774E+00 | ...

Odd: the last rank prints, so the first node of a job shows no loss; times are milliseconds; and **a loss that is NaN is not
printed as NaN: its field is left out**. On the first lines of fp16 runs it is missing too, because all iterations were skipped.
From core_v0.17 on such a line shows ``lm loss: 0.000000E+00`` instead. Old DeepSpeed forks print ``loss scale: -1.0`` and ``grad norm:
0.000`` on every line: there the engine owns both. BigScience's fork prints seconds, Megatron-SWIFT prints a NaN as such.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Alike, BlockReading, Format, Reading, Shape
from trainer_exporter.formats.engine import failed_save
from trainer_exporter.formats.megatron_shape import ARGUMENTS as SHAPE_ARGUMENTS
from trainer_exporter.formats.megatron_shape import shape
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record, Stamp
from trainer_exporter.numbers import moment, number

_ITERATION: Final = re.compile(r"^ *iteration +(?P<step>\d{1,15})/ *(?P<total>\d{1,15}) \|")
# Field as printed, with the blank before it -> our name, and how many of its units make one of ours.
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    " consumed samples": ("total_samples", 1.0),
    " consumed tokens": ("total_tokens", 1.0),
    " elapsed time per iteration (ms)": ("step_duration_seconds", 1000.0),
    " elapsed time per iteration (s)": ("step_duration_seconds", 1.0),
    " throughput per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    " TFLOPs": ("tflops_per_gpu", 1.0),
    " samples per second": ("samples_per_second", 1.0),
    " tokens per gpu per second (tgs)": ("tokens_per_second", 1.0),  # of one GPU, until multiplied below
    " learning rate": ("learning_rate", 1.0),
    " global batch size": ("global_batch_size", 1.0),
    " lm loss": ("loss", 1.0),
    " lm-loss": ("loss", 1.0),
    " loss": ("loss", 1.0),
    " loss scale": ("loss_scale", 1.0),
    " grad norm": ("grad_norm", 1.0),
    " number of skipped iterations": ("skipped_steps", 1.0),
    " number of nan iterations": ("nonfinite_steps", 1.0),
}
# Of ordinary lines: float() reads them, and nothing there is less than 0 but the loss scale of DeepSpeed's forks, which is none.
_SCIENTIFIC: Final = r"(?:[1-9]\.[0-9]{1,9}E(?:-[0-4][0-9]|\+[0-9]{2})|0\.0{1,9}E\+00)"
_PLAIN: Final = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_NEVER_ZERO: Final = ("loss", "step_duration_seconds", "global_batch_size")  # in ordinary lines: else it is no value
_PLACE: Final = r" *iteration +([0-9]{1,15})/ *([0-9]{1,15}) \|"
_GLUED: Final = re.compile(r" iteration +(?P<step>\d{1,15})/ *(?P<total>\d{1,15}) \|")
_ELAPSED: Final = re.compile(r"\| elapsed time: (?P<time>(?:\d{1,9}[dhms] ?)+)\|")  # Megatron-SWIFT, since the start of the process
_SECONDS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_BRIDGE: Final = re.compile(r"^Step Time : (?P<s>[\d.]+)s GPU utilization: (?P<tflops>[\d.]+)MODEL_TFLOP/s/GPU$")
_VALIDATION: Final = re.compile(
    r"^ *(?P<set>\S+) loss at (?:iteration (?P<step>\d{1,15})(?: on (?P<split>validation|test) set)?"
    r"|the end of training for (?P<old>val|test) data) \|(?P<fields>.*)$"
)
_SAVING: Final = re.compile(r"^ *saving checkpoint at iteration +(?P<step>\d{1,15}) to (?P<dir>\S+)")
_SCHEDULED: Final = re.compile(r"^ *scheduled an async checkpoint save at iteration +(?P<step>\d{1,15}) to (?P<dir>\S+)")
_SAVED: Final = re.compile(r"^ *successfully saved (?:local )?checkpoint (?:at|from) iteration +(?P<step>\d{1,15})(?: to (?P<dir>\S+))?")
_LOADED: Final = re.compile(r"^ *successfully loaded checkpoint from (?P<dir>\S+)(?: .*)? at iteration (?P<step>\d{1,15})")
_SAVE_TIMER: Final = re.compile(r"save-checkpoint(?: \.+)?: (?:\([\d.]+, )?(?P<ms>[\d.]+)")
_LATENCY: Final = re.compile(r"^Checkpoint Save GB: \S+, GB/Sec: \S+, Latency\(second\): (?P<s>[\d.]+)$")
_RELATED: Final = re.compile(r"^global rank \d+ is saving checkpoint |^ loading (?:release |distributed )*checkpoint from ")
_DATED: Final = re.compile(r"^\[(?P<event>[^\]]+)\] datetime: (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ?$")
_NAN: Final = re.compile(r"found (?:NaN|Inf) in local (?:forward (?P<loss>loss) calculation|(?P<grad_norm>grad norm))")
_EVALUATING: Final = re.compile(r"^Evaluating (?:on \d+ samples|iter \d+/\d+)")

_DUMP_BEGIN: Final = re.compile(r"^-+ arguments -+$")
_OWN_DUMP_BEGIN: Final = re.compile(r"^-{24} arguments -{24}$")  # v1 had fewer dashes, and gpt-neox still has
_DUMP_END: Final = re.compile(r"^-+ end of arguments -+$")
_ARGUMENT: Final = re.compile(r"^  (?P<name>\w+) \.{3,} (?P<value>.*)$")
_PADDED: Final = re.compile(r"^ *> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (?P<size>\d{1,15})\)")
_ARGUMENTS: Final[dict[str, tuple[str, float]]] = {
    "world_size": ("world_size", 1.0),
    "seq_length": ("sequence_length", 1.0),
    "global_batch_size": ("global_batch_size", 1.0),
    "train_iters": ("target_steps", 1.0),
    "padded_vocab_size": ("vocabulary_size", 1.0),
    "distributed_timeout_minutes": ("collective_timeout_seconds", 60.0),
}
_DTYPES: Final = ("bf16", "fp16")
_DUMP_LINES: Final = 2000  # the longest dump seen has 700 arguments; other ranks' lines stand between them
_AFTER_DUMP_LINES: Final = 60


class Megatron:
    """The output of one process, or of a job whose processes share a file."""

    def __init__(self) -> None:
        self._wanted = 0  # lines of a block still to come
        self._constants: dict[str, float] | None = None  # of the argument dump that is being read
        self._facts: dict[str, str] = {}
        self._shape: dict[str, str] = {}  # arguments that tell it
        self._step: int | None = None
        self._has_shown_loss = False
        self._is_evaluating = False
        self._saving: tuple[int, str, Stamp | None] | None = None
        self._untimed: int | None = None  # step of a save whose duration only the timers can tell
        self._latency_s: float | None = None  # of the save in progress, where it was told before its success
        self._world_size: float | None = None

    @property
    def wants_all(self) -> bool:
        return self._wanted > 0

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (head := _ITERATION.match(text)) is not None:
            return [self._iteration(line, head)]
        if self._wanted:
            self._wanted -= 1
            if (said := self._argument(line)) is not None:
                return said
        if "checkpoint" in text or text.startswith("Checkpoint Save"):
            return self._checkpoint(line)
        if " arguments -" in text and _DUMP_BEGIN.match(text):
            self._wanted, self._constants, self._facts, self._step = _DUMP_LINES, {}, {}, None
            self._shape = {}
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        return self._other(line)

    def flush(self) -> Reading:
        return NOTHING

    # Iterations and validations

    def shape(self, text: str) -> Shape | None:
        """Of an iteration's line that shows a loss, and nothing but ordinary numbers."""
        head = _ITERATION.match(text)
        if head is None:
            return None
        *pieces, rest = text[head.end() :].split("|")
        pattern, keys = _PLACE, list[str]()
        for piece in pieces:
            printed, _, value = piece.rpartition(": ")
            bare = value.strip()
            number = _SCIENTIFIC if "E" in bare else _PLAIN  # what a program prints of a field has one form
            if re.fullmatch(number, bare) is None:
                return None
            behind = value[len(value.rstrip()) :]
            pattern += rf"{re.escape(printed)}: +{f'({number})' if printed in _FIELDS else number}{behind}\|"
            keys += [printed] if printed in _FIELDS else []
        names = [_FIELDS[key][0] for key in keys]
        is_ordinary = "loss" in names and "tokens_per_second" not in names and len({*names}) == len(names)
        return Shape(pattern, ("step", "target_steps", *keys)) if is_ordinary and not rest else None

    def parse_alike(self, lines: Alike) -> BlockReading | None:
        steps, totals, *printed = lines.columns.values()
        told: dict[str, Sequence[float]] = {"step": list(map(int, steps)), "target_steps": list(map(int, totals))}
        for key, column in zip(list(lines.columns)[2:], printed, strict=True):
            name, units = _FIELDS[key]
            told[name] = list(map(float, column)) if units == 1.0 else [float(value) / units for value in column]
        if any(0.0 in told.get(name, ()) for name in _NEVER_ZERO):
            return None
        durations, batches = told.get("step_duration_seconds"), told.get("global_batch_size")
        if durations and batches and "samples_per_second" not in told:
            told["samples_per_second"] = [batch / duration for batch, duration in zip(batches, durations, strict=True)]
        self._wanted, self._is_evaluating = 0, False
        self._step, self._has_shown_loss = int(steps[-1]), True
        return [lines.table(told)]

    def _iteration(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        for glued in _GLUED.finditer(line.text, head.end()):
            head, line = glued, line._replace(stamp=None)  # another line has begun behind half of this one: what follows is its own
        fields: dict[str, float] = {"step": int(head["step"]), "target_steps": int(head["total"])}
        seen: set[str] = set()
        for piece in line.text[head.end() :].split("|")[:-1]:  # what has no bar behind it is torn
            printed, _, value = piece.rpartition(": ")
            known = _FIELDS.get(printed)
            if known is not None and (read := number(value)) is not None:
                if printed in seen:
                    return Malformed(line.number, "number")  # two processes wrote into this line
                seen.add(printed)
                fields[known[0]] = read / known[1]
        if len(fields) == 2:
            return Malformed(line.number, "truncated")
        if "memory(GiB)" in line.text and (spent := _ELAPSED.search(line.text)) is not None:
            fields["elapsed_seconds"] = sum(int(part[:-1]) * _SECONDS[part[-1]] for part in spent["time"].split())
        self._wanted, self._is_evaluating = 0, False
        self._step = int(fields["step"])
        return self._record(line, fields)

    def _record(self, line: Line, fields: dict[str, float]) -> Record:
        if fields.get("loss_scale", 0.0) < 0.0:
            del fields["loss_scale"]
            fields.pop("grad_norm", None)
        if fields.get("loss") == 0.0 and fields.get("skipped_steps", 0.0) > 0.0:
            del fields["loss"]  # the mean over no iteration at all
        if "tokens_per_second" in fields:
            of_one = fields.pop("tokens_per_second")
            if self._world_size:
                fields["tokens_per_second"] = of_one * self._world_size
        duration, batch = fields.get("step_duration_seconds"), fields.get("global_batch_size")
        if duration and batch and "samples_per_second" not in fields:
            fields["samples_per_second"] = batch / duration
        hidden = self._hidden(fields)
        self._has_shown_loss = self._has_shown_loss or "loss" in fields
        return Record(line.number, fields, stamp=line.stamp, hidden_nonfinite=hidden)

    def _hidden(self, fields: dict[str, float]) -> frozenset[str]:
        """A loss left out though iterations counted was not finite; its counter of NaN iterations may stay 0."""
        if "loss" in fields:
            return frozenset()
        was_counted = fields.get("skipped_steps") == 0.0 and self._has_shown_loss
        norm = fields.get("grad_norm", 0.0)
        is_hidden = fields.get("nonfinite_steps", 0.0) > 0.0 or was_counted or not math.isfinite(norm)
        return frozenset({"loss"}) if is_hidden else frozenset()

    def _validation(self, line: Line, found: re.Match[str]) -> Record:
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        step = int(found["step"]) if found["step"] else self._step
        if step is not None:
            fields["step"] = step
        split = found["split"] or found["old"] or "validation"
        for piece in found["fields"].split("|")[:-1]:
            name, _, value = piece.strip().rpartition(" value: ")
            if not name or (read := number(value)) is None:
                continue
            if found["set"] == "validation" and split in {"validation", "val"} and name in {"lm loss", "lm-loss"}:
                fields["eval_loss"] = read
            else:
                metrics[_result_name(found["set"], split, name)] = read
        return Record(line.number, fields, metrics, stamp=line.stamp)

    # Checkpoints

    def _checkpoint(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _SAVING.match(text)) is not None:
            step, directory = int(found["step"]), found["dir"]
            self._saving, self._latency_s = (step, directory, line.stamp), None
            return [self._saved(line, CheckpointEvent.STARTED, found, phase=Phase.CHECKPOINTING)]
        if (found := _SCHEDULED.match(text)) is not None:
            return [self._saved(line, CheckpointEvent.STARTED, found, phase=Phase.TRAINING, blocking=False)]
        if (found := _SAVED.match(text)) is not None:
            return [self._finished(line, found)]
        if (found := _LOADED.match(text)) is not None:
            return [Record(line.number, {"step": int(found["step"])}, stamp=line.stamp)]
        if (timed := _SAVE_TIMER.search(text) or _LATENCY.match(text)) is not None:
            return self._timed(line, number(timed[timed.lastgroup or 0]), per_second=1e3 if timed.lastgroup == "ms" else 1.0)
        return NOTHING if _RELATED.match(text) else failed_save(line)

    def _saved(self, line: Line, event: CheckpointEvent, found: re.Match[str], *, phase: Phase, blocking: bool = True) -> Record:
        step = int(found["step"])
        news = Checkpoint(event, step, f"{found['dir']}/iter_{step:07d}", blocking=blocking)
        return Record(line.number, facts={"output_dir": found["dir"]}, stamp=line.stamp, phase=phase, checkpoint=news)

    def _finished(self, line: Line, found: re.Match[str]) -> Record:
        step, duration = int(found["step"]), None
        directory = found["dir"] or ""
        if self._saving is not None and self._saving[0] == step:
            _, directory, began = self._saving
            if began is not None and line.stamp is not None and line.stamp.zoned == began.zoned:
                duration = max(0.0, line.stamp.seconds - began.seconds)
        if self._latency_s is not None:
            duration, self._latency_s = self._latency_s, None
        self._untimed = step if duration is None else None
        self._saving = None
        path = f"{directory}/iter_{step:07d}" if directory else ""
        news = Checkpoint(CheckpointEvent.FINISHED, step, path, duration)
        return Record(line.number, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news)

    def _timed(self, line: Line, units: float | None, *, per_second: float) -> Reading:
        """The timers come behind the success line; they tell its duration where no stamps did. DeepSpeed's word may come before."""
        if units is None or not math.isfinite(units):
            return NOTHING
        step, self._untimed = self._untimed, None
        if step is None:
            self._latency_s = units / per_second if self._saving is not None else None
            return NOTHING
        return [Record(line.number, checkpoint=Checkpoint(CheckpointEvent.FINISHED, step, duration_seconds=units / per_second))]

    # Arguments and the rest

    def _argument(self, line: Line) -> Reading | None:
        if (padded := _PADDED.match(line.text)) is not None:
            self._wanted = 0
            size = int(padded["size"])
            return [Record(line.number, {"vocabulary_size": size, **shape(self._shape, size)}, stamp=line.stamp)]
        if self._constants is None:
            return None
        if _DUMP_END.match(line.text):
            constants, self._constants, self._wanted = self._constants, None, _AFTER_DUMP_LINES
            self._world_size = constants.get("world_size")
            if "vocabulary_size" in constants:
                constants |= shape(self._shape, round(constants["vocabulary_size"]))
            return [Record(line.number, constants, facts=self._facts, stamp=line.stamp)]
        found = _ARGUMENT.match(line.text)
        if found is None:
            return None
        name, value = found["name"], found["value"].strip()
        if name in _ARGUMENTS and (read := number(value)) is not None:
            self._constants[_ARGUMENTS[name][0]] = read * _ARGUMENTS[name][1]
        elif name == "save" and value != "None":
            self._facts["output_dir"] = value
        elif name in _DTYPES and value == "True":
            self._facts["dtype"] = name
        elif name in SHAPE_ARGUMENTS:
            self._shape[name] = value
        return NOTHING

    def _other(self, line: Line) -> Reading | None:
        if (found := _VALIDATION.match(line.text)) is not None:
            return [self._validation(line, found)]
        if (dated := _DATED.match(line.text)) is not None:
            return self._dated(line, dated)
        if _EVALUATING.match(line.text):
            if self._is_evaluating:
                return NOTHING
            self._is_evaluating = True
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        return self._bridged(line) if line.text.startswith("Step Time : ") else self._not_finite(line)

    def _not_finite(self, line: Line) -> Reading | None:
        found = _NAN.search(line.text)
        if found is None or found.lastgroup is None:
            return None
        return [Record(line.number, stamp=line.stamp, hidden_nonfinite=frozenset({found.lastgroup}))]

    def _bridged(self, line: Line) -> Reading | None:
        """Megatron-Bridge's rank 0 sees no iteration line; where the last rank writes to the same file, that line says it better."""
        found = _BRIDGE.match(line.text)
        if found is None:
            return None
        duration, tflops = number(found["s"]), number(found["tflops"])
        if self._step is not None or duration is None or tflops is None:
            return NOTHING
        return [Record(line.number, {"step_duration_seconds": duration, "tflops_per_gpu": tflops}, stamp=line.stamp)]

    def _dated(self, line: Line, found: re.Match[str]) -> Reading:
        event = found["event"]
        closes = event == "after training is done" or event.startswith("exiting program")
        return [Record(line.number, stamp=line.stamp or moment(found["time"]), closes=closes)]


def _result_name(data_set: str, split: str, name: str) -> str:
    words = [data_set.removeprefix("validation").strip("-"), "test" if split == "test" else "", name.replace(" ", "_")]
    return "_".join(word for word in words if word).replace("-", "_")


def _sniff(text: str) -> bool:
    if _ITERATION.match(text) is not None:
        return " | " in text and ("elapsed time per iteration (" in text or "consumed samples: " in text)
    return " arguments ---" in text and _OWN_DUMP_BEGIN.match(text) is not None


FORMAT: Final = Format(
    name="megatron",
    summary="NVIDIA Megatron-LM and its forks: Megatron-DeepSpeed, Megatron-Bridge, Megatron-SWIFT",
    hints=(LOSS, b" arguments ---"),
    details=(b"kpoint", b"datetime: ", b"Evaluating ", b"ocal grad norm", b"MODEL_TFLOP/s"),
    sniff=_sniff,
    parser=Megatron,
)

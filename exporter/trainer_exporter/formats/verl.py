"""verl, 0.2 to 0.7: the step lines of its trainers, usually behind Ray's ``(TaskRunner pid=N)``, and its JSON file logger.

    step:3 - actor/pg_loss:-0.0123 - actor/grad_norm:0.3121 - actor/lr:1e-06 - perf/total_num_tokens:312044 - perf/time_per_step:118.77
    {"step":3,"data":{"actor/pg_loss":-0.0123,"actor/grad_norm":0.3121,"actor/lr":1e-06}}

The policy's loss is near 0, of either sign. Odd: up to 0.4 all values have 3 decimals, so a learning rate prints as 0.000 and is no
value; the throughput is a GPU's, so that of the job comes from tokens and time of the step; the JSON logger writes NaN as null.
Text of the model stands between the lines and may look like one: a step line has digits, and keys with a slash.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from trainer_exporter.formats.bars import bar
from trainer_exporter.formats.base import LOSS, NOTHING, Alike, BlockReading, Format, Reading, Shape
from trainer_exporter.formats.decimals import POINTED, PRINTED, is_printed
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, integer, number

_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "actor/pg_loss": ("loss", 1.0),
    "train/loss": ("loss", 1.0),
    "val/loss": ("eval_loss", 1.0),
    "actor/grad_norm": ("grad_norm", 1.0),
    "train/grad_norm": ("grad_norm", 1.0),
    "actor/lr": ("learning_rate", 1.0),
    "train/lr": ("learning_rate", 1.0),
    "train/lr(1e-3)": ("learning_rate", 1e-3),
    "training/epoch": ("epoch", 1.0),
    "perf/time_per_step": ("step_duration_seconds", 1.0),
    "train/time(s)": ("step_duration_seconds", 1.0),
    "perf/mfu/actor": ("mfu_ratio", 1.0),
    "train/mfu": ("mfu_ratio", 1.0),
    "train/total_tokens(B)": ("total_tokens", 1e9),
}
_RATES: Final = frozenset({"actor/lr", "train/lr", "train/lr(1e-3)"})
# They have a point, or an exponent.
_FLOATS: Final = _RATES | {"actor/pg_loss", "train/loss", "val/loss", "actor/grad_norm", "train/grad_norm"}
_TOKENS: Final = "perf/total_num_tokens"
# The last value may be torn; of all that are wanted only these stand there.
_LAST: Final = ("val", "train/total_tokens(B):", "train/time(s):")
_SAVE_TIME: Final = "timing_s/save_checkpoint"
_RESULT: Final = re.compile(
    r"critic/(?:score|rewards)/mean|critic/vf_loss|actor/(?:entropy|entropy_loss|kl_loss|ppo_kl|pg_clipfrac)"
    r"|response_length/(?:mean|clip_ratio)|val-core/.+|val/test_score/.+"
)
_KEY: Final = r"[A-Za-z][\w-]*/[\w/@.()-]+"
_VALUE: Final = rf"(?:np\.\w+\({NUMBER}\)|{NUMBER})"
_ORDINARY: Final = re.compile(rf"(?P<before>np\.\w+\()?{PRINTED}(?P<behind>(?(before)\)))", re.ASCII)
_STEP_LINE: Final = re.compile(rf"(?:^|\])step:(?P<step>\d{{1,15}}) - (?=(?P<key>{_KEY}):{_VALUE}(?: - |$))")
_JSON: Final = re.compile(r'^\{"step": ?\d+, ?"data": ?\{"')
_BEGINS: Final = re.compile(r"^Size of train dataloader: \d+(?:, Size of val dataloader: \d+)?$")
_TOTAL: Final = re.compile(r"^Total training steps: (?P<total>\d{1,15}),?$")
_SAVING: Final = re.compile(r"^(?:local_global_step_folder|Saving checkpoint to): (?P<path>\S*global_step_(?P<step>\d{1,15}))$")
_RESUMED: Final = re.compile(r"^Setting global step to (?P<step>\d{1,15})$")
_ENDED: Final = "Final validation metrics: "
_TITLE: Final = "Training Progress: "
_MAX_STEP: Final = 10**15


class Verl:
    """One process's output; a bar that Ray has split off from its prefix is a stream of its own."""

    def __init__(self) -> None:
        self._step: int | None = None  # as last reported
        self._total: int | None = None

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("{"):
            return self._json(line) if _JSON.match(text) else None
        drawn = self._bar(line) if text.startswith(_TITLE) else None
        if "step:" in text and (head := _STEP_LINE.search(text)) is not None:
            return [*(drawn or ()), self._step_line(line, head)]
        if drawn is not None or "%|" in text:
            return drawn
        return self._words(line)

    def flush(self) -> Reading:
        return NOTHING

    def _step_line(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        found: dict[str, float | None] = {}
        pairs = line.text[head.end() :].split(" - ")
        if not pairs[-1].startswith(_LAST):
            del pairs[-1]
        if not pairs:
            return Malformed(line.number, "truncated")
        seen: set[str] = set()
        for pair in pairs:
            key, _, printed = pair.rpartition(":")
            if key in seen or "/" not in key or not _is_ones(key, printed):
                return Malformed(line.number, "number")
            seen.add(key)
            if _is_wanted(key) and not (printed == "0.000" and key in _RATES):
                found[key] = number(printed)
        return self._record(line, int(head["step"]), found, hidden=frozenset())

    def shape(self, text: str) -> Shape | None:
        """Of a step's line that holds nothing but ordinary numbers."""
        head = _STEP_LINE.match(text) if text.startswith("step:") else None
        pairs = text[head.end() :].split(" - ") if head is not None else []
        pattern, keys, seen = r"step:([0-9]{1,15})", list[str](), set[str]()
        for pair in pairs:
            key, _, printed = pair.rpartition(":")
            found = _ORDINARY.fullmatch(printed)
            if found is None or "/" not in key or key in seen:
                return None
            seen.add(key)
            is_asked = _is_wanted(key) and (pair is not pairs[-1] or pair.startswith(_LAST))
            number = POINTED if key in _FLOATS else PRINTED
            before, behind = re.escape(f" - {key}:{found['before'] or ''}"), re.escape(found["behind"])
            pattern += before + (f"({number})" if is_asked else number) + behind
            keys += [key] if is_asked else []
        return Shape(pattern, ("step", *keys)) if keys else None

    def parse_alike(self, lines: Alike) -> BlockReading | None:
        steps = list(map(int, lines.columns["step"]))
        found = {key: _values(key, column) for key, column in lines.columns.items() if key != "step"}
        if (columns := self._columns(steps, found)) is not None:
            self._step = steps[-1]
            return [lines.table(columns)]
        told = zip(lines.lines(), steps, zip(*found.values(), strict=True), strict=True)
        return [self._record(line, step, dict(zip(found, values, strict=True)), hidden=frozenset()) for line, step, values in told]

    def _columns(self, steps: Sequence[int], found: Mapping[str, Sequence[float | None]]) -> Mapping[str, Sequence[float]] | None:
        """The fields that ``_record`` makes of these; None where it makes more than fields, or not the same of each line."""
        columns: dict[str, Sequence[float]] = {"step": steps}
        for key, column in found.items():
            name, scale = _FIELDS.get(key, (key, 1.0))
            values = [value * scale for value in column if value is not None]
            if (values and len(values) < len(steps)) or (key != _TOKENS and key not in _FIELDS) or name in (*columns, "eval_loss"):
                return None
            if values:
                columns[name] = values
        tokens, durations = columns.pop(_TOKENS, ()), columns.get("step_duration_seconds", ())
        if tokens and durations:
            if 0.0 in tokens or 0.0 in durations:
                return None
            columns["tokens_per_second"] = [amount / duration for amount, duration in zip(tokens, durations, strict=True)]
        if self._total is not None:
            if max(steps) > self._total:
                return None
            columns["target_steps"] = [self._total] * len(steps)
        return columns

    def _json(self, line: Line) -> Reading:
        try:
            told = json.loads(line.text)
        except (ValueError, RecursionError):
            return [Malformed(line.number, "json")]
        step, data = told.get("step"), told.get("data")
        if not isinstance(step, int) or not isinstance(data, dict) or not 0 <= step < _MAX_STEP:
            return [Malformed(line.number, "json")]
        found = {key: number(str(value)) for key, value in data.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
        nulls = {_FIELDS[key][0] for key, value in data.items() if value is None and key in _FIELDS}
        return [self._record(line, step, found, hidden=frozenset(nulls & {"loss", "grad_norm", "eval_loss"}))]

    def _record(self, line: Line, step: int, found: dict[str, float | None], *, hidden: frozenset[str]) -> Record:
        fields: dict[str, float] = {"step": step}
        metrics: dict[str, float] = {}
        for key, value in found.items():
            if value is None:
                continue
            if key in _FIELDS:
                name, scale = _FIELDS[key]
                fields[name] = value * scale
            elif _RESULT.fullmatch(key) and len(metrics) < MAX_METRICS:
                metrics[key] = value
        tokens, duration = found.get(_TOKENS), fields.get("step_duration_seconds")
        if tokens and duration:
            fields["tokens_per_second"] = tokens / duration
        if self._total is not None and step <= self._total:
            fields["target_steps"] = self._total
        self._step = step
        return Record(line.number, fields, metrics, stamp=line.stamp, checkpoint=_saved(step, found), hidden_nonfinite=hidden)

    def _bar(self, line: Line) -> Reading:
        drawn = bar(line.text)
        if drawn is None or (drawn.done == self._step and drawn.total == self._total):
            return NOTHING
        self._step, self._total = drawn.done, drawn.total
        fields: dict[str, float] = {"target_steps": drawn.total}
        if drawn.done:
            fields["step"] = drawn.done
        if drawn.elapsed_s is not None:
            fields["elapsed_seconds"] = drawn.elapsed_s
        return [Record(line.number, fields, stamp=line.stamp)]

    def _words(self, line: Line) -> Reading | None:
        text = line.text
        if _BEGINS.match(text):
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if (found := _TOTAL.match(text)) is not None:
            self._total = integer(found["total"])
            return [Record(line.number, {"target_steps": int(found["total"])}, stamp=line.stamp)]
        if (found := _RESUMED.match(text)) is not None:
            return [Record(line.number, {"step": int(found["step"])}, stamp=line.stamp)]
        if (found := _SAVING.match(text)) is not None:
            path = found["path"]
            news = Checkpoint(CheckpointEvent.STARTED, int(found["step"]), path)
            facts = {"output_dir": posixpath.dirname(path)}
            return [Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED in text else None


def _is_ones(key: str, printed: str) -> bool:
    """Whether one program printed the number; else it is glued from those of two."""
    return is_printed(_bare(printed)) and not (key in _FLOATS and printed.isdecimal() and printed != "0")


def _values(key: str, column: Sequence[bytes]) -> Sequence[float | None]:
    """Of ordinary numbers under a key."""
    return [None if value == b"0.000" else float(value) for value in column] if key in _RATES else list(map(float, column))


def _bare(text: str) -> str:
    """A number out of ``np.float64(...)``."""
    return text[text.find("(") + 1 : -1] if text.endswith(")") else text


@lru_cache(maxsize=1024)
def _is_wanted(key: str) -> bool:
    """Whether a value is asked for: of the hundred in a line a tenth is."""
    return key in _FIELDS or key in {_TOKENS, _SAVE_TIME} or _RESULT.fullmatch(key) is not None


def _saved(step: int, found: dict[str, float | None]) -> Checkpoint | None:
    """The end of a save is told by its duration, in the line of its step."""
    duration = found.get(_SAVE_TIME)
    return Checkpoint(CheckpointEvent.FINISHED, step, duration_seconds=duration) if duration is not None else None


def _sniff(text: str) -> bool:
    if text.startswith(("step:", _TITLE)):
        return "oss" in text and _STEP_LINE.search(text) is not None
    if text.startswith("{"):
        return "oss" in text and _JSON.match(text) is not None and "/" in text
    return text.startswith("Size of train ") and _BEGINS.match(text) is not None


FORMAT: Final = Format(
    name="verl",
    summary="verl: PPO, GRPO and SFT on the console and in its JSON file",
    hints=(LOSS, b"Size of train dataloader"),
    details=(b"%|", b"val-core/", b"val/test_score", b"otal training steps", b"global_step_", b"global step to", b"Final validation"),
    sniff=_sniff,
    parser=Verl,
)

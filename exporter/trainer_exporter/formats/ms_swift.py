"""ModelScope's ms-swift, 2.0 to 4.6, and Megatron-SWIFT 4: its console, and ``logging.jsonl`` in the output directory.

    {'loss': 1.2150, 'grad_norm': 0.8653, 'learning_rate': 9.8e-05, 'epoch': 0.17, 'global_step/max_steps': '20/360', ...}
    {"loss": 1.2150, "grad_norm": 0.8653, "learning_rate": 9.8e-05, "epoch": 0.17, "global_step/max_steps": "20/360", ...}

Both are the Trainer's dictionaries with the step inside. Odd: speed is a mean over the session, and its unit was turned over in
version 4, so it is not read; two processes may write the same file; its last line is a summary that holds the whole history
(half a megabyte) and is known by its keys. The dictionary with ``train_loss`` is the mean over the run and the closing word.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from typing import Final

from trainer_exporter.formats.bars import bar
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import evaluation, has_own_step, hidden_nonfinite, pairs, results, training_fields
from trainer_exporter.formats.wholeness import Always
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import integer

_STEPS: Final = ("global_step/max_steps", "iteration", "global_step")
_OPENINGS: Final = ("{'loss': ", '{"loss": ', "{'eval_", '{"eval_', "{'train_runtime': ", '{"train_runtime": ')
_SUMMARY: Final = '"last_model_checkpoint": '
_LOGGED: Final = re.compile(r"^\[(?:INFO|WARNING):swift\] (?P<text>.*)$")
_START: Final = "Start time of running main: "
_SAVING: Final = re.compile(r"^Saving model checkpoint to (?P<path>\S+)$")
_LAST: Final = re.compile(r"^last_model_checkpoint: (?P<path>\S+)$")
_NUMBERED: Final = re.compile(r"^checkpoint-(\d{1,15})(?:-merged)?$")
_DURATION: Final = re.compile(r"^(?:(\d{1,9})d ?)?(?:(\d{1,9})h ?)?(?:(\d{1,9})m ?)?(?:(\d{1,9})s)?$")
_UNITS_S: Final = (86400, 3600, 60, 1)
# So it prints no number: json.dumps gives a float a point, and all floats are rounded to 8 decimals.
_WHOLE: Final = re.compile(r"[1-9]\d*$")
_FLOATS: Final = ("loss", "grad_norm", "learning_rate")
_DECIMALS: Final = re.compile(r"-?\d+\.(?P<decimals>\d+)(?:e-(?P<exponent>\d\d))?$")
_MOST_DECIMALS: Final = 8
_TITLES: Final = ("Train: ", "Val: ")


class MsSwift:
    """One process's console, or its JSON file."""

    def __init__(self) -> None:
        self._step: int | None = None  # as last reported
        self._total: int | None = None
        self._phase: Phase | None = None
        self._rate = Always()  # in a dictionary with a loss

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if "%|" in text:
            at = text.find("{'")
            drawn = self._bar(line, text if at < 0 else text[:at])
            said = self._dictionary(line, text[at:]) if at >= 0 else None
            return drawn if said is None else [*(drawn or ()), *said]
        if text.startswith("{"):
            return self._dictionary(line, text)
        if (logged := _LOGGED.match(text)) is not None:
            return self._logged(line, logged["text"])
        return None

    def flush(self) -> Reading:
        return NOTHING

    # Dictionaries

    def _dictionary(self, line: Line, text: str) -> Reading | None:
        if text.startswith('{"') and _SUMMARY in text:
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if not has_own_step(text):
            return None
        if not text.endswith("}"):
            return [Malformed(line.number, "truncated")] if text.startswith(_OPENINGS) else None
        found = _keys(text)
        step, total = _place(found)
        if step is None:
            return [Malformed(line.number, "no_step")]
        if not _is_printed(found) or ("loss" in found and not self._rate.is_whole(has_it="learning_rate" in found)):
            return [Malformed(line.number, "number")]
        return [self._record(line, found, step, total)]

    def _record(self, line: Line, found: dict[str, str], step: int, total: int | None) -> Record:
        is_evaluation = "loss" not in found and any(key.startswith("eval_") for key in found)
        closes = "train_runtime" in found and "loss" not in found
        fields, metrics = evaluation(found) if is_evaluation else (training_fields(found), results(found))
        fields = {"step": step, **fields, **_times(found)}
        self._total = total or self._total
        if total is not None:
            fields["target_steps"] = total
        self._step = step
        phase = None if is_evaluation or closes else self._entered(Phase.TRAINING)
        hidden = hidden_nonfinite(fields)
        return Record(line.number, fields, metrics, stamp=line.stamp, phase=phase, hidden_nonfinite=hidden, closes=closes)

    def _entered(self, phase: Phase) -> Phase | None:
        before, self._phase = self._phase, phase
        return phase if before is not phase else None

    # Bars and words

    def _bar(self, line: Line, text: str) -> Reading | None:
        """The bar counts steps between the dictionaries; only its title and total tell it from others."""
        drawn = bar(text)
        if drawn is None or not text.startswith(_TITLES):
            return None
        if text.startswith("Val: "):
            phase = self._entered(Phase.EVALUATING)
            return [Record(line.number, stamp=line.stamp, phase=phase)] if phase else NOTHING
        if self._total is None or drawn.done == 0:
            self._total = drawn.total
        if drawn.total != self._total or drawn.done in {0, self._step}:
            return NOTHING
        self._step = drawn.done
        fields: dict[str, float] = {"step": drawn.done, "target_steps": drawn.total}  # its clock is not the dictionaries'
        return [Record(line.number, fields, stamp=line.stamp, phase=self._entered(Phase.TRAINING))]

    def _logged(self, line: Line, text: str) -> Reading | None:
        if text.startswith(_START):
            self._step = self._phase = None
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if _LAST.match(text):
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if (saving := _SAVING.match(text)) is None:
            return None
        path = saving["path"]
        numbered = _NUMBERED.match(posixpath.basename(path))
        if numbered is None:
            return [Record(line.number, facts={"output_dir": path}, stamp=line.stamp)]
        news = Checkpoint(CheckpointEvent.STARTED, int(numbered[1]), path)
        phase = self._entered(Phase.CHECKPOINTING)
        return [Record(line.number, facts={"output_dir": posixpath.dirname(path)}, stamp=line.stamp, phase=phase, checkpoint=news)]


def _keys(text: str) -> dict[str, str]:
    """Keys and printed values of either kind of line."""
    if text.startswith("{'"):
        return pairs(text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {key: str(value) for key, value in found.items() if isinstance(value, (int, float, str)) and not isinstance(value, bool)}


def _is_printed(found: dict[str, str]) -> bool:
    """Whether one process printed these numbers; else they are glued from those of two."""
    loss = _DECIMALS.match(found.get("loss", ""))
    is_rounded = loss is None or len(loss["decimals"]) + int(loss["exponent"] or 0) <= _MOST_DECIMALS
    return is_rounded and not any(_WHOLE.match(found.get(key, "")) for key in _FLOATS)


def _place(found: dict[str, str]) -> tuple[int | None, int | None]:
    """Step and target of ``20/360``, or of a step alone."""
    for key in _STEPS:
        step, _, total = found.get(key, "").partition("/")
        if (read := integer(step)) is not None:
            return read, integer(total)
    return None, None


def _times(found: dict[str, str]) -> dict[str, float]:
    times = {"elapsed_seconds": _seconds(found.get("elapsed_time", "")), "remaining_seconds": _seconds(found.get("remaining_time", ""))}
    return {name: seconds for name, seconds in times.items() if not math.isnan(seconds)}


def _seconds(text: str) -> float:
    """Seconds of ``1d 2h 3m 4s``; NaN when it is not printed so."""
    match = _DURATION.match(text.strip())
    if match is None or not match[0]:
        return math.nan
    return float(sum(int(part or 0) * unit for part, unit in zip(match.groups(), _UNITS_S, strict=True)))


def _sniff(text: str) -> bool:
    at = text.find("{")
    if at < 0 or (at > 0 and "%|" not in text):
        return False
    if not text.startswith(_OPENINGS, at) or not has_own_step(text):
        return False
    return text[at + 1] == "'" or '/max_steps": "' in text or '"iteration": "' in text or '"train_speed(' in text


FORMAT: Final = Format(
    name="ms_swift",
    summary="ModelScope ms-swift and Megatron-SWIFT 4: console and logging.jsonl",
    hints=(LOSS,),
    details=(b"%|", b":swift] ", b"train_runtime"),
    sniff=_sniff,
    parser=MsSwift,
)

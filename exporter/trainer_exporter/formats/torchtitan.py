"""pytorch/torchtitan, from its first public version to 0.2 and the main branch of 2026.

    step: 10  loss:  9.87312  grad_norm:  2.0041  memory: 38.55GiB(48.68%)  tps: 7,412  tflops: 381.33  mfu: 38.56%

Odd: colours are on by default, even in a file, and every rank prints unless told otherwise. ``tps`` is of one device, so tokens per second
come from batch size and step times. A pipeline stage that is not the last prints a loss of -1. ``mfu`` may be N/A. A checkpoint's
line has no step: it follows the step's own.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, duration, number

_STEP: Final = re.compile(rf"^(?P<validate>validate )?step: +(?P<step>\d{{1,15}})  (?=loss: +{NUMBER}  )")
_HEAD: Final = re.compile(r"^(?:validate )?step: +\d+  loss: ")
_MEMORY: Final = re.compile(r"  memory: +[\d.]+GiB\(")
_PAIR: Final = re.compile(rf"(?<![\w.])(?P<name>\w+): +(?P<value>{NUMBER})(?P<end>  |%$|%  )")  # what nothing follows may be half a number
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "loss": ("loss", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "tflops": ("tflops_per_gpu", 1.0),
    "mfu": ("mfu_ratio", 100.0),
}
_NO_LOSS: Final = -1.0

_INITIALIZED: Final = re.compile(r"^Trainer is initialized with (?P<facts>.+ total steps (?P<total>\d{1,15}) \(warmup \d+\))\.?$")
_SAMPLES: Final = re.compile(r"global batch size (\d{1,15}), .*sequence length (\d{1,15})")
_TOKENS: Final = re.compile(r"(?<!\d)(\d{1,15}) tokens per train step, .*maximum context length (\d{1,15})")
_STARTS: Final = re.compile(r"^Training starts at step (?P<step>\d{1,15})(?P<whole>\.)?$")
_SAVING: Final = re.compile(
    r"^Saving (?:the checkpoint(?: \(or staging if async is enabled\))?\.|a (?:full|model only) checkpoint .*step (?P<step>\d{1,15})\.)$"
)
_SAVED: Final = re.compile(
    rf"^(?:Finished saving the checkpoint(?: \(or staging if async is enabled\))? ?in (?P<s>{NUMBER}) seconds\.?"
    rf"|Last step checkpoint completed in (?P<last>{NUMBER})s)$"
)
_STAGING: Final = re.compile(r"^Staging the checkpoint\.$")
_STAGED: Final = re.compile(r"^Finished staging the checkpoint in ")
_TIMEOUT: Final = re.compile(r"adjusting timeout for all ProcessGroups to (?P<time>\d+:\d\d:\d\d)$")
_ENDED: Final = re.compile(r"^Training completed$")


class Torchtitan:
    """The lines of one rank."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._saving: int | None = None

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _STEP.match(text)) is not None:
            return [self._validated(line, found) if found["validate"] else self._trained(line, found)]
        if _HEAD.match(text) is not None:
            return [Malformed(line.number, "truncated")]
        if "checkpoint" in text:
            return self._checkpoint(line)
        return self._announced(line)

    def flush(self) -> Reading:
        return NOTHING

    def _trained(self, line: Line, found: re.Match[str]) -> Record:
        self._step = int(found["step"])
        fields: dict[str, float] = {"step": self._step, **_values(line.text)}
        if fields.get("loss") == _NO_LOSS:
            del fields["loss"]
        return Record(line.number, fields, stamp=line.stamp)

    def _validated(self, line: Line, found: re.Match[str]) -> Record:
        fields: dict[str, float] = {"step": int(found["step"])}
        loss = _values(line.text).get("loss", _NO_LOSS)
        if loss != _NO_LOSS:
            fields["eval_loss"] = loss
        return Record(line.number, fields, stamp=line.stamp)

    def _checkpoint(self, line: Line) -> Reading | None:
        if (saving := _SAVING.match(line.text)) is not None:
            self._saving = int(saving["step"]) if saving["step"] else self._step
            news = Checkpoint(CheckpointEvent.STARTED, self._saving)
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        if (saved := _SAVED.match(line.text)) is not None:
            seconds = number(saved["s"] or saved["last"])
            news = Checkpoint(CheckpointEvent.FINISHED, self._saving, duration_seconds=seconds)
            return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news)]
        if _STAGING.match(line.text):  # the copy to memory stops training, the upload behind it tells no end
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING)]
        return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING)] if _STAGED.match(line.text) else None

    def _announced(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _INITIALIZED.match(text)) is not None:
            fields: dict[str, float] = {"target_steps": int(found["total"]), **_batch(found["facts"])}
            return [Record(line.number, fields, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if (found := _STARTS.match(text)) is not None:
            done = int(found["step"]) - 1 if found["whole"] else 0  # older versions end the line with the number, which may be half
            return [Record(line.number, {"step": done}, stamp=line.stamp)] if done > 0 else NOTHING
        if (found := _TIMEOUT.search(text)) is not None and (seconds := duration(found["time"])) is not None:
            return [Record(line.number, {"collective_timeout_seconds": seconds}, stamp=line.stamp)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None


def _values(text: str) -> dict[str, float]:
    fields = {}
    for found in _PAIR.finditer(text):
        if found["name"] in _FIELDS and (value := number(found["value"])) is not None:
            name, divisor = _FIELDS[found["name"]]
            fields[name] = value / divisor
    return fields


def _batch(text: str) -> dict[str, float]:
    """Batch size in samples and their length; a trainer that counts in tokens packs samples of the whole context."""
    if (samples := _SAMPLES.search(text)) is not None:
        return {"global_batch_size": int(samples[1]), "sequence_length": int(samples[2])}
    tokens = _TOKENS.search(text)
    if tokens is None or int(tokens[2]) == 0:
        return {}
    return {"global_batch_size": int(tokens[1]) / int(tokens[2]), "sequence_length": int(tokens[2])}


def _sniff(text: str) -> bool:
    if text.startswith("Trainer is"):
        return _INITIALIZED.match(text) is not None
    return _HEAD.match(text) is not None and _MEMORY.search(text) is not None


FORMAT: Final = Format(
    name="torchtitan",
    summary="torchtitan: steps, validation, checkpoints",
    hints=(LOSS, b"Trainer is initialized with "),
    details=(
        b" the checkpoint",
        b" checkpoint at ",
        b"Last step checkpoint",
        b"Training starts at step",
        b"Training completed",
        b"adjusting timeout",
    ),
    sniff=_sniff,
    parser=Torchtitan,
)

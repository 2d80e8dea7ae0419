"""What DeepSpeed's engine prints beneath any training program, v0.5 to v0.19: steps, throughput, loss scale, saves.

    [2025-01-01 00:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[5e-05, 5e-05], mom=[(0.9, 0.999)]

Odd: only its pipeline engine prints a loss; ``skipped`` counts from the engine's beginning; the step of the throughput line counts from
the process's, so it is left alone; and the end of a save is printed by every rank up to v0.17.0 and by none since.
"""

from __future__ import annotations

import math
import posixpath
import re
from typing import Final

from trainer_exporter.formats.base import NOTHING, Reading
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Phase, Record
from trainer_exporter.numbers import NUMBER, number

STEP: Final = b", skipped="  # stands in every step line
DETAILS: Final = (b"SamplesPerSec=", b"heckpoint")
_STEP: Final = re.compile(r"^step=(?P<step>\d{1,15}), skipped=(?P<skipped>\d{1,15}), lr=\[(?P<rates>(?P<lr>[^\],]*)[^\]]*)\]")
_RATE: Final = re.compile(
    r"^(?:epoch=\d+/micro_step=\d+/global_step=\d+|\d+/\d+), RunningAvgSamplesPerSec=\S+, CurrSamplesPerSec=(?P<rate>[^,\s]+),"
)
_PIPELINE: Final = re.compile(
    rf"^steps: (?P<step>\d{{1,15}}) loss: (?P<loss>{NUMBER}) (?:\S+: {NUMBER} )*?iter time \(s\):"
    r"(?: (?P<s>\d+\.\d{3})(?: samples/sec: (?P<rate>\d+\.\d{3}))?)?"
)
_OVERFLOW: Final = re.compile(
    r"(?:\[deep(?:speed|scale)\] OVERFLOW! Rank (?P<rank>\d{1,15})|fp16 dynamic loss scale overflow!|^Overflow detected\.) Skipping step\."
    r" Attempted loss scale: (?P<scale>[\d.e+]+), (?:reducing to (?P<new>\d[\d.e+]*)|but hysteresis is )"
)
_SCALED: Final = re.compile(r"^(?:Reducing|Increasing) dynamic loss scale from \S+ to (?P<new>\d[\d.e+]*)$")
_SAVE: Final = re.compile(
    r"^(?:\[Torch\] Checkpoint (?P<tag>\S+) is (?P<word>about to be saved|begin to save|ready now)!"
    r"|Saving model checkpoint: (?P<path>\S+))"
)
_FAILED: Final = re.compile(r"^Failed saving model checkpoint to (?P<dir>\S+) with tag (?P<tag>\S+)")
_TAG: Final = re.compile(r"^global_step(\d{1,15})$")


class Engine:
    """The engine's lines of one process, or of processes that share a file."""

    def __init__(self) -> None:
        self.step: int | None = None
        self._skipped: int | None = None  # as last printed
        self._told = 0  # skips that overflow lines told of since then
        self._saving: str | None = None
        self._saved: str | None = None

    def read(self, line: Line) -> Reading | None:
        """What an engine's line says; None when it is none."""
        text = line.text
        if (found := _STEP.match(text)) is not None:
            return [self._stepped(line, found)]
        if (found := _PIPELINE.match(text)) is not None:
            return [self._piped(line, found)]
        if (found := _RATE.match(text)) is not None:
            rate = number(found["rate"])
            return [_said(line, {"samples_per_second": rate})] if rate is not None and 0 < rate < math.inf else NOTHING
        if "oss scale" in text:
            return self._scaled(line)
        return self.save(line) if "heckpoint" in text else None

    def _stepped(self, line: Line, found: re.Match[str]) -> Record:
        step, skipped = int(found["step"]), int(found["skipped"])
        before, self._skipped = self._skipped, skipped
        told, self._told = self._told, 0
        if step == 0:
            self.step = None
            return Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)
        self.step = step
        fields: dict[str, float] = {"step": step}
        if None not in map(number, found["rates"].split(",")) and (rate := number(found["lr"])) is not None:
            fields["learning_rate"] = rate
        if before is not None and skipped >= before:
            fields["skipped_steps"] = max(0, skipped - before - told)
        return _said(line, fields)

    def _piped(self, line: Line, found: re.Match[str]) -> Record:
        self.step = int(found["step"])
        fields: dict[str, float] = {"step": self.step}
        for name, group in (("loss", "loss"), ("step_duration_seconds", "s"), ("samples_per_second", "rate")):
            if found[group] and (read := number(found[group])) is not None:
                fields[name] = read
        return _said(line, fields)

    def _scaled(self, line: Line) -> Reading | None:
        found = _SCALED.match(line.text) or _OVERFLOW.search(line.text)
        if found is None:
            return None
        groups = found.groupdict()
        scale = number(groups["new"] or groups["scale"])
        fields: dict[str, float] = {} if scale is None else {"loss_scale": scale}
        if groups.get("rank") == "0":
            self._told += 1
            fields["skipped_steps"] = 1
        return [_said(line, fields)] if fields else NOTHING

    def save(self, line: Line) -> Reading | None:
        """What a line says about a checkpoint; None when it is not the engine's."""
        if (failed := failed_save(line)) is not None:
            self._saving = None
            return failed
        found = _SAVE.match(line.text)
        if found is None:
            if line.text.startswith(("[Torch] Load", "[Torch] Begin Load")):
                self._skipped = None  # the count goes on from the checkpoint's
            return NOTHING if line.text.startswith("[Torch] ") else None
        if found["path"]:
            return self._begun(line, posixpath.basename(posixpath.dirname(found["path"])), posixpath.dirname(found["path"]))
        if found["word"] != "ready now":
            return self._begun(line, found["tag"])
        if found["tag"] == self._saved:
            return NOTHING  # each rank says so
        self._saved, self._saving = found["tag"], None
        news = Checkpoint(CheckpointEvent.FINISHED, _step_of(found["tag"]))
        return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news)]

    def _begun(self, line: Line, tag: str, path: str = "") -> Reading:
        facts = {"output_dir": posixpath.dirname(path)} if posixpath.dirname(path) else {}
        if tag == self._saving:
            return [Record(line.number, facts=facts, stamp=line.stamp)] if facts else NOTHING
        self._saving, self._saved = tag, None
        news = Checkpoint(CheckpointEvent.STARTED, _step_of(tag), path)
        return [Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]


def failed_save(line: Line) -> list[Record] | None:
    """The engine's word that a save has failed, beneath whatever program; None of another line."""
    found = _FAILED.match(line.text)
    if found is None:
        return None
    news = Checkpoint(CheckpointEvent.FAILED, _step_of(found["tag"]), posixpath.join(found["dir"], found["tag"]))
    return [Record(line.number, stamp=line.stamp, checkpoint=news)]


def is_step(text: str) -> bool:
    """Whether only an engine prints such a line: a step, its throughput, or a pipeline's step with its loss."""
    return any(one.match(text) is not None for one in (_STEP, _RATE, _PIPELINE))


def _said(line: Line, fields: dict[str, float]) -> Record:
    return Record(line.number, fields, stamp=line.stamp)


def _step_of(tag: str) -> int | None:
    numbered = _TAG.match(tag)
    return int(numbered[1]) if numbered else None

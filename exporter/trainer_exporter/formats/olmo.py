"""allenai/OLMo, 0.2 to 0.6.

    2026-01-01 00:00:00.123<TAB>node1:0<TAB>olmo.train:967<TAB>INFO<TAB>[step=100/739328,epoch=0]
        train/CrossEntropyLoss=5.102
        optim/total_grad_norm=0.8123

Odd: only the header has the logger's prefix, and other ranks print at most the header. No learning rate is printed. Rates are of one device
and leave out evaluation and saving; tokens in total are of the whole job.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.olmo_blocks import HEADER, Block, Unwrapped, figure, is_header, unwrapped
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record

_LOSS: Final = "train/CrossEntropyLoss"
_FIELDS: Final = {_LOSS: "loss", "optim/total_grad_norm": "grad_norm"}
_TOKENS: Final = "throughput/total_tokens"
_STEPS_PER_SECOND: Final = "throughput/device/batches_per_second"
_RESULT: Final = re.compile(r"^eval/(?P<set>.+)/(?P<what>[^/]+)$")
_EVALUATED: Final = re.compile(r"^[\w.-]+$")
_EVALUATING: Final = re.compile(r"^Running evaluation for '[^']+'\.\.\.$|^\[eval_step=\d+/\d+\]$")
_SAVING: Final = re.compile(r"^Saving (?:ephemeral |unsharded |final unsharded model |final |pre-train )?checkpoint\.\.\.$")
_SAVED: Final = re.compile(r"^(?:Unsharded c|C)heckpoint saved to (?P<path>\S+)$")
_PATH_STEP: Final = re.compile(r"/step(\d{1,15})(?:-unsharded)?/?$")
_STARTS: Final = "Starting training..."
_ENDED: Final = "Training complete"


class Olmo:
    """The lines of one rank."""

    def __init__(self) -> None:
        self._block = Block()
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return self._block.is_open

    def parse(self, line: Line) -> Reading | None:
        self._block.passes()
        if line.text.startswith("    "):
            return self._figure(line)
        said = unwrapped(line)
        if (record := self._block.header(line, said)) is not None:
            self._is_evaluating = False
            return [record]
        return self._announced(line, said)

    def flush(self) -> Reading:
        return NOTHING

    def _figure(self, line: Line) -> Reading | None:
        told = figure(line.text)
        if told is None:
            torn = self._block.torn(line)
            return None if torn is None else [torn]
        return self._told(line, *told) if self._block.has(told[0]) else [Malformed(line.number, "no_step")]

    def _told(self, line: Line, key: str, value: float) -> Reading | None:
        if key == _TOKENS:
            self._block.tokens(value)
            return NOTHING
        if key in _FIELDS:
            return [self._block.record(line, {_FIELDS[key]: value})]
        if key == _STEPS_PER_SECOND and value > 0.0:
            return [self._block.record(line, {"step_duration_seconds": 1.0 / value})]
        if (found := _RESULT.match(key)) is not None:
            is_loss = found["what"] == "CrossEntropyLoss"
            record = self._block.result(line, found["set"], f"{found['set']}/{found['what']}", value, is_loss=is_loss)
            return NOTHING if record is None else [record]
        return NOTHING if self._block.is_open and "/" in key else None

    def _announced(self, line: Line, said: Unwrapped) -> Reading | None:
        text = said.text
        if _SAVING.match(text):
            news = Checkpoint(CheckpointEvent.STARTED, self._block.step)
            return [Record(line.number, stamp=said.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        if (found := _SAVED.match(text)) is not None:
            return [_saved(line, said, found["path"], self._block.step)]
        if _EVALUATING.match(text):
            return self._evaluating(line, said)
        if said.logger and text in {_STARTS, _ENDED}:
            has_begun = text == _STARTS
            phase = Phase.STARTING if has_begun else None
            return [Record(line.number, stamp=said.stamp, phase=phase, starts=has_begun, closes=not has_begun)]
        if "nan loss encountered" in text:
            return [Record(line.number, stamp=said.stamp, hidden_nonfinite=frozenset({"loss"}))]
        return NOTHING if said.logger.startswith("olmo.") and _EVALUATED.match(text) else None

    def _evaluating(self, line: Line, said: Unwrapped) -> Reading:
        self._block.opens(said.stamp)
        if self._is_evaluating:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=said.stamp, phase=Phase.EVALUATING)]


def _saved(line: Line, said: Unwrapped, path: str, step: int | None) -> Record:
    """The path ends the line: one that does not name the present step may be torn."""
    numbered = _PATH_STEP.search(path)
    if numbered is None or (step is not None and int(numbered[1]) != step):
        return Record(line.number, stamp=said.stamp, phase=Phase.TRAINING, checkpoint=Checkpoint(CheckpointEvent.FINISHED, step))
    news = Checkpoint(CheckpointEvent.FINISHED, int(numbered[1]), path)
    facts = {"output_dir": path[: numbered.start()]}
    return Record(line.number, facts=facts, stamp=said.stamp, phase=Phase.TRAINING, checkpoint=news)


def _sniff(text: str) -> bool:
    if text.startswith("    "):
        return text.startswith(f"    {_LOSS}=") and figure(text) is not None
    if "\tolmo." not in text:
        return False
    said = unwrapped(Line(text, 0))
    return said.logger.startswith("olmo.") and is_header(said.text)


FORMAT: Final = Format(
    name="olmo",
    summary="OLMo: blocks of step and figures, evaluation, checkpoints",
    hints=(LOSS, HEADER),
    details=(b"heckpoint", b"Running evaluation for", b"[eval_step=", b"Starting training...", b"Training complete"),
    sniff=_sniff,
    parser=Olmo,
)

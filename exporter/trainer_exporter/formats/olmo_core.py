"""allenai/OLMo-core, 1.0 to 2.5.

    2026-01-01 00:00:00.123<TAB>node1:0<TAB>olmo_core.train.callbacks.console_logger:90<TAB>INFO<TAB>[step=10/1000,epoch=1,eta=2h3m4s]
        train/CE loss=9.812
        optim/LR (group 0)=1.20E-05

Odd: between two records bare headers may come. Large figures end in B, T, P or E. An evaluation's figures have no prefix of their own: they
belong to the line ``Finished ... evals`` above them. MFU is in percent, rates are of one device.
"""

from __future__ import annotations

import math
import posixpath
import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.olmo_blocks import HEADER, Block, Unwrapped, figure, is_header, unwrapped
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record

_TOKENS: Final = "throughput/total tokens"
_COARSE: Final = 1e9  # from here on it has four digits: a rate from its differences would be wrong
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "train/CE loss": ("loss", 1.0),
    "optim/total grad norm": ("grad_norm", 1.0),
    "optim/LR": ("learning_rate", 1.0),
    "optim/LR (group 0)": ("learning_rate", 1.0),
    "throughput/device/MFU": ("mfu_ratio", 100.0),
}
_STEPS_PER_SECOND: Final = "throughput/device/BPS"
_SKIPPED: Final = re.compile(r"^ {4}optim/step skipped=(?P<count>[01])\.0+$")
_OWN: Final = frozenset({"train/CE loss", "train/Z loss", "train/load balancing loss", "train/router Z loss"})
_EVALUATING: Final = re.compile(r"^(?:Running .+ evals\.\.\.|\[eval=.+,step=\d+(?:/\d+)?\])$")
_EVALUATED: Final = re.compile(r"^Finished .+ evals in [\d.]+ seconds\. Metrics:$")
_CE_LOSS: Final = re.compile(r"^(?P<set>.+)/CE loss$")
_SAVING: Final = re.compile(r"^Saving checkpoint for step (?P<step>\d{1,15}) to '(?P<path>[^']+)'(?P<how> asynchronously)?\.\.\.$")
_SAVED: Final = re.compile(r"^Checkpoint (?:for step (?P<step>\d{1,15}) saved successfully|saved)$")
_RESUMED: Final = re.compile(r"^Will resume training from step (?P<step>\d{1,15}), epoch \d+$")
_ENDED: Final = "Training complete"


class OlmoCore:
    """The lines of one rank."""

    def __init__(self) -> None:
        self._block = Block()
        self._saving: int | None = None
        self._is_evaluating = False  # no step has come since an evaluation began
        self._shows_results = False

    @property
    def wants_all(self) -> bool:
        return self._block.is_open

    def parse(self, line: Line) -> Reading | None:
        self._block.passes()
        if line.text.startswith("    "):
            return self._figure(line)
        said = unwrapped(line)
        if (record := self._block.header(line, said)) is not None:
            self._is_evaluating = self._shows_results = False
            return [record]
        if _EVALUATING.match(said.text) or _EVALUATED.match(said.text):
            return self._evaluating(line, said)
        return self._announced(line, said)

    def flush(self) -> Reading:
        return NOTHING

    def _figure(self, line: Line) -> Reading | None:
        if (skipped := _SKIPPED.match(line.text)) is not None:
            return [self._block.record(line, {"skipped_steps": int(skipped["count"])})]
        told = figure(line.text)
        if told is None:
            torn = self._block.torn(line)
            return None if torn is None else [torn]
        if not self._block.has(told[0]):
            return [Malformed(line.number, "no_step")]
        return self._result(line, *told) if self._shows_results else self._trained(line, *told)

    def _result(self, line: Line, key: str, value: float) -> Reading:
        found = _CE_LOSS.match(key)
        record = self._block.result(line, found["set"] if found else "", key, value, is_loss=found is not None)
        return NOTHING if record is None else [record]

    def _trained(self, line: Line, key: str, value: float) -> Reading | None:
        if key == _TOKENS:
            self._block.tokens(value if value < _COARSE else math.nan)
            return NOTHING
        if key in _FIELDS:
            name, divisor = _FIELDS[key]
            return [self._block.record(line, {name: value / divisor})]
        if key == _STEPS_PER_SECOND and value > 0.0:
            return [self._block.record(line, {"step_duration_seconds": 1.0 / value})]
        return NOTHING if self._block.is_open and "/" in key else None

    def _evaluating(self, line: Line, said: Unwrapped) -> Reading:
        self._block.opens(said.stamp)
        self._shows_results = _EVALUATED.match(said.text) is not None
        if self._is_evaluating:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=said.stamp, phase=Phase.EVALUATING)]

    def _announced(self, line: Line, said: Unwrapped) -> Reading | None:
        if (found := _SAVING.match(said.text)) is not None:
            self._saving = int(found["step"])
            facts = {"output_dir": posixpath.dirname(found["path"])}
            news = Checkpoint(CheckpointEvent.STARTED, self._saving, found["path"], blocking=not found["how"])
            phase = Phase.TRAINING if found["how"] else Phase.CHECKPOINTING
            return [Record(line.number, facts=facts, stamp=said.stamp, phase=phase, checkpoint=news)]
        if (found := _SAVED.match(said.text)) is not None:
            news = Checkpoint(CheckpointEvent.FINISHED, int(found["step"]) if found["step"] else self._saving)
            return [Record(line.number, stamp=said.stamp, phase=Phase.TRAINING, checkpoint=news)]
        if (found := _RESUMED.match(said.text)) is not None:
            fields: dict[str, float] = {"step": int(found["step"])}
            return [Record(line.number, fields, stamp=said.stamp, phase=Phase.STARTING, starts=True)]
        if said.text == _ENDED and said.logger:
            return [Record(line.number, stamp=said.stamp, closes=True)]
        return None


def _sniff(text: str) -> bool:
    if text.startswith("    "):
        told = figure(text)
        return told is not None and told[0] in _OWN
    if "\tolmo_core." not in text:
        return False
    said = unwrapped(Line(text, 0))
    return said.logger.startswith("olmo_core.") and is_header(said.text)


FORMAT: Final = Format(
    name="olmo_core",
    summary="OLMo-core: blocks of step and figures, evaluation, checkpoints",
    hints=(LOSS, HEADER),
    details=(b"heckpoint", b" evals", b"[eval=", b"Will resume training", b"Training complete"),
    sniff=_sniff,
    parser=OlmoCore,
)

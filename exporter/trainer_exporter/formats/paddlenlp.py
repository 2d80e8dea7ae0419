"""PaddleNLP 2.5 to 3.0 and PaddleFormers: ``paddlenlp.trainer.Trainer``, console and ``workerlog.N``.

    [2024-01-01 00:00:00,123] [    INFO] - loss: 10.12345678, learning_rate: 3e-05, global_step: 10, ..., progress_or_epoch: 0.0123

Odd: ``interval_hardware_tflops_per_device`` counts recomputation and divides by 2^40, so it is not the model's TFLOPS and is not read;
tokens per second are those of one device. A counterpart of the Hugging Face Trainer: it announces the same things in the same words.
"""

from __future__ import annotations

import math
import re
from typing import Final

from trainer_exporter.formats.announcements import Announcements
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import evaluation
from trainer_exporter.formats.epochs import StepsFromEpochs
from trainer_exporter.model import Line, Malformed, Record
from trainer_exporter.numbers import NUMBER, integer, number

_TRAINING: Final = re.compile(rf"^loss: {NUMBER}, learning_rate: {NUMBER}, global_step: \d{{1,15}}(?=,|$)")
_EVALUATION: Final = re.compile(rf"^eval_\w+: {NUMBER}, .*\beval_runtime: {NUMBER}(?=,|$)")
_PAIR: Final = re.compile(rf"(?:^|, )(?P<key>[A-Za-z_][\w/]*): (?P<value>{NUMBER})(?=, |$)")
_TOTAL: Final = re.compile(r"^ *Total optimization steps = (?P<total>[\d,]{1,15})(?:\.0)?$")
_SKIPPED: Final = re.compile(rf"^optimizer not run, scale_before: {NUMBER}, scale_after: (?P<scale>{NUMBER})")
_FIELDS: Final = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "global_step": "step",
    "progress_or_epoch": "epoch",
    "epoch": "epoch",
    "interval_samples_per_second": "samples_per_second",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
}
_ENDED: Final = "Training completed."
_LAST: Final = "progress_or_epoch"


class PaddleNlp:
    """The output of one process."""

    def __init__(self) -> None:
        self._announcements = Announcements(StepsFromEpochs())
        self._total: int | None = None

    @property
    def wants_all(self) -> bool:
        return self._announcements.wants_all

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("loss: "):
            return self._training(line) if _TRAINING.match(text) else None
        if text.startswith("eval_") and _EVALUATION.match(text):
            fields, metrics = evaluation(dict(_PAIR.findall(text)))
            return [Record(line.number, fields, metrics, stamp=line.stamp)]
        if (found := _SKIPPED.match(text)) is not None:
            scale = number(found["scale"])
            fields = {"skipped_steps": 1.0} | ({} if scale is None else {"loss_scale": scale})
            return [Record(line.number, fields, stamp=line.stamp)]
        if (found := _TOTAL.match(text)) is not None:
            self._total = integer(found["total"])
            fields = {} if self._total is None else {"target_steps": self._total}
            return [Record(line.number, fields, stamp=line.stamp)]
        if text.strip() == _ENDED:
            return [Record(line.number, stamp=line.stamp, closes=True)]
        return self._announcements.read(line, text)

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line) -> Reading:
        self._announcements.end_block()
        pairs = _PAIR.findall(line.text)
        if any(piece.count(": ") > 1 for piece in line.text.split(", ")):
            return [Malformed(line.number, "number")]  # another line begins behind half of a number
        if len(pairs) > 3 and pairs[-1][0] not in {_LAST, "epoch", "gpu_max_memory_allocated", "cpu_mem_used"}:
            pairs.pop()  # the line is torn, and its last number may be too
        printed = dict(pairs)
        fields = {name: read for key, name in _FIELDS.items() if (read := number(printed.get(key, ""))) is not None}
        if not math.isfinite(fields.get("step", math.nan)):
            return [Malformed(line.number, "no_step")]
        fields["step"] = int(fields["step"])
        rate = number(printed.get("interval_steps_per_second", ""))
        if rate and math.isfinite(rate):
            fields["step_duration_seconds"] = 1.0 / rate
        if self._total is not None and fields["step"] <= self._total:
            fields["target_steps"] = self._total
        return [Record(line.number, fields, stamp=line.stamp)]


def _sniff(text: str) -> bool:
    return text.startswith("loss: ") and _TRAINING.match(text) is not None


FORMAT: Final = Format(
    name="paddlenlp",
    summary="PaddleNLP and PaddleFormers: their Trainer",
    hints=(LOSS,),
    details=(b"heckpoint", b"***** Running ", b"optimization steps", b"optimizer not run", b"Training completed", b"global step"),
    sniff=_sniff,
    parser=PaddleNlp,
)

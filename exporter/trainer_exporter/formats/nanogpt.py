"""karpathy/nanoGPT and what was copied from it.

    iter 250: loss 3.4871, time 281.33ms, mfu 41.22%
    step 250: train loss 3.4512, val loss 3.4623

Odd: ``iter`` lines are training, of one rank and its last micro-batch; ``step`` lines are an evaluation of both splits. ``mfu`` is
-100.00% for the first five lines, and always relative to an A100, so what is published are the FLOPs that it stands for. Every rank
prints the first line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import FLOAT, Manner
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, integer, number

_ITERATION: Final = re.compile(
    rf"^iter (?P<step>\d{{1,15}}): loss (?P<loss>{FLOAT}), time (?P<ms>\d+(?:\.\d\d)?) ?ms(?:, mfu (?P<mfu>-?\d+\.\d\d)%)?$"
)
_BEGUN: Final = re.compile(rf"^iter (?P<step>\d{{1,15}}): loss (?P<loss>{FLOAT}), (?:t|$)")
_EVALUATION: Final = re.compile(rf"^step (?P<step>\d{{1,15}}): train loss (?P<train>{FLOAT}), val loss (?P<val>{FLOAT})$")
_SAVING: Final = re.compile(r"^saving checkpoint to (?P<dir>\S+)$")
_STARTS: Final = re.compile(r"^tokens per iteration will be: (?P<tokens>[\d,]{1,20})$")
_PARAMETERS: Final = re.compile(rf"^number of parameters: (?P<count>{NUMBER}M)$")
_MOST_PARAMETERS: Final = 1e15
_VOCABULARY: Final = re.compile(r"^found vocab_size = (?P<size>\d{1,15}) \(inside ")
_A100_TFLOPS: Final = 312.0  # nanoGPT's own constant
_DECIMALS: Final = re.compile(r"\.\d{4}$|[a-z]$", re.IGNORECASE)


class Nanogpt:
    """The output of one run."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._manner = Manner(fixed=True)

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _ITERATION.match(text) or _BEGUN.match(text)) is not None:
            return [self._iteration(line, found)]
        if (found := _EVALUATION.match(text)) is not None:
            return [self._evaluation(line, found)]
        if (found := _SAVING.match(text)) is not None:
            news = Checkpoint(CheckpointEvent.STARTED, self._step, f"{found['dir']}/ckpt.pt")
            facts = {"output_dir": found["dir"]}
            return [Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        return self._announced(line)

    def flush(self) -> Reading:
        return NOTHING

    def _iteration(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        loss = number(found["loss"])
        if loss is None or not self._manner.accepts("loss", found["loss"]):
            return Malformed(line.number, "number")
        told = found.groupdict()
        self._step = int(found["step"])
        fields: dict[str, float] = {"step": self._step, "loss": loss}
        if told.get("ms") and (milliseconds := number(told["ms"])) is not None:
            fields["step_duration_seconds"] = milliseconds / 1e3
        if told.get("mfu") and (percent := number(told["mfu"])) is not None and percent >= 0.0:
            fields["tflops_per_gpu"] = percent / 100.0 * _A100_TFLOPS
        return Record(line.number, fields, stamp=line.stamp)

    def _evaluation(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        value, train = number(found["val"]), number(found["train"])
        if value is None or train is None or not (_DECIMALS.search(found["val"]) and _DECIMALS.search(found["train"])):
            return Malformed(line.number, "truncated")
        self._step = int(found["step"])
        fields: dict[str, float] = {"step": self._step, "eval_loss": value}
        return Record(line.number, fields, {"train_loss": train}, stamp=line.stamp)

    def _announced(self, line: Line) -> Reading | None:
        if (found := _STARTS.match(line.text)) is not None:
            self._step = None
            tokens = integer(found["tokens"])
            fields = {} if tokens is None else {"tokens_per_step": tokens}
            return [Record(line.number, fields, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if (
            (found := _PARAMETERS.match(line.text)) is not None
            and (count := number(found["count"])) is not None
            and count < _MOST_PARAMETERS
        ):
            return [Record(line.number, {"parameters": float(round(count))}, stamp=line.stamp)]
        if (found := _VOCABULARY.match(line.text)) is not None and (size := integer(found["size"])) is not None:
            return [Record(line.number, {"vocabulary_size": size}, stamp=line.stamp)]
        return None


def _sniff(text: str) -> bool:
    if text.startswith("iter "):
        return _ITERATION.match(text) is not None
    return text.startswith("step ") and _EVALUATION.match(text) is not None


def _opens(lines: Sequence[str]) -> bool:
    return _STARTS.match(lines[-1]) is not None


FORMAT: Final = Format(
    name="nanogpt",
    summary="nanoGPT: iter and step lines",
    hints=(LOSS,),
    details=(b"saving checkpoint to", b"tokens per iteration will be", b"number of parameters: ", b"found vocab_size"),
    sniff=_sniff,
    parser=Nanogpt,
    opens=_opens,
)

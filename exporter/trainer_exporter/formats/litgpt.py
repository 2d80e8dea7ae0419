"""Lightning-AI/litgpt and its elder TinyLlama.

    Epoch 1 | iter 640 step 40 | loss train: 3.207, val: n/a | iter time: 412.34 ms (step) remaining time: 11:11:11
    iter 3200: val loss 2.9812, val time: 10233.15 ms

Odd: ``iter`` counts micro-batches, ``step`` optimizer steps, so the time of an iteration is no step's. The last validation's loss is
printed again on every line and read where it was measured. No rates that could be trusted: the final ``Tok/sec`` is wrong.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, duration, number

_LOSS: Final = rf"(?=-?\d+\.\d\d\d|-?[a-z]){NUMBER}"  # it has 3 decimals, or 4
_ITERATION: Final = re.compile(
    rf"^Epoch (?P<epoch>\d{{1,15}}) \| iter (?P<iter>\d{{1,15}}) step (?P<step>\d{{1,15}}) \| ?loss train: (?P<loss>{_LOSS}),"
    rf"(?: val: (?:{NUMBER}|n/a) \| iter time: {NUMBER} ms(?: \(step\))?(?: remaining time: (?P<remaining>[\w, ]*\d+:\d\d:\d\d)$)?)?"
)
_TINY: Final = re.compile(rf"^iter (?P<iter>\d{{1,15}}) step (?P<step>\d{{1,15}}): loss (?P<loss>{_LOSS}), iter time: {NUMBER}ms")
_VALIDATED: Final = re.compile(rf"^iter (?P<iter>\d{{1,15}}): val[ _]loss:? (?P<loss>{NUMBER}), val[ _]time:? {NUMBER} ?ms")
_FINAL: Final = re.compile(rf"^Final evaluation \| val loss: (?P<loss>{NUMBER}) \| val ppl: (?P<ppl>\d+\.\d{{3}}|nan|inf)$")
_SAVING: Final = re.compile(r"^Saving (?:checkpoint|LoRA weights|adapter weights|adapter v2 weights) to '(?P<path>[^']+)'")
_PATH_STEP: Final = re.compile(r"/step-(\d{1,15})(?:/|\.|$)")
_VALIDATING: Final = re.compile(r"^Validating \.\.\.$")
_ENDED: Final = re.compile(r"^\| - Training Time *: ")


class Litgpt:
    """The console of one run."""

    def __init__(self) -> None:
        self._step: int | None = None

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _ITERATION.match(text) or _TINY.match(text)) is not None:
            return [self._iteration(line, found)]
        if (found := _VALIDATED.match(text)) is not None:
            return [self._validated(line, found["loss"])]
        if (found := _FINAL.match(text)) is not None:
            record = self._validated(line, found["loss"])
            perplexity = number(found["ppl"])
            metrics = {} if perplexity is None else {"perplexity": perplexity}
            return [Record(line.number, record.fields, metrics, stamp=line.stamp, closes=True)]
        if (found := _SAVING.match(text)) is not None:
            return [self._saving(line, found["path"])]
        if _VALIDATING.match(text):
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None

    def flush(self) -> Reading:
        return NOTHING

    def _iteration(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        loss, told = number(found["loss"]), found.groupdict()
        if loss is None:
            return Malformed(line.number, "number")
        self._step = int(found["step"])
        fields: dict[str, float] = {"step": self._step, "loss": loss}
        if told.get("epoch"):
            fields["epoch"] = int(told["epoch"])
        if told.get("remaining") and (seconds := duration(told["remaining"])) is not None:
            fields["remaining_seconds"] = seconds
        return Record(line.number, fields, stamp=line.stamp)

    def _validated(self, line: Line, text: str) -> Record:
        """A validation names the micro-batch; the step is that of the line before."""
        value = number(text)
        fields: dict[str, float] = {} if self._step is None else {"step": self._step}
        if value is not None:
            fields["eval_loss"] = value
        return Record(line.number, fields, stamp=line.stamp)

    def _saving(self, line: Line, path: str) -> Record:
        numbered = _PATH_STEP.search(path)
        news = Checkpoint(CheckpointEvent.STARTED, int(numbered[1]) if numbered else self._step, path)
        facts = {"output_dir": path[: numbered.start()]} if numbered else {}
        return Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)


def _sniff(text: str) -> bool:
    if text.startswith("Epoch "):
        return _ITERATION.match(text) is not None
    return text.startswith("iter ") and (_TINY.match(text) is not None or _VALIDATED.match(text) is not None)


FORMAT: Final = Format(
    name="litgpt",
    summary="litgpt and TinyLlama",
    hints=(LOSS,),
    details=(b"Saving ", b"Validating ...", b"| - Training Time"),
    sniff=_sniff,
    parser=Litgpt,
)

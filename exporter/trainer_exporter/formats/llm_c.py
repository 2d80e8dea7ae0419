"""karpathy/llm.c: the console of train_gpt2.cu, train_gpt2.py and train_gpt2.c, and the file ``main.log``.

    step  250/19560 | loss 6.512345 (-1.20z)| norm 0.8125 (+0.35z)| lr 2.15e-04 | 4200.50 ms | 31.5% bf16 MFU | 124800 tok/s
    s:250 trl:6.5123 lr:0.000215 norm:0.81

Odd: ``(+nanz)`` is a z-score whose window is not full yet, not a NaN; a real one is ``loss     nan``, and the run then goes on to its last
step without a word. The console counts the step that it has done, main.log the one that it began with, one less. main.log rounds small
learning rates to 0.000000. The early runs of modded-nanogpt print the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Decimals, InOrder, Manner
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, integer, number

_SIX: Final = r"(?:\d+\.\d{6}|-?(?:nan|inf))"
_Z: Final = r"(?: \((?:[-+]\d+\.\d\d|[-+]?nan|[-+]?inf)z\))?"
_HEAD: Final = re.compile(rf"^step +(?P<step>\d{{1,15}})/(?P<total>\d{{1,15}}) \| (?:train )?loss +(?P<loss>{_SIX}){_Z} ?(?=\|)")
_CPU: Final = re.compile(rf"^step +(?P<step>\d{{1,15}})(?:/(?P<total>\d{{1,15}}))?: train loss (?P<loss>{_SIX}) \((?:took |acc )")
# All that stands behind the loss: else another process wrote into the line.
_REST: Final = re.compile(
    rf"\| ?norm +(?:\d+\.\d{{4}}|-?nan|-?inf){_Z} ?|\| ?lr \d\.\d\de[-+]\d\d |\| \(?\d+\.\d\d ms |\| -?\d+\.\d% [\w ]*MFU |\| \d+ tok/s\)?$"
)
_NORM: Final = re.compile(rf"\| ?norm +({NUMBER}) ?(?=[(|])")
_RATE: Final = re.compile(rf"\| lr ({NUMBER}) (?=\|)")
_DURATION: Final = re.compile(rf"(?<=[|( ])({NUMBER}) ms\b")
_USED: Final = re.compile(rf"\| ({NUMBER})% [\w ]*MFU")
_TOKENS: Final = re.compile(rf" ({NUMBER}) tok/s\b")
_OPTIONAL: Final = (
    ("grad_norm", _NORM, 1.0),
    ("learning_rate", _RATE, 1.0),
    ("step_duration_seconds", _DURATION, 1e3),
    ("mfu_ratio", _USED, 1e2),
    ("tokens_per_second", _TOKENS, 1.0),
)
_OWN: Final = re.compile(r"z\)\| ?norm |\bms \| .*tok/s\b|\(\d[\d.]* ms\)$|\| \(\d[\d.]* ms \|")
_TORN_REST: Final = re.compile(r"\| ?(?:n?o?r?m? *[-+.\d(nainfz)]*|lr? ?[-+.\de]*|\(?[.\d]* ?m?s?|[-.\d]*%?[\w ]*)$")

_FILED: Final = re.compile(
    r"^s:(?P<step>0|[1-9]\d{0,14}) (?P<what>trl|tel|eval):(?P<value>\d+\.\d{4}(?:\d\d)?|-?nan|-?inf)"
    r"(?: lr:(?P<lr>\d\.\d{6})(?: norm:(?P<norm>\d+\.\d\d|-?nan|-?inf))?)?$"
)
_TORN: Final = re.compile(r"^s:\d+ (?:trl|tel|eval):")
_VALIDATED: Final = re.compile(rf"^val loss:? ({NUMBER})$")
_HELLASWAG: Final = re.compile(rf"^HellaSwag: \d+/\d+ = ({NUMBER})$")
_SAVING: Final = re.compile(r"^Writing checkpoint at step (?P<step>\d{1,15})$")
_ENDED: Final = re.compile(r"^total average iteration time: [\d.]+ ms$")

_TABLE: Final = "| skip update lossz"
_ROW: Final = re.compile(r"^\| (?P<name>[A-Za-z][\w ()]*?) +\| (?P<value>\S{1,50}) +\|$")
_BATCH: Final = re.compile(
    r"^batch_size B=(?P<samples>\d{1,15}) \* seq_len T=(?P<length>\d{1,15}) \* num_processes=(?P<processes>\d{1,15})"
    r" and total_batch_size=(?P<tokens>\d{1,15})$"
)
_ROWS: Final = {
    "vocab_size V": "vocabulary_size",
    "num_parameters": "parameters",
    "train_num_batches": "target_steps",
    "num_processes": "world_size",
}
_TABLE_LINES: Final = 200  # the model's allocations and other ranks stand between the rows


class LlmC:
    """The console of one run, or its log file."""

    def __init__(self) -> None:
        self._wanted = 0
        self._step: int | None = None
        self._filed_decimals = Decimals(least=4)
        self._manner = Manner(fixed=True)
        self._order = InOrder()
        self._printed_decimals = Decimals(least=6)

    @property
    def wants_all(self) -> bool:
        return self._wanted > 0

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _HEAD.match(text) or _CPU.match(text)) is not None:
            self._wanted, self._step = 0, int(found["step"])
            return [_trained(line, found)]
        if text.startswith("s:"):
            reading = self._filed(line)
            read = reading[0] if reading else None
            return self._order.told(read) if isinstance(read, Record) else reading
        if text.startswith(_TABLE):
            self._wanted, self._step = _TABLE_LINES, None
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if self._wanted:
            return self._table(line)
        return self._other(line)

    def flush(self) -> Reading:
        return NOTHING

    def _table(self, line: Line) -> Reading | None:
        self._wanted -= 1
        if (batch := _BATCH.match(line.text)) is not None:
            self._wanted = 0
            length, tokens = int(batch["length"]), int(batch["tokens"])
            if tokens % (int(batch["samples"]) * length * int(batch["processes"]) or 1):
                return [Malformed(line.number, "truncated")]
            return [Record(line.number, {"global_batch_size": tokens / length, "sequence_length": length}, stamp=line.stamp)]
        row = _ROW.match(line.text)
        if row is None:
            return self._other(line)
        field, value = _ROWS.get(row["name"]), integer(row["value"])
        return NOTHING if field is None or value is None else [Record(line.number, {field: value}, stamp=line.stamp)]

    def _filed(self, line: Line) -> Reading | None:
        found = _FILED.match(line.text)
        if found is None:
            return [Malformed(line.number, "truncated")] if _TORN.match(line.text) else None
        value = number(found["value"])
        if not self._manner.accepts(found["what"], found["value"]):
            return [Malformed(line.number, "number")]
        is_whole = bool(found["norm"]) or (not found["lr"] and self._filed_decimals.are_whole(found["what"], found["value"]))
        if value is None or not is_whole:
            return [Malformed(line.number, "truncated")]
        fields: dict[str, float] = {"step": int(found["step"])}
        if found["what"] == "eval":
            return [Record(line.number, fields, {"hellaswag": value}, stamp=line.stamp, phase=Phase.EVALUATING)]
        if found["what"] == "tel":
            return [Record(line.number, {**fields, "eval_loss": value}, stamp=line.stamp, phase=Phase.EVALUATING)]
        fields["loss"] = value
        for name, text in (("learning_rate", found["lr"]), ("grad_norm", found["norm"])):
            if text and (read := number(text)) is not None and (read or name == "grad_norm"):
                fields[name] = read
        return [Record(line.number, fields, stamp=line.stamp)]

    def _other(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _VALIDATED.match(text)) is not None:
            return self._result(line, found[1], "eval_loss")
        if (found := _HELLASWAG.match(text)) is not None:
            return self._result(line, found[1], "hellaswag")
        if (found := _SAVING.match(text)) is not None:
            step = int(found["step"])
            if self._step not in {None, step}:
                return [Malformed(line.number, "truncated")]  # the number ends the line
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=Checkpoint(CheckpointEvent.STARTED, step))]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None

    def _result(self, line: Line, text: str, name: str) -> Reading:
        """A result that is printed without a step, before the step that it was measured at."""
        value = number(text)
        if value is None or not self._printed_decimals.are_whole(name, text):
            return [Malformed(line.number, "truncated")]
        fields, metrics = ({name: value}, {}) if name == "eval_loss" else ({}, {name: value})
        return [Record(line.number, fields, metrics, stamp=line.stamp, phase=Phase.EVALUATING)]


def _trained(line: Line, head: re.Match[str]) -> Record | Malformed:
    loss = number(head["loss"])
    if loss is None or not (head.re is _CPU or _is_whole(line.text, head.end())):
        return Malformed(line.number, "number")
    fields: dict[str, float] = {"step": int(head["step"]), "loss": loss}
    if head["total"]:
        fields["target_steps"] = int(head["total"])
    for name, pattern, divisor in _OPTIONAL:
        found = pattern.search(line.text, head.end("loss"))
        if found is not None and (value := number(found[1])) is not None:
            fields[name] = value / divisor
    if fields.get("mfu_ratio", 0.0) < 0.0:  # a card whose peak it does not know
        del fields["mfu_ratio"]
    return Record(line.number, fields, stamp=line.stamp)


def _is_whole(text: str, at: int) -> bool:
    """Whether only what the program prints stands behind the loss, each once."""
    before = ""
    while at < len(text):
        found = _REST.match(text, at)
        if found is None and before and _TORN_REST.match(text, at) is not None:
            return True
        if found is None or (kind := found[0].strip("| (")[:1] + found[0].rstrip(")")[-2:]) == before:
            return False
        at, before = found.end(), kind
    return True


def _sniff(text: str) -> bool:
    if text.startswith("step"):
        return (_HEAD.match(text) is not None and _OWN.search(text) is not None) or _CPU.match(text) is not None
    return text.startswith(_TABLE) and _ROW.match(text) is not None


def _opens(lines: Sequence[str]) -> bool:
    return _FILED.match(lines[-1]) is not None


FORMAT: Final = Format(
    name="llm_c",
    summary="llm.c: console and main.log",
    hints=(LOSS,),
    details=(b" trl:", b" tel:", b" eval:", b"HellaSwag: ", b"Writing checkpoint", b"total average iteration"),
    sniff=_sniff,
    parser=LlmC,
    opens=_opens,
)

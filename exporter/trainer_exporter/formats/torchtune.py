"""pytorch/torchtune: its disk and console loggers, and the bar of its recipes.

    Step 3 | loss:1.4821 lr:2e-05 tokens_per_second_per_gpu:2841.17 grad_norm:0.81
    1|12|Loss: 1.7234:   2%|2         | 12/812 [00:30<33:20,  2.50s/it]

Odd: values are what Python prints, ``tensor(0.8123)`` too. Tokens per second are of one GPU, and of how many is not said. The bar tells
the loss of every step where nothing else is printed; its first two numbers are the epoch and the step over all epochs.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.bars import bar
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Manner, is_printed
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_STEP: Final = re.compile(r"^Step (?P<step>\d{1,15}) \| (?P<fields>(?:[\w/.-]+:\S+ ?)+)$")
_PAIR: Final = re.compile(r"([\w/.-]+):(\S+)")
_FIELDS: Final = {"loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm", "val_loss": "eval_loss", "validation_loss": "eval_loss"}
_MEASURED: Final = frozenset({"loss", "grad_norm", "val_loss", "validation_loss"})
_TENSOR: Final = re.compile(r"tensor\(([^(),]+)\)$")
_WHOLE: Final = re.compile(r"\)$|\.\d{6,}$|e[-+]\d\d$|nan$|inf$")
_BAR: Final = re.compile(rf"^(?P<epoch>\d{{1,15}})\|(?P<step>\d{{1,15}})\|Loss: (?P<loss>{NUMBER})(?P<bar>: +\d+%\|.*)$")
_TRAINING_STEPS: Final = 10  # the output of torchtune's own tests is full of bars of two steps
_VALIDATED: Final = re.compile(r"^(?:.* )?Validation loss: (?P<loss>\d+\.\d{4}|nan|inf)$")
_SAVING: Final = re.compile(r"^Saving checkpoint(?P<how> asynchronously)?\. ")
_SAVED: Final = re.compile(rf"^Saving (?P<how>asynchronous )?checkpoint took (?P<s>{NUMBER}) secs$")


class Torchtune:
    """The console of one run, or the file of its logger."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._manner = Manner()
        self._forms = Forms()
        self._is_logged = False  # by step lines; the bar then tells nothing new

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _STEP.match(text)) is not None:
            return self._logged(line, found)
        if (found := _BAR.match(text)) is not None:
            return self._drawn(line, found)
        if (found := _VALIDATED.match(text)) is not None and (value := number(found["loss"])) is not None:
            fields = {"eval_loss": value} if self._step is None else {"step": self._step, "eval_loss": value}
            return [Record(line.number, fields, stamp=line.stamp)]
        return self._checkpoint(line)

    def flush(self) -> Reading:
        return NOTHING

    def _logged(self, line: Line, found: re.Match[str]) -> Reading | None:
        pairs = _PAIR.findall(found["fields"])
        if not {name for name, _ in pairs} & _FIELDS.keys():
            return [Malformed(line.number, "truncated")] if self._is_logged else None
        if len({name for name, _ in pairs}) < len(pairs) or not all(self._is_printed(*_bare(pair)) for pair in pairs):
            return [Malformed(line.number, "truncated")]
        if not _WHOLE.search(pairs[-1][1]):
            pairs.pop()  # the blank behind the last value has been trimmed: it may be half a value
        fields: dict[str, float] = {"step": int(found["step"])}
        for name, text in pairs:
            if name in _FIELDS and (value := number(text)) is not None and not (name == "lr" and value >= 1.0):  # without its exponent
                fields[_FIELDS[name]] = value
        if len(fields) == 1 or ("loss" in fields and not self._forms.is_whole(found["fields"])):
            return [Malformed(line.number, "truncated")]
        self._step, self._is_logged = int(found["step"]), True
        return [Record(line.number, fields, stamp=line.stamp)]

    def _is_printed(self, name: str, text: str) -> bool:
        return self._manner.accepts(name, text) if name in _MEASURED else text[-1:].isalpha() or number(text) is None or is_printed(text)

    def _drawn(self, line: Line, found: re.Match[str]) -> Reading:
        drawn, loss = bar(found["bar"].lstrip(": ")), number(found["loss"])
        if loss is None or drawn is None or not self._manner.accepts("bar", found["loss"]):
            return [Malformed(line.number, "truncated")]
        step = int(found["step"])
        if step == self._step or self._is_logged:
            return NOTHING
        self._step = step
        return [Record(line.number, {"step": step, "loss": loss}, stamp=line.stamp)]

    def _checkpoint(self, line: Line) -> Reading | None:
        if (found := _SAVING.match(line.text)) is not None:
            news = Checkpoint(CheckpointEvent.STARTED, self._step, blocking=not found["how"])
            phase = Phase.TRAINING if found["how"] else Phase.CHECKPOINTING
            return [Record(line.number, stamp=line.stamp, phase=phase, checkpoint=news)]
        if (found := _SAVED.match(line.text)) is not None and (seconds := number(found["s"])) is not None:
            news = Checkpoint(CheckpointEvent.FINISHED, self._step, duration_seconds=seconds, blocking=not found["how"])
            return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news)]
        return None


def _bare(pair: tuple[str, str]) -> tuple[str, str]:
    """A pair with its number out of ``tensor(...)``."""
    name, text = pair
    found = _TENSOR.match(text)
    return (name, text) if found is None else (f"{name} of a tensor", found[1])


def _sniff(text: str) -> bool:
    if text.startswith("Step "):
        found = _STEP.match(text)
        return found is not None and found["fields"].startswith("loss:")
    found = _BAR.match(text) if "|Loss: " in text else None
    drawn = bar(found["bar"].lstrip(": ")) if found is not None else None
    return drawn is not None and drawn.total >= _TRAINING_STEPS


FORMAT: Final = Format(
    name="torchtune",
    summary="torchtune: logger lines and bars",
    hints=(LOSS,),
    details=(b"Saving checkpoint", b"Saving asynchronous checkpoint"),
    sniff=_sniff,
    parser=Torchtune,
)

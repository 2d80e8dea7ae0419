"""timm's ``train.py`` (pytorch-image-models), 0.4 to 1.0.

    Train: 0 [  50/1251 (  4%)]  Loss: 6.934 (6.94)  Time: 0.412s, 2485.44/s  (0.557s, 1838.42/s)  LR: 1.000e-06  Data: 0.011 (0.094)
    Test: [  48/48]  Time: 0.123 (0.200)  Loss:   1.234 ( 1.300)  Acc@1:  70.123 ( 71.200)  Acc@5:  90.100 ( 90.300)

Odd: updates count from 0 in each epoch; the loss has 3 digits; what stands in brackets is the mean of the epoch, which for the last line
of a test is its result. Samples per second are those of all processes.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Constant
from trainer_exporter.formats.epoch_steps import place
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_TRAINING: Final = re.compile(r"^Train: (?P<epoch>\d{1,15}) \[ *(?P<iteration>\d{1,15})/(?P<length>\d{1,15}) \( *\d+%\)\]  +")
_LOSS: Final = re.compile(rf"\bLoss: *(?P<value>{NUMBER}) \( *{NUMBER}\)")
_TIME: Final = re.compile(rf"\bTime: *(?P<seconds>{NUMBER})s, *(?P<rate>{NUMBER})/s ")
_RATE: Final = re.compile(r"\bLR: (?P<value>\d\.\d{3}e[-+]\d\d)(?:  |$)")
# Of a line of which half is another's: a second beginning, a name twice, or a number with something glued to it.
_TWICE: Final = re.compile(r"\[ *\d+/|\bLoss:.*\bLoss:|\bLR:.*\bLR:|\bTime:.*\bTime:")
_NORM: Final = re.compile(rf"\b(?:Grad|Norm|grad_norm): *(?P<value>{NUMBER}) \( *{NUMBER}\)")
_TEST: Final = re.compile(r"^Test(?: \((?P<kind>\w+)\))?: \[ *(?P<done>\d{1,15})/(?P<last>\d{1,15})\]  +Time: ")
_MEAN: Final = re.compile(rf"(?<=  )(?P<name>Loss|Acc@\d): *{NUMBER} \( *(?P<mean>{NUMBER})\)")
_BEST: Final = re.compile(rf"^\*\*\* Best metric: {NUMBER} \(epoch \d+\)$")
_EPOCHS: Final = re.compile(r"^Scheduled epochs: (?P<epochs>\d{1,15})\b")
_LOADED: Final = re.compile(r"^Loaded checkpoint '[^']*' \(epoch \d+\)")


class Timm:
    """The output of the primary process."""

    def __init__(self) -> None:
        self._epochs: int | None = None
        self._length = Constant()
        self._forms = Forms()
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        if (head := _TRAINING.match(line.text)) is not None:
            return [self._training(line, head)]
        if (test := _TEST.match(line.text)) is not None:
            return self._test(line, test)
        if (found := _EPOCHS.match(line.text)) is not None:
            self._epochs = int(found["epochs"])
            return [Record(line.number, {"epochs": self._epochs}, stamp=line.stamp)]
        if _LOADED.match(line.text):
            return [Record(line.number, stamp=line.stamp, starts=True)]
        if _BEST.match(line.text):
            return [Record(line.number, stamp=line.stamp, closes=True)]
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        text, at = line.text, head.end()
        if _TWICE.search(text, at) is not None or not self._length.is_known(head["length"]):
            return Malformed(line.number, "number")
        fields = place(int(head["epoch"]), int(head["iteration"]), int(head["length"]), epochs=self._epochs)
        loss = _LOSS.search(text, at)
        if loss is None or not self._forms.is_whole(text[at:]):
            return Malformed(line.number, "truncated")
        found = {"loss": loss["value"]}
        if (time := _TIME.search(text, at)) is not None:
            found |= {"step_duration_seconds": time["seconds"], "samples_per_second": time["rate"]}
        for name, pattern in (("learning_rate", _RATE), ("grad_norm", _NORM)):
            if (piece := pattern.search(text, at)) is not None:
                found[name] = piece["value"]
        fields |= {name: read for name, printed in found.items() if (read := number(printed)) is not None}
        self._is_evaluating = False
        return Record(line.number, fields, stamp=line.stamp)

    def _test(self, line: Line, test: re.Match[str]) -> Reading:
        if test["done"] == test["last"]:
            return self._result(line, test)
        if self._is_evaluating:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]

    def _result(self, line: Line, test: re.Match[str]) -> Reading:
        """A second test, of the averaged weights, is told apart in the names."""
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        prefix = f"{test['kind'].lower()}_" if test["kind"] else ""
        for name, printed in _MEAN.findall(line.text):
            if (read := number(printed)) is None:
                continue
            if name == "Loss" and not prefix:
                fields["eval_loss"] = read
            else:
                metrics[prefix + name.replace("@", "").lower()] = read
        return [Record(line.number, fields, metrics, stamp=line.stamp)] if fields or metrics else NOTHING


def _sniff(text: str) -> bool:
    head = _TRAINING.match(text)
    return head is not None and _LOSS.search(text, head.end()) is not None


FORMAT: Final = Format(
    name="timm",
    summary="timm (pytorch-image-models): its train.py",
    hints=(LOSS,),
    details=(b"*** Best metric", b"Scheduled epochs: ", b"Loaded checkpoint"),
    sniff=_sniff,
    parser=Timm,
)

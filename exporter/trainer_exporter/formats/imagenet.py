"""The PyTorch ImageNet example and its many copies (MoCo, SimSiam, Swin Transformer among them).

    Epoch: [1][ 10/391]	Time  0.250 ( 0.375)	Data  0.010 ( 0.050)	Loss 2.2500e+00 (2.3750e+00)	Acc@1  15.62 ( 14.50)
    Train: [0/300][10/1251]	eta 0:12:34 lr 0.000012	time 0.3456 (0.4321)	loss 6.9123 (6.9234)	grad_norm 1.2345 (1.3456)	mem 5123MB

Odd: no colon behind a name; the value comes first, in brackets behind it stands the mean of the epoch. Iterations count from 0, in the
example since 2022 from 1; they are taken as printed. A validation's last line and its summary have the means.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.epoch_steps import place
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_LOGGER: Final = re.compile(r"^(?:\[[^\]]{1,80}\] ?\([\w.]+ \d+\): INFO )?")
_TRAINING: Final = re.compile(
    r"(?:Epoch|Train): ?\[(?P<epoch>\d{1,15})(?:/(?P<epochs>\d{1,15}))?\] ?\[ *(?P<iteration>\d{1,15})/(?P<length>\d{1,15})\]:?[\t ]+(?=\w)"
)
_PLACE: Final = re.compile(r"\] ?\[ *\d+/\d")  # behind the first, of another line
_TEST: Final = re.compile(r"(?:Test|val|Val|Validate): ?\[ *\d+/\d+\][\t ]+(?=Time|time)|val\[ *\d+/\d+\][\t ]+(?=Time)")
_METER: Final = re.compile(rf"(?<![^\t ])(?P<name>[A-Za-z]\w*(?:@\d)?) +(?P<value>{NUMBER}) +?\( *{NUMBER}\)")
_RATE: Final = re.compile(rf"[\t ](?:lr|LR):? +(?P<value>{NUMBER})(?=[\t ])")
_SUMMARY: Final = re.compile(
    rf"^ *\* *(?P<first>Acc|Prec)@1:? +(?P<one>{NUMBER}) +(?:Acc|Prec)@5:? +(?P<five>{NUMBER})(?: +(?:Loss|loss):? +(?P<loss>{NUMBER}))?$"
)
_LOADED: Final = re.compile(r"^=> loaded checkpoint '[^']*' \(epoch \d+\)")
_FIELDS: Final = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
    "time": "step_duration_seconds",
    "lr": "learning_rate",
}


class ImageNet:
    """The output of one process; several print into one file in turn."""

    def __init__(self) -> None:
        self._forms = Forms()
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        at = _start(line.text)
        if (head := _TRAINING.match(line.text, at)) is not None:
            return self._training(line, head)
        if _TEST.match(line.text, at) is not None:
            return self._evaluating(line)
        if (found := _SUMMARY.match(line.text[at:])) is not None:
            return [_summary(line, found)]
        if _LOADED.match(line.text[at:]):
            return [Record(line.number, stamp=line.stamp, starts=True)]
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line, head: re.Match[str]) -> Reading | None:
        if _PLACE.search(line.text, head.end()) is not None:
            return [Malformed(line.number, "truncated")]
        meters = _meters(line.text, head.end())
        if not meters:
            return [Malformed(line.number, "truncated")] if line.text[head.end() :].startswith(("Time", "time")) else None
        if not self._forms.is_whole(line.text[head.end() :]):
            return [Malformed(line.number, "truncated")]
        epochs = int(head["epochs"]) if head["epochs"] else None
        fields = place(int(head["epoch"]), int(head["iteration"]), int(head["length"]), epochs=epochs)
        for key, name in _FIELDS.items():
            if (read := number(meters.get(key, ""))) is not None:
                fields[name] = read
        self._is_evaluating = False
        return [Record(line.number, fields, stamp=line.stamp)]

    def _evaluating(self, line: Line) -> Reading:
        if self._is_evaluating:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]


def _start(text: str) -> int:
    found = _LOGGER.match(text)
    return found.end() if found is not None else 0


def _meters(text: str, at: int) -> dict[str, str]:
    """Values by name in small letters; one is complete when its mean stands behind it in brackets."""
    meters = {found["name"].lower(): found["value"] for found in _METER.finditer(text, at)}
    if meters and (rate := _RATE.search(text, at)) is not None:
        meters.setdefault("lr", rate["value"])
    return meters


def _summary(line: Line, found: re.Match[str]) -> Record:
    loss = number(found["loss"] or "")
    read = {"acc1": number(found["one"]), "acc5": number(found["five"])}
    metrics = {key: value for key, value in read.items() if value is not None}
    return Record(line.number, {} if loss is None else {"eval_loss": loss}, metrics, stamp=line.stamp)


def _sniff(text: str) -> bool:
    head = _TRAINING.match(text, _start(text))
    return head is not None and "loss" in _meters(text, head.end())


FORMAT: Final = Format(
    name="imagenet",
    summary="The PyTorch ImageNet example and copies of it (MoCo, Swin Transformer)",
    hints=(LOSS,),
    details=(b"@1", b"=> loaded checkpoint"),
    sniff=_sniff,
    parser=ImageNet,
)

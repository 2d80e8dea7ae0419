"""DETR's MetricLogger and its many copies (torchvision's references, DeiT, MAE, DINO, BLIP), and the JSON lines of ``log.txt``.

    Epoch: [0]  [  20/1250]  eta: 0:12:34  lr: 0.000100  class_error: 87.12  loss: 21.5432 (25.1234)  ...  time: 0.3412  data: 0.0101
    {"train_lr": 0.0001, "train_loss": 12.5, "train_loss_ce": 0.75, "test_loss": 13.5, "epoch": 3, "n_parameters": 41000000}

Odd: two blanks between the brackets; a value is the median of 20 iterations, behind it in brackets stands the mean of the epoch; the
iteration counts from 0 and that of the last one is printed too. In the JSON a line is an epoch and the only step is the epoch,
which some copies leave out. Any ``loss_...`` beside ``loss`` is a part of it.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Constant, Manner
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.epoch_steps import place
from trainer_exporter.formats.json_lines import loaded
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_TRAINING: Final = re.compile(
    r"^(?:Train(?:ing)? )?(?:Pretrain )?Epoch: +\[(?P<epoch>\d{1,15})(?:/(?P<epochs>\d{1,15}))?\]:?"
    r"  +\[ *(?P<iteration>\d{1,15})/(?P<length>\d{1,15})\]  eta: (?:\d+ days?, )?[\d:]+(?=  )"
)
_TEST: Final = re.compile(r"^(?:Test|Val\w*|Eval\w*|Evaluation)\b[^\[]{0,80}\[ *\d+/\d+\]  eta: ")
_VALUE: Final = re.compile(rf"(?<!\S)([\w/.@-]+): ({NUMBER})(?: \({NUMBER}\))?(?=  )")
_FIELDS: Final = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
    "time": "step_duration_seconds",
}
_TRAINED: Final = re.compile(r"^Training time (?:\d+ days?, )?\d+:\d\d:\d\d$")
_STARTED: Final = re.compile(r"^Start training(?: for (?P<epochs>\d{1,15}) epochs)?$")
_DIVERGED: Final = re.compile(r"^Loss is (?P<loss>nan|-?inf), stopping training$")
_ACCURACY: Final = re.compile(
    rf"^(?:\* |Test: +)?Acc@1:? +(?P<one>{NUMBER}) +Acc@5:? +(?P<five>{NUMBER})(?: +loss:? +(?P<loss>{NUMBER}))?$"
)
_IOU_METRIC: Final = re.compile(r"^IoU metric: (?P<name>\w+)$")
_PRECISION: Final = re.compile(
    rf"^ *Average Precision +\(AP\) @\[ IoU=(?P<iou>[\d.:]+) +\| area= +all \| maxDets=\d+ \] = (?P<value>{NUMBER})$"
)
_JSON_FIELDS: Final = {
    "train_loss": "loss",
    "train_lr": "learning_rate",
    "train_grad_norm": "grad_norm",
    "train_loss_scale": "loss_scale",
    "test_loss": "eval_loss",
}
_JSON_RESULT: Final = re.compile(r"^test_(?P<name>\w+)$")
_MOST_EPOCHS: Final = 10**6
_PART_OF_LOSS: Final = re.compile(r"_\d+$|_unscaled$|^loss_")


class Detr:
    """One of the program's outputs."""

    def __init__(self) -> None:
        self._epochs: int | None = None
        self._length = Constant()
        self._manner = Manner(fixed=True)
        self._is_evaluating = False
        self._iou = ""

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("{"):
            return self._json(line) if '"train_l' in text else None
        if (head := _TRAINING.match(text)) is not None:
            return [self._training(line, head)]
        if _TEST.match(text):
            return self._evaluating(line)
        return self._result(line) or self._words(line)

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        found = _VALUE.findall(line.text, head.end())
        printed = dict(found)
        if not printed:
            return Malformed(line.number, "truncated")
        known = [self._manner.accepts(key, printed[key]) for key in _FIELDS if key in printed]
        if len(printed) < len(found) or "[" in line.text[head.end() :] or not all(known) or not self._length.is_known(head["length"]):
            return Malformed(line.number, "number")
        epochs = int(head["epochs"]) if head["epochs"] else self._epochs
        fields = place(int(head["epoch"]), int(head["iteration"]), int(head["length"]), epochs=epochs)
        for key, name in _FIELDS.items():
            if key in printed and (read := number(printed[key])) is not None:
                fields[name] = read
        self._is_evaluating = False
        return Record(line.number, fields, stamp=line.stamp)

    def _evaluating(self, line: Line) -> Reading:
        if self._is_evaluating:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]

    def _result(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _ACCURACY.match(text)) is not None:
            loss = number(found["loss"] or "")
            fields = {} if loss is None else {"eval_loss": loss}
            metrics = {"acc1": number(found["one"]), "acc5": number(found["five"])}
            return [Record(line.number, fields, {key: read for key, read in metrics.items() if read is not None}, stamp=line.stamp)]
        if (found := _IOU_METRIC.match(text)) is not None:
            self._iou = found["name"]
            return NOTHING
        if (found := _PRECISION.match(text)) is not None and (read := number(found["value"])) is not None:
            name = "AP" if ":" in found["iou"] else f"AP{found['iou'].partition('.')[2]}"
            return [Record(line.number, {}, {f"{self._iou}/{name}" if self._iou else name: read}, stamp=line.stamp)]
        return None

    def _words(self, line: Line) -> Reading | None:
        if (found := _STARTED.match(line.text)) is not None:
            self._epochs = int(found["epochs"]) if found["epochs"] else None
            fields = {} if self._epochs is None else {"epochs": self._epochs}
            return [Record(line.number, fields, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if _TRAINED.match(line.text):
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if (found := _DIVERGED.match(line.text)) is not None and (loss := number(found["loss"])) is not None:
            return [Record(line.number, {"loss": loss}, stamp=line.stamp)]
        return NOTHING if line.text.startswith("Averaged stats: ") else None

    def _json(self, line: Line) -> Reading:
        try:
            found = loaded(line.text)
        except (ValueError, RecursionError):
            return [Malformed(line.number, "json")]
        epoch = found.get("epoch")
        fields: dict[str, float] = {"step": epoch, "epoch": epoch} if isinstance(epoch, int) and abs(epoch) < _MOST_EPOCHS else {}
        metrics: dict[str, float] = {}
        for key, value in found.items():
            read = number(str(value)) if isinstance(value, (int, float)) else None
            if read is None:
                continue
            named = _JSON_RESULT.match(key)
            if key in _JSON_FIELDS:
                fields[_JSON_FIELDS[key]] = read
            elif named is not None and not _PART_OF_LOSS.search(named["name"]) and len(metrics) < MAX_METRICS:
                metrics[named["name"]] = read
        return [Record(line.number, fields, metrics, stamp=line.stamp)]


def _sniff(text: str) -> bool:
    if text.startswith("{"):
        return '"train_loss": ' in text and ('"train_lr": ' in text or '"n_parameters": ' in text)
    return _TRAINING.match(text) is not None and "loss: " in text


FORMAT: Final = Format(
    name="detr",
    summary="DETR's MetricLogger and its copies (torchvision, DeiT, MAE, DINO), and its log.txt of JSON lines",
    hints=(LOSS,),
    details=(b"Epoch: [", b"Test: ", b"Acc@1", b"raining", b"Average Precision", b"IoU metric"),
    sniff=_sniff,
    parser=Detr,
)

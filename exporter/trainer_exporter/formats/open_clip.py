"""OpenCLIP, 1.x to 3.3, console and ``out.log``.

    2024-02-11,06:33:10 | INFO | Train Epoch: 0 [  5242880/400000000 (1%)] Data (t): 0.021 Batch (t): 0.934, 35085.6/s, 548.2/s/gpu LR: ...
    2022-02-11,06:33:10 | INFO | Train Epoch: 0 [  5242880/400000000 (1%)] Loss: 7.8213 (8.011) Data (t): 0.021 Batch (t): 0.934 LR: ...

Odd: the position is in samples; the first line of an epoch comes after one batch, so it tells the batch size. A learning rate below
5e-7 is printed as 0.000000. Behind a loss stands its mean since the epoch's start.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Line, Malformed, Phase, Record, Stamp
from trainer_exporter.numbers import NUMBER, moment, number

_PREFIX: Final = re.compile(
    r"^(?P<day>\d{4}-\d\d-\d\d),(?P<clock>\d\d:\d\d:\d\d) \|(?: +[\w.-]+ \|)? +(?:INFO|WARNING|ERROR) \| (?:[\w.]+ \| )?"
)
_TRAINING: Final = re.compile(
    r"Train Epoch: (?P<epoch>\d{1,15}) \[ *(?P<done>\d{1,15})/(?P<total>\d{1,15}) \(\d+%\)\][ \t](?=.*(?:Data \(t\)|Loss|LR))"
)
_LOSS: Final = re.compile(rf"(?<!\S)Loss: (?P<value>{NUMBER}) \({NUMBER}\)")
_BATCH: Final = re.compile(rf"\bBatch \(t\): (?P<seconds>{NUMBER})(?:, (?P<rate>{NUMBER})/s)?(?=[, ])")
_RATE: Final = re.compile(rf"\bLR: (?P<value>{NUMBER})(?= )")
_EVALUATION: Final = re.compile(r"Eval Epoch: (?P<epoch>\d{1,15}) (?P<fields>\S.*)$")
_RESULT: Final = re.compile(rf"(?<!\S)([\w/.@-]{{1,80}}): ({NUMBER})(?=\t|$)")
_EPOCH: Final = re.compile(r"Start epoch (?P<epoch>\d{1,15})$")
_RESUMED: Final = re.compile(r"=> resuming checkpoint '[^']*' \(epoch \d+\)")


class OpenClip:
    """The log of one run."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._epoch = -1
        self._forms = Forms()
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        prefix = _PREFIX.match(line.text)
        at = prefix.end() if prefix is not None else 0
        stamp = line.stamp if prefix is None else moment(f"{prefix['day']} {prefix['clock']}")
        if (head := _TRAINING.match(line.text, at)) is not None:
            return [self._training(line, head, stamp)]
        if (found := _EVALUATION.match(line.text, at)) is not None:
            return self._evaluation(line, found["fields"], stamp)
        if (found := _EPOCH.match(line.text, at)) is not None:
            has_gone_back = int(found["epoch"]) <= self._epoch
            self._epoch = int(found["epoch"])
            return [Record(line.number, stamp=stamp, starts=True)] if has_gone_back else NOTHING
        if _RESUMED.match(line.text, at):
            return [Record(line.number, stamp=stamp, starts=True)]
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line, head: re.Match[str], stamp: Stamp | None) -> Record | Malformed:
        text, at = line.text, head.end()
        found = {"loss": _LOSS.search(text, at), "learning_rate": _RATE.search(text, at)}
        fields = {name: read for name, piece in found.items() if piece and (read := number(piece["value"])) is not None}
        if fields.get("learning_rate") == 0.0:
            del fields["learning_rate"]
        batch = _BATCH.search(text, at)
        if "Train Epoch: " in text[at:] or (not fields and batch is None) or not self._forms.is_whole(text[at:]):
            return Malformed(line.number, "truncated")
        fields |= _speed(batch)
        self._is_evaluating = False
        return Record(line.number, {**self._place(head, fields), **fields}, stamp=stamp)

    def _place(self, head: re.Match[str], fields: dict[str, float]) -> dict[str, float]:
        epoch, done, total = int(head["epoch"]), int(head["done"]), int(head["total"])
        self._epoch = epoch
        estimate = fields.get("samples_per_second", 0.0) * fields.get("step_duration_seconds", 0.0)
        if estimate > 0 and 0.75 < done / estimate < 1.25:
            self._batch = done
        place: dict[str, float] = {"epoch": epoch, "total_samples": epoch * total + done}
        if self._batch:
            place |= {"step": epoch * (total // self._batch) + done // self._batch, "global_batch_size": self._batch}
        return place

    def _evaluation(self, line: Line, text: str, stamp: Stamp | None) -> Reading:
        if text.startswith("["):
            is_news, self._is_evaluating = not self._is_evaluating, True
            return [Record(line.number, stamp=stamp, phase=Phase.EVALUATING)] if is_news else NOTHING
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for name, printed in _RESULT.findall(text):
            if (read := number(printed)) is None:
                continue
            if name in {"val_loss", "clip_val_loss"}:
                fields["eval_loss"] = read
            elif name not in {"epoch", "num_samples"} and len(metrics) < MAX_METRICS:
                metrics[name] = read
        self._is_evaluating = False
        return [Record(line.number, fields, metrics, stamp=stamp)] if fields or metrics else NOTHING


def _speed(batch: re.Match[str] | None) -> dict[str, float]:
    if batch is None:
        return {}
    read = {"step_duration_seconds": number(batch["seconds"]), "samples_per_second": number(batch["rate"] or "")}
    return {name: value for name, value in read.items() if value is not None}


def _sniff(text: str) -> bool:
    prefix = _PREFIX.match(text)
    head = _TRAINING.match(text, prefix.end() if prefix is not None else 0)
    return head is not None and "Logit Scale: " in text and _LOSS.search(text, head.end()) is not None


FORMAT: Final = Format(
    name="open_clip",
    summary="OpenCLIP: console and out.log",
    hints=(LOSS,),
    details=(b"Epoch: ", b"Start epoch ", b"=> resuming"),
    sniff=_sniff,
    parser=OpenClip,
)

"""OpenMMLab: mmengine 0.1 to 0.10, mmcv 1.x before it, and the JSON lines that both write beside their text.

    07/19 14:03:22 - mmengine - INFO - Epoch(train)   [2][  50/1250]  lr: 2.0000e-02  eta: 3:01:44  time: 0.3571  ...  loss: 0.9123
    2022-01-01 10:00:00,123 - mmdet - INFO - Epoch [1][50/1200]	lr: 2.000e-03, eta: 3 days, 2:00:00, time: 0.375, ..., loss: 1.5000
    {"lr": 0.005, "data_time": 0.0125, "loss": 0.875, "time": 0.25, "epoch": 1, "iter": 10, "memory": 5000, "step": 10}

Odd: in epoch mode the ``step`` of a validation's JSON line is the epoch; mmcv's JSON counts iterations within the epoch and does not
say how many there are. Nothing is printed at the end, but the last line has an estimate of no time left. 200 to 500 lines of
configuration come first.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Constant, Manner
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.json_lines import loaded
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record, Stamp
from trainer_exporter.numbers import duration, moment, number

_PREFIX: Final = re.compile(r"^(?:(?P<year>\d{4})/)?(?P<month>\d\d)/(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d) - \w+ - [A-Z]+ - ")
_TRAINING: Final = re.compile(
    r"^(?:Iter(?:\(train\))? \[ *(?P<step>\d{1,15})/(?P<steps>\d{1,15})\]"
    r"|Epoch(?:\(train\))? +\[(?P<epoch>\d{1,15})\]\[ *(?P<iteration>\d{1,15})/(?P<length>\d{1,15})\])(?P<gap>  |\t)(?=\w*lr: )"
)
_RESULTS: Final = re.compile(
    r"^(?:Epoch|Iter)\((?P<mode>val|test)\) *(?:\[\d+\])?\[ *(?P<done>\d{1,15})(?:/(?P<of>\d{1,15}))?\]\s+(?P<fields>\S.*)$"
)
_PAIR: Final = re.compile(r"(?<!\S)([\w./@-]+): ([^\s,]+)")
_ETA: Final = re.compile(r"\beta: ((?:\d+ days?, )?\d+:\d\d:\d\d)(?=,|\s)")
_FIELDS: Final = {"loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm", "time": "step_duration_seconds"}
_NO_RESULT: Final = frozenset({"time", "data_time", "eta", "memory", "epoch", "iter", "step", "lr", "base_lr", "loss", "mode"})
_SAVING: Final = re.compile(r"^Saving checkpoint at (?P<number>\d{1,15}) (?P<unit>epoch|iteration)s$")
_OUTPUT: Final = re.compile(r"^Checkpoints will be saved to (?P<path>\S+?)(?: by \w+)?\.?$")
_LIMIT: Final = re.compile(r"^workflow: \[.*\], max: (?P<number>\d{1,15}) (?P<unit>epochs|iters)$")
_BEST: Final = re.compile(r"^(?:The best checkpoint with|Now best checkpoint is saved as) ")
_MOST_STEPS: Final = 10**15
_DIGITS: Final = 4  # behind the point, of losses and gradient norms


class MMEngine:
    """One of OpenMMLab's logs, text or JSON."""

    def __init__(self) -> None:
        self._length: int | None = None  # iterations an epoch
        self._epochs: int | None = None
        self._directory = ""
        self._is_evaluating = False
        self._manner = Manner(fixed=True)
        self._constant = Constant()
        self._forms = Forms()
        self._places = _Places()

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("{"):
            return self._json(line) if _is_json(text) else None
        prefix = _PREFIX.match(text)
        stamp = line.stamp if prefix is None else _stamp(prefix)
        text = text if prefix is None else text[prefix.end() :]
        if (head := _TRAINING.match(text)) is not None:
            return [self._training(line, head, text[head.end() :], stamp)]
        if (found := _RESULTS.match(text)) is not None:
            return self._results(line, found, stamp)
        return self._words(line, text, stamp)

    def flush(self) -> Reading:
        return NOTHING

    def _training(self, line: Line, head: re.Match[str], text: str, stamp: Stamp | None) -> Record | Malformed:
        found = _PAIR.findall(text)
        printed = dict(found)
        if len(printed) < len(found) or "[" in text or not self._is_one_writers(head, printed):
            return Malformed(line.number, "number")
        fields = self._place(head)
        fields |= _values(_without_torn(printed, text, wide=head["gap"] == "  "))
        eta = _ETA.search(text)
        if len(printed) < 2 or (eta is None and "loss" not in fields) or not self._forms.is_whole(text):
            return Malformed(line.number, "truncated")
        if eta is not None and (remaining := duration(eta[1])) is not None:
            fields["remaining_seconds"] = remaining
            if remaining == 0 and _is_last(head, fields):
                fields.setdefault("target_steps", fields["step"])
        self._is_evaluating = False
        return Record(line.number, fields, stamp=stamp)

    def _is_one_writers(self, head: re.Match[str], printed: dict[str, str]) -> bool:
        """Whether numbers have the decimals that they always have, and epochs or runs the same length."""
        last = next(reversed(printed), "")
        known = [self._manner.accepts(key, printed[key]) for key in _FIELDS if key in printed and key != last]
        return all(known) and self._constant.is_known(head["steps"] or head["length"])

    def _place(self, head: re.Match[str]) -> dict[str, float]:
        if head["step"] is not None:
            return {"step": int(head["step"]), "target_steps": int(head["steps"])}
        epoch, self._length = int(head["epoch"]), int(head["length"])
        fields: dict[str, float] = {"step": (epoch - 1) * self._length + int(head["iteration"]), "epoch": epoch}
        if self._epochs is not None:
            fields["target_steps"] = self._epochs * self._length
        return fields

    def _results(self, line: Line, found: re.Match[str], stamp: Stamp | None) -> Reading:
        if found["mode"] == "test":
            return NOTHING
        printed = dict(_PAIR.findall(found["fields"]))
        record = _evaluation(line, printed, stamp)
        if record is not None:
            self._is_evaluating = False
            return [record]
        if self._is_evaluating or found["done"] == found["of"]:
            return NOTHING
        self._is_evaluating = True
        return [Record(line.number, stamp=stamp, phase=Phase.EVALUATING)]

    def _words(self, line: Line, text: str, stamp: Stamp | None) -> Reading | None:
        if (found := _SAVING.match(text)) is not None:
            return [self._saving(line, int(found["number"]), found["unit"], stamp)]
        if (found := _OUTPUT.match(text)) is not None:
            self._directory = found["path"]
            facts = {"output_dir": self._directory}
            return [Record(line.number, facts=facts, stamp=stamp, phase=Phase.STARTING, starts=True)]
        if (found := _LIMIT.match(text)) is not None:
            name = "epochs" if found["unit"] == "epochs" else "target_steps"
            self._epochs = int(found["number"]) if name == "epochs" else None
            return [Record(line.number, {name: int(found["number"])}, stamp=stamp)]
        return NOTHING if _BEST.match(text) else None

    def _saving(self, line: Line, number_of: int, unit: str, stamp: Stamp | None) -> Record:
        step = number_of if unit == "iteration" else None
        if unit == "epoch" and self._length is not None:
            step = number_of * self._length
        name = f"epoch_{number_of}.pth" if unit == "epoch" else f"iter_{number_of}.pth"
        path = f"{self._directory}/{name}" if self._directory else ""
        news = Checkpoint(CheckpointEvent.STARTED, step, path)
        return Record(line.number, stamp=stamp, phase=Phase.CHECKPOINTING, checkpoint=news)

    def _json(self, line: Line) -> Reading:
        try:
            found = loaded(line.text)
        except (ValueError, RecursionError):
            return [Malformed(line.number, "json")]
        if any(isinstance(found.get(key), int) for key in _FIELDS):  # all of them are floats, which have a point
            return [Malformed(line.number, "number")]
        printed = {key: str(value) for key, value in found.items() if isinstance(value, (int, float))}
        if "lr" not in printed or found.get("mode") == "val":
            record = _evaluation(line, printed, line.stamp)
            return NOTHING if record is None else [record]
        step, is_exact = self._places.step(found)
        fields: dict[str, float] = {} if step is None else {"step": step}
        if (epoch := number(printed.get("epoch", ""))) is not None:
            fields["epoch"] = epoch
        return [Record(line.number, fields | _values(printed), stamp=line.stamp, step_exact=is_exact)]


class _Places:
    """Steps of JSON lines; those of mmcv count within an epoch of unknown length, or through all of them."""

    def __init__(self) -> None:
        self._epoch = 0
        self._iteration = 0
        self._before: int | None = None  # iterations of the epochs before this one, as far as they were logged

    def step(self, found: dict[str, object]) -> tuple[int | None, bool]:
        """The step, and whether it is certain."""
        step, epoch, iteration = found.get("step"), found.get("epoch"), found.get("iter")
        if isinstance(step, int):
            return (step, True) if abs(step) < _MOST_STEPS else (None, True)
        if not isinstance(epoch, int) or not isinstance(iteration, int) or max(epoch, iteration) >= _MOST_STEPS:
            return None, True
        if epoch < self._epoch or self._epoch == 0:
            self._before = 0 if epoch == 1 else None
        elif epoch == self._epoch + 1 and self._before is not None and iteration < self._iteration:
            self._before += self._iteration
        self._epoch, self._iteration = epoch, iteration
        return (None, True) if self._before is None else (self._before + iteration, self._before == 0)


def _stamp(prefix: re.Match[str]) -> Stamp | None:
    """The console's stamp has no year: differences over the end of a year would be wrong."""
    return moment(f"{prefix['year']}-{prefix['month']}-{prefix['day']} {prefix['clock']}") if prefix["year"] else None


def _without_torn(printed: dict[str, str], text: str, *, wide: bool) -> dict[str, str]:
    """The values less the last one where it has fewer digits than it should have: the line is torn."""
    last = next(reversed(printed), "")
    decimals = printed.get("time", "").partition(".")[2]
    digits = min(_DIGITS, len(decimals)) if wide and decimals else _DIGITS
    value = printed.get(last, "")
    is_whole = len(value.partition(".")[2]) >= digits or not value[-1:].isdigit() or last not in _FIELDS
    return printed if is_whole or text.endswith(" ") else {key: one for key, one in printed.items() if key != last}


def _is_last(head: re.Match[str], fields: dict[str, float]) -> bool:
    """Whether no time left at the end of an epoch means the end: another epoch would take a second or more."""
    if head["length"] is None or head["iteration"] != head["length"]:
        return False
    return int(head["length"]) * fields.get("step_duration_seconds", 0.0) >= 1.0


def _values(printed: dict[str, str]) -> dict[str, float]:
    fields: dict[str, float] = {}
    for key, name in _FIELDS.items():
        if key in printed and (read := number(printed[key])) is not None:
            fields[name] = read
    return fields


def _evaluation(line: Line, printed: dict[str, str], stamp: Stamp | None) -> Record | None:
    """Results of a validation, without a step: its own may be an epoch."""
    loss = number(printed.get("loss", ""))
    fields = {} if loss is None else {"eval_loss": loss}
    metrics: dict[str, float] = {}
    for key, value in printed.items():
        if key not in _NO_RESULT and not key.endswith("copypaste") and len(metrics) < MAX_METRICS and (read := number(value)) is not None:
            metrics[key] = read
    return Record(line.number, fields, metrics, stamp=stamp) if fields or metrics else None


def _is_json(text: str) -> bool:
    if text.startswith('{"mode": "'):
        return '"iter": ' in text
    return '"data_time": ' in text and '"step": ' in text and '"iteration": ' not in text


def _sniff(text: str) -> bool:
    if text.startswith("{"):
        return "oss" in text and _is_json(text)
    prefix = _PREFIX.match(text)
    head = _TRAINING.match(text if prefix is None else text[prefix.end() :])
    return head is not None and ": " in text[head.end() :]


FORMAT: Final = Format(
    name="mmengine",
    summary="OpenMMLab: mmengine and mmcv 1.x (mmdet, mmseg, ...), text and JSON lines",
    hints=(LOSS,),
    details=(b"heckpoint", b"(val)", b"data_time", b"workflow: ", b"mode"),
    sniff=_sniff,
    parser=MMEngine,
)

"""Detectron2 0.1 to 0.6: its log, and the JSON lines of ``metrics.json``.

    [07/19 14:03:22 d2.utils.events]:  eta: 5:41:02  iter: 999  total_loss: 1.102  loss_cls: 0.4112  ...   lr: 0.019981  max_mem: 5123M
    [07/19 14:03:22] d2.utils.events INFO:  eta: 5:41:02  iter: 1019  total_loss: nan  time: 0.2291  last_time: 0.2304   lr: N/A
    {"data_time": 0.005, "eta_seconds": 5400.5, "iteration": 39, "loss_cls": 0.5, "lr": 0.002, "time": 0.25, "total_loss": 1.25}

Odd: iterations count from 0, losses are medians of 20 iterations, ``time`` in the text is a mean over the run (in the JSON it is not). The
total stands nowhere. A model with one loss has no ``total_loss``. The line about the overall speed comes after a crash, too.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import duration, number

_PREFIX: Final = re.compile(
    r"^\[\d\d/\d\d \d\d:\d\d:\d\d(?: (?P<console>[\w.]+)\]:|\] (?P<file>[\w.]+)) (?:(?P<level>INFO|WARNING|ERROR|CRITICAL): )?"
)
_ITERATION: Final = re.compile(r"^ *(?:eta: (?P<eta>(?:\d+ days?, )?[\d:]+) +)?iter: (?P<step>\d{1,15}) +(?=\w)")
_PAIR: Final = re.compile(r"(?<!\S)([\w./]{1,80}): (\S{1,40})(?=\s)")
_SAVING: Final = re.compile(r"^Saving checkpoint to (?P<path>\S+)$")
_STEP_OF_NAME: Final = re.compile(r"_(\d{4,15})\.\w+$")
_STARTING: Final = re.compile(r"^Starting training from iteration (?P<step>\d{1,15})$")
_INFERENCE: Final = re.compile(r"^Start inference on \d+ (?:batches|images)")
_COPYPASTE: Final = re.compile(r"^copypaste: (?P<text>.*)$")
_NAN: Final = re.compile(r"Loss became infinite or NaN at iteration=(?P<step>\d{1,15})!")
_CRASHED: Final = "Exception during training:"
_OVERALL: Final = "Overall training speed: "
_FIELDS: Final = {
    "total_loss": "loss",
    "lr": "learning_rate",
    "last_time": "step_duration_seconds",
    "grad_norm": "grad_norm",
    "grad_scaler": "loss_scale",
}
_JSON_FIELDS: Final = {**_FIELDS, "time": "step_duration_seconds", "eta_seconds": "remaining_seconds"}
# Among the scalars of the JSON lines, those that an evaluation has put there.
_RESULT: Final = re.compile(r"(?:^|/)(?:bbox|segm|keypoints|sem_seg|panoptic_seg|box_proposals)/")


class Detectron2:
    """One of Detectron2's files."""

    def __init__(self) -> None:
        self._forms = Forms()
        self._has_crashed = False
        self._remaining_s: float | None = None
        self._task = ""  # of the results that are being printed
        self._names: list[str] = []

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("{"):
            return _json_line(line) if '"iteration": ' in text else None
        if (found := _NAN.search(text)) is not None:
            return [Record(line.number, {"step": int(found["step"])}, hidden_nonfinite=frozenset({"loss"}))]
        prefix = _PREFIX.match(text)
        if prefix is None:
            return None
        name, rest = prefix["console"] or prefix["file"], text[prefix.end() :]
        if name.endswith("utils.events"):
            return self._iteration(line, rest)
        return self._words(line, rest)

    def flush(self) -> Reading:
        return NOTHING

    def _iteration(self, line: Line, text: str) -> Reading:
        head = _ITERATION.match(text)
        if head is None:
            return [Malformed(line.number, "truncated")] if "iter: " in text else NOTHING
        pairs = _PAIR.findall(text, head.end())  # the last value may be torn, and is none of ours where the line is whole
        printed = dict(pairs)
        if not printed or len(printed) < len(pairs) or not self._forms.is_whole(text[head.end() :]):
            return [Malformed(line.number, "truncated")]
        fields = {"step": int(head["step"]), **_values(printed, _FIELDS)}
        self._remaining_s = duration(head["eta"]) if head["eta"] else None
        if self._remaining_s is not None:
            fields["remaining_seconds"] = self._remaining_s
        return [Record(line.number, fields, stamp=line.stamp)]

    def _words(self, line: Line, text: str) -> Reading | None:
        if (found := _SAVING.match(text)) is not None:
            step = _STEP_OF_NAME.search(found["path"])
            news = Checkpoint(CheckpointEvent.STARTED, int(step[1]) if step else None, found["path"])
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        if _STARTING.match(text):
            self._has_crashed, self._remaining_s = False, None
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if _INFERENCE.match(text):
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        if (found := _COPYPASTE.match(text)) is not None:
            return self._results(line, found["text"])
        return self._ending(line, text)

    def _ending(self, line: Line, text: str) -> Reading | None:
        """The last estimate, of no time left, tells an end from a crash or an interrupt."""
        if text.startswith(_OVERALL) and not self._has_crashed and self._remaining_s == 0.0:
            return [Record(line.number, stamp=line.stamp, closes=True)]
        self._has_crashed = self._has_crashed or _CRASHED in text
        return NOTHING if _CRASHED in text or text.startswith(_OVERALL) else None

    def _results(self, line: Line, text: str) -> Reading:
        """Three lines: the task, the names, the values."""
        if text.startswith("Task: "):
            self._task, self._names = text[6:].strip(), []
            return NOTHING
        pieces = text.split(",")
        if not self._names:
            self._names = pieces
            return NOTHING
        names, self._names = self._names, []
        metrics: dict[str, float] = {}
        for name, printed in zip(names[:MAX_METRICS], pieces, strict=False):
            if (read := number(printed)) is not None:
                metrics[f"{self._task}/{name}" if self._task else name] = read
        return [Record(line.number, {}, metrics, stamp=line.stamp)] if metrics else NOTHING


def _json_line(line: Line) -> Reading:
    try:
        found = json.loads(line.text)
    except (ValueError, RecursionError):
        return [Malformed(line.number, "json")]
    printed = {key: str(value) for key, value in found.items() if isinstance(value, (int, float))}
    step = number(printed.get("iteration", ""))
    if step is None or not math.isfinite(step):
        return [Malformed(line.number, "no_step")]
    results = [(key, number(value)) for key, value in printed.items() if _RESULT.search(key)]
    metrics = {key: value for key, value in results[:MAX_METRICS] if value is not None}
    return [Record(line.number, {"step": int(step), **_values(printed, _JSON_FIELDS)}, metrics)]


def _values(printed: dict[str, str], names: dict[str, str]) -> dict[str, float]:
    fields: dict[str, float] = {}
    for key, value in printed.items():
        if key in names and (read := number(value)) is not None:
            fields[names[key]] = read
    losses = [value for key, value in printed.items() if "loss" in key]
    if "loss" not in fields and len(losses) == 1 and (read := number(losses[0])) is not None:
        fields["loss"] = read
    return fields


def _sniff(text: str) -> bool:
    if text.startswith("{"):
        # Its keys are sorted; those of hand-written lines seldom are.
        return "loss" in text and 0 < text.find('"data_time": ') < text.find('"iteration": ')
    prefix = _PREFIX.match(text)
    if prefix is None or not (prefix["console"] or prefix["file"]).endswith("utils.events"):
        return False
    return _ITERATION.match(text[prefix.end() :]) is not None


FORMAT: Final = Format(
    name="detectron2",
    summary="Detectron2: log.txt, the console, and metrics.json",
    hints=(LOSS,),
    details=(b"heckpoint", b"training", b"copypaste: ", b"inference on", b"iteration"),
    sniff=_sniff,
    parser=Detectron2,
)

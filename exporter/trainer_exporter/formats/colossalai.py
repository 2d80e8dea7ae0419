"""ColossalAI's applications: Colossal-LLaMA, ColossalChat's SFT, DPO, KTO, ORPO and reward model, and its GPT example.

    Epoch 0:  10%|█         | 12/120 [00:30<04:30,  2.50s/it, Loss=1.2345]                                       (Colossal-LLaMA)
    Epoch 1/3:  10%|█         | 12/120 [00:30<04:30,  2.50s/it, train/loss=1.23, train/lr=1e-5]                  (ColossalChat)
    [12/20] Loss:3.214, Step time: 0.812s, TFLOPS: 121.312, FWD time: 0.201s, BWD time: 0.512s, OPTIM time: 0.099s

Odd: metrics stand behind a bar that starts anew with each epoch. Its text changes before its count does: a redraw whose count has not
moved shows the next step's loss, so only redraws that moved are read. The benchmark's closing figures are means over the whole run.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_BAR: Final = re.compile(
    rf"^(?:Epoch (?P<epoch>\d{{1,15}})(?:/(?P<epochs>\d{{1,15}}))?(?: Loss: (?P<title_loss>{NUMBER}))?|Step): +\d+%\|[^|]*\|"
    r" *(?P<done>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]+)<(?:[\d:]+|\?)(?:,[^,\]=]*)?(?P<postfix>(?:, [\w/]+=[^,\]]*)*)\]"
)
_PAIR: Final = re.compile(r", ([\w/]+)=([^,\]]*)")
_FIELDS: Final = {"Loss": "loss", "train/loss": "loss", "train/lr": "learning_rate"}
_TIMED: Final = re.compile(
    rf"^\[(?P<step>\d{{1,15}})/(?P<total>\d{{1,15}})\] Loss:(?P<loss>{NUMBER}), "
    r"Step time: (?P<s>\d+\.\d+)s, TFLOPS: (?P<tflops>\d+\.\d{3}),"
)
_STARTED: Final = re.compile(r"^Start saving (?P<which>final )?(?:model|actor|critic) checkpoint")
_SAVED: Final = re.compile(r"^Saved (?P<which>final model |actor |critic )?checkpoint at (?:epoch|episode) .*at folder (?P<dir>\S+)$")
_EVALUATING: Final = "Start evaluation..."
_RESULTS: Final = "Evaluation Result:"
_RESULT: Final = re.compile(rf"^(?P<name>[A-Za-z_]\w{{0,40}}): (?P<value>{NUMBER})$")
_RESULT_LINES: Final = 12


class ColossalAi:
    """What the master, or with pipeline parallelism the last rank, shows."""

    def __init__(self) -> None:
        self._wanted = 0  # lines of an evaluation's result still to come
        self._done: tuple[int, int] | None = None  # epoch and count of the bar as last drawn
        self._before = 0  # steps of the epochs before, where the bar does not name its epoch
        self._step: int | None = None
        self._is_evaluating = False
        self._saving: int | None = None

    @property
    def wants_all(self) -> bool:
        return self._wanted > 0

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if "%|" in text:
            found = _BAR.match(text)
            return None if found is None else self._drawn(line, found)
        if (found := _TIMED.match(text)) is not None:
            return [self._timed(line, found)]
        if self._wanted:
            self._wanted -= 1
            if (found := _RESULT.match(text)) is not None:
                return self._result(line, found)
        return self._said(line)

    def flush(self) -> Reading:
        return NOTHING

    def _drawn(self, line: Line, found: re.Match[str]) -> Reading:
        fields = {}
        for key, printed in _PAIR.findall(found["postfix"]):
            if key in _FIELDS and (read := number(printed)) is not None:
                fields[_FIELDS[key]] = read
        if found["title_loss"] and not self._is_evaluating and (read := number(found["title_loss"])) is not None:
            fields["loss"] = read
        place = (int(found["epoch"] or 0), int(found["done"]))
        if "loss" not in fields or place[1] == 0 or place == self._done:
            return NOTHING
        self._wanted = 0
        return [self._progressed(line, found, place, fields)]

    def _progressed(self, line: Line, found: re.Match[str], place: tuple[int, int], fields: dict[str, float]) -> Record:
        total, (epoch, done) = int(found["total"]), place
        if found["epoch"] is None:
            self._before += total if self._done is not None and done < self._done[1] == total else 0
        else:
            self._before = (epoch - 1 if found["epochs"] else epoch) * total
            fields["epoch"] = self._before / total + done / total if total else epoch
        self._done, self._step = place, self._before + done
        fields["step"] = self._step
        if found["epochs"]:
            fields["epochs"], fields["target_steps"] = int(found["epochs"]), int(found["epochs"]) * total
        phase = Phase.TRAINING if self._is_evaluating or self._saving is not None else None
        self._is_evaluating, self._saving = False, None
        return Record(line.number, fields, stamp=line.stamp, phase=phase)

    def _timed(self, line: Line, found: re.Match[str]) -> Record:
        names = {"step": "step", "total": "target_steps", "loss": "loss", "s": "step_duration_seconds", "tflops": "tflops_per_gpu"}
        read = {name: number(found[group]) for group, name in names.items()}
        self._step = int(found["step"])
        return Record(line.number, {name: value for name, value in read.items() if value is not None}, stamp=line.stamp)

    def _said(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _STARTED.match(text)) is not None:
            self._saving = self._step
            news = Checkpoint(CheckpointEvent.STARTED, self._step)
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        if (found := _SAVED.match(text)) is not None:
            return self._saved(line, found)
        if text == _EVALUATING:
            self._is_evaluating = True
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        if text == _RESULTS:
            self._wanted, self._is_evaluating = _RESULT_LINES, False
            return [Record(line.number, stamp=line.stamp, phase=Phase.TRAINING)]
        return None

    def _saved(self, line: Line, found: re.Match[str]) -> Reading:
        """The step that is printed counts micro steps of the epoch: the bar's stands for it."""
        step, self._saving = self._saving if self._saving is not None else self._step, None
        news = Checkpoint(CheckpointEvent.FINISHED, step)
        is_last = found["which"] == "final model "
        facts = {"output_dir": found["dir"]}
        return [Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news, closes=is_last)]

    def _result(self, line: Line, found: re.Match[str]) -> Reading:
        value = number(found["value"])
        if value is None:
            return NOTHING
        fields: dict[str, float] = {} if self._step is None else {"step": self._step}
        if found["name"] == "loss":
            return [Record(line.number, {**fields, "eval_loss": value}, stamp=line.stamp)]
        return [Record(line.number, fields, {found["name"]: value}, stamp=line.stamp)]


def _sniff(text: str) -> bool:
    if "%|" not in text:
        return _TIMED.match(text) is not None
    found = _BAR.match(text)
    if found is None:
        return False
    keys = {key for key, _ in _PAIR.findall(found["postfix"])}
    if "train/loss" in keys:
        return True
    return bool(found["epoch"]) and (keys == {"Loss"} or (bool(found["title_loss"]) and bool(found["epochs"])))


FORMAT: Final = Format(
    name="colossalai",
    summary="ColossalAI: Colossal-LLaMA, ColossalChat and its GPT example",
    hints=(LOSS,),
    details=(b" checkpoint", b"Start evaluation", _RESULTS.encode()),
    sniff=_sniff,
    parser=ColossalAi,
)

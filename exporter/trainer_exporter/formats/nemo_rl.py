"""NVIDIA NeMo-RL, 0.2 to 0.7: GRPO, SFT, DPO, reward models and distillation, as a block of lines a step.

    ========================= Step 3/100 =========================
    📊 Training Results:
      • Loss: 0.0123
    ⏱️  Timing:
      • Total step time: 118.77s

Each line of the block is told as it comes, with the block's step, so that nothing waits for an end that is not marked. Odd: the numbers
of the header count within the epoch; the line of a save has the step over all epochs. Gradient norm and learning rate are not printed.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.wholeness import Figures
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import number

_HEADER: Final = re.compile(r"^={25} (?P<kind>Epoch|Step) (?P<number>\d{1,15})/(?P<total>\d{1,15}) ={25}$")
_TORN: Final = re.compile(r"^={25} [ES]")
_SECTION: Final = re.compile(
    r"^ *\S+ +(?P<name>Training Results|Timing|Performance Metrics|Validation Results|Validation Timing)"
    r"(?: for `(?P<set>[^`]*)` set)?:$"
)
# The number of decimals is fixed, and shows where a line is torn.
_BULLET: Final = re.compile(
    r"^ +• (?P<key>[A-Za-z][\w ]*): (?:(?P<bare>-?\d+\.\d{4}|nan|-?inf)"
    r"|(?P<value>-?\d+\.\d+|nan)(?P<unit>s|%| tokens| steps)(?: \([\d.]+%\))?)$"
)
_GROUP_RATE: Final = re.compile(r"^ +- E2E \((?P<what>Samples|Tokens)/sec\): (?P<value>\d{1,15}\.\d\d)$")
_FLOPS: Final = re.compile(r"^ +• Training FLOPS: [\d.]+ TFLOPS \((?P<value>[\d.]+) TFLOPS per rank\)$")
_SAVING: Final = re.compile(r"^Saving checkpoint for step (?P<step>\d{1,15})\.\.\.$")
_EVALUATING: Final = re.compile(r"^▶ Starting validation at step (?P<step>\d{1,15})")
_ENDED: Final = "Max number of steps has been reached, stopping training early"
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "loss": ("loss", 1.0),
    "validation_loss": ("eval_loss", 1.0),
    "total_step_time": ("step_duration_seconds", 1.0),
    "training_model_floating_point_utilization": ("mfu_ratio", 0.01),
}
_NO_RESULT: Final = frozenset(
    {"samples_processed", "num_valid_samples", "validation_num_valid_samples", "total_validation_time", "buffer_size"}
)
_MAX_NAME: Final = 60


class NemoRl:
    """The driver's output."""

    def __init__(self) -> None:
        self._step: int | None = None  # of the block that is being printed, over all epochs
        self._figures = Figures()
        self._epoch = 1
        self._epochs: int | None = None
        self._target: int | None = None  # as last told
        self._section = ""
        self._set = ""  # that an evaluation is about
        self._first_set: str | None = None
        self._saved: int | None = None
        self._phase: Phase | None = None

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("=====") and (header := _HEADER.match(text)) is not None:
            return self._header(line, header)
        if _TORN.match(text):
            self._figures.lose()
        if self._step is None and self._epochs is None:
            return None
        if "•" in text or "- E2E (" in text:
            return self._item(line)
        if text.endswith(":") and (section := _SECTION.match(text)) is not None:
            self._section, self._set = section["name"], section["set"] or ""
            return NOTHING
        return self._words(line)

    def flush(self) -> Reading:
        return NOTHING

    def _header(self, line: Line, header: re.Match[str]) -> Reading:
        count, total = int(header["number"]), int(header["total"])
        self._section = ""
        if header["kind"] == "Epoch":
            self._epoch, self._epochs = count, total
            return [Record(line.number, {"epochs": total}, stamp=line.stamp)]
        self._step = (self._epoch - 1) * total + count
        self._saved = None
        self._figures.begin()
        is_whole = self._epochs is None or self._epochs == 1  # else the run may end before its last epoch does
        fields: dict[str, float] = {"target_steps": total} if is_whole and total != self._target else {}
        self._target = total if is_whole else None
        phase = self._entered(Phase.TRAINING)
        return [Record(line.number, fields, stamp=line.stamp, phase=phase)] if fields or phase else NOTHING

    def _entered(self, phase: Phase) -> Phase | None:
        before, self._phase = self._phase, phase
        return phase if before is not phase else None

    def _item(self, line: Line) -> Reading | None:
        text = line.text
        if (rate := _GROUP_RATE.match(text)) is not None:
            name = "samples_per_second" if rate["what"] == "Samples" else "tokens_per_second"
            return self._told(line, {name: number(rate["value"])})
        if (flops := _FLOPS.match(text)) is not None:
            return self._told(line, {"tflops_per_gpu": number(flops["value"])})
        found = _BULLET.match(text)
        if found is None:
            return None
        key, value = found["key"].lower().replace(" ", "_")[:_MAX_NAME], number(found["bare"] or found["value"])
        if key == "checkpointing" and self._saved is not None:
            return [self._save_ended(line, value)]
        if key in _FIELDS and not (key == "validation_loss" and not self._is_main_set):
            name, scale = _FIELDS[key]
            return self._told(line, {name: None if value is None else value * scale})
        return self._result(line, key, value) if self._section.endswith("Results") and key not in _NO_RESULT else NOTHING

    @property
    def _is_main_set(self) -> bool:
        """The first set that is evaluated gives the loss, the others results named after them."""
        if self._first_set is None:
            self._first_set = self._set
        return self._set == self._first_set

    def _told(self, line: Line, found: dict[str, float | None]) -> Reading:
        fields = {name: value for name, value in found.items() if value is not None}
        if not fields:
            return NOTHING
        for name in fields.keys() - {"eval_loss"}:
            self._figures.repeat(name)
        if not self._figures.have_header:
            return [Malformed(line.number, "no_step")]
        place: dict[str, float] = {} if self._step is None else {"step": self._step}
        return [Record(line.number, {**place, **fields}, stamp=line.stamp)]

    def _result(self, line: Line, key: str, value: float | None) -> Reading:
        if value is None or not self._figures.have_header:
            return NOTHING
        is_other = self._section == "Validation Results" and not self._is_main_set
        name = f"{self._set}_{key}" if is_other else key
        fields: dict[str, float] = {} if self._step is None else {"step": self._step}
        return [Record(line.number, fields, {name: value}, stamp=line.stamp)]

    def _save_ended(self, line: Line, seconds: float | None) -> Record:
        news = Checkpoint(CheckpointEvent.FINISHED, self._saved, duration_seconds=seconds)
        self._saved = None
        return Record(line.number, stamp=line.stamp, phase=self._entered(Phase.TRAINING), checkpoint=news)

    def _words(self, line: Line) -> Reading | None:
        if (saving := _SAVING.match(line.text)) is not None:
            self._step = self._saved = int(saving["step"])
            news = Checkpoint(CheckpointEvent.STARTED, self._saved)
            return [Record(line.number, stamp=line.stamp, phase=self._entered(Phase.CHECKPOINTING), checkpoint=news)]
        if _EVALUATING.match(line.text):
            phase = self._entered(Phase.EVALUATING)
            return [Record(line.number, stamp=line.stamp, phase=phase)] if phase else NOTHING
        return [Record(line.number, stamp=line.stamp, closes=True)] if line.text == _ENDED else None


def _sniff(text: str) -> bool:
    return text.startswith("=====") and _HEADER.match(text) is not None


FORMAT: Final = Format(
    name="nemo_rl",
    summary="NVIDIA NeMo-RL: the block that its driver prints a step",
    hints=(LOSS, b"================ "),
    details=(
        *("•".encode(), b"- E2E (", b"Training Results", b"Validation ", b"Timing:", b"Performance Metrics"),
        *(b"Saving checkpoint for step", b"Starting validation", b"stopping training early"),
    ),
    sniff=_sniff,
    parser=NemoRl,
)

"""NVIDIA NeMo 1 and 2 (2.0 to 2.5): the lines of its ProgressPrinter, and the progress bar of Lightning with NeMo's names.

    Training epoch 0, iteration 9/99 | lr: 1.35e-06 | global_batch_size: 512 | global_step: 9 | reduced_train_loss: 11.03 | ...
    Epoch 0:   0%|          | 9/99999 [00:58<180:33:12, reduced_train_loss=11.00, global_step=9.000, train_step_timing in s=6.410]

Odd: recent versions print the iteration and the total less one, so that the last one is 99/99; the first version counted from 1 to
the total. The iteration is that of the epoch. Values are means over the logging interval with 4 significant digits (so
``consumed_samples`` is none to count with), ``val_loss`` stays in the line until the next validation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from trainer_exporter.formats.bars import SIGN
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Constant
from trainer_exporter.formats.titled_bars import LastRedraw, TitledBar, titled_bar, value
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_TRAINING: Final = re.compile(r"^Training epoch (?P<epoch>\d{1,15}), iteration (?P<iteration>\d{1,15})/(?P<total>\d{1,15})(?= \||$)")
# Four significant digits, where it is no whole number.
_FOUR: Final = re.compile(
    r"-?(?:\d+|0\.0*[1-9]?\d{0,3}|[1-9]\.\d{1,3}|[1-9]\d\.\d{1,2}|[1-9]\d\d\.\d|[1-9]\d{3,}\.0|\d(?:\.\d{1,3})?e[-+]\d\d|nan|inf)$"
)
_EPOCH: Final = re.compile(r"^Epoch (?P<epoch>\d{1,15})$")
_TIMING: Final = "train_step_timing in s"
_FIELDS: Final = {
    "reduced_train_loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "global_batch_size": "global_batch_size",
    _TIMING: "step_duration_seconds",
    "TFLOPS_per_GPU": "tflops_per_gpu",
}
_EVALUATING: Final = re.compile(
    r"^(?P<sanity>Sanity checking )?(?:Validation|Testing): iteration \d+/(?:\d+|inf)|^(?:Validation|Validating)\b"
)
_SAVED: Final = re.compile(
    rf"Global Checkpoint Save : Rank: \d+ : Iteration: (?P<step>\d{{1,15}}) : Start time: {NUMBER}s : Save duration: (?P<seconds>{NUMBER})s"
)
_SCHEDULED: Final = re.compile(r"Scheduled async checkpoint save for (?P<path>\S+)")
_FINALIZED: Final = re.compile(r"Async checkpoint save for step (?P<step>\d{1,15}) \((?P<path>[^)]*)\) finalized successfully")
_SUCCESS: Final = re.compile(r"Successfully saved checkpoint from iteration +(?P<step>\d{1,15}) to (?P<path>\S+)")
_RELATED: Final = re.compile(r"Async finalization time took|Global Checkpoint Load : Rank")
_STEP_OF_NAME: Final = re.compile(r"step=(\d{1,15})")
_MONITORED: Final = re.compile(rf"^Epoch \d+, global step \d+: '(?P<monitor>[^']+)' (?:reached (?P<value>{NUMBER}) |was not in top )")
_STOPPED: Final = "`Trainer.fit` stopped: "
_RESTORED: Final = re.compile(r"^Restored all states from the checkpoint")


class NeMo:
    """The output of rank 0."""

    def __init__(self) -> None:
        self._redraws = LastRedraw()
        self._counts_from_one = False
        self._total = Constant()
        self._val_loss = ""  # as last printed in a progress line
        self._is_told = False  # the result of this validation, by the words about its checkpoint
        self._is_evaluating = False
        self._has_trained = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (head := _TRAINING.match(text)) is not None:
            return [*self._redraws.given(), self._iteration(line, head)]
        if "%|" in text:
            drawn = titled_bar(text)
            if drawn is None:
                self._redraws.torn()
            return None if drawn is None else self._bar(line, drawn)
        if (found := _EVALUATING.match(text)) is not None:
            return [*self._redraws.given(), *self._evaluating(line, starts=found["sanity"] is not None)]
        said = self._checkpoint(line) if "heckpoint" in text else self._words(line)
        return None if said is None else [*self._redraws.given(), *said]

    def flush(self) -> Reading:
        return self._redraws.flushed()

    # Training

    def _iteration(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        pieces = line.text[head.end() :].split(" | ")[1:]
        pairs = dict(piece.rsplit(": ", 1) for piece in pieces if ": " in piece)
        if not pairs:
            return Malformed(line.number, "truncated")
        if len(pairs) < len(pieces) or not all(map(_FOUR.match, pairs.values())) or not self._total.is_known(head["total"]):
            return Malformed(line.number, "number")
        fields = self._place(int(head["epoch"]), int(head["iteration"]), int(head["total"]), pairs.get("global_step"))
        fields |= self._validated(pairs)
        return self._record(line, fields, pairs)

    def _place(self, epoch: int, iteration: int, total: int, printed: str | None) -> dict[str, float]:
        """Step and target as the trainer counts them, the same from epoch to epoch."""
        global_step = None if printed is None else value(printed)
        if global_step is not None and not math.isfinite(global_step):
            global_step = None
        if global_step is not None and epoch == 0 and iteration:
            self._counts_from_one = iteration == int(global_step) + 1
        step = iteration if global_step is None else int(global_step) + self._counts_from_one
        fields: dict[str, float] = {"step": step, "epoch": epoch}
        if step <= total:
            fields["target_steps"] = total
        return fields

    def _record(self, line: Line, fields: dict[str, float], pairs: Mapping[str, str]) -> Record:
        for key, printed in pairs.items():
            field = _FIELDS.get(key)
            if field is not None and (read := value(printed)) is not None:
                fields[field] = read
        duration, batch = fields.get("step_duration_seconds"), fields.get("global_batch_size")
        if duration and batch and math.isfinite(duration):
            fields["samples_per_second"] = batch / duration
        self._has_trained, self._is_evaluating = True, False
        return Record(line.number, fields, stamp=line.stamp)

    def _validated(self, pairs: Mapping[str, str]) -> dict[str, float]:
        printed = pairs.get("val_loss", "")
        read = value(printed)
        if read is None or (printed == self._val_loss and not self._is_evaluating):
            return {}
        has_been_told, self._val_loss = self._is_told, printed
        self._is_told = self._is_evaluating = False
        return {} if has_been_told else {"eval_loss": read}

    def _bar(self, line: Line, drawn: TitledBar) -> Reading | None:
        if _EVALUATING.match(drawn.title):
            return [*self._redraws.given(), *self._evaluating(line, starts=False)]
        epoch = _EPOCH.match(drawn.title)
        if epoch is None or drawn.total is None:
            return None
        count = (int(epoch["epoch"]), drawn.done)
        out: list[Record | Malformed] = [*self._redraws.make_way(count)]
        if result := self._validated(drawn.pairs):
            out.append(Record(line.number, result, stamp=line.stamp))
        if "reduced_train_loss" in drawn.pairs and count != self._redraws.told:
            fields = self._place(count[0], drawn.done, drawn.total, drawn.pairs.get("global_step"))
            if drawn.elapsed_s is not None:
                fields["elapsed_seconds"] = drawn.elapsed_s
            self._redraws.hold(self._record(line, fields, drawn.pairs), count, drawn)
        return out

    def _evaluating(self, line: Line, *, starts: bool) -> list[Record]:
        """The sanity check, which comes before training, tells that a trainer has started anew."""
        if starts and self._has_trained:
            self._has_trained = self._is_evaluating = False
            self._redraws.begin()
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if self._is_evaluating or not self._has_trained:
            return []
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]

    # Checkpoints and words

    def _checkpoint(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _SAVED.search(text)) is not None:
            news = Checkpoint(CheckpointEvent.FINISHED, int(found["step"]), duration_seconds=number(found["seconds"]))
        elif (found := _SCHEDULED.search(text)) is not None:
            step = _STEP_OF_NAME.search(found["path"])
            news = Checkpoint(CheckpointEvent.STARTED, int(step[1]) if step else None, found["path"], blocking=False)
        elif (found := _FINALIZED.search(text)) is not None:
            news = Checkpoint(CheckpointEvent.FINISHED, int(found["step"]), found["path"], blocking=False)
        elif (found := _SUCCESS.search(text)) is not None:
            return NOTHING  # the twin of the line before it
        else:
            return self._words(line) or (NOTHING if _RELATED.search(text) else None)
        return [Record(line.number, stamp=line.stamp, checkpoint=news)]

    def _words(self, line: Line) -> Reading | None:
        text = line.text
        if _STOPPED in text:
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if _RESTORED.match(text):
            self._redraws.begin()
            return [Record(line.number, stamp=line.stamp, starts=True)]
        found = _MONITORED.match(text)
        if found is None:
            return None
        read = number(found["value"]) if found["value"] and found["monitor"] == "val_loss" and self._is_evaluating else None
        if read is None:
            return NOTHING
        self._is_told = True
        return [Record(line.number, {"eval_loss": read}, stamp=line.stamp)]


def _sniff(text: str) -> bool:
    if text.startswith("Training epoch "):
        return _TRAINING.match(text) is not None and ": " in text
    return "reduced_train_loss=" in text and "|" in text and titled_bar(text) is not None


FORMAT: Final = Format(
    name="nemo",
    summary="NVIDIA NeMo 1 and 2: progress lines and bars",
    hints=(LOSS, SIGN, b"Training epoch "),
    details=(b": iteration ", b"heckpoint", b"Trainer", b"global step"),
    sniff=_sniff,
    parser=NeMo,
)

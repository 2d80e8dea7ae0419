"""Keras, versions 2 and 3: what ``model.fit`` prints, a line an epoch (``verbose=2``) or a bar that is redrawn (``verbose=1``).

    Epoch 1/5
    1563/1563 - 41s - 26ms/step - accuracy: 0.3312 - loss: 1.8312 - val_accuracy: 0.4471 - val_loss: 1.5214
    1563/1563 ━━━━━━━━━━━━━━━━━━━━ 41s 26ms/step - accuracy: 0.3312 - loss: 1.8312 - val_accuracy: 0.4471 - val_loss: 1.5214
     782/1563 [==============>...............] - ETA: 20s - loss: 1.9312 - accuracy: 0.3012

Odd: the step counts anew with each epoch, whose number stands only in the line above. Loss and time of a step are means since the
epoch began; the times of bars are left out. A bar's last count is drawn twice, the second time with the results of the validation.
``model.evaluate`` prints the same lines with the same names, of no epoch: they are told by the epoch that is already complete.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_EPOCH: Final = re.compile(r"Epoch (?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})$")
_COUNT: Final = r"(?P<done>\d{1,15})/(?P<total>\d{1,15}|Unknown)"
_TOOK: Final = r"(?P<took>\d{1,9})(?P<unit>us|ms|s)/step"
_LINE: Final = re.compile(rf"{_COUNT} - (?P<seconds>\d{{1,9}})s(?: - {_TOOK})?(?= - )")
_LINE_END: Final = re.compile(rf" - \d{{1,9}}s/epoch - {_TOOK}$")
_BAR: Final = re.compile(rf"{_COUNT}(?: ━+)? [\d:]{{1,12}}s? {_TOOK}(?= - )")
_BAR_2: Final = re.compile(rf"{_COUNT}(?: \[[=>.]+\])? - (?:ETA: [\d:]{{1,12}}s?|\d{{1,9}}s {_TOOK})(?= - )")
_PAIR: Final = re.compile(r" - (?P<key>[A-Za-z_][\w./@-]*): (?P<value>-?\d+\.\d{4}(?:e[-+]\d\d)?|-?nan|-?inf|\d+\.\d+e[-+]\d\d)(?= - |$)")
_DECIMALS: Final = re.compile(r"\.\d+(?:e[+-]\d\d)?$|[a-z]$", re.IGNORECASE)
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SAVING: Final = re.compile(rf"Epoch (?P<epoch>\d{{1,9}}): (?:\S+ improved from {NUMBER} to {NUMBER}, )?saving model to (?P<path>\S.*)$")
_STOPPED: Final = re.compile(r"Epoch \d{1,9}: early stopping$")
_RATE_CHANGED: Final = re.compile(r"Epoch \d{1,9}: (?:LearningRateScheduler setting|ReduceLROnPlateau reducing) learning rate to ")
_ANOTHERS: Final = re.compile(r"Epoch \d{1,9}/\d{1,9}$|\d{1,15}/\d{1,15} (?:- \d|\[[=>.]|━)")  # within a line: another worker's
_VALIDATION: Final = "val_"
_DOUBTED: Final = 3  # epochs
_LATE: Final = 5  # bars
_STRIDES: Final = 8  # between two bars that can be of one worker
_MISSED: Final = 16  # bars
_RATES: Final = ("learning_rate", "lr")


class Keras:
    """The output of one process."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._epochs = 0
        self._length: int | None = None  # batches an epoch
        self._drawn: tuple[int, int | None] | None = None  # count and total of this epoch's last line
        self._first: int | None = None  # count that a bar begins with
        self._late = 0  # bars to come of an epoch that began with another one: of a trainer that goes on, or of another worker
        self._doubts = _Doubts()
        self._step: int | None = None
        self._elapsed_s = 0.0
        self._evaluated = ""  # the result of model.evaluate that was told last

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text.strip(" ")
        if text.startswith("Epoch "):
            return self._words(line, text)
        if (found := _LINE.match(text)) is not None:
            return self._read(line, text, found, is_bar=False)
        if (found := _BAR.match(text) or _BAR_2.match(text)) is not None:
            return self._read(line, text, found, is_bar=True)
        if "Epoch " in text and _ANOTHERS.search(text):
            self._doubts.add()
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _words(self, line: Line, text: str) -> Reading | None:
        if (found := _EPOCH.match(text)) is not None:
            epoch = int(found["epoch"])
            is_complete = self._drawn is not None and self._drawn[0] == self._drawn[1]
            is_ahead = self._doubts.begin(epoch, self._epoch, is_complete=is_complete, has_bars=self._first is not None)
            if self._epoch is None or (epoch <= self._epoch and not self._doubts.is_shared):
                self._elapsed_s = 0.0
                self._length = self._length if epoch == self._epoch != 1 else None  # as long again, or another rank's
            self._epoch, self._epochs, self._drawn, self._late = epoch, int(found["epochs"]), None, 0
            return self._first_worker(line) if is_ahead else NOTHING
        if (found := _SAVING.match(text)) is not None:
            if self._epoch is not None and int(found["epoch"]) != self._epoch:
                self._doubts.add()
            step = int(found["epoch"]) * self._length if self._length else None
            news = Checkpoint(CheckpointEvent.STARTED, step, found["path"])
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        if _STOPPED.match(text):
            self._epoch = None
            return [Record(line.number, stamp=line.stamp, closes=True)]
        return NOTHING if _RATE_CHANGED.match(text) else None

    def _read(self, line: Line, text: str, head: re.Match[str], *, is_bar: bool) -> Reading | None:
        pairs = _pairs(text, head.end())
        done, total = _count(head)
        if pairs is None or (total is not None and (done > total if is_bar else done != total)):
            if _ANOTHERS.search(text, head.end()):
                self._doubts.add()
            return [Malformed(line.number, "truncated")]
        is_evaluation = self._is_evaluation(done, total, pairs, is_bar=is_bar)
        if self._is_another_workers(done, total, is_bar=is_bar, is_evaluation=is_evaluation):
            self._doubts.add()
        if is_evaluation:
            return self._evaluation(line, pairs) if done == total else NOTHING
        is_again = is_bar and self._drawn is not None and self._drawn[0] == done
        fields = self._place(done, total)
        progress = self._first_worker(line) if is_bar and self._doubts.draw(done) else []
        if not is_again:
            fields |= _trained(pairs)
        if not is_bar:
            fields |= self._times(text, head)
        results, metrics = _results({key.removeprefix(_VALIDATION): value for key, value in pairs.items() if key.startswith(_VALIDATION)})
        if is_again and not (results or metrics):
            return progress
        return [*progress, Record(line.number, fields | results, metrics, stamp=line.stamp)]

    def _is_evaluation(self, done: int, total: int | None, pairs: dict[str, float], *, is_bar: bool) -> bool:
        """Whether a line without results of a validation is one of ``model.evaluate``."""
        if any(key.startswith(_VALIDATION) for key in pairs):
            return False
        if self._epoch is None or (self._length is not None and total is not None and total != self._length):
            return True
        if self._drawn is None or self._drawn[1] is None or self._doubts.is_shared:
            return False
        return not is_bar or (self._drawn[0] == self._drawn[1] and done != self._drawn[0])

    def _is_another_workers(self, done: int, total: int | None, *, is_bar: bool, is_evaluation: bool) -> bool:
        """Whether this line cannot be the next one of the epoch whose beginning was printed last."""
        if self._epoch is None:
            return False
        if self._drawn is None:
            self._first = done if self._first is None and is_bar else self._first
            self._late = _LATE if is_bar and self._first is not None and done > self._first else 0
            return False
        self._late = max(0, self._late - 1)
        before, length = self._drawn
        if is_evaluation:
            return total == length and self._epoch < self._epochs
        return done < before or (not is_bar and before == length)

    def _evaluation(self, line: Line, pairs: dict[str, float]) -> Reading:
        printed = str(pairs)
        if self._step is None or printed == self._evaluated:
            return NOTHING
        self._evaluated = printed
        fields, metrics = _results(pairs)
        return [Record(line.number, {"step": self._step, **fields}, metrics, stamp=line.stamp)]

    def _place(self, done: int, total: int | None) -> dict[str, float]:
        """Where the run is: one count that goes on from epoch to epoch. Nothing where the epoch is not known."""
        self._drawn = (done, total)
        if total is not None:
            self._length = total
        if self._epoch is None or (self._length is None and self._epoch > 1) or self._doubts.is_shared or self._late:
            self._step = None
            return {}
        self._step = (self._epoch - 1) * (self._length or 0) + done
        return self._progress(self._step, self._epoch)

    def _progress(self, step: int, epoch: int) -> dict[str, float]:
        fields: dict[str, float] = {"step": step, "epoch": epoch, "epochs": self._epochs}
        if self._length is not None:
            fields["target_steps"] = self._epochs * self._length
        return fields

    def _first_worker(self, line: Line) -> list[Record | Malformed]:
        """How far the first of several workers is."""
        if self._length is None:
            return []
        epoch = self._doubts.epoch
        return [Record(line.number, self._progress((epoch - 1) * self._length + self._doubts.done, epoch), stamp=line.stamp)]

    def _times(self, text: str, head: re.Match[str]) -> dict[str, float]:
        """Of a line that tells of a whole epoch."""
        self._elapsed_s += int(head["seconds"])
        fields = {"elapsed_seconds": self._elapsed_s}
        told = head if head["took"] else _LINE_END.search(text)
        if told is not None:
            fields["step_duration_seconds"] = int(told["took"]) * _SECONDS[told["unit"]]
        return fields


class _Doubts:
    """Whether several workers print into one stream: whose epoch a line is of is not known then.

    What is known is how far the first of them is: where its epoch begins, and its bar as far as it goes on from there.
    """

    def __init__(self) -> None:
        self._doubted = 0  # epochs to come
        self._since: int | None = None  # epochs that have begun since one was out of turn
        self.epoch = 0  # of the first of them
        self.done = 0  # the count of its bar
        self._stride = 1  # the longest between two of its bars
        self._missed: list[int] = []  # the counts of the last bars, none of which is its next one

    @property
    def is_shared(self) -> bool:
        return self._doubted > 0

    def add(self) -> None:
        """A line was not the next one of its epoch."""
        self._doubted = _DOUBTED

    def begin(self, epoch: int, before: int | None, *, is_complete: bool, has_bars: bool) -> bool:
        """An epoch has begun; whether the first of several workers is further with it.

        One out of turn may be of a trainer that starts over; of several workers the bars tell.
        """
        if before is None or epoch == before + 1 or (epoch == 1 and is_complete):
            self._doubted = max(0, self._doubted - 1)
            self._since = None if self._since is None or self._since >= _DOUBTED else self._since + 1
        else:
            self._doubted = _DOUBTED if self._since is not None and not has_bars else self._doubted
            self._since = 0
        is_first = epoch > self.epoch or not self.is_shared
        if is_first:
            self.epoch, self.done, self._missed = epoch, 0, []
        return is_first and self.is_shared

    def draw(self, done: int) -> bool:
        """A bar has been drawn; whether the first of several workers is further with it."""
        ahead = done - self.done
        if not self.is_shared:
            self._stride = max(self._stride, ahead) if self.done else self._stride
            self.done = done
            return False
        self._missed = [] if 0 < ahead <= _STRIDES * self._stride else [*self._missed, done]
        if not self._missed:
            self.done = done
        elif len(self._missed) < _MISSED:
            return False
        else:
            self.done, self._missed = max(self.done, min(self._missed)), []
        return True


def _count(head: re.Match[str]) -> tuple[int, int | None]:
    return int(head["done"]), None if head["total"] == "Unknown" else int(head["total"])


def _pairs(text: str, at: int) -> dict[str, float] | None:
    """What stands behind the count, by name; None when the line ends within it."""
    ending = _LINE_END.search(text, at)
    end = ending.start() if ending else len(text)
    pairs: dict[str, float] = {}
    while at < end:
        found = _PAIR.match(text, at)
        value = number(found["value"]) if found is not None and _DECIMALS.search(found["value"]) else None
        if found is None or value is None or found["key"] in pairs:
            return None
        pairs[found["key"]] = value
        at = found.end()
    return pairs


def _trained(pairs: dict[str, float]) -> dict[str, float]:
    fields = {"loss": pairs["loss"]} if "loss" in pairs else {}
    rate = next((pairs[key] for key in _RATES if key in pairs), None)
    return fields if rate is None else fields | {"learning_rate": rate}


def _results(pairs: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Loss and other results of an evaluation."""
    fields = {"eval_loss": pairs["loss"]} if "loss" in pairs else {}
    others = [(key, value) for key, value in pairs.items() if key != "loss" and key not in _RATES]
    return fields, dict(others[:MAX_METRICS])


def _sniff(text: str) -> bool:
    text = text.strip(" ")
    if text.startswith("Epoch "):  # only the last line before the first that is ours would be shown to the parser: not the epoch's
        return (" improved from " in text and _SAVING.match(text) is not None) or _RATE_CHANGED.match(text) is not None
    if not text[:1].isdigit():
        return False
    head = _LINE.match(text) or _BAR.match(text) or _BAR_2.match(text)
    return head is not None and any(key.endswith("loss") for key in _pairs(text, head.end()) or ())


FORMAT: Final = Format(
    name="keras",
    summary="Keras 2 and 3: model.fit's line an epoch (verbose=2), its bars (verbose=1) and what its callbacks say",
    hints=(LOSS, b"Epoch "),
    sniff=_sniff,
    parser=Keras,
)

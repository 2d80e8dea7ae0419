"""Scripts with values behind a tqdm bar of their own, as written around Hugging Face accelerate (diffusers, ``run_*_no_trainer.py``).

    Steps:  12%|█▏        | 120/1000 [02:10<15:46,  1.08s/it, loss=0.0412, lr=1e-5]
    Epoch 1/3:  50%|█████     | 60/120 [00:40<00:40,  1.50it/s, loss=1.93]
    epoch 0: perplexity: 12.3 eval_loss: 2.51

Odd: there is no standard. The bar counts steps of the run, or batches of an epoch and begins anew with each. Most scripts move the
count and then change the values, so the last redraw of a count is the right one; some change the values first, which shows in values
beside the count that a bar began with, and there the first redraw of a count is. Bars of known trainers are left to them.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.announcements import TRAINING
from trainer_exporter.formats.bars import SIGN
from trainer_exporter.formats.base import LOSS, STARS, Format, Reading
from trainer_exporter.formats.decimals import Manner
from trainer_exporter.formats.titled_bars import LastRedraw, TitledBar, titled_bar, value
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_LOSSES: Final = ("loss", "train_loss", "step_loss", "lm_loss", "total_loss", "avg_loss")
_FIELDS: Final = {"lr": "learning_rate", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "gnorm": "grad_norm"}
_EVALUATING: Final = re.compile(r"(?:valid|eval|test|infer|generat|sampl|predict)", re.IGNORECASE)
_EPOCH: Final = re.compile(r"\bepoch[ :=]*\[?(?P<epoch>\d{1,6})(?: ?(?:/|of) ?(?P<epochs>\d{1,6}))?", re.IGNORECASE)
_OTHERS: Final = re.compile(r"^(?:Train step of epoch |Train epoch \[|Episode \[|Eval stage of )")  # OpenRLHF
_LEAST_TOTAL: Final = 10  # bars of test suites are shorter
_SAVING: Final = re.compile(r"(?:^|[\] ])Saving current state to (?P<path>\S+)$")  # glued to the bar where that was open
_STEP_OF_NAME: Final = re.compile(r"(?:step|checkpoint)[_-](\d{1,15})$")
_BEGINNING: Final = re.compile(rf"^(?:Loading states from \S+|{re.escape(TRAINING)})$")  # the banner is borrowed from the Trainer
_RESULTS: Final = re.compile(
    rf"^epoch (?P<epoch>\d{{1,6}}): perplexity: (?P<perplexity>{NUMBER}) eval_loss: (?:tensor\()?(?P<loss>{NUMBER})\)?$"
)
_DICTIONARY: Final = re.compile(r"^epoch \d{1,6}: \{(?P<pairs>'.*)\}$")
_PAIR: Final = re.compile(rf"'(?P<key>\w{{1,40}})': (?P<value>{NUMBER})(?=, |$)")


class Accelerate:
    """The output of the main process."""

    def __init__(self) -> None:
        self._redraws = LastRedraw()
        self._counter = _Counter()
        self._manner = Manner()
        self._began: int | None = None  # the count that the present bar began with
        self._is_fresh = False  # a bar has begun, and shown no value yet
        self._shown: int | None = None  # the count last drawn
        self._has_values_first = False
        self._is_evaluating = False
        self._has_trained = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        drawn = titled_bar(text) if "%|" in text else None
        if drawn is not None:
            return self._bar(line, drawn)
        if "%|" in text:
            self._redraws.torn()
        said = self._words(line)
        return None if said is None else [*self._redraws.given(), *said]

    def flush(self) -> Reading:
        return self._redraws.flushed()

    # Bars

    def _bar(self, line: Line, drawn: TitledBar) -> Reading | None:
        if drawn.total is None or _is_anothers(drawn):
            return None
        if _EVALUATING.search(drawn.title):
            return [*self._redraws.given(), *self._evaluating(line)]
        if "loss" not in _values(drawn):
            if not drawn.postfix and (drawn.done == 0 or (self._shown is not None and drawn.done < self._shown)):
                self._began, self._is_fresh = drawn.done, True
            self._shown = drawn.done
            return None if not self._has_trained else []
        self._shown = drawn.done
        if drawn.done == self._began:
            self._has_values_first = True
            return [*self._redraws.given(), *self._behind(line, drawn)]
        out = self._drawn(line, drawn, drawn.total)
        return [*out, *self._behind(line, drawn)] if drawn.rest else out

    def _behind(self, line: Line, drawn: TitledBar) -> list[Record]:
        """What a logger printed on the bar's line."""
        found = _SAVING.search(drawn.rest)
        return [] if found is None else [_saving(line, found)]

    def _drawn(self, line: Line, drawn: TitledBar, total: int) -> Reading:
        epoch = _EPOCH.search(drawn.title)
        place = self._counter.place(drawn.done, total, epoch, is_fresh=self._is_fresh)
        self._is_fresh = False
        count = (self._counter.number, drawn.done)
        out = self._redraws.make_way(count)
        if self._redraws.is_unsure and self._has_values_first:
            self._redraws.skip(count)  # the torn one may have been the first of this count, which alone is right
        if drawn.done == 0 or count == self._redraws.told:
            return out
        self._has_trained, self._is_evaluating = True, False
        if drawn.elapsed_s is not None and "target_steps" in place:
            place["elapsed_seconds"] = drawn.elapsed_s
        if drawn.remaining_s is not None and "target_steps" in place and epoch is None:
            place["remaining_seconds"] = drawn.remaining_s
        fields = {**place, **_values(drawn, self._manner)}
        if "loss" in fields:
            self._redraws.hold(Record(line.number, fields, stamp=line.stamp), count, drawn)
        return [*out, *self._redraws.given()] if self._has_values_first else out

    def _evaluating(self, line: Line) -> list[Record]:
        if self._is_evaluating or not self._has_trained:
            return []
        self._is_evaluating = True
        return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]

    # Words

    def _words(self, line: Line) -> list[Record] | None:
        text = line.text
        if (found := _SAVING.search(text)) is not None:
            return [_saving(line, found)]
        if _BEGINNING.match(text):
            self._redraws.begin()
            return [Record(line.number, stamp=line.stamp, starts=True)] if self._has_trained else []
        if (found := _RESULTS.match(text)) is not None:
            read = {"eval_loss": number(found["loss"])}, {"perplexity": number(found["perplexity"])}
            fields, metrics = ({key: one for key, one in part.items() if one is not None} for part in read)
            return [Record(line.number, fields, metrics, stamp=line.stamp)]
        if (found := _DICTIONARY.match(text)) is not None:
            results = ((key, number(printed)) for key, printed in _PAIR.findall(found["pairs"]))
            return [Record(line.number, {}, {key: one for key, one in results if one is not None}, stamp=line.stamp)]
        return None


class _Counter:
    """The steps of a bar that may begin anew with each epoch.

    Bars of two ranks in one stream go back and forth: where they could pass for epochs, the step is lost rather than counted on.
    """

    def __init__(self) -> None:
        self.number = 0  # of the bar: those of one epoch, or all
        self._before: int | None = 0  # steps of the bars before this one; None: it is not known how many there were
        self._done = 0  # as last drawn
        self._total = 0
        self._epoch: int | None = None
        self._first: tuple[int, int] | None = None  # the first epoch, and the steps before it
        self._begins_anew = False  # with each epoch, as far as is known
        self._goes_on = False  # from one epoch to the next
        self._is_shared = False  # with another process's bar

    def place(self, done: int, total: int, title: re.Match[str] | None, *, is_fresh: bool) -> dict[str, float]:
        """Step and target as fields, the epoch where the title says it. ``is_fresh``: a bar has been drawn from its beginning."""
        epoch = int(title["epoch"]) if title is not None else None
        is_reset = done == 0 and epoch is not None and epoch == self._epoch and self._done >= self._total - 1
        if is_reset:
            return {}  # at the end of an epoch, before the bar has the title of the next one
        if self._total == 0:
            # Epochs count from 0 or from 1; where a log begins with a later one, nobody knows how many came before.
            self._before = 0 if epoch is None or epoch < 2 else None
            self._first = None if epoch is None or self._before is None else (epoch, 0)
        elif epoch is not None and self._epoch is not None:
            self._follow_epochs(done, total, epoch, is_fresh=is_fresh)
        elif done < self._done:
            self._follow(is_fresh=is_fresh or done == 0)
        self._done, self._total, self._epoch = done, total, epoch
        fields: dict[str, float] = {} if self._before is None else {"step": self._before + done}
        if epoch is not None:
            fields["epoch"] = epoch
        if title is not None and title["epochs"]:
            fields["epochs"] = int(title["epochs"])
        if self._goes_on or (epoch is None and not self._begins_anew):
            fields["target_steps"] = total
        return fields

    def _follow_epochs(self, done: int, total: int, epoch: int, *, is_fresh: bool) -> None:
        assert self._epoch is not None
        goes_back = done < self._done
        self.number += goes_back
        if epoch == self._epoch + 1:
            self._begins_anew = self._begins_anew or goes_back
            self._goes_on = not self._begins_anew and (self._goes_on or not goes_back)
        elif goes_back and not self._begins_anew:
            self._before, self._first = (0, (epoch, 0)) if is_fresh or done == 0 else (self._before, self._first)
        if self._begins_anew and self._first is not None:
            self._before = self._first[1] + max(0, epoch - self._first[0]) * total

    def _follow(self, *, is_fresh: bool) -> None:
        """A bar without an epoch has gone back."""
        was_complete = self._done >= self._total - 1
        self._is_shared = self._is_shared or not is_fresh
        if self._is_shared:
            self._before = None if self._begins_anew or (was_complete and is_fresh) else self._before
            return
        self.number += 1
        if was_complete:
            self._begins_anew = True
            self._before = None if self._before is None else self._before + self._total
        else:
            self._before = 0  # it was not complete: the trainer has started over


def _saving(line: Line, found: re.Match[str]) -> Record:
    """accelerate prints the start of a save, and a line for each of its parts, but no end."""
    step = _STEP_OF_NAME.search(found["path"])
    news = Checkpoint(CheckpointEvent.STARTED, int(step[1]) if step else None, found["path"])
    return Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)


def _values(drawn: TitledBar, manner: Manner | None = None) -> dict[str, float]:
    """Loss and the like behind the bar; of those only what is printed in the ``manner`` of the ones before."""
    printed = {key.lower(): text.strip("[]") for key, text in drawn.pairs.items()}
    fields: dict[str, float] = {}
    name = next((name for name in _LOSSES if name in printed), None)
    for key, field in ((name, "loss"), *_FIELDS.items()):
        if key is None or key not in printed or (read := value(printed[key])) is None:
            continue
        if manner is None or manner.accepts(key, printed[key]):
            fields.setdefault(field, read)
    return fields


def _is_anothers(drawn: TitledBar) -> bool:
    """Lightning's, NeMo's, ColossalAI's and OpenRLHF's bars."""
    keys = drawn.pairs.keys()
    if "v_num" in keys or "reduced_train_loss" in keys or "train/loss" in keys or "gpt_loss" in keys:
        return True
    return _OTHERS.match(drawn.title) is not None or (keys == {"Loss"} and drawn.title.startswith("Epoch "))


def _sniff(text: str) -> bool:
    if text.startswith("epoch "):
        return _RESULTS.match(text) is not None
    drawn = titled_bar(text) if "%|" in text and "oss" in text else None
    if drawn is None or drawn.total is None or drawn.total < _LEAST_TOTAL or _EVALUATING.search(drawn.title):
        return False
    return not _is_anothers(drawn) and "loss" in _values(drawn)


FORMAT: Final = Format(
    name="accelerate",
    summary="Scripts around Hugging Face accelerate, and others with loss=... behind a tqdm bar",
    hints=(LOSS, SIGN),
    details=(b"current state", b"Loading states", b"epoch ", STARS),
    sniff=_sniff,
    parser=Accelerate,
)

"""Hugging Face ``transformers.Trainer``, versions 4.30 to 5.24, and what is built on it: TRL, Axolotl, Unsloth, LLaMA-Factory's console.

    {'loss': 1.8421, 'grad_norm': 0.7312498688697815, 'learning_rate': 4.829e-05, 'epoch': 0.34}          (version 4)
    {'loss': '1.842', 'grad_norm': '0.7312', 'learning_rate': '4.829e-05', 'epoch': '0.3442'}             (version 5)

Odd: the line has no step. The tqdm bar beside it has: tqdm clears the bar, prints the line and draws the bar anew, so the bar
*behind* the line is exact, while the one before it may be 0.1 s old. A line is therefore held back until a bar comes.
Lines without a bar between them come out of a buffer in a burst; their steps follow from their epochs (see ``epochs``).

open-instruct has the Trainer's header and bar, and a line of its own that has the step; its TPS is a mean over the session.

    06/03/2025 10:11:12 - INFO - __main__ -   Step: 40, LR: 1.9e-05, Loss: 1.2034, TPS: 10214.77
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import le
from typing import Final

from trainer_exporter.formats.announcements import RUNNING, TRAINING, UNSLOTH, Announcements, is_unsloth
from trainer_exporter.formats.bars import SAVE, SIGN, Bar, bar, news, overtaken
from trainer_exporter.formats.base import LOSS, NOTHING, BlockReading, Format, Reading
from trainer_exporter.formats.dicts import evaluation, has_own_step, pairs, results, training_fields
from trainer_exporter.formats.drawn import Drawn, Shapes
from trainer_exporter.formats.epochs import EpochMark, StepsFromEpochs
from trainer_exporter.formats.several import Several
from trainer_exporter.formats.stepless import Stepless, are_of_one_moment, epoch_of, progress
from trainer_exporter.formats.wholeness import Always
from trainer_exporter.model import Line, Malformed, Phase, Record, Table
from trainer_exporter.numbers import NUMBER, number

_PATIENCE: Final = 64  # lines that are read alone where they do not go on as the first of them
_REACH: Final = 8192  # characters of lines that may be alike
_LONGEST: Final = 1 << 20
_GROWTH: Final = 4
_DOUBTED: Final = 20  # lines without a step after one that another rank has printed
_TRAINING_KEYS: Final = ("loss", "learning_rate", "loss/policy_avg")
_OPENINGS: Final = ("{'loss': ", "{'eval_", "{'train_runtime': ", "{'grad_norm': ", "{'learning_rate': ", "{'eps': ")
_STEP_LINE: Final = re.compile(  # a logger writes it behind the bar, on the same line
    rf"(?:^|INFO - \S+ -) *Step: (?P<step>\d{{1,15}}), LR: (?P<learning_rate>{NUMBER}), Loss: (?P<loss>{NUMBER})"
    rf"(?:,? Aux Loss: {NUMBER})?(?:, TPS: {NUMBER})?$"
)


class HfTrainer:
    """One process's output: its bar, what it announced, and the lines that wait for their step."""

    def __init__(self) -> None:
        self._epochs = StepsFromEpochs()
        self._announcements = Announcements(self._epochs)
        self._held: list[Stepless] = []
        self._bar: Bar | None = None  # the training bar as last drawn
        self._bar_line = 0  # the number of its line
        self._several: Several[int] = Several(_DOUBTED)  # whose bar stands beside a line is not known then
        self._epoch: float | None = None  # of the last dictionary of training
        self._pending: tuple[Line, Bar, Phase | None] | None = None  # of redraws on one line only the last is news
        self._total: int | None = None
        self._other_bar: Bar | None = None  # the last one not known to be the training's
        self._shapes = Shapes()
        self._place = Always()  # epoch and learning rate, in a dictionary of training
        self._reach = _REACH
        self._has_lines = False  # of this training: a loss has been printed
        self._has_closed = False
        self._is_torn = False  # a bar has been, since the last line: its place may be that of the next bar no more
        self._told: EpochMark | None = None  # of a line that was given out before the bar behind it came
        self._is_buffered = False  # records come out of a buffer, in bursts, while the bar goes on
        self._phase: Phase | None = None
        self._step: int | None = None  # as last reported

    @property
    def wants_all(self) -> bool:
        return self._announcements.wants_all

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        out: list[Record | Malformed] = []
        at = text.find("{'")
        if "%|" in text:
            out += self._read_bar(line, text if at < 0 else text[:at])
        if "Step: " in text and (found := _STEP_LINE.search(text)) is not None:
            return [*out, *self._step_line(line, found)]
        if "%|" in text and at < 0:
            return out if out or "oss=" not in text else None  # the Trainer has no loss behind its bar: it is another's
        if "%|" not in text and at > 0 and text[:at].strip():
            return NOTHING if text.startswith("llamafactory.") else None  # its twin has been printed as a plain line
        if at >= 0:
            said = self._read_dict(line, text[at:])
            return None if said is None and not out else [*out, *(said or ())]
        return self._announced(line, text)

    def parse_block(self, text: str, first: int) -> tuple[int, BlockReading]:
        """Lines on which the training's bar was redrawn until a dictionary was printed: of the bars the first and the last are read."""
        out: list[Record | Malformed | Table] = []
        begin, count, alone = 0, 0, 0
        while begin < len(text):
            alike = self._alike(text, begin) if not alone else None
            alone = max(0, alone - 1) if alike is not None or alone else _PATIENCE
            end = text.index("\n", begin)
            said = self._overtaken(text[begin:end], first + count)
            if said is None:
                break
            out += said
            begin, count = end + 1, count + 1
            if alike is not None and self._goes_on_with(alike):
                out.append(alike.table(first + count - 1))
                begin, count = alike.end, count + len(alike.first) - 1
                self._pass_over(alike, first + count - 1)
        return count, out

    def _alike(self, text: str, begin: int) -> Drawn | None:
        """Lines from there on that differ in their numbers alone; so many are looked at as were alike before."""
        if self._total is None:
            return None
        end = max(text.rfind("\n", begin, begin + self._reach), text.index("\n", begin)) + 1
        drawn = self._shapes.drawn(text, (begin, end), self._total)
        if drawn is not None and not self._are_one_trainers(drawn.first[1:], drawn.fields["epoch"]):
            drawn = None
        self._reach = min(self._reach * _GROWTH, _LONGEST) if drawn is not None and drawn.end == end else _REACH
        return drawn

    def _are_one_trainers(self, steps: Sequence[int], epochs: Sequence[float]) -> bool:
        """Whether no bar is missing, and no dictionary is another rank's. These are the steps of the epochs, but of the last."""
        return all(map(le, epochs, epochs[1:])) and self._epochs.are_possible(steps, epochs[:-1])

    def _overtaken(self, text: str, place: int) -> list[Record | Malformed] | None:
        """What one of these lines says; None, and nothing is changed, where it is better read piece by piece."""
        drawn = overtaken(text, self._total) if self._phase is Phase.TRAINING and self._is_at_work and not self.wants_all else None
        found = {} if drawn is None or not drawn.rest.startswith(_OPENINGS[0]) or has_own_step(drawn.rest) else pairs(drawn.rest)
        if drawn is None or number(found.get("loss", "")) is None or (self._step is not None and drawn.last.done <= self._step):
            return None
        if self._several or self._goes_back(drawn.first, place):
            return None
        line = Line(drawn.rest, place)
        out = self._drawn(line, drawn.first)
        if self._step is not None and drawn.last.done <= self._step:  # what was held is ahead of the last bar: one between may be told
            for redraw in drawn.between:
                out += self._read_bar(line, redraw.rstrip())
        out += self._drawn(line, drawn.last)
        out += self._read_pairs(line, drawn.rest, found) or ()
        return out

    def _goes_on_with(self, drawn: Drawn) -> bool:
        """Whether all that waits after the first of these lines is that line's own."""
        held, pending = self._held, self._pending
        is_waiting = len(held) == 1 and held[0].is_training and held[0].epoch is not None and not held[0].metrics and held[0].phase is None
        is_behind = pending is not None and pending[2] is None and pending[1].done == drawn.last[0]
        return is_waiting and is_behind and self._step == drawn.first[0] and not self._is_buffered and not self._several

    def _pass_over(self, drawn: Drawn, place: int) -> None:
        """Be as after the last of these lines, which has this number; what they say is told already."""
        line = Line(drawn.rest, place)
        self._epochs.observe_all(drawn.first[1:], drawn.fields["epoch"][:-1], is_significant=drawn.is_significant)
        self._bar, self._bar_line, self._step, self._held = drawn.bar, place, drawn.first[-1], []
        self._pending = line, drawn.bar, None
        self._read_pairs(line, drawn.rest, pairs(drawn.rest))

    @property
    def _is_at_work(self) -> bool:
        return self._total is not None and not self._has_closed

    def flush(self) -> Reading:
        out = self._resolved(None)
        out += self._taken_pending()
        return out

    def _announced(self, line: Line, text: str) -> Reading | None:
        said = self._announcements.read(line, text)
        if said is None:
            return None
        if any(record.starts for record in said):
            self._total = self._bar = self._other_bar = self._step = None
            self._has_lines = self._has_closed = self._is_buffered = False
            self._several.begin()
            self._epoch = None
        if self._announcements.total:
            self._total = self._announcements.total
        self._phase = next((record.phase for record in said if record.phase), self._phase)
        return [*self.flush(), *said]

    # Bars

    def _read_bar(self, line: Line, text: str) -> list[Record | Malformed]:
        drawn = bar(text)
        self._is_torn = self._is_torn or drawn is None or (not drawn.is_plain and drawn.total == self._total)
        if drawn is None or not drawn.is_plain:
            is_save = self._is_at_work and SAVE in text
            return self._enter(line, Phase.CHECKPOINTING) if is_save else []
        if not self._is_the_training(drawn):
            self._other_bar = drawn
            return self._enter(line, Phase.EVALUATING) if self._is_at_work else []
        return self._drawn(line, drawn)

    def _drawn(self, line: Line, drawn: Bar) -> list[Record | Malformed]:
        self._announcements.end_block()
        if drawn.done == 0:
            self._several.begin()
            self._epoch = None
        elif self._bar is not None and self._goes_back(drawn, line.number):
            self._several.gone_back(self._bar.done)
        out = self._resolved(drawn if drawn.done else None) if self._held else []  # no line is printed before the first step
        self._learn_late(drawn)
        self._is_torn = False
        self._bar, self._bar_line = drawn, line.number
        if self._pending is not None and self._pending[0].number != line.number:
            out += self._taken_pending()
        is_news = self._several.reach(drawn.done) if self._several else drawn.done != self._step
        if is_news and not self._has_closed:
            self._pending = line, drawn, self._progressed(drawn)
        return out

    def _goes_back(self, drawn: Bar, place: int) -> bool:
        """Whether the bar that a line begins with is behind that of the line before: no trainer's does, unless it begins anew."""
        return self._bar is not None and self._bar_line != place and 0 < drawn.done < self._bar.done

    def _is_the_training(self, drawn: Bar) -> bool:
        """Evaluation, and any loop, draws bars without a title too; the training's total is announced, or stands beside a loss."""
        if self._total is None and self._has_lines and not self._has_closed:
            self._total = drawn.total
        return drawn.total == self._total

    def _progressed(self, drawn: Bar) -> Phase | None:
        if drawn.done == 0 or self._phase is Phase.TRAINING:
            return self._pending[2] if self._pending else None
        if self._phase is Phase.EVALUATING and self._step is not None and drawn.done <= self._step:
            return None
        self._phase = Phase.TRAINING
        return Phase.TRAINING

    def _enter(self, line: Line, phase: Phase) -> list[Record | Malformed]:
        if self._phase is phase:
            return []
        self._phase = phase
        return [*self._taken_pending(), Record(line.number, stamp=line.stamp, phase=phase)]

    def _taken_pending(self) -> list[Record | Malformed]:
        pending, self._pending = self._pending, None
        if pending is None or pending[1].done == self._step:
            return []
        line, drawn, phase = pending
        self._step = drawn.done
        return [Record(line.number, progress(drawn), stamp=line.stamp, phase=phase)]

    # Dictionaries

    def _read_dict(self, line: Line, text: str) -> Reading | None:
        if has_own_step(text):
            return None
        if not text.endswith("}"):
            return [Malformed(line.number, "truncated")] if text.startswith(_OPENINGS) else None
        return self._read_pairs(line, text, pairs(text))

    def _read_pairs(self, line: Line, text: str, found: dict[str, str]) -> Reading | None:
        if any(key in found for key in _TRAINING_KEYS):
            if not self._place.is_whole(has_it="epoch" in found and ("learning_rate" in found or "lr" in found)):
                return [Malformed(line.number, "truncated")]
            fields = training_fields(found)
            held = Stepless(line, fields, results(found), epoch_of(found, text), self._training(), is_training=True)
            return self._hold(held) if fields else None
        if "train_runtime" in found and "train_loss" in found:
            return self._close(line, found)
        fields, metrics = evaluation(found)
        if "eval_loss" in found or "eval_runtime" in found:
            return self._hold(Stepless(line, fields, metrics, epoch_of(found, text), None, is_training=False))
        return NOTHING if "test_runtime" in found else None

    def _step_line(self, line: Line, found: re.Match[str]) -> list[Record | Malformed]:
        """open-instruct's own line. The bar drawn before it says less of the same step, or nothing yet."""
        self._announcements.end_block()
        read = {name: number(found[name]) for name in ("loss", "learning_rate")}
        fields: dict[str, float] = {"step": int(found["step"]), **{name: value for name, value in read.items() if value is not None}}
        if self._total is not None and fields["step"] <= self._total:
            fields["target_steps"] = self._total
        out = [*self._resolved(None), *self._superseded(int(fields["step"]))]
        self._step, self._has_lines = int(fields["step"]), True
        return [*out, Record(line.number, fields, stamp=line.stamp, phase=self._training())]

    def _training(self) -> Phase | None:
        if self._phase is Phase.TRAINING:
            return None
        self._phase = Phase.TRAINING
        return Phase.TRAINING

    def _hold(self, held: Stepless) -> Reading:
        self._announcements.end_block()
        self._is_torn = self._is_torn and bool(self._held)
        self._held.append(held)
        if held.is_training and self._has_closed:
            self._has_closed = False
            if not self._several:  # else another rank goes on
                self._total = self._bar = self._epoch = None
        if held.is_training and held.epoch is not None:
            self._several.follow()
            if self._bar is not None and self._epoch is not None and held.epoch.value < self._epoch:
                self._several.gone_back(self._bar.done)
            self._epoch = held.epoch.value
        if held.is_training and not self._has_lines:
            self._has_lines = True
            self._trust_the_bar_before()
        return NOTHING

    def _trust_the_bar_before(self) -> None:
        """The first line of a training has been printed while its bar was open: the bar drawn last is that one."""
        if self._total is None and self._other_bar is not None:
            self._bar, self._total = self._other_bar, self._other_bar.total

    def _close(self, line: Line, found: dict[str, str]) -> Reading:
        """The closing word; its train_loss is the mean over the run, no loss of a step."""
        out = self.flush()
        self._has_closed = True
        self._has_lines = False
        fields = training_fields({"epoch": found.get("epoch", "")})
        return [*out, Record(line.number, fields, stamp=line.stamp, closes=True)]

    def _resolved(self, drawn: Bar | None) -> list[Record | Malformed]:
        """Give what was held its steps; ``drawn`` is the bar that came behind it."""
        held, self._held = self._held, []
        if not held:
            return []
        steps = self._steps(held, drawn)
        beside = drawn or self._bar
        out: list[Record | Malformed] = self._superseded(steps[0][0])
        for one, (step, is_exact) in zip(held, steps, strict=True):
            out.append(one.record(step, is_exact=is_exact, total=self._total, beside=beside))
        self._step = steps[-1][0] if steps[-1][0] is not None else self._step
        self._told = held[0].epoch if drawn is None and held[0].is_training else None
        return out

    def _learn_late(self, drawn: Bar) -> None:
        """A followed log shows the bar behind a line only with the bar's next redraw, when the line has long been told."""
        if self._told is not None and not self._is_buffered and not self._is_torn:
            self._epochs.observe(drawn.done, self._told)
        self._told = None

    def _superseded(self, step: int | None) -> list[Record | Malformed]:
        """The bar that was drawn last before, unless the record behind it says the same and more."""
        pending = self._pending
        if pending is not None and pending[1].done == step and pending[2] is None:
            self._pending = None
        return self._taken_pending()

    def _steps(self, held: list[Stepless], drawn: Bar | None) -> list[tuple[int | None, bool]]:
        if self._several:
            return [(None, False)] * len(held)
        beside = drawn or self._bar
        self._is_buffered = self._is_buffered or (beside is not None and not are_of_one_moment(held))
        is_late = self._is_torn or (drawn is not None and not self._is_possible(drawn, held[0].epoch))
        if drawn is not None and not self._is_buffered and not is_late:
            if held[0].is_training:
                self._epochs.observe(drawn.done, held[0].epoch)
            return [(drawn.done, True)] * len(held)
        marks = [one.epoch for one in held if one.epoch is not None]
        if len(marks) < len(held):
            marks = []
        elif beside is not None and self._is_buffered:
            self._epochs.bracket(marks, beside.done)
        found = self._epochs.steps(marks) if marks else [(None, False)] * len(held)
        if found[-1][0] is None and beside is not None:
            found = [*found[:-1], (beside.done, False)]
        # The bar has gone ahead of what a buffer gives out late: no step of that may pass for a restart.
        return [(step, is_exact and not self._is_buffered and not is_late) for step, is_exact in found]

    def _is_possible(self, drawn: Bar, epoch: EpochMark | None) -> bool:
        """Whether the bar may be the one behind a line of this epoch. It is another where another process has torn that one."""
        return epoch is None or self._epochs.are_possible([drawn.done], [epoch.value])


def _sniff(text: str) -> bool:
    if text == TRAINING or is_unsloth(text):
        return True
    if "Step: " in text and _STEP_LINE.search(text) is not None:
        return True
    at = text.find("{'")
    if at < 0 or (at > 0 and "%|" not in text):
        return False
    is_ours = "'epoch': " in text or "'learning_rate': " in text or "train_runtime" in text
    return is_ours and text.startswith(_OPENINGS, at) and not has_own_step(text)


FORMAT: Final = Format(
    name="hf_trainer",
    summary="Hugging Face Trainer, versions 4 and 5, and its heirs (TRL, Axolotl, Unsloth, open-instruct, LLaMA-Factory's console)",
    hints=(LOSS, RUNNING, SIGN, UNSLOTH),
    details=(b"checkpoint", b"Training completed"),
    sniff=_sniff,
    parser=HfTrainer,
    redraws=news,
    borrowed=True,
)

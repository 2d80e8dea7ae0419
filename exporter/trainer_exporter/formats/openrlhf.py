"""OpenRLHF, 0.3 to 0.11: values behind its progress bars, and the lines of its PPO trainer.

    Train step of epoch 0:  12%|█▏        | 120/1000 [02:10<15:46,  1.08s/it, gpt_loss=1.23, lr=9e-6, grad_norm=0.5]
    INFO 08-13 10:00:00 ppo_trainer.py:547] ✨ Global step 12: {'policy_loss': -0.0123, 'reward': 0.4123, 'actor_lr': 5e-07}

Odd: in SFT, DPO and reward models the bar counts micro-batches of the epoch, and how many make a step is nowhere said; steps here are
those micro-batches, over all epochs. A bar repeats old values behind every redraw, so values count only where they have changed. They
change before the count moves; where both are new at once, the redraw that had the step of the values is lost. A bar that goes back is
another rank's: for a while values are told without a step then, as the one beside them may be the other's.
The bars of PPO within a step (``Train epoch [1/1]``) count mini-batches and say nothing here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Final

from trainer_exporter.formats.bars import Bar, bar
from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS, pairs
from trainer_exporter.formats.several import Several
from trainer_exporter.formats.titled_bars import pairs_behind
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_TITLE: Final = re.compile(
    r"^(?:Train step of epoch (?P<epoch>\d{1,15})|(?P<outer>Train epoch)|Episode \[(?P<episode>\d{1,15})/(?P<episodes>\d{1,15})\]"
    r"|Eval stage of (?:global_step|steps) (?P<eval>\d{1,15})|(?P<inner>Train epoch) \[\d+/\d+\]): +\d+%\|"
)
_POSTFIX: Final = re.compile(r"\[[^,\]]*, +[^,\]]*, (?P<pairs>.*)$")
_PAIR: Final = re.compile(rf"(?:^|, )([A-Za-z][\w/ ]*)=({NUMBER})(?=, |\])")
_STEP: Final = re.compile(r"^(?:\W{1,3} )?Global step (?P<step>\d{1,15}): (?P<dict>\{'.*)$")
_EVALUATED: Final = re.compile(
    r"^(?:\W{1,3} )?Evaluation completed in .*?, global_step (?P<step>\d{1,15}), eval_metrics: (?P<dict>\{.*\})$"
)
_REMEMBERED: Final = 16  # redraws
_DOUBTED: Final = 24
_FIELDS: Final = {
    "gpt_loss": "loss",
    "loss": "loss",
    "policy_loss": "loss",
    "eval gpt_loss": "eval_loss",
    "eval_loss": "eval_loss",
    "lr": "learning_rate",
    "actor_lr": "learning_rate",
    "grad_norm": "grad_norm",
    "actor_grad_norm": "grad_norm",
    "timing/step": "step_duration_seconds",
    "timing/step_total": "step_duration_seconds",
}
_RESULTS: Final = frozenset(
    {
        *("reward", "return", "kl", "response_length", "total_length", "critic_loss", "values"),
        *("acc", "acc_mean", "chosen_reward", "reject_reward", "reward_mean", "reward_std"),
    }
)


class OpenRlhf:
    """One process's output."""

    def __init__(self) -> None:
        self._step: int | None = None  # as last reported
        self._epochs: int | None = None
        self._shown: deque[str] = deque(maxlen=_REMEMBERED)  # values behind the bar, as last drawn
        self._several: Several[int] = Several(_DOUBTED)
        self._has_step_lines = False
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        if "%|" in line.text:
            return self._read_bar(line)
        if (found := _STEP.match(line.text)) is not None:
            return self._step_line(line, found)
        if (found := _EVALUATED.match(line.text)) is not None:
            metrics = {key.removeprefix("eval_"): value for key, value in _read(pairs(found["dict"])).items()}
            return [Record(line.number, {"step": int(found["step"])}, dict(list(metrics.items())[:MAX_METRICS]), stamp=line.stamp)]
        return None

    def flush(self) -> Reading:
        return NOTHING

    def _step_line(self, line: Line, found: re.Match[str]) -> Reading:
        if not found["dict"].endswith("}"):
            return [Malformed(line.number, "truncated")]
        self._has_step_lines = True
        self._step = int(found["step"])
        return [self._record(line, {"step": self._step}, _read(pairs(found["dict"])))]

    # Bars

    def _read_bar(self, line: Line) -> Reading | None:
        title, drawn = _TITLE.match(line.text), bar(line.text)
        if title is None or drawn is None:
            return None
        if title["outer"]:
            self._epochs = drawn.total
            if drawn.done == 0:
                self._begin()
            return NOTHING
        # Newer versions count prompts in the bar of an episode, and print step lines instead of values behind it.
        if title["inner"] or (title["episode"] and (self._has_step_lines or "policy_loss=" not in line.text)):
            return NOTHING
        if title["eval"]:
            return self._evaluation(line, drawn)
        return self._training(line, title, drawn)

    def _training(self, line: Line, title: re.Match[str], drawn: Bar) -> Reading:
        self._is_evaluating = False
        before = int(title["epoch"]) if title["epoch"] else int(title["episode"]) - 1
        step, rounds = before * drawn.total + drawn.done, int(title["episodes"] or 0) or self._epochs
        progress: dict[str, float] = {"step": step}
        if rounds:
            progress["target_steps"] = rounds * drawn.total
        postfix = _postfix(line.text)
        found = {} if postfix in self._shown else _read(dict(_PAIR.findall(postfix)))
        self._shown.append(postfix)
        self._several.follow()
        if self._step is not None and step < self._step and drawn.done > 0:
            self._several.gone_back(self._step)
        has_moved = self._step is not None and step != self._step
        is_news = drawn.done > 0 and (self._several.reach(step) if self._several else step != self._step)
        self._step = step
        if self._several or (found and has_moved):
            values = self._record(line, {}, found)
            return ([self._record(line, progress, {})] if is_news else []) + ([values] if values.fields else [])
        record = self._record(line, progress, found)
        return [record] if is_news or len(record.fields) > len(progress) else NOTHING

    def _begin(self) -> None:
        self._step = None
        self._several.begin()
        self._shown.clear()

    def _evaluation(self, line: Line, drawn: Bar) -> Reading:
        """Behind the bar stands the mean so far; it is the result when all has been seen. It belongs to the step of the training's bar."""
        if drawn.done < drawn.total:
            was_evaluating, self._is_evaluating = self._is_evaluating, True
            return NOTHING if was_evaluating else [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        found = _read(dict(_PAIR.findall(_postfix(line.text))))
        if not found or not self._is_evaluating:
            return NOTHING
        self._is_evaluating = False
        return [self._record(line, {} if self._step is None or self._several else {"step": self._step}, found)]

    def _record(self, line: Line, progress: Mapping[str, float], found: Mapping[str, float]) -> Record:
        fields = {_FIELDS[key]: value for key, value in found.items() if key in _FIELDS}
        if fields.get("learning_rate", 0.0) >= 1.0:
            del fields["learning_rate"]  # another process's line has cut its exponent off
        metrics = {key: value for key, value in found.items() if key in _RESULTS}
        return Record(line.number, {**progress, **fields}, metrics, stamp=line.stamp)


def _postfix(text: str) -> str:
    found = _POSTFIX.search(text)
    if found is None or not all("=" in piece for piece in found["pairs"].split(", ")):
        return ""  # a piece of a name
    return found["pairs"] if pairs_behind(found["pairs"].rstrip("]")) else ""


def _read(found: Mapping[str, str]) -> dict[str, float]:
    return {key: value for key, printed in found.items() if (value := number(printed)) is not None}


def _sniff(text: str) -> bool:
    if "%|" not in text:
        return _STEP.match(text) is not None and "policy_loss" in text
    title = _TITLE.match(text)
    if title is None or title["outer"] or title["inner"]:
        return False
    return any(key in _FIELDS for key, _ in _PAIR.findall(_postfix(text)))


FORMAT: Final = Format(
    name="openrlhf",
    summary="OpenRLHF: SFT, DPO and reward models behind their bars, PPO's step lines",
    hints=(LOSS,),
    details=(b"%|", b"eval_metrics"),
    sniff=_sniff,
    parser=OpenRlhf,
)

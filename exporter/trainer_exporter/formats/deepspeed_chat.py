"""DeepSpeed-Chat: fine-tuning, reward model and DPO, and the reinforcement step (PPO); other fine-tuning scripts of DeepSpeedExamples.

    ***** Evaluating perplexity, Epoch 1/2 *****
    ppl: 2.125, loss: 0.75
    Epoch: 0 | Step: 2 | PPO Epoch: 1 | Actor Loss: -0.03125 | Critic Loss: 0.12 | Unsupervised Loss: 0.0
    epoch: 0|step: 2|ppo_ep: 1|act_loss: -0.03125|cri_loss: 0.12|unsuper_loss: 0.0                              (before 2023-09)
    Step at 10 with Perplexity: 61.5                                                           (random layer token drop)

Odd: before them stands the Trainer's ``***** Running training *****``, without a Trainer. The first steps print no loss of a step unless
asked to, so progress is the engine's (see ``engine``); in the reinforcement step two engines count, and the step printed starts anew with
each epoch. Which batch and how many GPUs its throughput lines mean differs by step; only what is certain is taken from them.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats import engine
from trainer_exporter.formats.base import LOSS, NOTHING, STARS, Format, Reading
from trainer_exporter.formats.engine import Engine
from trainer_exporter.model import Line, Phase, Record
from trainer_exporter.numbers import NUMBER, number

_PPO: Final = re.compile(
    rf"^[Ee]poch: (?P<epoch>\d{{1,15}}) ?\| ?[Ss]tep: (?P<step>\d{{1,15}}) ?\| ?(?:Total Steps: \d+ ?\| ?)?(?:ppo_ep|PPO Epoch): \d+ ?"
    rf"\| ?(?:act_loss|Actor Loss): (?P<loss>{NUMBER}) ?\| ?(?:cri_loss|Critic Loss): (?P<critic_loss>{NUMBER}) ?\|"
)
_REWARD: Final = re.compile(rf"^[Aa]verage reward score: (?P<reward>{NUMBER})(?: \||$)")
_LATENCY: Final = re.compile(
    r"^(?:\|E2E latency=(?P<old>\d+\.\d\d)s \|.*\|CurSamplesPerSec=(?P<rate>\d+\.\d\d) \||End-to-End => Latency: (?P<new>\d+\.\d\d)s, )"
)
_OF_RANK_0: Final = re.compile(rf"^Epoch: \d+, Step: \d+, Rank: (?P<rank>\d{{1,15}}), loss = (?P<loss>{NUMBER})$")
_EVALUATING: Final = re.compile(r"^\*{5} Evaluating (?:perplexity|rewards?), Epoch \d+/\d+ \*{5}$")
_EPOCH: Final = re.compile(r"^Beginning of Epoch (?P<epoch>\d{1,15})/(?P<epochs>\d{1,15}), Total (?:Micro|Generation) Batches \d+$")
_MEAN: Final = re.compile(rf"^Epoch (?P<epoch>\d{{1,15}})/\d+ with loss (?P<loss>{NUMBER})$")
# Its step counts micro steps of the epoch: not the engine's.
_SCRIPTS: Final = re.compile(rf"^(?:Before cleaning, )?(?:Step|Epoch) at \d+ with Perplexity: (?P<perplexity>{NUMBER})$")
_RESULTS: Final = (
    re.compile(rf"^ppl: (?P<perplexity>{NUMBER})(?:, loss: (?P<eval_loss>{NUMBER}))?$"),
    re.compile(rf"^chosen: (?P<chosen_rewards>{NUMBER}), rejected: (?P<rejected_rewards>{NUMBER}), loss: (?P<eval_loss>{NUMBER})$"),
    re.compile(
        rf"^chosen_last_scores \(higher is better\) : (?P<chosen_score>{NUMBER}), "
        rf"(?:rejected_last_scores \(lower is better\) : (?P<rejected_score>{NUMBER}), )?acc \(higher is better\) : (?P<accuracy>{NUMBER})$"
    ),
    re.compile(rf"^Iter \d+: c_scores: (?P<chosen_score>{NUMBER}), r_scores: (?P<rejected_score>{NUMBER}), .*acc: (?P<accuracy>{NUMBER})$"),
    _SCRIPTS,
)
_RESULT_STARTS: Final = ("ppl: ", "chosen", "Iter ", "Step at ", "Epoch at ", "Before cleaning, ")
_FINAL: Final = ("saving the final model ...", "saving model ...")
_PPO_BEGIN: Final = re.compile(r"^\*{5} Running training \(total_iters=\d+\) \*{5}$")


class DeepSpeedChat:
    """One of its steps, as rank 0 prints it."""

    def __init__(self) -> None:
        self._engine = Engine()
        self._place: tuple[int, int] | None = None  # epoch and step of the reinforcement step, as last printed
        self._before = 0  # steps of the epochs before

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _PPO.match(text)) is not None:
            return [self._learned(line, found)]
        if text.startswith(_RESULT_STARTS):
            found = next((match for one in _RESULTS if (match := one.match(text)) is not None), None)
            return None if found is None else [_result(line, found)]
        if (found := _LATENCY.match(text)) is not None:
            return [_said(line, {"step_duration_seconds": found["old"] or found["new"], "samples_per_second": found["rate"]})]
        if (found := _REWARD.match(text)) is not None:
            reward = number(found["reward"])
            return NOTHING if reward is None else [Record(line.number, self._step, {"reward": reward}, stamp=line.stamp)]
        return self._marked(line)

    def flush(self) -> Reading:
        return NOTHING

    @property
    def _step(self) -> dict[str, float]:
        return {} if self._place is None else {"step": self._before + self._place[1]}

    def _learned(self, line: Line, found: re.Match[str]) -> Record:
        epoch, step = int(found["epoch"]), int(found["step"])
        if self._place is not None and epoch > self._place[0] and step <= self._place[1]:
            self._before += self._place[1] + 1
        elif self._place is not None and (epoch, step) < self._place:
            self._before = 0  # started over
        self._place = (epoch, step)
        loss, critic = number(found["loss"]), number(found["critic_loss"])
        fields = self._step | ({} if loss is None else {"loss": loss})
        return Record(line.number, fields, {} if critic is None else {"critic_loss": critic}, stamp=line.stamp)

    def _marked(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _OF_RANK_0.match(text)) is not None:
            return [_said(line, {"loss": found["loss"]})] if found["rank"] == "0" else NOTHING  # its step counts micro steps
        if _EVALUATING.match(text):
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        if (found := _EPOCH.match(text)) is not None:
            fields = {"epoch": int(found["epoch"]) - 1, "epochs": int(found["epochs"])}
            return [Record(line.number, fields, stamp=line.stamp, phase=Phase.TRAINING)]
        if (found := _MEAN.match(text)) is not None:
            return [_said(line, {"epoch": found["epoch"], "loss": found["loss"]})]
        return self._began_or_ended(line)

    def _began_or_ended(self, line: Line) -> Reading | None:
        if line.text in _FINAL:
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if _PPO_BEGIN.match(line.text):
            self._place, self._before = None, 0
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        said = self._engine.read(line)
        return NOTHING if said and self._place is not None else said


def _result(line: Line, found: re.Match[str]) -> Record:
    fields: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for name, printed in found.groupdict().items():
        if printed is not None and (read := number(printed)) is not None:
            (fields if name == "eval_loss" else metrics)[name] = read
    return Record(line.number, fields, metrics, stamp=line.stamp, phase=Phase.TRAINING)


def _said(line: Line, printed: dict[str, str | None]) -> Record:
    read = {name: number(text) for name, text in printed.items() if text is not None}
    return Record(line.number, {name: value for name, value in read.items() if value is not None}, stamp=line.stamp)


def _sniff(text: str) -> bool:
    return any(one.match(text) is not None for one in (_PPO, _PPO_BEGIN, _OF_RANK_0, _EVALUATING, _MEAN, _SCRIPTS))


FORMAT: Final = Format(
    name="deepspeed_chat",
    summary="DeepSpeed-Chat (fine-tuning, reward model, DPO, PPO) and fine-tuning scripts of DeepSpeedExamples",
    hints=(LOSS, STARS),
    details=(
        engine.STEP,
        *engine.DETAILS,
        b"ppl: ",
        b"with Perplexity: ",
        b"scores",
        b"reward score: ",
        b"Beginning of Epoch ",
        b"***** ",
        b"End-to-End => ",
        b"saving ",
    ),
    sniff=_sniff,
    parser=DeepSpeedChat,
)

"""What the names under which trainers report to trackers mean, and the records that are made of them.

Names are compared in lower case with ``_`` for blanks and hyphens. Sources of the names, read in the trainers' code: Hugging Face
integrations, Megatron-LM and its forks, NeMo and NeMo-RL, Lightning, torchtitan, ms-swift, gpt-neox, MaxText, OLMo, coati, verl, fairseq.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from trainer_exporter.model import Record, Stamp

MAX_METRICS: Final = 32
MAX_NAME: Final = 80

# Best first: where a trainer reports two of them, the later one is something else (a mean over the run, a part of the sum).
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "loss": (
        "train/loss",
        "loss",
        "train/lm_loss",
        "lm_loss_training/lm_loss",
        "lm_loss",
        "reduced_train_loss",
        "loss_metrics/global_avg_loss",
        "learning/loss",
        "train/loss_step",
        "train_loss_step",
        "train_loss",
        "training_loss",
        "loss/train",
        "train/total_loss",
        "total_loss",
        "train/gpt_loss",
        "train/ce_loss",
        "train/crossentropyloss",
        "loss/policy_avg",
        "actor/pg_loss",
    ),
    "grad_norm": (
        "train/grad_norm",
        "grad_norm",
        "learning/grad_norm",
        "optim/total_grad_norm",
        "actor/grad_norm",
        "train/gradient_norm",
        "gradient_norm",
        "global_grad_norm",
        "train/global_grad_norm",
        "gnorm",
        "grad_2.0_norm_total",
        "grad_norm_total",
    ),
    "learning_rate": (
        "train/learning_rate",
        "learning_rate",
        "learning_rate/learning_rate",
        "lr",
        "train/lr",
        "learning/current_learning_rate",
        "optim/learning_rate_group0",
        "actor/lr",
    ),
    "loss_scale": ("loss_scale", "loss_scale/loss_scale", "train/loss_scale"),
    "step_duration_seconds": (
        "iteration_time",
        "iteration_time/iteration_time",
        "runtime/iteration_time",
        "train_step_timing_in_s",
        "timing/train/total_step_time",
        "time_metrics/end_to_end(s)",
        "timing_s/step",
        "perf/step_time_seconds",
    ),
    "samples_per_second": ("samples_per_second", "performance/samples_per_sec", "runtime/samples_per_sec"),
    "tokens_per_second": (
        "tokens_per_second",
        "tokens_per_sec",
        "performance/tokens_per_sec",
        "throughput/tokens_per_sec",
        "learner_tokens_per_second_step",
    ),
    "tflops_per_gpu": ("tflops", "perf/per_device_tflops_per_sec"),
    "total_tokens": ("train/num_input_tokens_seen", "num_input_tokens_seen", "n_tokens_seen", "throughput/total_tokens"),
    "total_samples": ("consumed_samples", "consumed_train_samples"),
    "epoch": ("train/epoch", "epoch", "trainer/epoch"),
    "world_size": ("world_size",),
}
_LAST: Final = 99
_FIELDS: Final = {alias: (field, rank) for field, aliases in _NAMES.items() for rank, alias in enumerate(aliases)}
# Names that mean this in Megatron's files alone; elsewhere a throughput is anything, and a batch is one GPU's.
_MEGATRON: Final = {"throughput": "tflops_per_gpu", "batch_size": "global_batch_size", "batch_size/batch_size": "global_batch_size"}
_PERCENT: Final = {"mfu(%)": "mfu_ratio"}
_SCHEDULE: Final = re.compile(r"lr_\w+(?:/pg1)?")  # Lightning's monitor: the first group of the optimizer of that name

_EVALUATION: Final = re.compile(r"(?:eval|evaluation|val|valid|validation|dev)(?P<set>[-_][A-Za-z0-9]+)??[/_](?P<rest>.+)", re.IGNORECASE)
_MEGATRON_EVALUATION: Final = re.compile(r"(?:lm_loss_validation/)?lm_loss_(?P<split>validation|test)(?:_(?P<rest>ppl))?")
_EVALUATION_LOSS: Final = re.compile(r"(?:loss|lm_loss|val_loss|loss_epoch|total_loss)(?:/dataloader_idx_0)?")
_TEST: Final = re.compile(r"test[/_].+", re.IGNORECASE)
# What an evaluation reports of its own speed and size is no result.
_NO_RESULT: Final = re.compile(
    r"(?:.*[/_])?(?:runtime|\w+_per_second|\w+_time|num_\w*(?:tokens|samples)\w*|global_valid_\w+|timing.*)|step|epoch|loss_step",
    re.IGNORECASE,
)
_RESULT: Final = re.compile(
    r"(?:train/)?(?P<name>reward|reward_std|kl|entropy|mean_token_accuracy|token_acc|frac_reward_zero_std|clip_ratio|completion_length"
    r"|completions/(?:mean_length|clipped_ratio)|objective/(?:kl|entropy|rlhf_reward|scores)|rewards/[\w.@-]+(?:/mean)?"
    r"|chosen_rewards|rejected_rewards|critic/(?:rewards|score)/mean)"
)
_ACCURACY: Final = re.compile(r"train[/_](?:accuracy|acc)", re.IGNORECASE)
_OVER_ANOTHER_AXIS: Final = re.compile(r"_vs_(?:samples|tokens)$|^train/samples/")  # DeepSpeed and Megatron: x is no step
# Of the Hugging Face Trainer's last report alone; the runtime stands in every one where tokens are counted.
_ENDS: Final = frozenset({"train_steps_per_second", "train/train_steps_per_second"})
_NEVER: Final = frozenset({"train/train_loss"})  # idem: the mean over the whole run

TRAINING: Final = frozenset(
    {"loss", "grad_norm", "learning_rate", "loss_scale", "step_duration_seconds", "tokens_per_second", "samples_per_second"}
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one name stands for: a field, an evaluation's result, or the trainer's last word."""

    field: str = ""
    rank: int = 0
    metric: str = ""
    scale: float = 1.0
    megatron: bool = False  # counts only beside Megatron's own names
    ends: bool = False


@lru_cache(maxsize=8192)
def meaning(tag: str) -> Meaning | None:
    """What a name means; None for one that says nothing to us."""
    plain = re.sub(r"[- ]", "_", tag.strip().lower())
    if len(tag) > 2 * MAX_NAME or _OVER_ANOTHER_AXIS.search(plain) or plain in _NEVER:
        return None
    return _field(plain) or _megatron_result(plain) or _evaluation_result(tag.strip()) or _training_result(tag.strip())


def _field(plain: str) -> Meaning | None:
    if plain in _ENDS:
        return Meaning(ends=True)
    if plain in _FIELDS:
        field, rank = _FIELDS[plain]
        return Meaning(field, rank)
    if plain in _MEGATRON:
        return Meaning(_MEGATRON[plain], megatron=True)
    if plain in _PERCENT:
        return Meaning(_PERCENT[plain], scale=0.01)
    return Meaning("learning_rate", _LAST) if _SCHEDULE.fullmatch(plain) else None


def _megatron_result(plain: str) -> Meaning | None:
    found = _MEGATRON_EVALUATION.fullmatch(plain)
    if found is None:
        return None
    if found["split"] == "test":
        return Meaning(metric=f"test_{found['rest'] or 'loss'}")
    return Meaning(metric=found["rest"]) if found["rest"] else Meaning("eval_loss")


def _evaluation_result(tag: str) -> Meaning | None:
    found = _EVALUATION.fullmatch(tag)
    rest = found["rest"] if found else tag
    if _NO_RESULT.fullmatch(rest) or not (found or _TEST.fullmatch(tag)):
        return None
    if found and _EVALUATION_LOSS.fullmatch(re.sub(r"[- ]", "_", rest.lower())):
        return Meaning("eval_loss", int(found["set"] is not None))
    # One that training reports have too keeps its prefix, as in the formats of consoles, so that the two are never taken for one.
    return Meaning(metric=f"eval_{rest}"[:MAX_NAME] if _RESULT.fullmatch(rest) else rest[:MAX_NAME])


def _training_result(tag: str) -> Meaning | None:
    if _ACCURACY.fullmatch(tag):
        return Meaning(metric="train_accuracy")
    told = _RESULT.fullmatch(tag)
    return Meaning(metric=told["name"][:MAX_NAME]) if told else None


class Interpreter:
    """Makes records of named values of one file. ``evaluation``: all in it is an evaluation's, whatever its name."""

    def __init__(self, *, evaluation: bool = False, late: bool = False, also: Mapping[str, str] | None = None) -> None:
        self._evaluation = evaluation
        self._late = late
        self._also = also or {}
        self._best: dict[str, int] = {}  # by field: rank of the best name seen so far
        self._trained: float | None = None  # the last step of the training itself
        self._is_megatron = False

    def knows(self, tag: str) -> bool:
        """Whether a value of this name can become part of a record."""
        return tag in self._also or meaning(tag) is not None

    def record(
        self,
        values: Mapping[str, float],
        *,
        step: float | None,
        line: int,
        stamp: Stamp | None = None,
        target: float | None = None,
        results: Mapping[str, float] | None = None,
    ) -> Record | None:
        """What values of one step say; None where that is nothing. ``results``: an evaluation's, named by the caller."""
        fields: dict[str, float] = {}
        metrics: dict[str, float] = dict(results or {})
        ends = False
        for tag, value in values.items():
            said = Meaning(self._also[tag]) if tag in self._also else meaning(tag)
            if said is None or (said.megatron and not self._is_megatron and not _is_megatron(values)):
                continue
            ends = ends or said.ends
            if said.metric and len(metrics) < MAX_METRICS:
                metrics[said.metric] = value
            elif said.field and self._takes(said):
                fields[said.field] = value * said.scale
        self._is_megatron = self._is_megatron or _is_megatron(values)
        if self._evaluation:
            fields, metrics = _as_evaluation(fields, metrics)
        return self._made(fields, metrics, step=step, line=line, stamp=stamp, target=target, ends=ends)

    def _takes(self, said: Meaning) -> bool:
        best = self._best.setdefault(said.field, said.rank)
        self._best[said.field] = min(best, said.rank)
        return said.rank <= best

    def _made(
        self,
        fields: dict[str, float],
        metrics: dict[str, float],
        *,
        step: float | None,
        line: int,
        stamp: Stamp | None,
        target: float | None,
        ends: bool,
    ) -> Record | None:
        if not fields.keys() - {"epoch"} and not metrics and not ends:
            return None
        trains = not TRAINING.isdisjoint(fields)
        if trains:
            self._trained = step
        elif step is not None and self._trained is not None and step < self._trained:
            step = self._trained  # an evaluation that counts epochs (mmengine), or that was written after the next steps
        if step is not None:
            fields["step"] = step
        if target is not None:
            fields["target_steps"] = target
        return Record(
            line,
            fields,
            metrics,
            stamp=stamp,
            hidden_nonfinite=_hidden_nonfinite(fields),
            precise=True,
            late=self._late,
            step_exact=trains,
            closes=ends,
        )


def _as_evaluation(fields: dict[str, float], metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    kept: dict[str, float] = {name: fields[name] for name in ("epoch", "eval_loss") if name in fields}
    if "loss" in fields:
        kept["eval_loss"] = fields["loss"]
    return kept, metrics


def _is_megatron(values: Mapping[str, float]) -> bool:
    return any(name in values for name in ("lm loss", "learning-rate", "lm-loss-training/lm loss"))


def _hidden_nonfinite(fields: Mapping[str, float]) -> frozenset[str]:
    """``logging_nan_inf_filter`` of the Hugging Face Trainer turns a NaN loss into 0.0; the gradient norm beside it tells."""
    norm = fields.get("grad_norm")
    if fields.get("loss") == 0.0 and norm is not None and not math.isfinite(norm):
        return frozenset({"loss"})
    return frozenset()

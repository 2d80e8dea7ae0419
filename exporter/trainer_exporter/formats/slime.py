"""THUDM's slime (Megatron under Ray): a dictionary a step, and others for a rollout, its speed, an evaluation.

    [2025-08-01 10:11:12] model.py:918 - step 12: {'train/loss': 0.0123, 'train/grad_norm': 0.2213, 'train/lr-pg_0': 1e-06, ...}

The number behind ``step`` counts training steps from 0, that behind ``rollout``, ``perf`` and ``eval`` counts rollouts; so the latter
give values and no progress. A critic's lines (``critic-step``) say nothing of the policy.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS, pairs
from trainer_exporter.model import Line, Malformed, Record
from trainer_exporter.numbers import number

_LINE: Final = re.compile(r"(?:^|\.py:\d+ - )(?P<kind>(?:\w+-)?step|perf|rollout|eval|passrate) (?P<number>\d{1,15}): (?P<dict>\{'.*)$")
_FIELDS: Final = {
    "train/loss": "loss",
    "train/grad_norm": "grad_norm",
    "train/lr-pg_0": "learning_rate",
    "train/global_batch_size": "global_batch_size",
    "perf/actor_train_tflops": "tflops_per_gpu",
}
_STEP: Final = "train/step"
_RESULT: Final = re.compile(
    r"train/(?:entropy_loss|kl_loss|ppo_kl|pg_clipfrac)|rollout/(?:raw_reward|response_lengths?|rewards)|eval/[\w.@ -]+|passrate/.+"
)


class Slime:
    """One process's output."""

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        found = _LINE.search(line.text)
        if found is None:
            return None
        if not found["dict"].endswith("}"):
            return [Malformed(line.number, "truncated")]
        if found["kind"] not in {"step", "perf", "rollout", "eval", "passrate"}:
            return NOTHING
        read = {key: value for key, printed in pairs(found["dict"]).items() if (value := number(printed)) is not None}
        fields = {_FIELDS[key]: value for key, value in read.items() if key in _FIELDS}
        if found["kind"] == "step":
            fields["step"] = int(found["number"])
            if read.get(_STEP, fields["step"]) != fields["step"] or any(key.startswith("eval/") for key in read):
                return [Malformed(line.number, "number")]  # half of it is another line's
        metrics = [(key, value) for key, value in read.items() if _RESULT.fullmatch(key) and not key.endswith("/step")]
        return [Record(line.number, fields, dict(metrics[:MAX_METRICS]), stamp=line.stamp)] if fields or metrics else NOTHING

    def flush(self) -> Reading:
        return NOTHING


def _sniff(text: str) -> bool:
    if "'train/loss': " not in text:
        return False
    found = _LINE.search(text)
    return found is not None and found["kind"] == "step"


FORMAT: Final = Format(
    name="slime",
    summary="slime: steps, rollouts, speed and evaluations of its Megatron actors",
    hints=(LOSS,),
    details=(b"perf/", b"rollout/", b"eval/", b"passrate/"),
    sniff=_sniff,
    parser=Slime,
)

"""Python dictionaries as the Hugging Face Trainer and its relatives print them, and what their keys mean.

``ast.literal_eval`` would not do: the values hold bare ``nan``, ``np.float64(0.5)``, and since version 5 strings.
"""

from __future__ import annotations

import math
import re
from typing import Final

from trainer_exporter.numbers import number

_PAIR: Final = re.compile(r"'([^']+)': ('[^']*'|[-+\w.]+(?:\([^()]*\))?)(?=, '|\}|$)")
_FIELDS: Final = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "num_input_tokens_seen": "total_tokens",
    "num_tokens": "total_tokens",  # TRL
}
# What an evaluation reports of its own speed is no result.
_NO_RESULT: Final = re.compile(r"runtime$|_per_second$|preparation_time$|num_tokens$|num_input_tokens_seen$")
MAX_METRICS: Final = 32


def pairs(text: str) -> dict[str, str]:
    """The keys of a printed dictionary with their values as printed, quotes taken off."""
    return {key: value.strip("'") for key, value in _PAIR.findall(text)}


def training_fields(found: dict[str, str]) -> dict[str, float]:
    """Canonical fields of a training dictionary; what is None or no number is left out."""
    fields = {}
    for key, value in found.items():
        name = _FIELDS.get(key)
        if name and (read := number(value)) is not None:
            fields[name] = read
    return fields


def evaluation(found: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Fields and further results of an evaluation: ``eval_loss`` is a field, ``eval_math_loss`` the result ``math_loss``."""
    fields: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for key, value in found.items():
        if (read := number(value)) is None:
            continue
        if key in {"eval_loss", "epoch"}:
            fields[key] = read
        elif key.startswith("eval_") and not _NO_RESULT.search(key) and len(metrics) < MAX_METRICS:
            metrics[key[5:]] = read
    return fields, metrics


def hidden_nonfinite(fields: dict[str, float]) -> frozenset[str]:
    """``logging_nan_inf_filter``, on by default, turns a NaN loss into 0.0; the gradient norm beside it tells."""
    norm = fields.get("grad_norm")
    if fields.get("loss") == 0.0 and norm is not None and not math.isfinite(norm):
        return frozenset({"loss"})
    return frozenset()

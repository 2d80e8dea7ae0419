"""Python dictionaries as the Hugging Face Trainer and its relatives print them, and what their keys mean.

``ast.literal_eval`` would not do: the values hold bare ``nan``, ``np.float64(0.5)``, and since version 5 strings.
"""

from __future__ import annotations

import math
import re
from typing import Final

from trainer_exporter.numbers import number

_KEY: Final = r"'([^':]+(?::[^': ][^':]*)*)'"
_PAIR: Final = re.compile(_KEY + r": ('[^']*'|[-+\w.]+(?:\([^()]*\))?)(?=, '|\}|$)")
_VALUE: Final = r"""(?:'[^']*'|"[^"]*"|[^\s'"(){}\[\],]+(?:\([^()]*\))?|\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\))"""
_WHOLE: Final = re.compile(rf"\{{?{_KEY}: {_VALUE}(?:, {_KEY}: {_VALUE})*\}}?\s*$")
# So Python prints no number: without its beginning, with two of them, or, where version 5 prints four significant digits, with more; a
# float without a point, but for 0; a learning rate of hundreds.
_HALF: Final = re.compile(
    r"': '?-?(?:\.\d|0\d+['.,}]|\d\d+(?:\.\d*)?e)|': -?(?:inf?|nan?)\d"
    r"|': '-?(?:0\.0*[1-9]\d{4}|[1-9]\d*\.\d{4}|[1-9]\d\.\d{3}|[1-9]\d\d\.\d\d|[1-9]\d{3,}\.\d|0\.0000\d)"
    r"|'(?:eval_)?(?:loss|grad_norm|learning_rate|epoch)': '-?\d{5}"
    r"|'(?:(?:eval_)?loss|grad_norm|learning_rate)': [1-9]\d*[,}]|'learning_rate': '?[1-9]\d\d"
)
_MAYBE_HALF: Final = re.compile(  # found in less time, wherever the other is
    r"': '?-?(?:\.|0\d|\d\d+(?:\.\d*)?e|0\.0*[1-9]\d{4}|[1-9]\d*\.\d{4}|[1-9]\d\.\d{3}|[1-9]\d\d\.\d\d|[1-9]\d{3,}\.\d|\d{5}|0\.0000\d"
    r"|inf?\d|nan?\d|(?<=[sme]': )[1-9]\d*[,}]|(?<=rate': )[1-9]\d\d|(?<=rate': ')[1-9]\d\d)"
)
_FIELDS: Final = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "num_input_tokens_seen": "total_tokens",
    "num_tokens": "total_tokens",  # TRL
    "tokens/total": "total_tokens",  # Axolotl; its rates are a GPU's, and how many there are is not said
    "step_time": "step_duration_seconds",  # TRL, where it generates
    "lr": "learning_rate",  # TRL's PPO
    "loss/policy_avg": "loss",  # idem
}
# What a training line says about how well the model does, as TRL, ms-swift and Axolotl name it.
_RESULTS: Final = re.compile(
    r"reward|reward_std|kl|entropy|mean_token_accuracy|token_acc|frac_reward_zero_std|clip_ratio|completion_length"
    r"|completions/(?:mean_length|clipped_ratio)|objective/(?:kl|entropy|rlhf_reward|scores)|rewards/[\w.@-]+(?:/mean)?"
)
# What an evaluation reports of its own speed is no result.
_NO_RESULT: Final = re.compile(r"runtime$|_per_second$|preparation_time$|num_tokens$|num_input_tokens_seen$")
MAX_METRICS: Final = 32
# ms-swift's dictionaries are the Trainer's with their step inside.
_OWN_STEP: Final = re.compile(r"['\"](?:(?:global_step/max_steps|iteration)['\"]: ['\"]\d+/\d+['\"]|global_step['\"]: \d+\b)")


def pairs(text: str) -> dict[str, str]:
    """The keys of a printed dictionary with their values as printed, quotes taken off.

    Nothing where something else stands in its middle, or a key twice: another process has written into it, and a number may be glued
    from two.
    """
    found = _PAIR.findall(text)
    printed = sum(len(key) + len(value) for key, value in found) + 6 * len(found)  # each with two quotes, ": ", and ", " or a brace
    if (printed != len(text) and not _WHOLE.match(text)) or _HALF.search(text) is not None:
        return {}
    read = {key: value.strip("'") for key, value in found}
    return read if len(read) == len(found) else {}


def is_half(text: str) -> bool:
    """Whether a number stands in printed dictionaries that Python does not print so."""
    return _MAYBE_HALF.search(text) is not None and _HALF.search(text) is not None


def field_of(key: str) -> str | None:
    """The canonical field that a key of a training dictionary tells."""
    return _FIELDS.get(key)


def has_own_step(text: str) -> bool:
    """Whether a printed dictionary, or a JSON line, is of those that say their step."""
    return _OWN_STEP.search(text) is not None


def training_fields(found: dict[str, str]) -> dict[str, float]:
    """Canonical fields of a training dictionary; what is None or no number is left out."""
    fields = {}
    for key, value in found.items():
        name = _FIELDS.get(key)
        if name and (read := number(value)) is not None:
            fields[name] = read
    return fields


def results(found: dict[str, str]) -> dict[str, float]:
    """Rewards, divergence, accuracy and the like that a training dictionary holds, by the trainer's names."""
    metrics: dict[str, float] = {}
    for key, value in found.items():
        if _RESULTS.fullmatch(key) and len(metrics) < MAX_METRICS and (read := number(value)) is not None:
            metrics[key] = read
    return metrics


def evaluation(found: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Fields and further results of an evaluation: ``eval_loss`` is a field, ``eval_math_loss`` the result ``math_loss``.

    A result that training lines have too keeps its ``eval_``, so that the two are never taken for one.
    """
    fields: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for key, value in found.items():
        if (read := number(value)) is None:
            continue
        if key in {"eval_loss", "epoch"}:
            fields[key] = read
        elif key.startswith("eval_") and not _NO_RESULT.search(key) and len(metrics) < MAX_METRICS:
            metrics[key if _RESULTS.fullmatch(key[5:]) else key[5:]] = read
    return fields, metrics


def hidden_nonfinite(fields: dict[str, float]) -> frozenset[str]:
    """``logging_nan_inf_filter``, on by default, turns a NaN loss into 0.0; the gradient norm beside it tells."""
    norm = fields.get("grad_norm")
    if fields.get("loss") == 0.0 and norm is not None and not math.isfinite(norm):
        return frozenset({"loss"})
    return frozenset()

"""The shipped rules for a world in which everything goes so many times as fast: every duration in them is divided, and nothing else.

Durations are what ``for`` and ``interval`` say, what stands in brackets and behind ``offset``, and the numbers of ``TIMES``, which are
seconds wherever a rule has them. A number from 60 on that is none must stand in ``COUNTS``, or the test of this module fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

TIMES: Final = frozenset({60, 90, 300, 900, 3600, 14_400, 43_200, 86_400})
# Percent, steps, losses, bits of a mask, watts, degrees, bytes, points of a score.
COUNTS: Final = frozenset({64, 100, 128, 200, 500, 1000, 2000, 5000, 10_000, 1_048_576, 16_777_216})
UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TEXT: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|#[^\n]*")  # what holds no duration; kept as it is
_DURATION: Final = re.compile(r"(?<![\w.])(\d+)(ms|[smhdw])\b")
_NUMBER: Final = re.compile(r"(?<![\w.])(\d+)(?![\w.])")


def hurried_rules(folder: Path, into: Path, *, times: float) -> str:
    """All rule files of a folder, hurried, in another; a pattern of their paths."""
    into.mkdir()
    for path in sorted(folder.glob("*.yml")):
        document = yaml.safe_load(path.read_text())
        (into / path.name).write_text(yaml.safe_dump({"groups": [_group(group, times) for group in document["groups"]]}, sort_keys=False))
    return f"{into}/*.yml"


def hurried(expression: str, times: float) -> str:
    """A PromQL expression with every duration divided."""
    return "".join(text if is_text else _divided(text, times) for text, is_text in _parts(expression))


def numbers(expression: str) -> set[int]:
    """The whole numbers in an expression, durations apart."""
    return {int(found[1]) for text, is_text in _parts(expression) if not is_text for found in _NUMBER.finditer(text)}


def _parts(expression: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for found in _TEXT.finditer(expression):
        yield expression[at : found.start()], False
        yield found[0], True
        at = found.end()
    yield expression[at:], False


def _divided(text: str, times: float) -> str:
    text = _DURATION.sub(lambda found: _duration(found, times), text)
    return _NUMBER.sub(lambda found: f"{int(found[1]) / times:g}" if int(found[1]) in TIMES else found[0], text)


def _duration(found: re.Match[str], times: float) -> str:
    return f"{max(1, round(int(found[1]) * UNITS[found[2]] / times))}ms"


def _group(group: Mapping[str, Any], times: float) -> dict[str, Any]:
    rules = [_rule(rule, times) for rule in group["rules"]]
    every = {"interval": _spelled(group["interval"], times)} if "interval" in group else {}
    return {**group, **every, "rules": rules}


def _rule(rule: Mapping[str, Any], times: float) -> dict[str, Any]:
    pause = {key: _spelled(rule[key], times) for key in ("for", "keep_firing_for") if key in rule}
    return {**rule, **pause, "expr": hurried(rule["expr"], times)}


def _spelled(duration: str, times: float) -> str:
    """A duration of YAML; 0 stays 0."""
    return duration if duration.startswith("0") else _DURATION.sub(lambda found: _duration(found, times), duration)

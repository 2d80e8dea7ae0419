"""The shipped rules, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stack import REPOSITORY

RULES = sorted((REPOSITORY / "alertmanager" / "rules").glob("*.yml"))

METRIC = re.compile(r"\b(?:(?:trainer|gpu|process)_[a-z0-9_]+|DCGM_FI_[A-Z_]+|up(?=\{)|[a-z]+:[a-z0-9_:]+)")
CONTEXT_OF_LABELS = re.compile(r"(?:\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)|#[^\n]*|\"[^\"]*\")")


def rules() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every rule with its file."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path, rule


def alerts() -> Iterator[Mapping[str, Any]]:
    """Every alerting rule."""
    return (rule for _, rule in rules() if "alert" in rule)


def metrics_in(text: str) -> set[str]:
    """Names of the metrics that an expression (or the queries within a template) reads."""
    return set(METRIC.findall(CONTEXT_OF_LABELS.sub(" ", text)))


def group_order(*first: str) -> list[str]:
    """Names of all groups for promtool, which takes any order unless told: those given first, then the rest."""
    names = [group["name"] for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [*first, *(name for name in names if name not in first)]

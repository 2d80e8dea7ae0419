"""The small ways in which a rule can be broken: a threshold moved, a comparison turned round, a matcher denied, `for` dropped.

Pure: a rule file as it was read goes in, and its breaks come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]

UNTOUCHED = re.compile(r"\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)|\boffset\s+\w+")
NUMBER = re.compile(r"(?<![\w:.])(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w:.])")
COMPARISON = re.compile(r"(?<![=!<>~])(?:>=|<=|==|!=|>|<)(?![=~])")
FLIPPED = {">": "<", ">=": "<", "<": ">", "<=": ">", "==": "!=", "!=": "=="}
SWAPPED = {"and": "unless", "unless": "and"}
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"")
DENIED = {"=": "!=", "!=": "=", "=~": "!~", "!~": "=~"}
# With --more: what no threshold is, and what a second source, a missed scrape or another branch would show.
EXTREMES = {"max by": "min by", "min by": "max by", "max_over_time": "min_over_time", "min_over_time": "max_over_time"}
FACTOR = 1.5
# Bounds that drop DCGM's marks for "no value", which lie at 2e9 or above and more than a thousandfold over any reading: where in between
# makes no difference, only whether there is one. The flipped comparison is a bound too low.
MARKED = re.compile(r"1e\d+|100|200")
TINY, TINY_FACTOR = 1e-4, 100.0  # what stands for "no difference" is no threshold that anybody would tune by halves


@dataclass(frozen=True)
class Mutant:
    """One break of one rule."""

    path: Path
    rule: str  # the name of the alert or record
    place: tuple[int, int]  # group and rule within the file
    what: str
    field: str  # expr or for
    text: str

    def __str__(self) -> str:
        return f"{self.path.stem}: {self.rule}: {self.what}"


def name_of(rule: Mapping[str, Any]) -> str:
    """Of an alert or a record."""
    return str(rule.get("alert") or rule["record"])


def bare(expr: str) -> str:
    """An expression without comments, on one line."""
    return " ".join(re.sub(r"#[^\n]*", "", expr).split())


def spots(pattern: re.Pattern[str], expr: str) -> Iterator[re.Match[str]]:
    """Where a pattern stands outside of labels, ranges and strings."""
    hidden = UNTOUCHED.sub(lambda found: "\0" * len(found[0]), expr)
    return pattern.finditer(hidden)


def replaced(expr: str, found: re.Match[str], by: str, *, group: int = 0) -> tuple[str, str]:
    """(what was done, in its surroundings; the expression after it)."""
    start, end = found.span(group)
    near = expr[max(0, start - 30) : end + 20].strip()
    return f"{expr[start:end]} -> {by} in ...{near}...", expr[:start] + by + expr[end:]


def wrong(value: float) -> tuple[float, float]:
    """What a threshold is not. Small whole numbers count something: their neighbours."""
    if value in {1, 2, 3}:
        return value + 1, value - 1
    factor = TINY_FACTOR if value < TINY else FACTOR
    return value * factor, value / factor


def broken(expr: str, *, more: bool) -> Iterator[tuple[str, str]]:
    """Every break of an expression: (what, expression)."""
    for found in spots(NUMBER, expr):
        value, before = float(found[0]), expr[: found.start()].rstrip()
        compared = before.endswith((">", "<", "=", "bool"))
        if value == 0 or (value == 1 and not compared):
            continue
        if before.endswith(("<", "<=")) and MARKED.fullmatch(found[0]) and "DCGM_" in expr:
            yield replaced(expr, found, "Inf")
            continue
        others = wrong(value)
        yield from (replaced(expr, found, f"{each:.6g}") for each in (others[:1] if value == 1 and before.endswith("==") else others))
    for found in spots(COMPARISON, expr):
        yield replaced(expr, found, FLIPPED[found[0]])
    for found in spots(re.compile(r"\b(?:and|unless)\b"), expr):
        yield replaced(expr, found, SWAPPED[found[0]])
    for labels in re.finditer(r"\{[^}]*\}", expr):
        for found in MATCHER.finditer(expr, *labels.span()):
            yield replaced(expr, found, DENIED[found[2]], group=2)
    if more:
        for found in spots(re.compile(r"\b(?:max by|min by|max_over_time|min_over_time)\b"), expr):
            yield replaced(expr, found, EXTREMES[found[0]])
        for found in spots(re.compile(r"\bor\b"), expr):
            yield replaced(expr, found, "and")
        for found in re.finditer(r"(?<=\[)\w+(?=\])", expr):
            yield replaced(expr, found, "15s")


def mutants(books: Mapping[Path, Document], wanted: Sequence[str], *, more: bool) -> Iterator[Mutant]:
    """All breaks of the rules that are asked for."""
    for path, book in books.items():
        for group_number, group in enumerate(book["groups"]):
            for number, rule in enumerate(group["rules"]):
                name, place = name_of(rule), (group_number, number)
                if wanted and not {path.stem, name} & set(wanted):
                    continue
                shown = f"{name} ({rule['labels']['severity']})" if "alert" in rule else name
                for what, expr in broken(bare(rule["expr"]), more=more):
                    yield Mutant(path, shown, place, what, "expr", expr)
                if rule.get("for", "0s") != "0s":
                    yield Mutant(path, shown, place, f"for: {rule['for']} dropped", "for", "0s")

"""The rules that the short test judges by are the shipped ones, but for their durations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hurry import COUNTS, TIMES, hurried, hurried_rules, numbers
from rulebook import RULES, rules

EXPRESSIONS = {
    "a window": ("last_over_time(x[2m])", "last_over_time(x[20000ms])"),
    "a subquery": ("max_over_time(x[1h:1m])", "max_over_time(x[600000ms:10000ms])"),
    "an offset": ("x offset 30m", "x offset 300000ms"),
    "seconds": ("clamp_min(6 * x, 90) > 60", "clamp_min(6 * x, 15) > 10"),
    "a name that holds a duration": ("gpu:utilization_ratio:avg1m < 0.5", "gpu:utilization_ratio:avg1m < 0.5"),
    "numbers of another kind": ("x <= 100 and y * 1e6 > 12", "x <= 100 and y * 1e6 > 12"),
    "numbers in a matcher": ('x{xid=~"60|90", q="1h"} > 900', 'x{xid=~"60|90", q="1h"} > 150'),
    "a comment": ("x # 15 m (900)\n> 900", "x # 15 m (900)\n> 150"),
}


@pytest.mark.parametrize(("expression", "expected"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_durations_are_divided_and_nothing_else(expression: str, expected: str) -> None:
    assert hurried(expression, 6) == expected


def test_of_every_number_in_the_rules_it_is_known_whether_it_is_a_time() -> None:
    found = {number: rule.get("record") or rule["alert"] for _, rule in rules() for number in numbers(rule["expr"]) if number >= 60}

    strangers = {number: name for number, name in found.items() if number not in TIMES | COUNTS}

    assert not strangers
    assert not TIMES & COUNTS


def test_hurried_rules_are_rules_and_as_many(tmp_path: Path) -> None:
    pattern = hurried_rules(RULES[0].parent, tmp_path / "rules", times=6)

    made = sorted(Path(pattern).parent.glob("*.yml"))
    checked = subprocess.run(["promtool", "check", "rules", *made], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [path.name for path in made] == sorted(path.name for path in RULES)

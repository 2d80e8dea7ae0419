"""The program that breaks rules: what it breaks, that it finds the break which no scene notices, and that it asks nothing twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from breaks import broken, mutants
from mutate import Court, Promtool, Scene

BOOK = Path("/rules/heat.yml")
HOT = {"alert": "Hot", "expr": "room:celsius:max > 40", "for": "2m", "labels": {"severity": "warning"}}
RULES = {BOOK: {"groups": [{"name": "heat", "rules": [{"record": "room:celsius:max", "expr": "max by (room) (trainer_celsius)"}, HOT]}]}}
FIRING = {"alertname": "Hot", "exp_alerts": [{"exp_labels": {"room": "a", "severity": "warning"}}]}
QUIET = {"alertname": "Hot", "exp_alerts": []}


def scene(celsius: str, *cases: Mapping[str, Any]) -> Scene:
    played = {
        "interval": "1m",
        "input_series": [{"series": 'trainer_celsius{room="a"}', "values": celsius}],
        "alert_rule_test": list(cases),
    }
    return Scene(Path("/rules/Hot_test.yml"), {"rule_files": ["heat.yml"], "evaluation_interval": "1m", "tests": [played]}, 0, RULES)


@pytest.mark.parametrize(
    ("expr", "breaks"),
    [
        ("x > 40", {"x > 60", "x > 26.6667", "x < 40"}),
        ("x >= 2", {"x >= 3", "x >= 1", "x < 2"}),
        ("x == 1", {"x == 2", "x != 1"}),
        ('x{kind=~"a|b"}', {'x{kind!~"a|b"}'}),
        ("x and on (run) y", {"x unless on (run) y"}),
        ("rate(x[5m]) * 0 + on (run) y offset 30m", set()),
    ],
    ids=["threshold", "count", "truth", "matcher", "and", "nothing_to_break"],
)
def test_a_rule_is_broken_in_each_small_way(expr: str, breaks: set[str]) -> None:
    assert {text for _, text in broken(expr, more=False)} == breaks


@pytest.mark.parametrize(
    ("scenes", "survivors"),
    [
        ([scene("41x9", {"eval_time": "1m", **QUIET}, {"eval_time": "3m", **FIRING}), scene("39x9", {"eval_time": "9m", **QUIET})], []),
        ([scene("41x9", {"eval_time": "3m", **FIRING})], ["26.6667", "dropped"]),
        ([scene("39x9", {"eval_time": "9m", **QUIET})], ["60", "dropped"]),
    ],
    ids=["all_is_tested", "no_near_miss_and_no_pending", "it_never_fires"],
)
def test_a_break_that_no_scene_notices_survives(scenes: list[Scene], survivors: list[str], tmp_path: Path) -> None:
    court = Court(RULES, scenes, Promtool(tmp_path / "verdicts.txt", fresh=False))

    alive = [mutant.what for mutant in mutants(RULES, (), more=False) if court.survives(mutant)]

    assert len(alive) == len(survivors), alive
    assert all(part in what for part, what in zip(survivors, alive, strict=True)), alive


def test_a_scene_that_fails_without_any_break_notices_none(tmp_path: Path) -> None:
    court = Court(RULES, [scene("39x9", {"eval_time": "9m", **FIRING})], Promtool(tmp_path / "verdicts.txt", fresh=False))

    alive = [mutant for mutant in mutants(RULES, (), more=False) if court.survives(mutant)]

    assert any(mutant.what.startswith("40 -> 60") for mutant in alive)
    assert court.unsound == {"Hot_test, scene 1"}


def test_what_promtool_has_said_of_the_same_files_is_not_asked_again(tmp_path: Path) -> None:
    path, files = tmp_path / "verdicts.txt", scene("41x9", {"eval_time": "3m", **FIRING}).files()
    first = Promtool(path, fresh=False).fails(files)

    again = Promtool(path, fresh=False)

    assert not first
    assert again.known(files) is False
    assert again.known({**files, "heat.yml": files["heat.yml"].replace("40", "42")}) is None
    assert Promtool(path, fresh=True).known(files) is None

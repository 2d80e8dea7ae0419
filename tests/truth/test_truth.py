"""The labelled runs: that labels and runs belong together, that the score counts what it says, and a few runs judged for real.

All of them are judged by ``make truth``, which takes minutes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rulebook import alerts
from trainer_exporter import backtest
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.formats import registry
from trainer_exporter.model import Record
from truth import composed, exporters, score

CASES = score.cases()


def firing(alert: str, severity: str, at_s: float, until_s: float | None = None) -> Firing:
    resolved = None if until_s is None else 1e9 + until_s
    return Firing(alert, severity, "heron", 1, None, 1e9 + at_s, resolved, at_s=at_s)


def judged(label: dict[str, object], *firings: Firing) -> score.Verdict:
    """A log of a line each 10 s, the fourth of which is the fault."""
    events = [Record(n, {"step": n}) for n in range(1, 21)]
    result = Result(firings, "stamps", 190.0, times=[10.0 * n for n in range(20)])
    lines = ["fine", "fine", "fine", "broken", *["fine"] * 16]
    return score.verdict(score.Case("x", "composed", label), Log("x", "heron", events, 20, 0.0), result, lines)


def test_every_run_has_its_label_and_every_label_its_run() -> None:
    trained = {case.name for case in CASES if case.kind == "trained"}

    assert trained == {path.stem for path in (score.HERE / "trained").glob("*.log")}
    assert {case.name for case in CASES if case.kind == "composed"} == set(composed.names())
    assert {case.name for case in CASES if case.kind == "exporters"} == exporters.SCENES.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_label_names_alerts_that_exist_and_lines_that_stand_in_its_log(case: score.Case) -> None:
    known = {(rule["alert"], rule["labels"]["severity"]) for rule in alerts()}
    if case.kind == "composed":
        text = composed.text(composed.written(case.name).lines)
    elif case.kind == "exporters":
        text = ""
    else:
        text = (score.HERE / "trained" / f"{case.name}.log").read_text()

    expected = case.label.get("expect", [])
    named = [(each["alert"], each["severity"]) for each in expected] + [tuple(each.split(" ")) for each in case.label.get("allow", [])]
    faults = [fault for each in (case.label, *expected) if (fault := each.get("fault"))]

    assert set(named) <= known
    assert [fault for fault in faults if isinstance(fault, str) and not re.search(fault, text)] == []


@pytest.mark.parametrize("path", sorted((score.HERE / "trained").glob("*.log")), ids=lambda path: path.stem)
def test_every_step_that_a_trained_log_tells_of_is_read_also_when_its_figures_explode(path: Path) -> None:
    told = [int(step) for step in re.findall(r"(?m)^(?:\S+ )*?step: (\d+)/", path.read_text())]

    (log,) = backtest.read([str(path)], registry())

    assert [int(event.fields["step"]) for event in log.events if isinstance(event, Record) and "step" in event.fields] == told


def test_an_alert_in_time_is_right_and_its_delay_counts_from_the_line_of_the_fault() -> None:
    verdict = judged({"fault": "broken", "expect": [{"alert": "A", "severity": "critical", "within": 60}]}, firing("A", "critical", 75.0))

    assert verdict.is_right
    assert verdict.delays == {("A", "critical"): 45.0}


@pytest.mark.parametrize(
    ("firings", "missed", "false"),
    [
        ([], [("A", "critical")], []),
        ([firing("A", "critical", 120.0)], [("A", "critical")], []),
        ([firing("A", "warning", 45.0)], [("A", "critical")], [("A", "warning")]),
        ([firing("A", "critical", 15.0), firing("A", "critical", 45.0)], [], [("A", "critical")]),
        ([firing("A", "critical", 45.0), firing("B", "warning", 45.0)], [], []),
        ([firing("A", "critical", 45.0), firing("C", "info", 45.0)], [], []),
    ],
    ids=["never", "late", "of_another_severity", "before_the_fault", "what_may_fire_too", "information"],
)
def test_what_is_missed_and_what_is_false(firings: Sequence[Firing], missed: list[tuple[str, str]], false: list[tuple[str, str]]) -> None:
    label = {"fault": "broken", "expect": [{"alert": "A", "severity": "critical", "within": 60}], "allow": ["B warning"]}

    verdict = judged(label, *firings)

    assert list(verdict.missed) == missed
    assert list(verdict.false) == false


def test_alerts_that_overlap_are_one_page_and_later_ones_another() -> None:
    firings = [
        firing("A", "critical", 15.0, 100.0),
        firing("B", "critical", 90.0, 200.0),
        firing("B", "critical", 1000.0),
        firing("C", "warning", 0.0),
    ]

    assert score.pages(firings) == 2


def test_the_table_has_a_row_an_alert() -> None:
    case = score.Case("x", "composed", {})
    verdicts = [
        score.Verdict(case, {("A", "critical"): 30.0}),
        score.Verdict(case, {("A", "critical"): 50.0}, false=[("B", "warning")]),
        score.Verdict(case, missed=[("A", "critical")]),
    ]

    rows = list(score.table(verdicts))

    assert rows[2] == "| A | critical | 3 | 1.00 | 0.67 | 40 s, 50 s |"
    assert rows[3] == "| B | warning | 0 | 0.00 | - |  |"
    assert rows[4] == "| **all** | | 3 | 0.67 | 0.67 | |"


def test_these_runs_are_judged_as_labelled() -> None:
    some = score.cases(["nan_once", "killed_rank", "out_of_memory", "stall_in_a_collective", "healthy_pauses", "healthy_resume"])

    verdicts = score.judged(some)

    assert [each for each in verdicts if not each.is_right] == []


def test_these_exporters_are_judged_as_labelled() -> None:
    some = score.cases(["healthy_exporter_restarts", "exporter_dies_with_a_run"])

    verdicts = score.judged(some)

    assert [each for each in verdicts if not each.is_right] == []
    assert [each.pages for each in verdicts] == [0, 1]

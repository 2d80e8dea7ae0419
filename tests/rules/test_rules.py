"""Rules, their tests and their runbooks belong together, and every name in a rule is one that somebody publishes.

promtool runs the scenes but notices neither a misspelt metric, nor an alert without a test, nor a label value that never occurs.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack
import trainer_exporter.metrics
from rulebook import RULES, alerts, metrics_in, rules
from trainer_exporter import incidents
from trainer_exporter.gpu import card
from trainer_exporter.model import Phase

RUNBOOKS = stack.REPOSITORY / "alertmanager" / "runbooks"
SCENES = sorted(Path(__file__).parent.glob("*_test.yml"))
FIGURES = sorted(Path(__file__).parent.glob("*_figures.yml"))
RUNBOOK_URL = "https://github.com/trainer-exporter/trainer-exporter/blob/main/alertmanager/runbooks/{}.md"
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Causes", "False alarms"]

SEVERITIES = {"critical", "warning", "info", "none"}
# Prometheus's own, its client library's, and dcgm-exporter's (design: the rules take either source).
FOREIGN_METRIC = re.compile(r"up|ALERTS|process_(?:start_time_seconds|cpu_seconds_total)|DCGM_FI_[A-Z_]+")


def alert_names() -> set[str]:
    """Names of all alerts."""
    return {rule["alert"] for rule in alerts()}


def declared() -> set[str]:
    """Names of the families that the exporter declares, with the names that a histogram's samples bear."""
    found: set[str] = set()
    for module in pkgutil.walk_packages(trainer_exporter.metrics.__path__, "trainer_exporter.metrics."):
        for family in getattr(importlib.import_module(module.name), "FAMILIES", ()):
            found.add(family.name)
            if family.kind == "histogram":
                found |= {f"{family.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
    return found


def queries_in(annotations: Mapping[str, str]) -> Iterator[str]:
    """The expressions that annotations ask of Prometheus."""
    for text in annotations.values():
        yield from re.findall(r'query \(printf "((?:[^"\\]|\\.)*)"', text)


def alert_of(path: Path) -> str:
    """The alert that a file of scenes is about."""
    return path.name.removesuffix("_test.yml")


def promtool(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd)


def test_every_alert_has_a_test_and_a_runbook_and_neither_is_left_over() -> None:
    named = alert_names()

    assert named
    assert {alert_of(path) for path in SCENES} == named
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == named


def test_every_incident_that_ends_a_run_unplanned_makes_it_a_crash() -> None:
    planned = {"cancelled", "time_limit", "preempted"}

    fatal = next(rule["expr"] for _, rule in rules() if rule.get("record") == "run:fatal_incident_timestamp_seconds:max")
    counted = set(re.findall(r'kind=~"([^"]*)"', fatal)[0].split("|"))

    assert counted == {row.name for row in incidents.TROUBLES if row.fatal} - planned


def test_promtool_warns_of_nothing() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "warning" not in (checked.stdout + checked.stderr).lower()


def test_prometheus_takes_the_shipped_configuration_with_all_rules() -> None:
    checked = promtool("check", "config", stack.SHIPPED_PROMETHEUS)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rule files found" in checked.stdout


def test_an_alert_of_a_pair_of_prometheus_does_not_bear_the_name_of_the_one_that_sends_it(tmp_path: Path) -> None:
    shipped = stack.SHIPPED_PROMETHEUS.read_text()

    text = re.sub(r"(?m)^  # (external_labels: .*replica|alert_relabel_configs:|  - .*replica)", r"  \1", shipped)
    (tmp_path / "prometheus.yml").write_text(text)
    checked = promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    config = yaml.safe_load(text)
    (dropped,) = config["alerting"]["alert_relabel_configs"]
    assert dropped == {"regex": "replica", "action": "labeldrop"}
    assert {name for name in config["global"]["external_labels"] if re.fullmatch(dropped["regex"], name)} == {"replica"}


@pytest.mark.parametrize("path", [*SCENES, *FIGURES], ids=alert_of)
def test_every_scene_plays_as_written(path: Path) -> None:
    played = promtool("test", "rules", path.name, cwd=path.parent)

    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("path", SCENES, ids=alert_of)
def test_every_test_is_about_its_alert_and_each_scene_says_what_goes_on(path: Path) -> None:
    name = alert_of(path)
    text = path.read_text()
    scenes = yaml.safe_load(text)["tests"]

    assert len(re.findall(r"\n\n?  # [^\n]+(?:\n  # [^\n]+)*\n  - interval:", text)) == len(scenes)
    assert any(case["exp_alerts"] for scene in scenes for case in scene.get("alert_rule_test", ()) if case["alertname"] == name), (
        "no scene in which it fires with its annotations"
    )
    assert set(re.findall(r"\balertname: (\w+)", text)) <= {name}


@pytest.mark.parametrize("path", [path for path in SCENES if path.stem != "Watchdog_test"], ids=alert_of)
def test_every_alert_has_a_near_miss_and_a_data_gap(path: Path) -> None:
    scenes = re.findall(r"\n  # ([^\n]+)", path.read_text())

    assert any(line.startswith("Near miss") for line in scenes)
    assert any(line.startswith(("Data gap", "No ratio at all")) for line in scenes)


def test_every_metric_of_a_rule_is_published_or_recorded() -> None:
    known = declared() | {rule["record"] for _, rule in rules() if "record" in rule}

    unknown = {
        (path.name, rule.get("alert") or rule["record"], metric)
        for path, rule in rules()
        for text in (rule["expr"], *queries_in(rule.get("annotations", {})))
        for metric in metrics_in(text)
        if metric not in known and not FOREIGN_METRIC.fullmatch(metric)
    }

    assert unknown == set()


def test_the_search_for_metrics_finds_what_a_rule_reads() -> None:
    expr = 'max by (cluster, run) (last_over_time(trainer_step{run!="gpu_nothing"}[2m])) > gpu:x_ratio:avg1m # trainer_never'

    assert metrics_in(expr) == {"trainer_step", "gpu:x_ratio:avg1m"}
    assert list(queries_in({"a": '{{ query (printf "max(trainer_epoch{run=%q})" $labels.run) }}'})) == ["max(trainer_epoch{run=%q})"]


@pytest.mark.parametrize(
    ("metric", "label", "values"),
    [
        ("trainer_run_phase", "phase", {phase.value for phase in Phase}),
        ("trainer_incident_timestamp_seconds", "kind", {row.name for row in incidents.TROUBLES}),
        ("trainer_loss_change_ratio", "window", {"100", "1000"}),
        ("gpu_ecc_errors_total", "kind", {"corrected", "uncorrected"}),
        ("gpu_nvlink_errors_total", "kind", {kind for _, kind in (*card.LINK_TOTALS, *card.LINK_ERRORS)}),
        ("gpu_throttle_active", "reason", {reason for _, reason in card.THROTTLE_REASONS}),
    ],
)
def test_every_value_of_a_label_in_a_rule_is_one_that_occurs(metric: str, label: str, values: set[str]) -> None:
    text = "\n".join(rule["expr"] for _, rule in rules())

    matchers = re.findall(rf"\b{metric}{{([^}}]*)}}", text)
    named = {value for found in matchers for each in re.findall(rf'\b{label}=~?"([^"]*)"', found) for value in each.split("|")}

    assert named
    assert named <= values


def test_severities_are_of_the_agreed_words_and_twins_stand_together() -> None:
    order = [rule["alert"] for rule in alerts()]

    assert {rule["labels"]["severity"] for rule in alerts()} <= SEVERITIES
    assert [name for name, before in zip(order[1:], order, strict=False) if name != before] == list(dict.fromkeys(order))[1:]


@pytest.mark.parametrize("rule", list(alerts()), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_every_alert_says_what_and_where_to_read_on(rule: Mapping[str, Any]) -> None:
    annotations = rule["annotations"]

    assert annotations["runbook_url"] == RUNBOOK_URL.format(rule["alert"])
    assert "{{" not in annotations["summary"]
    assert re.search(r"[.](\s|$|\{\{)", annotations["description"])
    assert "for" in rule


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_recording_rules_come_before_the_alerts_of_their_group(path: Path) -> None:
    for group in yaml.safe_load(path.read_text())["groups"]:
        kinds = ["alert" in rule for rule in group["rules"]]

        assert kinds == sorted(kinds)


def test_no_two_rules_record_the_same_name() -> None:
    names = [rule["record"] for _, rule in rules() if "record" in rule]

    assert [name for name in names if names.count(name) > 1] == []


def test_no_rule_compares_a_metric_with_itself() -> None:
    """x != x finds NaN in Prometheus and nothing in VictoriaMetrics, which stores none."""
    for _, rule in rules():
        assert not re.search(r"\b([\w:]+(?:\{[^}]*\})?)\s*!=\s*\1(?![\w:{])", rule["expr"])


@pytest.mark.parametrize("name", sorted(alert_names()))
def test_every_runbook_leads_from_the_meaning_to_a_decision(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    diagnosis = text.split("## Diagnosis")[1].split("## ")[0]

    assert text.startswith(f"# {name}\n")
    assert sections == SECTIONS
    assert "```promql" in diagnosis
    assert "```sh" in diagnosis


@pytest.mark.parametrize("name", sorted(alert_names()))
def test_every_query_of_a_runbook_can_be_asked(name: str, tmp_path: Path) -> None:
    known = declared() | {rule["record"] for _, rule in rules() if "record" in rule}
    asked = "".join(re.findall(r"```promql\n(.*?)```", (RUNBOOKS / f"{name}.md").read_text(), re.DOTALL)).splitlines()
    recorded = [{"record": f"runbook:query:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "runbook.yml").write_text(yaml.safe_dump({"groups": [{"name": "runbook", "rules": recorded}]}))

    checked = promtool("check", "rules", tmp_path / "runbook.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {metric for metric in metrics_in("\n".join(asked)) if metric not in known and not FOREIGN_METRIC.fullmatch(metric)} == set()

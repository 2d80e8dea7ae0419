"""deploy/scale-out: promtool takes what is Prometheus's, the built rules are of now and complete, and none judges before what it asks for.

What needs VictoriaMetrics' own programs is in ``make test-engines``.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "scale-out"
RULES = Path(__file__).parents[2] / "alertmanager" / "rules" / "exporter.yml"


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_out_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _loaded(FOLDER / "build.py")


def seconds(rule_group: dict[str, Any]) -> int:
    """At which second of the round a group of vmalert's is evaluated."""
    return int(rule_group["eval_offset"].removesuffix("s"))


@pytest.mark.parametrize("options", [["--agent", "prometheus-agent.yml"], ["prometheus-pair.yml"]], ids=["agent", "pair"])
def test_promtool_takes_the_configurations(options: list[str]) -> None:
    checked = subprocess.run(["promtool", "check", "config", *options], capture_output=True, text=True, check=False, cwd=FOLDER)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["vmagent.yml", "prometheus-agent.yml", "prometheus-pair.yml"])
def test_the_rules_find_exporters_by_the_job_and_nodes_by_their_name(name: str) -> None:
    (wanted,) = set(re.findall(r'up\{job=~"([^"]+)"\}', RULES.read_text()))
    config = yaml.safe_load((FOLDER / name).read_text())

    (job,) = config["scrape_configs"]

    assert re.fullmatch(wanted, job["job_name"])
    assert config["global"]["scrape_interval"] == "15s"
    assert (job["relabel_configs"][0]["source_labels"], job["relabel_configs"][0]["target_label"]) == (["__address__"], "instance")
    assert re.fullmatch(job["relabel_configs"][0]["regex"], "node-2.gpu.example.org:19400")[1] == "node-2.gpu.example.org"  # type: ignore[index]


def test_what_tells_a_pair_apart_does_not_reach_alertmanager() -> None:
    config = yaml.safe_load((FOLDER / "prometheus-pair.yml").read_text())

    (drop,) = config["alerting"]["alert_relabel_configs"]

    assert drop["action"] == "labeldrop"
    assert all(re.fullmatch(drop["regex"], label) for label in config["global"]["external_labels"])


def test_the_built_rules_are_of_now() -> None:
    for path, content in build.BUILT.items():
        assert path.read_text() == content(), f"{path} is out of date: make scale-out"


def told(groups: list[dict[str, Any]]) -> list[str]:
    """Every rule as it is written."""
    return sorted(yaml.safe_dump(rule) for group in groups for rule in group["rules"])


def test_no_rule_is_lost_or_changed_on_the_way_to_mimir() -> None:
    built = yaml.safe_load((FOLDER / "mimir" / "rules.yml").read_text())["groups"]

    assert told(built) == told(build.groups())


def test_on_the_way_to_vmalert_nothing_changes_but_functions_that_mean_something_else_there() -> None:
    text = (FOLDER / "vmalert" / "rules.yml").read_text()

    assert "increase_prometheus(" in text
    assert not re.search(r"\b(increase|changes|delta|idelta)\([a-z{]", text)
    assert told(yaml.safe_load(re.sub(r"\b(increase|changes)_prometheus\(", r"\1(", text))["groups"]) == told(build.groups())


def test_mimir_gets_one_namespace_and_groups_of_different_names() -> None:
    built = yaml.safe_load((FOLDER / "mimir" / "rules.yml").read_text())

    assert set(built) == {"namespace", "groups"}
    names = [group["name"] for group in built["groups"]]
    assert len(names) == len(set(names))
    assert all(set(group) <= {"name", "interval", "rules"} for group in built["groups"])


def test_for_vmalert_every_rule_comes_after_those_it_asks_for() -> None:
    groups = yaml.safe_load((FOLDER / "vmalert" / "rules.yml").read_text())["groups"]
    links = [group for group in groups if group["interval"] == f"{build.INTERVAL_S}s"]
    link = {rule["record"]: number for number, group in enumerate(links) for rule in group["rules"] if "record" in rule}

    for number, group in enumerate(links):
        for rule in group["rules"]:
            before = {name: link[name] for name in build.asked(rule) if name in link and name != rule.get("record")}
            assert all(other < number for other in before.values()), (rule.get("record") or rule["alert"], before)
    gaps = [(seconds(after) - seconds(before)) % build.INTERVAL_S for before, after in itertools.pairwise(links)]
    assert set(gaps) == {build.INTERVAL_S // build.LINKS_A_ROUND}


@pytest.mark.parametrize("interval_s", [15, 20, 30, 60])
def test_at_any_length_of_a_round_a_link_comes_a_fifth_of_it_after_the_one_before_it(interval_s: int) -> None:
    links = [group for group in yaml.safe_load(build.vmalert(interval_s))["groups"] if group["name"].startswith("link-")]

    assert {group["interval"] for group in links} == {f"{interval_s}s"}
    assert {(seconds(after) - seconds(before)) % interval_s for before, after in itertools.pairwise(links)} == {interval_s // 5}
    assert all(0 <= seconds(group) < interval_s for group in links)


def test_in_a_link_those_come_first_that_most_links_wait_for() -> None:
    way, leaf, branch = ({"record": f"a:{name}:y", "expr": "up"} for name in ("way", "leaf", "branch"))
    second = {"record": "a:second:y", "expr": "a:way:y"}
    third = {"alert": "Third", "expr": "a:second:y"}
    side = {"alert": "Side", "expr": "a:branch:y"}

    ordered = build.urgent_first(build.links([leaf, branch, way, side, second, third]))

    assert ordered == [[way, branch, leaf], [second, side], [third]]


def test_groups_with_a_pace_of_their_own_keep_it() -> None:
    groups = {group["name"]: group for group in yaml.safe_load((FOLDER / "vmalert" / "rules.yml").read_text())["groups"]}

    slow = [group for group in build.groups() if "interval" in group]

    assert slow
    for group in slow:
        assert groups[group["name"]]["interval"] == group["interval"]
        assert not set.union(*map(build.asked, group["rules"])) & {rule.get("record") for rule in group["rules"]}


def test_rules_that_ask_for_one_another_in_a_circle_are_refused() -> None:
    circle = [{"record": "a:x:y", "expr": "b:x:y"}, {"record": "b:x:y", "expr": "a:x:y + 1"}]

    with pytest.raises(ValueError, match="in a circle"):
        build.links(circle)


def test_a_rule_that_goes_on_from_itself_is_no_circle() -> None:
    rules = [{"record": "a:x:y", "expr": "up or a:x:y"}, {"record": "b:x:y", "expr": "a:x:y"}]

    assert build.links(rules) == [[rules[0]], [rules[1]]]


@pytest.mark.parametrize("name", ["victoria-metrics", "vmagent", "vmalert"])
def test_a_unit_starts_its_own_program(name: str) -> None:
    unit = (FOLDER / f"{name}.service").read_text()

    (command,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)

    assert Path(command).name == name

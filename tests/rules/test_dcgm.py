"""A fleet that keeps dcgm-exporter: the rules read its page, the counters file asks for all that they read, and what is silent is listed.

The page is composed by us in the shape of dcgm-exporter's, with marks for "no value" as DCGM leaves them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

import stack
from rulebook import RULES, alerts, group_order, metrics_in, rules

PAGE = Path(__file__).with_name("dcgm_exporter.prom")
PLACE = stack.REPOSITORY / "deploy" / "dcgm"
FIELD = re.compile(r"^(DCGM_\w+), (gauge|counter), (.+)$", re.MULTILINE)
OTHER_NAMES = {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"}  # of fields that are in the file
KEPT = re.compile(r"gpu_(run_info|info|lost|devices|devices_expected|xid_\w+|collect_success|last_collect_timestamp_seconds)")

UUIDS = sorted(set(re.findall(r'UUID="([^"]+)"', PAGE.read_text())))

# What the page says, in our names and units. The second card is hot, braked, and its links fail.
RECORDED = {
    "gpu:utilization_ratio:avg1m": (0.96, 0.88),
    "gpu:memory_bandwidth_utilization_ratio:avg1m": (0.41, 0.37),
    "gpu:power_watts:avg1m": (360.5, 251.25),
    "gpu:power_limit_watts:max": (400, 300),
    "gpu:power_of_limit_ratio:avg1m": (0.90125, 0.8375),
    "gpu:memory_headroom_ratio:min": (0.25, 0.05),
    "gpu:temperature_celsius:max": (61, 88),
    "gpu:slowdown_temperature_celsius:min": (89, 89),
    "gpu:temperature_margin_celsius:min": (28, 1),
    "gpu:sm_clock_hertz:avg5m": (1335e6, 1065e6),
    "gpu:ecc_uncorrected_errors:max": (0, 3),
    "gpu:row_remap_pending:bool": (0, 1),
    "gpu:row_remap_failure:bool": (0, None),
    "sum by (uuid) (gpu:is_throttled:bool)": (0, 2),
    "gpu:pcie_width_ratio:min": (1, 0.5),
    "gpu:pcie_generation_ratio:min": (1, 1),
    "gpu:is_pcie_degraded:bool": (None, 1),
    "run:gpu_utilization_ratio:avg1m": (0.92,),
    "run:gpu_power_of_limit_ratio:avg1m": (0.869375,),
    "run:gpu_memory_bandwidth_utilization_ratio:avg1m": (0.39,),
    "run:gpu_memory_headroom_ratio:min": (0.05,),
    "run:gpu_power_watts:sum": (611.75,),
    "run:gpu_utilization_spread_ratio:max": (0.08,),
    "run:gpu_power_of_limit_spread_ratio:max": (0.06375,),
    "run:gpus:count": (2,),
}


def fields() -> dict[str, str]:
    """The fields of the counters file, with their kind."""
    return {name: kind for name, kind, _ in FIELD.findall((PLACE / "counters.csv").read_text())}


def reached(name: str, expressions: Mapping[str, str]) -> set[str]:
    """The metrics that an alert or a recording rule reads in the end."""
    found: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        for metric in metrics_in(expressions[waiting.pop()]) - seen:
            seen.add(metric)
            if metric in expressions:
                waiting.append(metric)
            else:
                found.add(metric)
    return found


def needs() -> dict[str, set[str]]:
    """What each alert reads in the end."""
    recorded = {rule["record"]: rule["expr"] for _, rule in rules() if "record" in rule}
    asked: dict[str, str] = {}
    for rule in alerts():
        asked[rule["alert"]] = asked.get(rule["alert"], "") + "\n" + rule["expr"]
    return {name: reached(name, {**recorded, name: expr}) for name, expr in asked.items()}


def series() -> Iterator[Mapping[str, str]]:
    """The page as dcgm-exporter's target would give it, and the attribution that stays with trainer-exporter."""
    for name, labels, value in re.findall(r"^(\w+){(.+)} (\S+)$", PAGE.read_text(), re.MULTILINE):
        yield {"series": f'{name}{{{labels}, job="dcgm-exporter", instance="kiwi-17"}}', "values": f"{value}x20"}
        if name == "DCGM_FI_DEV_GPU_UTIL":
            owner = ", ".join(re.findall(r'gpu="\d+"|UUID="[^"]+"', labels)).replace("UUID", "uuid")
            yield {"series": f'gpu_run_info{{job="trainer-exporter", instance="kiwi-17", run="pt-7b", {owner}}}', "values": "1x20"}


def test_the_rules_read_a_page_of_dcgm_exporter(tmp_path: Path) -> None:
    expectations = []
    for expr, values in RECORDED.items():
        by = "uuid" if len(values) == 2 else "run"
        labels = [f'{{uuid="{uuid}"}}' for uuid in UUIDS] if len(values) == 2 else ['{run="pt-7b"}']
        samples = [{"labels": label, "value": value} for label, value in zip(labels, values, strict=True) if value is not None]
        expectations.append({"expr": f"round(max by ({by}) ({expr}), 1e-6)", "eval_time": "5m", "exp_samples": samples})
    order = group_order("labels", "gpu")
    scene = {"interval": "15s", "input_series": list(series()), "promql_expr_test": expectations}
    test = {"rule_files": [str(path) for path in RULES], "group_eval_order": order, "evaluation_interval": "15s", "tests": [scene]}
    (tmp_path / "page.yml").write_text(yaml.safe_dump(test))

    played = subprocess.run(["promtool", "test", "rules", str(tmp_path / "page.yml")], capture_output=True, text=True, check=False)

    assert played.returncode == 0, played.stdout + played.stderr


def test_the_counters_file_asks_for_what_the_rules_read_and_for_nothing_else() -> None:
    read = {metric for _, rule in rules() for metric in metrics_in(rule["expr"]) if metric.startswith("DCGM_")}

    assert set(fields()) == read - OTHER_NAMES
    assert len(FIELD.findall((PLACE / "counters.csv").read_text())) == len(fields())


def test_the_page_has_what_the_counters_file_asks_for_in_the_kind_it_says() -> None:
    published = dict(re.findall(r"^# TYPE (\w+) (\w+)$", PAGE.read_text(), re.MULTILINE))

    assert published == fields()


def test_a_counters_line_can_be_read_by_a_splitter_at_commas() -> None:
    for line in (PLACE / "counters.csv").read_text().splitlines():
        assert line.startswith("#") or line.count(",") == 2, line


@pytest.mark.parametrize("field", sorted(fields()))
def test_the_list_says_which_alerts_are_silent_without_a_field(field: str) -> None:
    rows = dict(re.findall(r"^\| `(DCGM_\w+)` \| (?:yes|no) \| (.*) \|$", (PLACE / "README.md").read_text(), re.MULTILINE))

    assert set(re.findall(r"\w+", rows[field])) - {"none", "dashboards", "only"} == {
        name for name, read in needs().items() if field in read
    }


def test_the_list_says_which_alerts_dcgm_exporter_cannot_feed() -> None:
    own = {
        name
        for name, read in needs().items()
        if any(metric.startswith("gpu_") and not KEPT.fullmatch(metric) for metric in read)
        and not any(metric.startswith("DCGM_") for metric in read)
    }

    assert own
    assert set(re.findall(r"^\* `(\w+)`", (PLACE / "README.md").read_text(), re.MULTILINE)) == own

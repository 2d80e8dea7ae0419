"""The pages on limits, on chaos and on threats say what the code does, and each promise has its test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from snapshots import NOW, a_run
from trainer_exporter import incidents
from trainer_exporter.config import LimitsConfig, RunsConfig
from trainer_exporter.gpu.card import LINK_TOTALS, THROTTLE_REASONS
from trainer_exporter.metrics import gpus, runs
from trainer_exporter.model import Histogram
from trainer_exporter.model_gpu import GpuIdentity, GpuMemory, GpuReading, GpuSnapshot
from trainer_exporter.runs.attempt import MAX_EVAL_METRICS, WINDOWED
from trainer_exporter.runs.saving import DURATION_BOUNDS
from trainer_exporter.runs.series import WINDOWS
from trainer_exporter.runs.state import NONFINITE_FIELDS

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "exporter" / "trainer_exporter"
PAGES = ("limits.md", "chaos.md", "threat-model.md")
LIMITS = (REPOSITORY / "docs" / "limits.md").read_text(encoding="utf-8")


def reasons() -> Iterator[str]:
    """What is dropped anywhere in the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "drop":
                assert isinstance(node.args[0], ast.Constant), f"{path}: a reason is a word that is fixed in the code"
                yield str(node.args[0].value)


def known_tests() -> set[str]:
    found: set[str] = set()
    for path in (REPOSITORY / "tests").rglob("*.py"):
        found |= set(re.findall(r"^(?:    )?(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def rows(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line.startswith("| ")]


def test_every_reason_for_which_something_is_dropped_is_documented_and_no_other() -> None:
    counted = {reason for row in rows(LIMITS) for reason in re.findall(r"^`(\w+)`$", row[-2])} - {"trainer_exporter_read_lag_bytes"}

    assert counted - {"trainer_exporter_collector_success"} == set(reasons())


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / page).read_text(encoding="utf-8")))

    assert named
    assert named <= known_tests()


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_page_names_a_test_or_says_why_there_is_none(page: str) -> None:
    body = [row for row in rows((REPOSITORY / "docs" / page).read_text(encoding="utf-8")) if not set(row[0]) <= {"-", "|"}]
    headless = [row for row in body if row[-1] not in {"test", "which test"}]

    assert [row[0] for row in headless if "test_" not in row[-1] and not row[-1].startswith("none: ")] == []


def test_the_figures_of_the_page_of_limits_are_those_of_the_code() -> None:
    assert f"{LimitsConfig().files:,}" in LIMITS
    assert f"| runs | {RunsConfig().maximum} |" in LIMITS


def test_the_most_series_of_a_run_and_of_a_card_are_those_that_the_page_states() -> None:
    kinds = dict.fromkeys(incidents.KINDS, 1.0)
    fields_ = dict.fromkeys(NONFINITE_FIELDS, 1)
    names = {f"name_{number}": 1.0 for number in range(MAX_EVAL_METRICS)}
    windows = {(f"{name}_{figure}_ratio", str(span)): 1.0 for name, figure in WINDOWED for span in WINDOWS}
    histogram = Histogram(DURATION_BOUNDS, (0,) * (len(DURATION_BOUNDS) + 1), 0.0)
    everything = {"gauges": dict.fromkeys(runs.GAUGES, 1.0), "windows": windows, "eval_metrics": names, "eval_metric_changes": names}
    trouble = {"nonfinite_total": fields_, "nonfinite_wall": fields_, "nonfinite_streak": fields_, "incident_wall": kinds}
    run = a_run(1.0, **everything, **trouble, incidents=kinds, checkpoint_durations=histogram, skipped_steps=1)

    assert f"a run: {len(list(runs.samples(run, NOW)))} series" in LIMITS
    assert f"a GPU: {len(list(gpus.samples(GpuSnapshot(readings=(card(),)), (), NOW))) - 2 - len(gpus.KNOWN_XIDS)} series" in LIMITS


def card() -> GpuReading:
    """One that can say everything."""
    plain = GpuReading(GpuIdentity("GPU-a", 0, "card"), success=True, collected_wall=NOW, memory=GpuMemory(3, 2, 1))
    numbers = {each.name: 1.0 for each in fields(GpuReading) if each.name not in {"identity", "success", "error", "memory", "processes"}}
    two = {"corrected": 0, "uncorrected": 0}
    counts = {"remapped_rows": two, "retired_pages": two, "nvlink_errors": {name: 0 for _, name in LINK_TOTALS}}
    ecc = {(kind, counter): 0 for kind in two for counter in ("volatile", "aggregate")}
    return replace(plain, **{**numbers, **counts, "ecc_errors": ecc, "throttle_active": {name: False for _, name in THROTTLE_REASONS}})

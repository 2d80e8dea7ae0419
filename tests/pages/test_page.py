"""The page: what stands on it for a run, that Prometheus's own checker has nothing to say, and that a collector that fails costs itself."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from trainer_exporter.health import Health
from trainer_exporter.metrics import daemon, runs
from trainer_exporter.metrics.family import Sample
from trainer_exporter.metrics.page import Page
from trainer_exporter.metrics.reference import families
from trainer_exporter.model import Checkpoint, CheckpointEvent, Incident, ModelShape, Record, RunSnapshot, Workload
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

NOW = 1_700_000_000.0


def snapshot() -> RunSnapshot:
    """A run with one of everything."""
    state = RunState("llama-sft", StateSettings(incident_kinds=("cuda_oom", "nccl_timeout")), daemon_start=NOW - 1000)
    state.describe(labels={"team": 'n"l\\p', "page": "no"}, facts={"output_dir": "/data/llama-sft", "job_id": "77"})
    for step in range(1, 41):
        wall = NOW - 410 + 10 * step
        fields = {"step": step, "target_steps": 100, "loss": 2.0, "grad_norm": 0.5, "learning_rate": 1e-5, "epoch": step / 100}
        fields |= {"total_tokens": step * 4096.0, "skipped_steps": 0.0, "global_batch_size": 8}
        state.fold(Record(line=step, fields=fields), Moment(wall, live=True, tick=wall, clock="arrival"), source="a", format_name="plain")
    state.fold(
        Record(line=41, fields={"eval_loss": 1.5, "loss": math.nan, "step": 41}, metrics={"accuracy": 0.5}), Moment(NOW, True), source="a"
    )
    state.fold(Incident(42, "cuda_oom", fatal=True), Moment(NOW, live=True), source="a")
    state.fold_checkpoint(Checkpoint(CheckpointEvent.STARTED, step=40, wall=NOW - 60))
    state.fold_checkpoint(Checkpoint(CheckpointEvent.FINISHED, step=40, wall=NOW - 18, size_bytes=1 << 30))
    state.note_writer(True)
    state.note_workload(Workload(ModelShape(weights=1e9, layers=10, attention_width=1000), 512, gpus=1, peak_tflops=2 * 2.482765824))
    return state.snapshot(NOW)


@pytest.fixture
def page() -> Page:
    health = Health()
    health.count("follow", "permission")
    health.drop("long_line", 3)
    about = daemon.DaemonSnapshot("1.2.3", "3.11", lines={"parsed": 5, "unmatched": 7}, read_bytes=100, files=1)
    one, figures = snapshot(), runs.Runs()
    return Page(
        [
            ("runs", lambda: figures.collect([one], NOW + 5)),
            ("daemon", lambda: daemon.samples(about, daemon.Reload(successful=True, wall=NOW), health.snapshot())),
        ],
        health=health,
    )


def text(page: Page, accept: str = "") -> str:
    return page.render(accept).body.decode()


@pytest.mark.parametrize(
    "line",
    [
        'trainer_run_info{format="plain",job_id="77",output_dir="/data/llama-sft",page="no",run="llama-sft",team="n\\"l\\\\p",user=""} 1.0',
        'trainer_loss{run="llama-sft"} NaN',
        'trainer_step{run="llama-sft"} 41.0',
        'trainer_progress_age_seconds{run="llama-sft"} 5.0',
        'trainer_nonfinite_streak_records{field="loss",run="llama-sft"} 1.0',
        'trainer_incidents_total{kind="nccl_timeout",run="llama-sft"} 0.0',
        'trainer_progress_gap_seconds{quantile="0.95",run="llama-sft"} 10.0',
        'trainer_checkpoint_duration_seconds_bucket{le="60.0",run="llama-sft"} 1.0',
        'trainer_checkpoint_duration_seconds_count{run="llama-sft"} 1.0',
        'trainer_run_phase{phase="training",run="llama-sft"} 1.0',
        'trainer_loss_change_ratio{run="llama-sft",window="100"} 0.0',
        'trainer_loss_baseline_min{run="llama-sft"} 2.0',
        'trainer_loss_sustained_ratio{run="llama-sft"} 1.0',
        'trainer_learning_rate_max{run="llama-sft"} 1e-05',
        'trainer_eval_metric{name="accuracy",run="llama-sft"} 0.5',
        'trainer_samples_per_second{run="llama-sft"} 0.8',
        'trainer_tokens_per_second{run="llama-sft"} 409.6',
        'trainer_tflops_per_gpu{run="llama-sft"} 2.482765824',
        'trainer_mfu_ratio{run="llama-sft"} 0.5',
        'trainer_exporter_errors_total{reason="permission",site="follow"} 1.0',
        'trainer_exporter_dropped_total{reason="long_line"} 3.0',
    ],
)
def test_the_page_says(page: Page, line: str) -> None:
    assert sorted_labels(line) in {sorted_labels(shown) for shown in text(page).splitlines()}


def sorted_labels(line: str) -> tuple[object, ...]:
    if line.startswith("#"):
        return (line,)
    (family,) = text_families(line + "\n")
    return tuple((sample.name, tuple(sorted(sample.labels.items())), repr(sample.value)) for sample in family.samples)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0", "text/plain; version=1.0.0; escaping=dots"])
def test_a_name_that_utf_8_cannot_carry_does_not_cost_the_page(accept: str) -> None:
    half = json.loads(r'"\udc65val"')  # as a log of JSON may have it
    samples = [Sample(runs.EVAL_METRIC, ("llama", half), 0.5), Sample(runs.EVAL_METRIC, ("llama", "loss"), 1.5)]
    page = Page([("runs", lambda: samples)], health=Health())

    shown = text(page, accept)

    assert r'name="\\udc65val"' in shown
    assert 'name="loss"' in shown


def test_what_is_not_known_is_not_there(page: Page) -> None:
    shown = text(page)

    assert "trainer_loss_scale{" not in shown
    assert "trainer_vocabulary_size{" not in shown


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"], ids=["text", "openmetrics"])
def test_the_page_parses_in_both_formats(page: Page, accept: str) -> None:
    parse = openmetrics_families if accept else text_families

    names = {family.name for family in parse(text(page, accept))}

    assert {"trainer_loss", "trainer_run_info", "trainer_checkpoint_duration_seconds", "process_resident_memory_bytes"} <= names


def test_prometheus_own_checker_has_nothing_to_say(page: Page) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=text(page).encode(), capture_output=True, check=False)

    assert (checked.stdout.decode(), checked.stderr.decode(), checked.returncode) == ("", "", 0)


def test_every_declared_family_has_a_help_and_a_home() -> None:
    for family in families():
        assert family.help.endswith("."), family.name
        assert family.name.startswith(("trainer_", "gpu_")), family.name


def test_a_collector_that_fails_costs_its_own_families_alone() -> None:
    def broken() -> Iterator[Sample]:
        yield Sample(daemon.FILES, (), 1)
        raise ZeroDivisionError("a bug")

    health = Health()
    page = Page([("broken", broken), ("daemon", lambda: [Sample(daemon.READ_BYTES, (), 5)])], health=health)

    shown = text(page)

    assert 'trainer_exporter_collector_success{collector="broken"} 0.0' in shown
    assert 'trainer_exporter_collector_success{collector="daemon"} 1.0' in shown
    assert "trainer_exporter_read_bytes_total 5.0" in shown
    assert "trainer_exporter_files_followed" not in shown  # half of a collector's samples would be a lie
    assert health.snapshot().errors == {("collector_broken", "ZeroDivisionError"): 1}


def test_a_run_that_says_the_same_is_the_same_batch_and_its_age_goes_on() -> None:
    figures = runs.Runs()
    ages = []

    batches = []
    for second in (1, 2):
        batch, *growing = figures.collect([snapshot()], NOW + second)
        batches.append(batch)
        ages.append([item.value for item in growing if isinstance(item, Sample) and item.family is runs.AGE])

    assert batches[0] is batches[1]
    assert ages[1][0] == ages[0][0] + 1

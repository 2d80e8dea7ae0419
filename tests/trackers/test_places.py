"""Where trackers keep their files, and whose run those are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trackers.writers import trainer_state
from trainer_exporter.clock import SystemClock
from trainer_exporter.health import Health
from trainer_exporter.sources.discovery import Discovery, Spec
from trainer_exporter.sources.naming import is_of_output, is_reopened, run_directory, run_names

RUN_ID = "0f" * 16


def found(pattern: Path | str) -> list[str]:
    return [each.path for each in Discovery([Spec(str(pattern))], SystemClock(), Health()).scan(now=True)]


def put(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("path", "run"),
    [
        ("/w/heron/runs/Nov30_11-03-38_n1/events.out.tfevents.1700000000.n1.7.0", "heron"),
        ("/w/heron/runs/events.out.tfevents.1700000000.n1.7.0", "heron"),
        ("/w/runs/heron/events.out.tfevents.1700000000.n1.7.0", "heron"),
        ("/w/heron/tb_logs/valid/events.out.tfevents.1700000000.n1.7.0", "heron"),
        ("/w/heron/tensorboard/events.out.tfevents.1700000000.n1.7.0", "heron"),
        ("/w/heron/lightning_logs/version_3/metrics.csv", "heron"),
        ("/w/heron/trainer_state.json", "heron"),
        ("/w/heron/vis_data/scalars.json", "heron"),
        ("/w/heron/wandb/offline-run-20260130_082021-ab12/run-ab12.wandb", "heron"),
        (f"/w/heron/mlruns/0/{RUN_ID}/meta.yaml", "heron"),
        (f"/w/heron/mlflow.db#{RUN_ID}", "heron"),
        (f"http://mlflow:5000/#/experiments/3/runs/{RUN_ID}", RUN_ID),
    ],
)
def test_a_trackers_file_alone_names_its_run_by_the_runs_directory(path: str, run: str) -> None:
    assert run_names([path], {})[path].run == run


@pytest.mark.parametrize(
    "tracker",
    [
        "/w/heron/runs/Nov30_11-03-38_n1/events.out.tfevents.1700000000.n1.7.0",
        "/w/heron/trainer_state.json",
        "/w/heron/wandb/run-20260130_082021-ab12/run-ab12.wandb",
        f"/w/heron/mlruns/0/{RUN_ID}/meta.yaml",
    ],
)
def test_it_is_of_the_run_of_the_only_console_there(tracker: str) -> None:
    named = run_names(["/w/heron/train.log", tracker], {})

    assert len({each.run for each in named.values()}) == 1


def test_runs_that_were_started_in_one_place_stay_apart() -> None:
    paths = [f"/w/project/wandb/run-20260130_08202{n}-ab1{n}/run-ab1{n}.wandb" for n in (1, 2)]

    named = run_names(paths, {})

    assert [named[path].run for path in paths] == ["project/run-20260130_082021-ab11", "project/run-20260130_082022-ab12"]


def test_who_writes_how() -> None:
    assert is_reopened("/w/heron/trainer_state.json")
    assert not is_reopened("/w/heron/runs/events.out.tfevents.1.n1.7.0")
    assert is_of_output("/w/heron/lightning_logs/version_0/metrics.csv")
    assert not is_of_output("/w/project/wandb/run-20260130_082021-ab12/run-ab12.wandb")
    assert run_directory("/w/heron/runs/Nov30_11-03-38_n1/events.out.tfevents.1.n1.7.0") == "/w/heron"


def test_a_directory_holds_what_trackers_keep_and_nothing_else_of_the_closed_ones(tmp_path: Path) -> None:
    heron = tmp_path / "heron"
    wanted = [
        put(heron / "train.log"),
        put(heron / "runs" / "Nov30_11-03-38_n1" / "events.out.tfevents.1700000000.n1.7.0"),
        put(heron / "wandb" / "run-20260130_082021-ab12" / "run-ab12.wandb"),
        put(heron / "mlruns" / "0" / RUN_ID / "meta.yaml"),
        put(heron / "lightning_logs" / "version_0" / "metrics.csv"),
    ]
    put(heron / "wandb" / "run-20260130_082021-ab12" / "files" / "output.log")
    put(heron / "wandb" / "debug-internal.log")
    put(heron / "mlruns" / "0" / "meta.yaml")
    put(heron / "mlruns" / "0" / RUN_ID / "metrics" / "loss")
    put(heron / "checkpoint-20" / "rank0.log")
    put(heron / "results.csv")

    assert sorted(found(tmp_path)) == sorted(map(str, wanted))


def test_the_states_of_all_checkpoints_are_one_source(tmp_path: Path) -> None:
    for step in (20, 40, 60):
        trainer_state(tmp_path / "heron" / f"checkpoint-{step}" / "trainer_state.json", step)

    assert found(tmp_path) == [str(tmp_path / "heron" / "trainer_state.json")]
    assert found(tmp_path / "heron" / "checkpoint-*" / "trainer_state.json") == [str(tmp_path / "heron" / "trainer_state.json")]


def test_a_glob_over_metrics_means_their_run(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / RUN_ID
    put(run / "meta.yaml")
    put(run / "metrics" / "loss")
    put(run / "metrics" / "grad_norm")

    assert found(tmp_path / "mlruns" / "*" / "*" / "metrics" / "*") == [str(run / "meta.yaml")]


def test_a_run_that_goes_on_for_days_is_as_young_as_its_last_report(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / RUN_ID
    put(run / "meta.yaml", "run_name: heron\nstatus: 1\nend_time: null\n")
    put(run / "metrics" / "loss", "1700000000123 2.5 10\n")
    days_ago = time.time() - 5 * 86400
    os.utime(run / "meta.yaml", (days_ago, days_ago))

    assert found(tmp_path) == [str(run / "meta.yaml")]

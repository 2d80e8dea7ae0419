"""A directory as a real LLaMA-Factory run leaves it, with all of its sources: one run, no step twice, the trainer's own values."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon

RECORDED = Path(__file__).parents[1] / "trackers" / "recorded" / "llama_factory"
RUN = "heron-1b"
STATE = json.loads((RECORDED / "trainer_state.json").read_text())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(RECORDED, root / "sft" / RUN, copy_function=shutil.copyfile)
    with Daemon(root / "sft", "--no-gpu", log=root / "daemon.log") as daemon:
        yield daemon


def reported(field: str) -> list[float]:
    return [entry[field] for entry in STATE["log_history"] if field in entry]


def test_all_sources_are_one_run(daemon: Daemon) -> None:
    samples = daemon.samples()

    assert [name for name in samples if name.startswith("trainer_step{")] == [f'trainer_step{{run="{RUN}"}}']
    (info,) = [name for name in samples if name.startswith("trainer_run_info{")]
    assert 'format="hf_trainer+llama_factory+tensorboard+trainer_state"' in info
    assert samples[f'trainer_run_attempts_total{{run="{RUN}"}}'] == 1


@pytest.mark.parametrize("field", ["loss", "grad_norm", "learning_rate", "eval_loss", "epoch"])
def test_the_last_values_are_those_of_the_trainers_own_state(daemon: Daemon, field: str) -> None:
    assert daemon.value(f"trainer_{field}", run=RUN) == pytest.approx(reported(field)[-1], rel=1e-6)


def test_each_step_counts_once(daemon: Daemon) -> None:
    assert daemon.value("trainer_step", run=RUN) == STATE["global_step"]
    for field in ("loss", "grad_norm"):
        found = daemon.value(f"trainer_{field}_baseline", run=RUN)
        assert found == pytest.approx(statistics.median(reported(field)), rel=1e-3)  # the console rounds to four digits
        total = daemon.value("trainer_nonfinite_steps_total", run=RUN, field=field)
        assert total == 0


def test_the_run_has_ended_by_its_own_word(daemon: Daemon) -> None:
    assert daemon.value("trainer_run_phase", run=RUN, phase="ended") == 1
    assert not math.isnan(daemon.value("trainer_step_timestamp_seconds", run=RUN) or math.nan)


def test_each_of_its_files_can_be_replayed_alone_or_with_the_others() -> None:
    command = [sys.executable, "-m", "trainer_exporter", "replay", "--json", RECORDED]

    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    items = [json.loads(line) for line in printed.splitlines()]
    losses: dict[str, int] = {}
    for item in items:
        losses[item["format"]] = losses.get(item["format"], 0) + ("loss" in item)
    assert losses == dict.fromkeys(("hf_trainer", "llama_factory", "tensorboard", "trainer_state"), len(reported("loss")))
    assert {item["file"].rpartition("/")[2].partition(".")[0] for item in items} == {"train", "trainer_log", "events", "trainer_state"}

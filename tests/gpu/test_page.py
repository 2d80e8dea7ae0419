"""From the driver and a real process on a GPU to the samples of the page: what a rule would see of a card that falls off the bus."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import fake
from gpu_node import Node
from trainer_exporter.attribution import Attribution, Processes
from trainer_exporter.clock import SystemClock
from trainer_exporter.metrics import gpus
from trainer_exporter.model_gpu import GpuSnapshot


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TRAINER_RUN_NAME": "qwen-sft", "RANK": "5", "LOCAL_RANK": "1", "SLURM_JOB_ID": "812"}
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env=environment)
    yield process
    process.kill()
    process.wait()


def value(attribution: Attribution, snapshot: GpuSnapshot, name: str, *labels: str) -> float | None:
    """The value of the one sample of a family whose labels begin with the given ones."""
    samples = gpus.samples(snapshot, attribution.owners(snapshot), time.time())
    found = [sample.value for sample in samples if sample.family.name == name and tuple(sample.labels[: len(labels)]) == labels]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_card_that_falls_off_the_bus_is_shown_as_lost_with_the_run_that_it_served(
    node: Node, driver: fake.FakeDriver, trainer: subprocess.Popen[bytes]
) -> None:
    driver.set(gpu=1, processes=f"{trainer.pid}:1024", util=100)
    attribution = Attribution(SystemClock(), Processes())
    owner = (fake.uuid(1), "1", "qwen-sft", "5", "1", "812")
    card = owner[:2]
    before = node.when(lambda now: value(attribution, now, "gpu_run_info", *owner) == 1)
    assert value(attribution, before, "gpu_utilization_ratio", *card) == 1.0

    driver.set(gpu=1, error=fake.GPU_IS_LOST)
    trainer.kill()

    snapshot = node.when(lambda now: value(attribution, now, "gpu_lost", *card) == 1)
    assert value(attribution, snapshot, "gpu_run_info", *owner) == 1
    assert value(attribution, snapshot, "gpu_xid_errors_total", *card, "79") == 1
    assert value(attribution, snapshot, "gpu_collect_success", *card) == 0
    assert value(attribution, snapshot, "gpu_utilization_ratio", *card) is None
    assert value(attribution, snapshot, "gpu_devices") == 7
    assert value(attribution, snapshot, "gpu_devices_expected") == 8


def test_a_run_that_ends_leaves_its_card(node: Node, driver: fake.FakeDriver, trainer: subprocess.Popen[bytes]) -> None:
    driver.set(gpu=0, processes=f"{trainer.pid}:1024")
    attribution = Attribution(SystemClock(), Processes())
    node.when(lambda now: value(attribution, now, "gpu_run_info", fake.uuid(0), "0", "qwen-sft") == 1)

    trainer.kill()
    trainer.wait()
    driver.set(gpu=0, processes="")

    node.when(lambda now: value(attribution, now, "gpu_run_info", fake.uuid(0)) is None)

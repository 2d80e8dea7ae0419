"""Every figure of every scenario, from the driver's library to the samples of the page: neither a wrong one nor one too many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake
from gpu_node import Node
from scenario import ALL, Scenario, Series
from trainer_exporter.metrics import gpus
from trainer_exporter.model_gpu import GpuSnapshot

# What is said of a card whether or not it can be read, and of the node.
STATE = {family.name for family in (gpus.DEVICES, gpus.EXPECTED, gpus.SUCCESS, gpus.COLLECTED, gpus.LOST, gpus.INFO, gpus.XIDS)}


@pytest.fixture(params=ALL, ids=lambda path: path.stem)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return Scenario(request.param)


@pytest.fixture
def node(scenario: Scenario, nvml_library: Path, tmp_path: Path) -> Iterator[Node]:
    driver = fake.FakeDriver(nvml_library, tmp_path, lines=scenario.lines)
    made = Node(driver, throughput=scenario.has_throughput)
    made.poller.start()
    yield made
    made.poller.stop()


def readings(snapshot: GpuSnapshot) -> dict[Series, float]:
    samples = gpus.samples(snapshot, (), time.time())
    return {(sample.family.name, *sample.labels): sample.value for sample in samples if sample.family.name not in STATE}


def test_the_page_has_what_the_cards_can_say_in_base_units_and_nothing_else(node: Node, scenario: Scenario) -> None:
    expected = scenario.expected()

    snapshot = node.when(lambda now: readings(now).keys() >= expected.keys())

    assert readings(snapshot) == pytest.approx(expected, rel=1e-9)
    assert len(snapshot.readings) == len(scenario.parts())
    assert snapshot.devices == scenario.cards


def test_what_a_card_cannot_say_is_asked_for_once(node: Node, scenario: Scenario) -> None:
    node.when(lambda now: readings(now).keys() >= scenario.expected().keys())

    before = len(node.driver.trace())
    node.when(lambda now: len(node.driver.trace()) > before + 400 * scenario.cards)

    calls = [(call, slot) for _, word, call, slot in node.driver.trace()[before:] if word == "begin"]
    refused = {key.split(".")[1] for key in scenario.lines if key.startswith("*.") and key.endswith(".error")} & {call for call, _ in calls}
    assert not refused

"""A driver of our own for every test of this folder, and the poller on top of it as the daemon has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fake
from gpu_node import Node


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_library: Path, tmp_path: Path) -> Iterator[fake.FakeDriver]:
    driver = fake.FakeDriver(nvml_library, tmp_path)
    yield driver
    driver.heal()


@pytest.fixture
def node(driver: fake.FakeDriver) -> Iterator[Node]:
    node = Node(driver)
    node.poller.start()
    yield node
    driver.heal()
    node.poller.stop()

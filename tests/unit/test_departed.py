"""Runs whose logs are removed: what an epilog that tidies up leaves of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from host import WRITE, Host
from trainer_exporter.config import Config, SourceConfig
from trainer_exporter.health import Health
from trainer_exporter.model import Phase, Record
from trainer_exporter.model_gpu import GpuSnapshot
from trainer_exporter.remembered import REMEMBERED_S
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.scout import Scout


class Node:
    """A host on which one process trains, and what the daemon makes of it."""

    def __init__(self, root: Path) -> None:
        self.host = Host(root / "host")
        self.log = self.host.file("/data/heron/train.log")
        self.store = Store(StoreSettings(), clock=self.host.clock, health=Health())
        self.config = Config(sources=(SourceConfig(str(self.host.root / "data")),))
        proc = str(self.host.root / "proc")
        self.scout = Scout(
            self.config, store=self.store, gpus=GpuSnapshot, clock=self.host.clock, health=Health(), proc_root=proc, host_root=proc
        )
        record = Record(line=1, fields={"step": 1, "loss": 2.0})
        self.store.fold("heron", [(record, Moment(self.host.clock.wall(), live=True))], source=self.log, format_name="plain")

    def starts(self) -> None:
        self.host.process(40, {"1": (self.log, WRITE)})

    def ends(self) -> None:
        shutil.rmtree(self.host.root / "proc/40")

    def removes_its_directory(self) -> None:
        shutil.rmtree(self.host.root / "data/heron")

    def phase(self, *, after_s: float = 0.0) -> Phase:
        self.host.clock.advance(after_s)
        self.scout.look(now=True)
        self.store.publish()
        return self.store.snapshot()[0].phase


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_run_whose_directory_goes_in_the_moment_in_which_it_dies_has_failed(node: Node) -> None:
    node.starts()
    assert node.phase() is Phase.TRAINING

    node.ends()
    node.removes_its_directory()

    assert node.phase(after_s=5) is Phase.FAILED


def test_a_trainer_that_writes_on_into_a_deleted_log_has_not_failed(node: Node) -> None:
    node.starts()
    assert node.phase() is Phase.TRAINING

    node.removes_its_directory()

    assert node.phase(after_s=5) is Phase.TRAINING
    assert node.phase(after_s=2 * REMEMBERED_S) is Phase.TRAINING
    node.ends()
    assert node.phase(after_s=5) is Phase.FAILED


def test_a_run_whose_writer_was_never_seen_has_failed_when_its_log_has_been_away_for_an_hour(node: Node) -> None:
    assert node.phase() is Phase.TRAINING

    node.removes_its_directory()

    assert node.phase(after_s=5) is Phase.TRAINING
    assert node.phase(after_s=REMEMBERED_S) is Phase.FAILED


def test_a_run_whose_console_goes_after_its_end_does_not_come_back_to_life(node: Node) -> None:
    node.host.file("/data/heron/trainer_log.jsonl")  # opened and closed for each record: that nobody holds it says nothing
    node.starts()
    assert node.phase() is Phase.TRAINING
    node.ends()
    assert node.phase(after_s=5) is Phase.FAILED

    Path(node.log).unlink()

    assert node.phase(after_s=15) is Phase.FAILED


def test_a_log_that_the_configuration_names_no_more_is_not_taken_for_gone(node: Node) -> None:
    assert node.phase() is Phase.TRAINING

    node.scout.reconfigure(Config())

    assert node.phase(after_s=2 * REMEMBERED_S) is Phase.TRAINING


def test_a_log_that_stands_there_again_is_of_the_run_that_it_was_of(node: Node) -> None:
    node.starts()
    assert node.phase() is Phase.TRAINING
    node.removes_its_directory()
    assert node.phase(after_s=5) is Phase.TRAINING

    node.log = node.host.file("/data/heron/train.log")

    assert node.phase(after_s=15) is Phase.TRAINING
    assert [each.run for each in node.scout.assignments()] == ["heron"]

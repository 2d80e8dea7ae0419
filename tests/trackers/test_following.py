"""Trackers' files on their way into a run: found, joined with their console, told once and in order, and not without their package."""

from __future__ import annotations

import builtins
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from trackers.writers import T0, Events, trainer_state
from trainer_exporter.clock import ManualClock
from trainer_exporter.feeds import Assignment, Feeds, Tools
from trainer_exporter.formats import registry
from trainer_exporter.health import Health
from trainer_exporter.model import RunSnapshot
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Spec
from trainer_exporter.sources.follow import Limits
from trainer_exporter.sources.naming import run_names
from trainer_exporter.sources.trackers import tensorboard


class Node:
    """Finds the files of one directory, names their runs by their places, and follows them."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock(wall=T0 + 100_000)
        self.health = Health()
        self.store = Store(StoreSettings(), clock=self.clock, health=self.health)
        self.feeds = Feeds(Tools(self.store, registry(), self.clock, self.health, Limits()))
        limits = DiscoveryLimits(max_age_s=math.inf)
        self._discovery = Discovery([Spec(str(root))], self.clock, self.health, limits=limits)
        self._named: dict[str, Any] = {}
        self._known: set[str] | None = None

    def look(self, *, after: float = 3.0) -> None:
        self.clock.advance(after)
        paths = [found.path for found in self._discovery.scan(now=True)]
        self._named |= run_names(paths, self._named)
        self._known = self._known or set(paths)
        self.feeds.assign([Assignment(path, self._named[path].run, path in self._known, labels={}, facts={}) for path in paths])
        while self.feeds.poll():
            pass
        self.clock.advance(0.0)
        self.store.publish()

    @property
    def runs(self) -> dict[str, RunSnapshot]:
        return {each.run: each for each in self.store.snapshot()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def console(path: Path, *steps: int) -> Path:
    """LLaMA-Factory's own log: no gradient norm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"current_steps": step, "total_steps": 1000, "loss": 2.0, "lr": 1e-4, "epoch": step / 10}) + "\n")
    return path


def test_a_run_that_only_a_tracker_tells_of_is_a_run(node: Node, tmp_path: Path) -> None:
    events = Events(tmp_path / "heron" / "runs" / "Aug22_10-00-00_n1")
    events.step(10, {"train/loss": 2.0, "train/grad_norm": 0.5})

    node.look()

    seen = node.runs["heron"]
    assert (seen.gauges["step"], seen.gauges["grad_norm"]) == (10, 0.5)
    assert seen.info["format"] == "tensorboard"
    assert seen.progress_wall == T0 + 10  # its events say when
    assert node.feeds.caught_up


def test_the_best_source_wins_for_each_field_and_no_step_counts_twice(node: Node, tmp_path: Path) -> None:
    events = Events(tmp_path / "heron" / "runs" / "Aug22_10-00-00_n1")
    for step in range(1, 41):
        console(tmp_path / "heron" / "trainer_log.jsonl", step)
        events.step(step, {"train/loss": 2.0 + step / 100, "train/grad_norm": 0.5})
    trainer_state(tmp_path / "heron" / "checkpoint-40" / "trainer_state.json", *range(1, 41))

    node.look()

    (seen,) = node.runs.values()
    assert seen.info["format"] == "llama_factory+tensorboard+trainer_state"
    assert seen.attempts == 1
    assert seen.gauges["grad_norm"] == 0.5  # the console has none
    assert seen.gauges["loss_baseline"] == 2.0  # of one source's steps alone, each once
    assert seen.nonfinite_total["loss"] == 0


def test_a_new_event_file_that_starts_lower_is_a_restart(node: Node, tmp_path: Path) -> None:
    first = Events(tmp_path / "heron" / "runs" / "Aug22_10-00-00_n1")
    for step in range(10, 110, 10):
        first.step(step, {"train/loss": 2.0})
    second = Events(tmp_path / "heron" / "runs" / "Aug22_12-00-00_n1")
    for step in range(60, 90, 10):
        second.step(step, {"train/loss": 1.5}, wall=T0 + 1000 + step)
    os.utime(first.path, (T0 + 100, T0 + 100))
    os.utime(second.path, (T0 + 1100, T0 + 1100))

    node.look()

    (seen,) = node.runs.values()
    assert seen.attempts == 2
    assert (seen.gauges["step"], seen.gauges["loss"]) == (80, 1.5)


def test_files_that_are_long_are_still_told_one_after_the_other(node: Node, tmp_path: Path) -> None:
    first = Events(tmp_path / "heron" / "runs" / "Aug22_10-00-00_n1")
    for step in range(1, 40):
        first.picture(64 << 10)
        first.step(step, {"train/loss": 2.0})
    second = Events(tmp_path / "heron" / "runs" / "Aug22_12-00-00_n1")
    second.step(40, {"train/loss": 1.5}, wall=T0 + 1000)
    os.utime(first.path, (T0 + 100, T0 + 100))
    os.utime(second.path, (T0 + 1100, T0 + 1100))

    node.look()

    (seen,) = node.runs.values()
    assert (seen.attempts, seen.gauges["step"]) == (1, 40)


def test_what_comes_while_the_daemon_runs_is_news(node: Node, tmp_path: Path) -> None:
    events = Events(tmp_path / "heron" / "runs" / "Aug22_10-00-00_n1")
    for step in range(1, 31):
        events.step(step, {"train/loss": 2.0})
    node.look()

    events.step(31, {"train/loss": 20.0})
    node.look()

    (seen,) = node.runs.values()
    assert seen.gauges["loss_spike_ratio"] == 10.0
    assert seen.progress_wall == node.clock.wall()


def test_a_checkpoints_state_belongs_to_the_run_of_the_directory_above(node: Node, tmp_path: Path) -> None:
    trainer_state(tmp_path / "heron" / "checkpoint-20" / "trainer_state.json", 10, 20)
    node.look()
    assert node.runs["heron"].gauges["step"] == 20

    trainer_state(tmp_path / "heron" / "checkpoint-40" / "trainer_state.json", 10, 20, 30, 40)
    node.look()

    assert list(node.runs) == ["heron"]
    assert (node.runs["heron"].gauges["step"], node.runs["heron"].attempts) == (40, 1)
    assert len(node.feeds) == 1


def test_trackers_of_programs_that_start_in_one_place_are_runs_of_their_own(node: Node, tmp_path: Path) -> None:
    for number, loss in enumerate((2.0, 3.0)):
        run = tmp_path / "project" / "mlruns" / "0" / (f"{number:02x}" * 16)
        (run / "metrics").mkdir(parents=True)
        (run / "meta.yaml").write_text("run_name: heron\nstatus: 1\nend_time: null\n")
        (run / "metrics" / "loss").write_text(f"1700000000123 {loss} 10\n")

    node.look()

    assert sorted(seen.gauges["loss"] for seen in node.runs.values()) == [2.0, 3.0]
    assert all(seen.info["run_name"] == "heron" for seen in node.runs.values())


def test_results_of_an_evaluation_that_have_a_trackers_name_are_not_followed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"accuracy": 0.5}')

    node.look()

    assert len(node.feeds) == 0


def test_an_empty_file_becomes_a_trackers_when_it_is_written(node: Node, tmp_path: Path) -> None:
    metrics = tmp_path / "heron" / "metrics.json"
    metrics.parent.mkdir()
    metrics.write_text("")
    node.look()

    metrics.write_text('{"iteration": 20, "total_loss": 1.25, "lr": 0.002}\n')
    node.look(after=60.0)

    assert node.runs["heron"].gauges["loss"] == 1.25


def test_without_its_package_a_tracker_is_named_once_and_nothing_waits_for_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("heron", "wren"):
        Events(tmp_path / name / "runs" / "Aug22_10-00-00_n1").step(10, {"train/loss": 2.0})
    console(tmp_path / "heron" / "trainer_log.jsonl", 10)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    tensorboard._event_class.cache_clear()

    with caplog.at_level(logging.WARNING):
        node.look()

    assert [record.message for record in caplog.records] == [
        "TensorBoard files are not read: their reader is missing; install it with: pip install 'trainer-exporter[tensorboard]'; "
        "further ones are only counted"
    ]
    assert node.health.snapshot().errors == {("tracker_tensorboard", "missing_extra"): 2}
    assert list(node.runs) == ["heron"]
    assert node.feeds.caught_up
    assert {status.error for status in node.feeds.status()} == {"", "missing_extra"}


def test_a_file_that_cannot_be_read_is_counted_and_tried_again(node: Node, tmp_path: Path) -> None:
    state = trainer_state(tmp_path / "heron" / "trainer_state.json", 10)
    text = state.read_text()
    state.unlink()
    state.mkdir()
    node.look()
    assert node.feeds.caught_up

    state.rmdir()
    state.write_text(text)
    node.look(after=10.0)

    assert node.runs["heron"].gauges["step"] == 10

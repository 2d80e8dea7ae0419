"""Followed files on their way into the store: history and news, files that go, files that change their run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.feeds import Assignment, Feeds, Tools
from trainer_exporter.formats import registry
from trainer_exporter.health import Health
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.sources.follow import Limits


class Node:
    """A store and the feeds that fill it, on a clock that stands still."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock(wall=root.stat().st_mtime)
        self.store = Store(StoreSettings(), clock=self.clock, health=Health())
        self.feeds = Feeds(Tools(self.store, registry(), self.clock, Health(), Limits(linger_s=5.0)))

    def follow(self, path: Path, run: str, *, present_at_start: bool = True) -> Assignment:
        assignment = Assignment(str(path), run, present_at_start=present_at_start, labels={}, facts={})
        self.feeds.assign([assignment])
        self.look()
        return assignment

    def look(self, *, after: float = 0.0) -> None:
        self.clock.advance(after)
        while self.feeds.poll():
            pass
        self.store.publish()

    def figures(self, run: str) -> dict[str, float]:
        return {name: value for each in self.store.snapshot() if each.run == run for name, value in each.gauges.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def write(path: Path, *steps: int, loss: float = 2.0) -> Path:
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"current_steps": step, "total_steps": 100, "loss": loss, "lr": 1e-4, "epoch": step / 10}) + "\n")
    return path


def test_what_stood_in_a_file_is_history_and_what_comes_is_news(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", *range(1, 31))
    write(log, 31, loss=20.0)
    node.follow(log, "heron")
    write(log, 32)
    node.look()
    assert node.figures("heron")["loss_spike_ratio"] == 1.0  # ten times the usual, but before the daemon came: no news

    write(log, 33, loss=20.0)
    write(log, 34)
    node.look()

    assert node.figures("heron")["loss_spike_ratio"] == 10.0


def test_the_last_step_of_a_log_without_times_was_made_when_the_file_was_written_last(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", 1, 2)
    written = node.clock.wall() - 500
    os.utime(log, (written, written))

    node.follow(log, "heron")

    assert node.store.snapshot()[0].progress_wall == pytest.approx(written)


def test_a_file_that_went_is_let_go_and_its_lines_stay_counted(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", 1, 2)
    node.follow(log, "heron")
    before = node.feeds.totals()

    log.unlink()
    for _ in range(4):
        node.look(after=3.0)
    node.feeds.assign([])

    assert len(node.feeds) == 0
    assert node.feeds.totals() == before
    assert node.figures("heron")["step"] == 2


def test_a_file_that_is_no_longer_named_but_stands_there_is_followed_on(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", 1)
    node.follow(log, "heron")

    node.feeds.assign([])
    write(log, 2)
    node.look()

    assert node.figures("heron")["step"] == 2


def test_a_file_that_turns_out_to_be_another_runs_is_read_into_that_one_and_its_own_is_forgotten(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", 1, 2)
    node.follow(log, "provisional")

    node.follow(log, "heron")

    assert [run.run for run in node.store.snapshot()] == ["heron"]
    assert node.figures("heron")["step"] == 2


def test_labels_that_a_reload_changes_are_shown_from_then_on(node: Node, tmp_path: Path) -> None:
    log = write(tmp_path / "trainer_log.jsonl", 1)
    assignment = node.follow(log, "heron")

    node.feeds.assign([replace(assignment, labels={"team": "vision"})])
    node.look()

    assert [run.labels for run in node.store.snapshot()] == [{"team": "vision"}]


def test_a_file_that_is_no_regular_one_blocks_nobody(node: Node, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.log"
    os.mkfifo(pipe)

    node.follow(pipe, "heron")

    assert node.store.snapshot() == ()
    assert node.feeds.status()[0].error == "irregular"

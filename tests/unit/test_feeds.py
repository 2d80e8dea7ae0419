"""Followed files on their way into the store: history and news, files that go, files that change their run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.feeds import Assignment, Feeds, Tools
from trainer_exporter.formats import registry
from trainer_exporter.health import Health
from trainer_exporter.logfeed import NOT_SHOWN
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


def test_of_many_files_that_nobody_names_any_more_the_first_are_let_go(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_exporter.feeds.MOST_UNNAMED", 2)
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        node.follow(write(tmp_path / str(number) / "trainer_log.jsonl", 1), f"run-{number}")

    node.feeds.assign([])

    assert [file.run for file in node.feeds.status()] == ["run-2", "run-3"]
    assert node.feeds.totals()[0] == {"parsed": 4}


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


@pytest.fixture
def public(node: Node) -> Iterator[Path]:
    """A directory that everybody may enter; those of tests are their user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def of_everybody(folder: Path) -> Path:
    return written(folder / "train.log", 0o644)


def of_its_owner(folder: Path) -> Path:
    return written(folder / "train.log", 0o640)


def a_link_to_a_secret(folder: Path) -> Path:
    (folder / "train.log").symlink_to(written(folder / "secret", 0o600))
    return folder / "train.log"


def in_a_closed_directory(folder: Path) -> Path:
    (folder / "closed").mkdir(mode=0o700)
    (folder / "train.log").symlink_to(written(folder / "closed" / "train.log", 0o644))
    return folder / "train.log"


def written(path: Path, mode: int) -> Path:
    path.write_text("root:$6$something of its own\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (of_everybody, "root:$6$something of its own"),
        (of_its_owner, NOT_SHOWN),
        (a_link_to_a_secret, NOT_SHOWN),
        (in_a_closed_directory, NOT_SHOWN),
    ],
)
def test_no_more_of_a_file_is_shown_than_everybody_may_read(node: Node, public: Path, make: Callable[[Path], Path], shown: str) -> None:
    node.follow(make(public), "heron")

    assert [file.last_unrecognised for file in node.feeds.status()] == [shown]


def test_a_file_that_is_no_regular_one_blocks_nobody(node: Node, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.log"
    os.mkfifo(pipe)

    node.follow(pipe, "heron")

    assert node.store.snapshot() == ()
    assert node.feeds.status()[0].error == "irregular"

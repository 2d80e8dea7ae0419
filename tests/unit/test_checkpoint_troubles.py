"""Saves that were there before, that fail, and file systems in trouble, told as stories of a real directory."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer_exporter.checkpoints import CheckpointLimits
from unit.saving import FAILED, FINISHED, STARTED, TRACKER, Story, refuse, state


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """An empty output directory that is being watched already."""
    story = Story(tmp_path / "run")
    story.root.mkdir()
    assert story.poll() == []
    return story


# -- what was there before


def test_complete_checkpoints_found_at_the_start_are_told_in_their_order_with_their_own_times(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for step, age in ((10, 9000), (20, 5000)):
        story.write(f"checkpoint-{step}/model.safetensors", later=-age - 4)
        story.write(f"checkpoint-{step}/trainer_state.json", state(step), later=-age)
        os.utime(tmp_path / f"checkpoint-{step}", (time.time() - age - 5,) * 2)

    news = story.news()

    assert [(one.event, one.step) for one in news] == [(FINISHED, 10), (FINISHED, 20)]
    assert [one.wall for one in news] == [pytest.approx(time.time() - age, abs=2) for age in (9000, 5000)]
    assert [one.duration_seconds for one in news] == [pytest.approx(5, abs=0.5)] * 2


def test_a_save_in_progress_at_the_start_is_told_with_its_true_start(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.write("checkpoint-10/trainer_state.json", state(10), later=-500)
    os.utime(tmp_path / "checkpoint-10", (time.time() - 500,) * 2)
    story.write("checkpoint-20/model.safetensors", later=-30)
    os.utime(tmp_path / "checkpoint-20", (time.time() - 40,) * 2)

    news = story.news()

    assert [(one.event, one.step) for one in news] == [(FINISHED, 10), (STARTED, 20)]
    assert news[1].wall == pytest.approx(time.time() - 40, abs=2)
    (saving,) = story.watcher.in_progress
    assert (saving.step, saving.since_wall) == (20, pytest.approx(time.time() - 40, abs=2))


def test_a_save_in_progress_at_the_start_ends_with_its_whole_duration(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.write("checkpoint-20/model.safetensors", later=-30)
    os.utime(tmp_path / "checkpoint-20", (time.time() - 40,) * 2)
    story.poll()

    story.write("checkpoint-20/trainer_state.json", state(20))
    news = story.news() + story.news()

    assert [one.event for one in news] == [FINISHED]
    assert news[0].duration_seconds == pytest.approx(40, abs=1)


def test_an_aborted_save_of_the_past_with_a_newer_complete_one_is_no_news(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.write("checkpoint-10/model.safetensors", later=-900)
    os.utime(tmp_path / "checkpoint-10", (time.time() - 900,) * 2)
    story.write("checkpoint-20/trainer_state.json", state(20), later=-100)

    told = [story.poll(), story.poll(), story.poll(after=700)]
    shutil.rmtree(tmp_path / "checkpoint-10")
    told.append(story.poll())

    assert told == [[(FINISHED, 20)], [], [], []]


def test_only_the_newest_of_many_old_checkpoints_are_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for step in range(1, 6):
        story.write(f"checkpoint-{step}/trainer_state.json", state(step))
        os.utime(tmp_path / f"checkpoint-{step}", (time.time() - 100 + step,) * 2)
    story.watcher = story.fresh_watcher(CheckpointLimits(history=2))

    told = [story.poll(), story.poll(after=60)]

    assert told == [[(FINISHED, 4), (FINISHED, 5)], []]
    assert story.health.snapshot().dropped == {"checkpoint_history": 3}


# -- what goes wrong


def test_a_directory_that_goes_before_it_was_complete_is_a_failure(story: Story) -> None:
    story.write("checkpoint-30/model.safetensors")
    story.poll()

    shutil.rmtree(story.root / "checkpoint-30")

    assert story.reasons() == [(30, "vanished")]


def test_a_complete_checkpoint_that_is_rotated_away_is_no_failure(story: Story) -> None:
    story.write("checkpoint-30/trainer_state.json", state(30))
    assert story.poll() + story.poll() == [(STARTED, 30), (FINISHED, 30)]
    story.write("checkpoint-40/trainer_state.json", state(40))
    story.poll()

    shutil.rmtree(story.root / "checkpoint-30")

    assert story.poll() + story.poll() == [(FINISHED, 40)]


def test_a_checkpoint_that_goes_right_after_it_was_complete_is_no_failure(story: Story) -> None:
    story.write("checkpoint-30/trainer_state.json", state(30), later=3)
    story.poll()

    shutil.rmtree(story.root / "checkpoint-30")
    (news,) = story.news(after=20)

    assert (news.event, news.step) == (FINISHED, 30)
    assert news.duration_seconds == pytest.approx(3, abs=1)


def test_a_checkpoint_completed_and_rotated_away_between_two_looks_is_no_failure(story: Story) -> None:
    story.write("checkpoint-1/model.safetensors")
    story.poll()

    story.write("checkpoint-1/trainer_state.json", state(1))
    shutil.rmtree(story.root / "checkpoint-1")
    story.write("checkpoint-2/model.safetensors")

    assert story.poll() == [(FINISHED, 1), (STARTED, 2)]


def test_a_save_that_never_completes_while_a_newer_one_does_is_a_failure(story: Story) -> None:
    story.write("checkpoint-30/model.safetensors")
    story.poll()

    story.write("checkpoint-40/trainer_state.json", state(40))
    told = [story.news(), story.news()]

    assert [(one.event, one.step, one.reason) for one in told[0]] == [(STARTED, 40, "")]
    assert [(one.event, one.step, one.reason) for one in told[1]] == [(FAILED, 30, "incomplete"), (FINISHED, 40, "")]


def test_a_save_that_no_longer_changes_while_a_newer_one_has_begun_is_a_failure(story: Story) -> None:
    story.write("checkpoint-10/trainer_state.json", state(10))
    story.poll()
    story.poll()
    story.write("checkpoint-30/model.safetensors")
    story.poll()

    story.write("checkpoint-40/model.safetensors")
    early, late = story.reasons(after=30), story.reasons(after=60)

    assert early == []
    assert late == [(30, "incomplete")]


def test_a_tracker_that_passes_over_a_step_says_that_it_never_completed(story: Story) -> None:
    story.write("iter_0000100/mp_rank_00/model_optim_rng.pt")
    story.poll()
    story.write("iter_0000150/mp_rank_00/model_optim_rng.pt")
    story.poll()

    story.write(TRACKER, "150")

    assert story.reasons() == [(100, "incomplete")]


def test_a_restarted_trainer_gives_up_the_save_that_was_under_way(story: Story) -> None:
    story.write("checkpoint-30/model.safetensors")
    story.poll()

    given_up = story.watcher.restart()

    assert [(one.event, one.step, one.reason) for one in given_up] == [(FAILED, 30, "incomplete")]
    assert story.watcher.in_progress == ()


def test_a_save_into_the_directory_of_a_failed_one_is_a_new_save(story: Story) -> None:
    story.write("checkpoint-30/model.safetensors", later=2)
    story.poll()
    story.watcher.restart()

    story.write("checkpoint-30/model.safetensors", b"longer weights", later=20)
    again = story.poll(after=31)
    story.write("checkpoint-30/trainer_state.json", state(30), later=24)
    news = story.news() + story.news()

    assert again == [(STARTED, 30)]
    assert [(one.event, one.step) for one in news] == [(FINISHED, 30)]
    assert news[0].duration_seconds == pytest.approx(4, abs=0.5)


def test_a_save_in_place_over_a_complete_checkpoint_is_told_by_its_newer_mark(story: Story) -> None:
    story.write("checkpoint-30/trainer_state.json", state(30))
    story.poll()
    story.poll()

    story.write("checkpoint-30/trainer_state.json", state(30), later=20)
    news = story.news(after=31)

    assert [(one.event, one.step) for one in news] == [(FINISHED, 30)]
    assert news[0].wall == pytest.approx(time.time() + 20, abs=1)
    assert story.poll(after=31) == []


def test_a_full_file_system_fails_the_save_that_is_under_way(story: Story) -> None:
    story.watcher = story.fresh_watcher(CheckpointLimits(full_bytes=2**62))
    story.poll()

    story.write("checkpoint-30/model.safetensors")

    assert story.reasons() == [(30, "no_space")]


# -- the file system


def test_a_directory_that_does_not_exist_yet_is_normal(tmp_path: Path) -> None:
    story = Story(tmp_path / "later")
    assert story.poll() == []

    story.write("checkpoint-10/model.safetensors")
    appeared = story.poll()

    assert appeared == [(STARTED, 10)]
    assert story.health.snapshot().errors == {}


def test_a_mount_that_goes_and_comes_back_makes_no_news_but_for_the_save_under_way(story: Story) -> None:
    story.write("checkpoint-10/trainer_state.json", state(10))
    story.poll()
    story.poll()

    story.root.rename(story.root.with_name("away"))
    gone = story.poll()
    story.root.with_name("away").rename(story.root)
    back = story.poll()

    assert gone == []
    assert back == [(FINISHED, 10)]


@pytest.mark.parametrize(
    ("save", "mark"),
    [
        ("checkpoint-10/model.safetensors", "checkpoint-10/trainer_state.json"),
        ("iter_0000010/model.pt", TRACKER),
        ("global_step10/model.pt", "latest"),
    ],
)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["directory", "pipe", "device"])
def test_a_mark_that_is_no_regular_file_is_none_and_keeps_nobody_waiting(
    story: Story, save: str, mark: str, make: Callable[[Path], None]
) -> None:
    story.write(save)
    make(story.root / mark)

    told = story.poll() + story.poll()

    assert told == [(STARTED, 10)]


def test_a_tracker_of_terabytes_is_read_no_further_than_a_name_may_be(story: Story) -> None:
    story.write("iter_0000010/model.pt")
    with (story.root / TRACKER).open("wb") as file:
        file.truncate(1 << 42)

    told = story.poll()

    assert told == [(STARTED, 10)]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "permission_denied"),
        (errno.ESTALE, "stale_handle"),
        (errno.EIO, "io_error"),
        (errno.ETIMEDOUT, "os_error"),
    ],
    ids=["permission", "stale handle", "i/o", "any other"],
)
def test_a_file_system_in_trouble_is_counted_and_what_was_known_stays(
    story: Story, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    story.write("checkpoint-10/model.safetensors")
    story.poll()

    with monkeypatch.context() as trouble:
        trouble.setattr(os, "scandir", refuse(number))
        refused = story.poll()
    story.write("checkpoint-10/trainer_state.json", state(10))

    assert refused == []
    assert story.health.snapshot().errors == {("checkpoints", reason): 1}
    assert story.poll() + story.poll() == [(FINISHED, 10)]


def test_a_file_where_the_directory_should_be_is_counted(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a directory")
    story = Story(tmp_path / "run")

    told = story.poll()

    assert told == []
    assert story.health.snapshot().errors == {("checkpoints", "not_a_directory"): 1}


def test_entries_beyond_the_bound_are_counted(story: Story) -> None:
    story.watcher = story.fresh_watcher(CheckpointLimits(entries=3))
    for number in range(5):
        story.write(f"note-{number}.txt")

    story.poll()
    story.poll()

    assert story.health.snapshot().dropped == {"checkpoint_entries": 2}


def test_a_checkpoint_with_more_files_than_the_bound_has_no_size(story: Story) -> None:
    story.watcher = story.fresh_watcher(CheckpointLimits(tree_entries=3))
    story.poll()
    for number in range(8):
        story.write(f"checkpoint-10/shard-{number}.safetensors")
    story.write("checkpoint-10/trainer_state.json", state(10))

    news = story.news() + story.news()

    assert [(one.event, one.size_bytes) for one in news] == [(STARTED, None), (FINISHED, None)]


def test_the_space_of_the_file_system_is_what_the_system_says(story: Story) -> None:
    stats = os.statvfs(story.root)

    space = story.watcher.filesystem()

    assert space is not None
    assert space.size_bytes == stats.f_blocks * stats.f_frsize
    assert 0 < space.avail_bytes < space.size_bytes


def test_nothing_is_listed_again_while_nothing_changes(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.write("checkpoint-10/trainer_state.json", state(10))
    story.poll()
    story.poll()
    story.poll()
    listings: list[object] = []
    real: Callable[..., object] = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listings.append(path) or real(path))

    for _ in range(20):
        story.poll()

    assert listings == []

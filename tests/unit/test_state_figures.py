"""The figures of a run: NaN, spikes, the best so far, saves, throughput, goodput."""

from __future__ import annotations

import math

import pytest

from trainer_exporter.model import Checkpoint, CheckpointEvent, Phase
from unit.telling import CONSOLE, JSON, Story


@pytest.fixture
def story() -> Story:
    return Story()


def test_nan_is_shown_counted_and_kept_out_of_the_windows(story: Story) -> None:
    story.steps(*range(1, 31))
    baseline = story.seen.gauges["loss_baseline"]

    story.steps(31, 32, loss=math.nan)

    assert math.isnan(story.seen.gauges["loss"])
    assert story.seen.nonfinite_total["loss"] == 2
    assert story.seen.nonfinite_streak["loss"] == 2
    assert story.seen.nonfinite_wall["loss"] == story.now
    assert story.seen.gauges["loss_baseline"] == baseline

    story.steps(33)

    assert story.seen.nonfinite_streak["loss"] == 0
    assert story.seen.nonfinite_total["loss"] == 2


def test_a_hidden_nan_counts_though_the_loss_is_shown_as_logged(story: Story) -> None:
    story.record(step=1, loss=0.0, grad_norm=math.nan, hidden_nonfinite=frozenset({"loss"}))

    assert story.seen.gauges["loss"] == 0.0
    assert story.seen.nonfinite_streak["loss"] == 1
    assert story.seen.nonfinite_streak["grad_norm"] == 1


def test_a_hidden_nan_in_the_console_is_not_forgiven_by_the_zero_in_the_json_file(story: Story) -> None:
    for step in (10, 20, 30):
        story.record(source=CONSOLE, step=step, loss=0.0, grad_norm=math.nan, hidden_nonfinite=frozenset({"loss"}))
        story.record(source=JSON, step=step, loss=0.0)

    assert story.seen.nonfinite_streak["loss"] == 3
    assert story.seen.nonfinite_total["loss"] == 3


def test_two_sources_that_tell_of_one_nan_count_one(story: Story) -> None:
    story.record(source=JSON, step=10, loss=math.nan)
    story.record(source=CONSOLE, step=10, loss=math.nan)

    assert story.seen.nonfinite_total["loss"] == 1


def test_a_spike_is_held_for_two_minutes(story: Story) -> None:
    story.steps(*range(1, 31))

    story.record(step=31, loss=10.0)
    story.record(step=32, loss=2.0)

    assert story.seen.gauges["loss_spike_ratio"] == 5.0
    assert story.state.snapshot(story.now + 121).gauges["loss_spike_ratio"] == 1.0


def test_what_lasts_five_records_is_told_from_what_lasts_four(story: Story) -> None:
    story.steps(*range(1, 31))

    story.steps(31, 32, 33, 34, loss=4.0)
    assert story.seen.gauges["loss_sustained_ratio"] == 1.0
    story.record(step=35, loss=3.0)

    assert story.seen.gauges["loss_sustained_ratio"] == 1.5  # the lowest of the five
    story.steps(36, 37, loss=2.0)
    assert story.seen.gauges["loss_sustained_ratio"] == 1.5
    assert story.state.snapshot(story.now + 121).gauges["loss_sustained_ratio"] == 1.0


def test_the_past_of_a_file_holds_no_spike_but_a_level_that_lasts_shows(story: Story) -> None:
    story.steps(*range(1, 31), live=False)
    story.steps(*range(31, 37), loss=4.0, live=False)

    assert story.seen.gauges["loss_sustained_ratio"] == 2.0

    story.record(step=37, loss=2.0, live=False)

    assert story.seen.gauges["loss_sustained_ratio"] == 1.0


def test_the_best_level_of_the_loss_belongs_to_its_attempt(story: Story) -> None:
    story.steps(*range(1, 41), loss=2.0)
    story.steps(*range(41, 201), loss=3.0)

    assert story.seen.gauges["loss_baseline_min"] == 2.0
    assert story.seen.gauges["loss_baseline"] == 3.0

    story.record(starts=True)
    story.steps(*range(1, 20), loss=9.0)
    assert "loss_baseline_min" not in story.seen.gauges
    story.record(step=20, loss=9.0)

    assert story.seen.gauges["loss_baseline_min"] == 9.0


def test_the_highest_of_a_schedule_and_of_a_scale_are_those_of_the_attempt(story: Story) -> None:
    story.record(step=1, learning_rate=1e-4, loss_scale=65536.0)
    story.record(step=2, learning_rate=2e-4, loss_scale=math.inf)
    story.record(step=3, learning_rate=1e-4, loss_scale=1024.0)

    assert (story.seen.gauges["learning_rate_max"], story.seen.gauges["loss_scale_max"]) == (2e-4, 65536.0)

    story.record(starts=True)
    story.record(step=1, learning_rate=1e-5, loss_scale=8.0)

    assert (story.seen.gauges["learning_rate_max"], story.seen.gauges["loss_scale_max"]) == (1e-5, 8.0)


def test_a_loss_near_zero_does_not_spike(story: Story) -> None:
    story.steps(*range(1, 31), loss=0.0004)

    story.record(step=31, loss=0.016)  # 40 x, and nothing

    assert story.seen.gauges["loss_spike_ratio"] < 1.0


def test_a_checkpoint_told_by_log_and_directory_counts_once(story: Story) -> None:
    story.steps(*range(1, 11))
    story.record(checkpoint=Checkpoint(CheckpointEvent.STARTED, step=10))
    story.state.fold_checkpoint(Checkpoint(CheckpointEvent.STARTED, step=10, wall=story.now))
    story.state.fold_checkpoint(
        Checkpoint(CheckpointEvent.FINISHED, step=10, wall=story.now + 42.0, duration_seconds=42.0, size_bytes=1 << 30)
    )
    story.record(checkpoint=Checkpoint(CheckpointEvent.FINISHED, step=10), after=43.0)

    assert sum(story.seen.checkpoint_durations.counts) == 1
    assert story.seen.gauges["checkpoint_last_duration_seconds"] == 42.0
    assert story.seen.gauges["checkpoint_bytes"] == 1 << 30
    assert story.seen.checkpoint_started_wall is None


def test_a_checkpoint_is_timed_by_its_two_lines_where_no_directory_is_seen(story: Story) -> None:
    story.steps(1, 2)
    story.record(checkpoint=Checkpoint(CheckpointEvent.STARTED, step=2))

    story.record(after=18.0, checkpoint=Checkpoint(CheckpointEvent.FINISHED, step=2))

    assert story.seen.gauges["checkpoint_last_duration_seconds"] == 18.0


def test_a_save_that_training_overtakes_goes_on_in_the_background(story: Story) -> None:
    story.steps(1, 2)
    story.state.fold_checkpoint(Checkpoint(CheckpointEvent.STARTED, step=2, wall=story.now))
    assert story.seen.phase is Phase.CHECKPOINTING

    story.steps(3)

    assert story.seen.phase is Phase.TRAINING
    assert story.seen.checkpoint_started_wall is not None


def test_a_checkpoint_that_a_restart_makes_again_counts_again(story: Story) -> None:
    story.steps(*range(1, 31))
    story.state.fold_checkpoint(Checkpoint(CheckpointEvent.FINISHED, step=20, wall=story.now, duration_seconds=4.0))

    story.record(starts=True)
    story.steps(*range(11, 31))
    story.state.fold_checkpoint(Checkpoint(CheckpointEvent.FINISHED, step=20, wall=story.now, duration_seconds=5.0))

    assert sum(story.seen.checkpoint_durations.counts) == 2


def test_throughput_comes_from_differences(story: Story) -> None:
    for number in range(1, 12):
        story.record(step=number * 10, total_tokens=number * 40_960.0, global_batch_size=64)

    assert story.seen.gauges["step_duration_seconds"] == 1.0
    assert story.seen.gauges["samples_per_second"] == 64.0
    assert story.seen.gauges["tokens_per_second"] == pytest.approx(4096.0)


@pytest.mark.parametrize(("batch", "expected"), [(64, 1.0), (128, 2.0)], ids=["the_same_work_takes_longer", "twice_the_work"])
def test_a_step_is_measured_against_the_best_with_as_much_work(story: Story, batch: int, expected: float) -> None:
    for number in range(1, 30):
        story.record(step=number, step_duration_seconds=1.0, global_batch_size=64)

    for number in range(30, 60):
        story.record(step=number, step_duration_seconds=2.0, global_batch_size=batch)

    assert story.seen.gauges["step_duration_seconds"] == 2.0
    assert story.seen.gauges["step_duration_baseline_seconds"] == expected


def test_a_run_without_any_step_still_shows_its_loss_and_its_progress(story: Story) -> None:
    for _ in range(30):
        story.record(loss=2.0, epoch=0.5)

    assert "step" not in story.seen.gauges
    assert story.seen.gauges["loss_baseline"] == 2.0
    assert story.seen.progress_wall == story.now


def test_a_log_that_tells_of_epochs_alone_makes_progress_by_them(story: Story) -> None:
    story.record(epoch=1, metrics={"accuracy": 0.5})
    story.record(epoch=2, metrics={"accuracy": 0.6})
    assert story.seen.progress_wall == story.now

    story.record(epoch=2, metrics={"accuracy": 0.6})

    assert story.seen.progress_wall == story.now - 10


def test_goodput_takes_lost_steps_back(story: Story) -> None:
    story.steps(*range(1, 101))
    assert story.seen.gauges["goodput_ratio"] == pytest.approx(1.0)

    story.record(starts=True)
    story.steps(*range(51, 101))

    assert 0.6 < story.seen.gauges["goodput_ratio"] < 0.75

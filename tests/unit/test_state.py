"""The state of a run, told as what happens in a training: restarts, stalls, NaN, two sources, what was there before the daemon."""

from __future__ import annotations

import math

import pytest

from trainer_exporter.model import Checkpoint, CheckpointEvent, Incident, Phase, Record
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

START = 1_700_000_000.0
CONSOLE, JSON = "console.log", "trainer_log.jsonl"


class Story:
    """A run that is told record by record, live, ten seconds a record unless said otherwise."""

    def __init__(self) -> None:
        self.state = RunState("demo", StateSettings(incident_kinds=("cuda_oom", "time_limit")), daemon_start=START)
        self.now = START
        self.line = 0

    def record(self, *, after: float = 10.0, source: str = CONSOLE, live: bool = True, **about: object) -> None:
        self.line += 1
        self.now += after
        special = {"precise", "starts", "closes", "phase", "hidden_nonfinite", "step_exact", "checkpoint", "metrics", "facts"}
        fields = {name: value for name, value in about.items() if name not in special}
        record = Record(line=self.line, fields=fields, **{name: value for name, value in about.items() if name in special})  # type: ignore[arg-type]
        moment = Moment(self.now, True, tick=self.now, clock="arrival") if live else Moment(None, False)
        self.state.fold(record, moment, source=source, format_name="plain")

    def incident(self, kind: str, *, fatal: bool = True, wall: float | None = None) -> None:
        self.line += 1
        moment = Moment(self.now if wall is None else wall, True)
        self.state.fold(Incident(self.line, kind, fatal), moment, source=CONSOLE)

    def steps(self, *steps: int, loss: float = 2.0, **about: object) -> None:
        for step in steps:
            self.record(step=step, loss=loss, **about)  # type: ignore[arg-type]

    @property
    def seen(self):
        return self.state.snapshot(self.now)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_run_starts_and_trains(story: Story) -> None:
    story.record(starts=True, phase=Phase.STARTING, target_steps=100)
    assert story.seen.phase is Phase.STARTING
    assert story.seen.progress_wall == story.now  # a hang before the first step has an age too

    story.steps(10, 20)

    assert story.seen.phase is Phase.TRAINING
    assert story.seen.attempts == 1
    assert story.seen.gauges["progress_ratio"] == 0.2
    assert story.seen.gauges["remaining_seconds"] == pytest.approx(80 * 1.0)


def test_bytes_are_not_life(story: Story) -> None:
    story.steps(10, 20)
    last = story.seen.progress_wall

    story.steps(20, 20, 20)

    assert story.seen.progress_wall == last


def test_the_pauses_that_were_normal_are_learned_from_five_on(story: Story) -> None:
    story.steps(1, 2, 3, 4, 5)
    assert story.seen.progress_gaps == {}

    story.record(after=30.0, step=6)

    assert story.seen.progress_gaps == {0.5: 10.0, 0.95: pytest.approx(26.0), 1.0: 30.0}


def test_a_save_between_two_steps_is_no_pause_of_training(story: Story) -> None:
    story.steps(*range(1, 11))
    story.record(checkpoint=Checkpoint(CheckpointEvent.STARTED, step=10))
    assert story.seen.phase is Phase.CHECKPOINTING

    story.record(after=600.0, step=11)

    assert story.seen.phase is Phase.TRAINING
    assert story.seen.progress_gaps[1.0] == 10.0


def test_an_evaluation_is_a_phase_until_its_result(story: Story) -> None:
    story.steps(1, 2)
    story.record(phase=Phase.EVALUATING)
    assert story.seen.phase is Phase.EVALUATING

    story.record(after=300.0, eval_loss=1.9, metrics={"accuracy": 0.5})

    assert story.seen.phase is Phase.TRAINING
    assert story.seen.gauges["eval_loss"] == 1.9
    assert story.seen.eval_metrics == {"accuracy": 0.5}


def test_a_restart_from_a_checkpoint_is_a_new_attempt_and_its_lost_steps_count(story: Story) -> None:
    story.steps(*range(10, 240, 10))
    assert "loss_baseline" in story.seen.gauges

    story.record(starts=True, phase=Phase.STARTING)
    story.steps(110)

    assert story.seen.attempts == 2
    assert story.seen.lost_steps == 120
    assert story.seen.gauges["step"] == 110
    assert "loss_baseline" not in story.seen.gauges  # no window spans two attempts


def test_a_restart_shows_without_a_banner_when_steps_fall_far(story: Story) -> None:
    story.steps(*range(10, 240, 10))

    story.steps(10)

    assert story.seen.attempts == 2


def test_a_restart_that_falls_little_is_believed_after_three_records(story: Story) -> None:
    story.steps(*range(10, 240, 10))

    story.steps(200, 210)
    assert story.seen.attempts == 1
    story.steps(220)

    assert story.seen.attempts == 2


def test_two_writers_of_one_file_are_no_restart(story: Story) -> None:
    for step in range(10, 500, 10):
        story.record(after=5.0, step=step + 10, loss=2.0)
        story.record(after=5.0, step=step, loss=2.1)

    assert story.seen.attempts == 1
    assert story.seen.lost_steps == 0


def test_lines_that_a_buffer_held_back_are_no_restart(story: Story) -> None:
    for step in range(1, 41):
        story.record(step=step)  # the bars, on standard error, come at once

    for step in range(2, 42, 2):
        story.record(after=0.0, step=step, loss=2.0, step_exact=False)

    assert story.seen.attempts == 1
    assert story.seen.gauges["step"] == 40
    assert story.seen.gauges["loss_baseline"] == 2.0


def test_a_console_and_a_json_file_are_one_run_and_no_step_counts_twice(story: Story) -> None:
    for step in range(10, 310, 10):
        story.record(after=5.0, source=JSON, step=step, loss=2.0, target_steps=1000)
        story.record(after=5.0, source=CONSOLE, step=step - 3, loss=2.0004, grad_norm=0.5, step_exact=False)

    assert story.seen.attempts == 1
    assert story.seen.gauges["loss"] == 2.0  # the source with exact steps owns the loss
    assert story.seen.gauges["grad_norm"] == 0.5  # which the other one does not have
    assert story.seen.gauges["loss_baseline"] == 2.0
    assert story.seen.gauges["step"] == 300


def test_a_file_for_programs_is_believed_before_a_console_that_rounds(story: Story) -> None:
    for step in range(10, 110, 10):
        story.record(after=5.0, source=CONSOLE, step=step, loss=1.477)
        story.record(after=0.1, source=JSON, step=step, loss=1.4769781, precise=True)

    assert story.seen.gauges["loss"] == 1.4769781


def test_the_console_takes_over_when_the_json_file_falls_silent(story: Story) -> None:
    for step in range(10, 110, 10):
        story.record(source=JSON, step=step, loss=2.0)

    for step in range(110, 210, 10):
        story.record(source=CONSOLE, step=step, loss=1.0, step_exact=False)

    assert story.seen.gauges["loss"] == 1.0


def test_a_console_that_is_read_later_confirms_an_attempt_and_opens_none(story: Story) -> None:
    story.record(source=JSON, live=False, step=10, loss=2.0)
    story.record(source=JSON, live=False, step=20, loss=2.0)

    story.record(source=CONSOLE, live=False, starts=True, phase=Phase.STARTING)
    story.record(source=CONSOLE, live=False, step=20)

    assert story.seen.attempts == 1
    assert story.seen.phase is Phase.TRAINING


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


def test_the_closing_word_ends_a_run_and_a_new_start_opens_it_again(story: Story) -> None:
    story.steps(10, 20, target_steps=20)
    story.record(closes=True)
    story.state.note_writer(False)
    assert story.seen.phase is Phase.ENDED

    story.record(after=60.0, starts=True, phase=Phase.STARTING)

    assert story.seen.attempts == 2


def test_a_writer_that_goes_before_the_target_has_failed(story: Story) -> None:
    story.steps(10, 20, target_steps=100)
    assert story.seen.writer_alive is None

    story.state.note_writer(False)

    assert story.seen.phase is Phase.FAILED


def test_a_writer_that_goes_at_the_target_has_ended(story: Story) -> None:
    story.steps(90, 100, target_steps=100)

    story.state.note_writer(False)

    assert story.seen.phase is Phase.ENDED


def test_a_fatal_incident_fails_the_run_when_no_step_follows_for_a_minute(story: Story) -> None:
    story.steps(10, 20, target_steps=100)

    story.incident("cuda_oom")

    assert story.seen.incidents == {"cuda_oom": 1, "time_limit": 0}
    assert story.state.phase(story.now + 59) is Phase.TRAINING
    assert story.state.phase(story.now + 60) is Phase.FAILED


def test_an_event_that_every_rank_tells_of_counts_once(story: Story) -> None:
    story.steps(10, 20)
    for _ in range(16):
        story.incident("cuda_oom")
    assert story.seen.incidents["cuda_oom"] == 1

    story.steps(30)
    story.incident("cuda_oom")
    assert story.seen.incidents["cuda_oom"] == 2

    story.now += 90
    story.incident("cuda_oom")
    assert story.seen.incidents["cuda_oom"] == 3
    assert story.seen.incident_wall["cuda_oom"] == story.now


def test_an_out_of_memory_that_the_trainer_survives_is_no_failure(story: Story) -> None:
    story.steps(10, 20)
    story.incident("cuda_oom")

    story.steps(30)

    assert story.state.phase(story.now + 300) is Phase.TRAINING


def test_a_run_that_its_user_cancels_has_not_failed(story: Story) -> None:
    story.steps(10, 20, target_steps=100)
    story.incident("cancelled")

    story.state.note_writer(False)

    assert story.seen.phase is Phase.ENDED


def test_an_unstamped_log_whose_last_line_is_a_step_made_progress_at_its_mtime(story: Story) -> None:
    story.record(live=False, step=10, loss=2.0)

    story.state.caught_up(CONSOLE, mtime=START - 500.0, lines=1)

    assert story.seen.progress_wall == START - 500.0
    assert story.seen.notes == ()


def test_lines_after_the_last_step_leave_its_time_unknown_and_that_is_said(story: Story) -> None:
    story.record(live=False, step=10, loss=2.0)

    story.state.caught_up(CONSOLE, mtime=START - 5.0, lines=40)

    assert story.seen.progress_wall == START
    assert "daemon's start" in story.seen.notes[0]


def test_an_unstamped_incident_after_the_last_step_takes_the_mtime_and_an_older_one_no_time(story: Story) -> None:
    story.state.fold(Incident(1, "cuda_oom", fatal=True), Moment(None, live=False), source=CONSOLE)
    story.line = 1
    story.record(live=False, step=10, loss=2.0)
    story.state.fold(Incident(3, "time_limit", fatal=True), Moment(None, live=False), source=CONSOLE)

    story.state.caught_up(CONSOLE, mtime=START - 5.0, lines=3)

    assert story.seen.incident_wall == {"time_limit": START - 5.0}
    assert story.seen.incidents == {"cuda_oom": 1, "time_limit": 1}


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

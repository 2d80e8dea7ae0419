"""The state of a run, told as what happens in a training: restarts, stalls, two sources, ends, what was there before the daemon."""

from __future__ import annotations

import pytest

from trainer_exporter.model import Checkpoint, CheckpointEvent, Incident, Phase
from trainer_exporter.runs.timeline import Moment
from unit.telling import CONSOLE, JSON, START, Story


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


def test_ranks_whose_buffers_are_written_one_behind_the_other_are_no_restart(story: Story) -> None:
    for begin in (1, 81, 161):
        story.steps(begin, after=80.0)
        story.steps(*range(begin + 1, begin + 80), after=0.0)
        story.steps(begin, after=0.1)
        story.steps(*range(begin + 1, begin + 80), after=0.0)

    assert (story.seen.attempts, story.seen.gauges["step"]) == (1, 240)


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

"""When evidence is due: by the run's own pauses, once a stall."""

from __future__ import annotations

import pytest

from snapshots import NOW, a_run
from trainer_exporter.clock import ManualClock
from trainer_exporter.evidence.stalls import Stalls
from trainer_exporter.model import Phase, RunSnapshot


def stalls(clock: ManualClock | None = None) -> Stalls:
    return Stalls(clock or ManualClock(NOW), least_s=90.0, cool_down_s=600.0)


CASES = {
    "six_times_its_usual_pause": (a_run(121), True),
    "not_yet": (a_run(119), False),
    "a_quick_run_has_a_minute_and_a_half": (a_run(89, progress_gaps={0.95: 1.0, 1.0: 1.0}), False),
    "and_no_more": (a_run(91, progress_gaps={0.95: 1.0, 1.0: 1.0}), True),
    "its_first_steps": (a_run(3500, progress_gaps={}), False),
    "first_steps_that_last": (a_run(3700, progress_gaps={}), True),
    "an_evaluation": (a_run(3500, phase=Phase.EVALUATING), False),
    "a_save_that_lasts": (a_run(3700, phase=Phase.CHECKPOINTING), True),
    "a_slow_run_is_capped": (a_run(7300, progress_gaps={0.95: 1800.0, 1.0: 3600.0}), True),
    "it_has_ended": (a_run(500, phase=Phase.ENDED), False),
    "it_has_failed": (a_run(500, phase=Phase.FAILED), False),
    "its_process_is_gone": (a_run(500, writer_alive=False), False),
    "its_process_is_not_known": (a_run(500, writer_alive=None), True),
    "a_log_of_the_day_before_yesterday": (a_run(200_000, writer_alive=None), False),
    "it_has_not_begun": (a_run(0, progress_wall=None), False),
}


@pytest.mark.parametrize(("run", "is_due"), CASES.values(), ids=CASES)
def test_evidence_is_due_when_a_run_rests_longer_than_is_normal_for_it(run: RunSnapshot, is_due: bool) -> None:
    assert bool(stalls().due([run])) is is_due


def test_a_stall_is_looked_at_once() -> None:
    clock = ManualClock(NOW)
    watch, hung = stalls(clock), a_run(500)
    watch.begin(hung)

    clock.advance(3600)

    assert not watch.due([hung])


def test_the_next_stall_of_a_run_waits_for_the_cool_down() -> None:
    clock = ManualClock(NOW)
    watch = stalls(clock)
    watch.begin(a_run(500))
    next_one = a_run(-100)  # it made a step after 100 s, and none since

    clock.advance(599)
    too_soon = watch.due([next_one])
    clock.advance(2)

    assert not too_soon
    assert watch.due([next_one])


def test_a_new_attempt_that_hangs_at_the_same_moment_is_another_stall() -> None:
    clock = ManualClock(NOW)
    watch = stalls(clock)
    watch.begin(a_run(500))

    clock.advance(601)

    assert watch.due([a_run(500, attempts=2)])


def test_dumps_are_looked_for_each_minute_until_the_run_advances() -> None:
    clock = ManualClock(NOW)
    watch, hung = stalls(clock), a_run(500)
    watch.begin(hung)
    moments = []

    for second in range(1, 200):
        clock.advance(1)
        moments += [second for _ in watch.waiting([hung])]
    clock.advance(60)

    assert moments == [60, 120, 180]
    assert not watch.waiting([a_run(-10)])


def test_dumps_that_a_trainer_leaves_when_it_dies_are_looked_for_too() -> None:
    clock = ManualClock(NOW)
    watch = stalls(clock)
    watch.begin(a_run(500))

    clock.advance(60)

    assert watch.waiting([a_run(500, phase=Phase.FAILED, writer_alive=False)])


def test_a_run_that_is_forgotten_is_forgotten_here() -> None:
    watch, hung = stalls(), a_run(500)
    watch.begin(hung)

    watch.due([])

    assert watch.due([hung])

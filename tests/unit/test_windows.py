"""Rolling statistics: each figure by hand on small numbers, and what must hold for any."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter.runs.windows import Baseline, Gaps, Latch, StepTimes, StepWindow, median, quantile

finite = st.floats(min_value=-1e9, max_value=1e9)


def filled(values: list[float], span: int = 100) -> StepWindow:
    window = StepWindow(span)
    for step, value in enumerate(values, start=1):
        window.push(step, value)
    return window


def test_a_window_under_ten_records_says_nothing() -> None:
    window = filled([1.0] * 9)

    assert window.change_ratio() is None
    assert window.oscillation_ratio() is None

    window.push(10, 1.0)

    assert window.change_ratio() == 0.0
    assert window.oscillation_ratio() == 0.0


def test_a_falling_loss_has_a_negative_change() -> None:
    window = filled([2.0] * 5 + [1.0] * 5)

    assert window.change_ratio() == -0.5


def test_a_loss_below_zero_that_rises_has_a_positive_change() -> None:
    window = filled([-2.0] * 5 + [-1.0] * 5)

    assert window.change_ratio() == 0.5


def test_an_older_half_of_zero_has_no_ratio() -> None:
    window = filled([0.0] * 10)

    assert window.change_ratio() is None
    assert window.oscillation_ratio() is None


def test_steps_leave_the_window_and_not_records() -> None:
    window = StepWindow(100)
    for step in range(10, 510, 10):
        window.push(step, float(step))

    assert len(window.values()) == 10  # 410 to 500


@given(st.lists(finite, min_size=1, max_size=300))
def test_a_baseline_is_the_median_of_the_previous_hundred(values: list[float]) -> None:
    baseline = Baseline()
    for value in values:
        baseline.push(value)

    if len(values) < 20:
        assert baseline.median is None
    else:
        assert baseline.median == pytest.approx(statistics.median(values[-100:]), rel=1e-9, abs=1e-12)


@given(st.lists(finite, min_size=1), st.floats(min_value=0, max_value=1))
def test_a_quantile_lies_between_the_smallest_and_the_largest(values: list[float], q: float) -> None:
    ordered = sorted(values)

    slack = 1e-9 * max(1.0, abs(ordered[0]), abs(ordered[-1]))
    assert ordered[0] - slack <= quantile(ordered, q) <= ordered[-1] + slack
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-9)


def test_a_latch_holds_a_spike_for_its_time_and_then_shows_the_newest() -> None:
    latch = Latch(120.0)
    latch.push(0.0, 5.0)
    latch.push(10.0, 1.0)

    assert latch.value(120.0) == 5.0
    assert latch.value(121.0) == 1.0
    assert latch.value(10_000.0) == 1.0


def test_what_is_history_does_not_latch() -> None:
    latch = Latch(120.0)
    latch.push(None, 5.0)
    latch.push(None, 1.0)

    assert latch.value(0.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 50), finite), min_size=1, max_size=50))
def test_a_latch_is_the_largest_of_its_time(pauses: list[tuple[float, float]]) -> None:
    latch, now, seen = Latch(100.0), 0.0, []
    for pause, value in pauses:
        now += pause
        latch.push(now, value)
        seen.append((now, value))

    assert latch.value(now) == max(value for wall, value in seen if wall >= now - 100.0)


def test_gaps_speak_from_five_on_and_remember_the_longest() -> None:
    gaps = Gaps(size=5)
    for seconds in (100.0, 1.0, 1.0, 1.0):
        gaps.push(seconds)
    assert gaps.quantiles() == {}

    for seconds in (2.0, 2.0, 2.0):
        gaps.push(seconds)

    assert gaps.quantiles()[1.0] == 100.0  # though it has left the recent ones
    assert gaps.quantiles()[0.5] == 2.0


def test_step_times_seen_once_a_second_are_not_rounded_to_seconds() -> None:
    times = StepTimes()
    for poll in range(300):
        times.seen(float(poll), float(int(poll / 1.5)))  # a step takes 1.5 s

    assert times.median() == pytest.approx(1.5, rel=0.1)


def test_a_save_does_not_count_as_step_time() -> None:
    times = StepTimes()
    for step in range(20):
        times.seen(step * 10.0, float(step))
    times.interrupt()
    for step in range(20, 40):
        times.seen(600.0 + step * 10.0, float(step))

    assert times.median() == 10.0
    assert times.best == 10.0


def test_what_was_quick_for_less_work_is_no_measure_for_more() -> None:
    times = StepTimes()
    for _ in range(20):
        times.logged(1.0)

    times.other_work()

    assert times.best is None
    for _ in range(20):
        times.logged(2.0)
    assert (times.median(), times.best) == (2.0, 2.0)


def test_step_times_of_two_moments_are_better_than_none() -> None:
    times = StepTimes()
    times.seen(0.0, 1.0)
    assert times.median() is None

    times.seen(4.0, 3.0)

    assert times.median() == 2.0

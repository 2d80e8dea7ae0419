"""One run that several sources tell of, each in its own time: a console, a trainer's files for programs, and its checkpoints."""

from __future__ import annotations

import math

import pytest

from trainer_exporter.model import Record
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

START = 1_700_000_000.0
CONSOLE, EVENTS, STATE = "console.log", "tensorboard", "trainer_state"


@pytest.fixture
def state() -> RunState:
    return RunState("demo", StateSettings(), daemon_start=START + 10_000)


def live(state: RunState, source: str, step: int, *, at: float, precise: bool = False, late: bool = False, **fields: float) -> None:
    record = Record(1, {"step": step, **fields}, precise=precise, late=late)
    state.fold(record, Moment(START + at, True, tick=START + at, clock="arrival"), source=source)


def past(state: RunState, source: str, step: int, *, at: float | None = None, precise: bool = False, **fields: float) -> None:
    wall = None if at is None else START + at
    clock = "" if at is None else "stamp"
    state.fold(Record(1, {"step": step, **fields}, precise=precise), Moment(wall, False, tick=wall, clock=clock), source=source)  # type: ignore[arg-type]


def test_a_file_that_is_written_at_checkpoints_does_not_silence_the_console(state: RunState) -> None:
    for step in range(1, 21):
        live(state, CONSOLE, step, at=step, loss=2.0, grad_norm=1.0)
    for step in range(1, 21):
        live(state, STATE, step, at=20.5, loss=2.04, grad_norm=1.04, precise=True, late=True)

    live(state, CONSOLE, 21, at=21, loss=1.9, grad_norm=0.9)

    gauges = state.snapshot(START + 21).gauges
    assert (gauges["step"], gauges["loss"], gauges["grad_norm"]) == (21, 1.9, 0.9)


def test_what_nobody_else_tells_comes_from_the_checkpoints(state: RunState) -> None:
    for step in (10, 20):
        live(state, CONSOLE, step, at=step, loss=2.0)

    live(state, STATE, 20, at=21, loss=2.0, grad_norm=0.75, precise=True, late=True)

    assert state.snapshot(START + 21).gauges["grad_norm"] == 0.75


def test_a_restart_that_two_histories_tell_of_is_one_restart(state: RunState) -> None:
    story = [*range(10, 110, 10), *range(60, 130, 10)]
    for step in story:
        past(state, CONSOLE, step, loss=2.0)
    assert state.snapshot(START).attempts == 2

    for at, step in enumerate(story):
        past(state, EVENTS, step, at=float(at), loss=2.0, grad_norm=1.0, precise=True)

    seen = state.snapshot(START + 100)
    assert seen.attempts == 2
    assert seen.gauges["step"] == 120
    assert seen.gauges["grad_norm"] == 1.0


def test_a_restart_while_the_daemon_watches_is_seen_whoever_tells_of_it_first(state: RunState) -> None:
    for at, step in enumerate(range(10, 110, 10)):
        live(state, CONSOLE, step, at=at, loss=2.0)
        live(state, EVENTS, step, at=at, loss=2.0, precise=True)

    for at, step in enumerate(range(60, 90, 10), 20):
        live(state, EVENTS, step, at=at, loss=2.0, precise=True)
        live(state, CONSOLE, step, at=at, loss=2.0)

    assert state.snapshot(START + 30).attempts == 2


def test_nan_of_an_earlier_attempt_is_no_trouble_of_this_one(state: RunState) -> None:
    past(state, EVENTS, 50, at=50, loss=2.0, precise=True)
    state.fold(Record(1, starts=True), Moment(START + 100, False, tick=START + 100, clock="stamp"), source=EVENTS)
    past(state, EVENTS, 60, at=110, loss=1.5, precise=True)

    for step in range(51, 60):
        past(state, "runs/old", step, at=float(step), loss=math.nan, precise=True)

    seen = state.snapshot(START + 120)
    assert seen.attempts == 2
    assert seen.nonfinite_streak["loss"] == 0
    assert seen.gauges["loss"] == 1.5


def test_the_closing_word_of_an_earlier_attempt_does_not_end_this_one(state: RunState) -> None:
    past(state, CONSOLE, 60, at=110, loss=1.5)

    state.fold(Record(1, closes=True), Moment(START + 90, False, tick=START + 90, clock="stamp"), source=EVENTS)

    assert state.snapshot(START + 120).phase.value == "training"


def test_an_evaluation_that_two_sources_tell_of_counts_once(state: RunState) -> None:
    for step, accuracy in ((100, 0.5), (200, 0.6)):
        for source in (CONSOLE, EVENTS):
            record = Record(1, {"step": step}, {"accuracy": accuracy}, precise=source == EVENTS)
            state.fold(record, Moment(START + step, True, tick=START + step, clock="arrival"), source=source)

    assert state.attempt.eval_metrics["accuracy"] == [0.5, 0.6]


def test_a_value_that_the_console_rounds_is_shown_as_a_tracker_has_it(state: RunState) -> None:
    for step in range(1, 31):
        past(state, CONSOLE, step, loss=2.605)
    assert state.snapshot(START).gauges["loss"] == 2.605

    for step in range(1, 31):
        past(state, EVENTS, step, at=float(step), precise=True, loss=2.6053857)

    gauges = state.snapshot(START).gauges
    assert gauges["loss"] == 2.6053857
    assert gauges["loss_baseline"] == 2.605  # each step has been counted already

"""Many records in one go say of a run what they say one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.model import Checkpoint, CheckpointEvent, Incident, Phase, Record
from trainer_exporter.runs.rows import Placed, parts, rows
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

START = 1_750_000_000.0
ORDINARY = (
    "loss",
    "grad_norm",
    "learning_rate",
    "epoch",
    "target_steps",
    "remaining_seconds",
    "step_duration_seconds",
    "skipped_steps",
    "total_tokens",
    "total_samples",
    "global_batch_size",
)
NUMBERS = st.floats(0.0, 1e6, width=32)
BATCHES = st.sampled_from((*(64.0,) * 30, 128.0))  # it changes now and then
ODD = st.sampled_from((math.nan, math.inf, 0.0, -1.0))


def placed(step: float, fields: dict[str, float], **said: object) -> Placed:
    """A record of the past that tells the time since its start."""
    return Record(int(step), {"step": step, **fields}, **said), Moment(None, False, tick=step * 3.5, clock="elapsed")  # type: ignore[arg-type]


@st.composite
def logs(draw: st.DrawFn) -> list[Placed]:
    """Mostly ordinary records whose steps rise, with all that may come between them."""
    events: list[Placed] = []
    step, usual = 0.0, draw(st.sets(st.sampled_from(ORDINARY)))
    for _ in range(draw(st.integers(0, 8))):
        live = draw(st.booleans())
        wall = START + 100.0 * len(events)
        clock = draw(st.sampled_from(("stamp", "elapsed", "arrival", "")))
        for _ in range(draw(st.integers(1, 40))):
            step += draw(st.sampled_from((1.0, 1.0, 10.0)))
            tick = None if clock == "" else wall + step
            moment = Moment(wall if live or clock == "stamp" else None, live, tick, clock)  # type: ignore[arg-type]
            fields = {name: draw(BATCHES if name == "global_batch_size" else NUMBERS) for name in usual}
            events.append((Record(len(events), {"step": step, **fields}, step_exact=draw(st.booleans()) or live), moment))
        events.append((draw(between(len(events), step)), Moment(wall, live, wall, "stamp")))
        step = draw(st.sampled_from((step, step, step, 5.0)))
    return events


def between(line: int, step: float) -> st.SearchStrategy[Record | Incident]:
    """What is not ordinary."""
    odd = st.dictionaries(st.sampled_from(("loss", "grad_norm")), ODD, min_size=1)
    return st.one_of(
        odd.map(lambda fields: Record(line, {"step": step + 1, **fields})),
        st.just(Record(line, {"step": step + 1, "loss": 0.0}, hidden_nonfinite=frozenset({"loss"}))),
        st.just(Record(line, {"step": step, "eval_loss": 2.0}, {"accuracy": 0.5})),
        st.just(Record(line, {"loss": 1.0})),
        st.just(Record(line, starts=True, phase=Phase.STARTING)),
        st.just(Record(line, closes=True)),
        st.just(Record(line, phase=Phase.CHECKPOINTING, checkpoint=Checkpoint(CheckpointEvent.STARTED, int(step)))),
        st.just(Record(line, {"step": step, "loss": 1.5}, precise=True)),
        st.just(Record(line, {"step": step + 2, "loss": 1.5}, late=True)),
        st.just(Incident(line, "traceback", fatal=True)),
    )


def told(events: Sequence[Placed], *, sizes: Sequence[int], source: str = "console") -> RunState:
    """The run that these events make, folded in pieces of these sizes; 1: one by one."""
    state = RunState("heron", StateSettings(incident_kinds=("traceback",)), daemon_start=START)
    at, turn = 0, 0
    while at < len(events):
        size = sizes[turn % len(sizes)]
        piece = events[at : at + size]
        if size == 1:
            state.fold(*piece[0], source=source)
        else:
            state.fold_all(piece, source=source)
        at, turn = at + size, turn + 1
    return state


@settings(max_examples=150, deadline=None)
@given(events=logs(), sizes=st.lists(st.integers(2, 200), min_size=1, max_size=4))
def test_a_run_is_the_same_whether_its_records_come_one_by_one_or_many_at_once(events: list[Placed], sizes: list[int]) -> None:
    one_by_one = told(events, sizes=(1,))

    at_once = told(events, sizes=sizes)

    for now in (START, START + 1e5):
        assert repr(at_once.snapshot(now)) == repr(one_by_one.snapshot(now))


@pytest.mark.parametrize(
    "fields", [{"loss": 2.0}, {"loss": 2.0, "step_duration_seconds": 0.5}, {"total_tokens": 4096.0}], ids=["loss", "durations", "tokens"]
)
def test_a_backlog_of_one_kind_of_line_is_one_part_and_has_columns(fields: dict[str, float]) -> None:
    events = [placed(float(step), fields) for step in range(1, 5001)]

    (part,) = parts(events)
    columns = rows(part)

    assert columns is not None
    assert {name: len(column.values) for name, column in columns.columns.items()} == dict.fromkeys(fields, 5000)


def test_parts_are_cut_where_a_step_goes_back_and_lose_nothing() -> None:
    steps = (1.0, 2.0, 3.0, 2.0, 3.0)

    cut = [[event.fields["step"] for event, _ in part if isinstance(event, Record)] for part in parts([placed(step, {}) for step in steps])]

    assert cut == [[1.0, 2.0, 3.0], [2.0, 3.0]]


def test_a_second_file_that_tells_of_the_same_steps_is_heard_no_more_than_when_it_comes_line_by_line() -> None:
    steps = [placed(float(step), {"loss": 2.0 + step / 1000}) for step in range(1, 101)]
    again = [placed(float(step), {"loss": 7.0, "grad_norm": 1.0}) for step in range(1, 101)]

    state = told(steps, sizes=(100,))
    state.fold_all(again, source="trainer_log.jsonl")

    assert state.snapshot(START).gauges["loss"] == pytest.approx(2.1)
    assert state.snapshot(START).gauges["grad_norm"] == 1.0

"""The store: bounded in number and age, and readers never see a snapshot change."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.health import Health
from trainer_exporter.model import Phase, Record
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.runs.timeline import Moment


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def told(store: Store, clock: ManualClock, run: str, *, step: int, closes: bool = False) -> None:
    record = Record(line=step, fields={"step": step, "loss": 2.0}, closes=closes)
    store.fold(
        run, [(record, Moment(clock.wall(), live=True, tick=clock.wall(), clock="arrival"))], source=f"{run}.log", format_name="plain"
    )
    store.publish()


def test_a_file_in_which_no_trainer_has_spoken_is_no_run(clock: ManualClock) -> None:
    store = Store(StoreSettings(), clock=clock, health=Health())

    store.describe("server", labels={"team": "web"})
    store.publish()

    assert store.snapshot() == ()


def test_readers_keep_what_they_have_read(clock: ManualClock) -> None:
    store = Store(StoreSettings(), clock=clock, health=Health())
    told(store, clock, "a", step=1)
    (before,) = store.snapshot()

    told(store, clock, "a", step=2)

    assert before.gauges["step"] == 1
    assert store.snapshot()[0].gauges["step"] == 2


def test_a_hung_run_is_idle_and_never_expires(clock: ManualClock) -> None:
    store = Store(StoreSettings(), clock=clock, health=Health())
    told(store, clock, "a", step=1)

    clock.advance(30 * 86400)
    store.publish()

    assert [run.phase for run in store.snapshot()] == [Phase.TRAINING]


def test_an_ended_run_leaves_after_its_grace_and_comes_back_when_it_goes_on(clock: ManualClock) -> None:
    store = Store(StoreSettings(ended_grace_s=3600), clock=clock, health=Health())
    told(store, clock, "a", step=1, closes=True)

    clock.advance(3599)
    store.publish()
    assert len(store.snapshot()) == 1
    clock.advance(10)
    store.publish()
    assert store.snapshot() == ()

    told(store, clock, "a", step=2)
    assert store.snapshot()[0].phase is Phase.TRAINING


def test_of_a_run_whose_files_have_gone_nothing_is_kept_when_its_time_is_over(clock: ManualClock) -> None:
    store = Store(StoreSettings(ended_grace_s=3600), clock=clock, health=Health())
    told(store, clock, "a", step=1, closes=True)
    store.describe("a", facts={"user": "ada"})

    store.leave("a")
    store.publish()
    assert len(store.snapshot()) == 1
    clock.advance(3610)
    store.publish()

    assert store.snapshot() == ()
    assert store.facts("a") == {}
    clock.advance(60)
    store.publish()


def test_a_full_store_lets_the_longest_ended_run_go_and_counts(clock: ManualClock) -> None:
    health = Health()
    store = Store(StoreSettings(max_runs=2), clock=clock, health=health)
    told(store, clock, "ended", step=1, closes=True)
    told(store, clock, "training", step=1)

    told(store, clock, "new", step=1)

    assert [run.run for run in store.snapshot()] == ["new", "training"]
    assert health.snapshot().dropped == {"runs": 1}


def test_a_store_full_of_living_runs_refuses_and_counts(clock: ManualClock) -> None:
    health = Health()
    store = Store(StoreSettings(max_runs=1), clock=clock, health=health)
    told(store, clock, "training", step=1)

    told(store, clock, "new", step=1)

    assert [run.run for run in store.snapshot()] == ["training"]
    assert health.snapshot().dropped["runs"] >= 1


def test_a_run_whose_files_belong_to_another_is_forgotten(clock: ManualClock) -> None:
    store = Store(StoreSettings(), clock=clock, health=Health())
    told(store, clock, "provisional", step=1)

    store.forget("provisional")
    store.publish()

    assert store.snapshot() == ()


def test_runs_of_which_nothing_is_heard_are_derived_anew_in_turn(clock: ManualClock) -> None:
    store = Store(StoreSettings(), clock=clock, health=Health())
    for number in range(10):
        told(store, clock, f"run-{number}", step=1)
    shown = [store.snapshot()]

    for _ in range(5):
        clock.advance(1.0)
        store.publish()
        shown.append(store.snapshot())

    renewed = [sum(one is not other for one, other in zip(before, after, strict=True)) for before, after in pairwise(shown)]
    assert renewed == [2, 2, 2, 2, 2]
    assert not any(one is other for one, other in zip(shown[0], shown[-1], strict=True))

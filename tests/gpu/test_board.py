"""What a daemon makes of its child's messages, with a clock that stands still."""

from __future__ import annotations

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.gpu.board import Board
from trainer_exporter.model import GpuReading, GpuSnapshot

CARDS = [{"uuid": f"GPU-{name}", "index": index, "name": "card"} for index, name in enumerate("abc")]


class Scene:
    def __init__(self, *, expected: int | None = None) -> None:
        self.clock = ManualClock(wall=1000.0)
        self.board = Board(self.clock, oldest_s=20.0, expected=expected)
        self.start()

    def start(self, restarts: int = 0) -> None:
        self.board.child_started(restarts=restarts)
        self.list(*"abc")

    def list(self, *names: str) -> None:
        self.board.fold({"kind": "cards", "cards": [card for card in CARDS if card["uuid"] in {f"GPU-{name}" for name in names}]})

    def read(self, *names: str, took: float = 0.0) -> None:
        for name in names:
            self.board.fold({"kind": "reading", "uuid": f"GPU-{name}", "took": took, "values": {"power_watts": 60.0}})

    def fail(self, name: str, error: str) -> None:
        self.board.fold({"kind": "failed", "uuid": f"GPU-{name}", "error": error})

    def errors(self) -> dict[str, str]:
        """Error by card, "" where the card's data is served."""
        shown = {}
        for reading in self.board.snapshot().readings:
            assert (reading.power_watts is None) == (not reading.success)
            assert bool(reading.error) == (not reading.success)
            shown[reading.identity.uuid[-1]] = reading.error
        return shown


def reading(snapshot: GpuSnapshot, name: str) -> GpuReading:
    return next(card for card in snapshot.readings if card.identity.uuid == f"GPU-{name}")


def test_a_card_just_found_has_no_row_until_it_answers_or_its_time_is_up() -> None:
    scene = Scene()
    scene.read("a")
    assert scene.errors() == {"a": ""}

    scene.clock.advance(20.1)

    assert scene.errors() == {"a": "timeout", "b": "timeout", "c": "timeout"}
    assert reading(scene.board.snapshot(), "b").collected_wall == 0


def test_a_reading_is_served_up_to_its_age_and_not_beyond() -> None:
    scene = Scene()
    scene.read(*"abc")

    scene.clock.advance(15)
    scene.read("b", "c")
    scene.clock.advance(5)
    assert scene.errors() == {"a": "", "b": "", "c": ""}
    scene.clock.advance(0.1)

    assert scene.errors() == {"a": "timeout", "b": "", "c": ""}
    assert reading(scene.board.snapshot(), "a").collected_wall == 1000.0


def test_the_age_of_a_look_counts_from_its_first_call() -> None:
    scene = Scene()
    scene.clock.advance(45)

    scene.read("a", took=45.0)
    scene.read("b", "c")

    assert scene.errors() == {"a": "timeout", "b": "", "c": ""}
    assert reading(scene.board.snapshot(), "a").collected_wall == 1000.0


def test_nothing_that_a_dead_child_said_is_served() -> None:
    scene = Scene()
    scene.read(*"abc")

    scene.board.child_ended()

    snapshot = scene.board.snapshot()
    assert scene.errors() == {"a": "child", "b": "child", "c": "child"}
    assert (snapshot.child_alive, snapshot.devices) == (False, 3)


def test_a_lost_card_stays_lost_over_the_child_until_it_answers() -> None:
    scene = Scene()
    scene.read(*"abc")
    scene.fail("a", "lost")

    scene.board.child_ended()
    scene.start(restarts=1)
    scene.read("b", "c")
    assert scene.errors() == {"a": "lost", "b": "", "c": ""}
    scene.read("a")

    assert scene.errors() == {"a": "", "b": "", "c": ""}
    assert scene.board.snapshot().xids["GPU-a", 79].count == 1


def test_a_card_that_is_gone_is_remembered_for_an_hour_and_missed_for_ever() -> None:
    scene = Scene()
    scene.read(*"abc")
    scene.board.child_ended()
    scene.board.child_started(restarts=1)
    scene.list("a", "b")

    scene.clock.advance(3600)
    assert scene.board.snapshot().lost == {"GPU-c"}
    scene.clock.advance(1)

    snapshot = scene.board.snapshot()
    assert (snapshot.lost, snapshot.devices, snapshot.devices_expected) == (frozenset(), 2, 3)
    assert [card.identity.uuid for card in snapshot.readings] == ["GPU-a", "GPU-b"]


def test_a_configured_number_of_cards_counts_from_the_start() -> None:
    assert Scene(expected=8).board.snapshot().devices_expected == 8


@pytest.mark.parametrize("told_first", [True, False], ids=["told before", "told after"])
def test_a_loss_and_its_xid_are_one(told_first: bool) -> None:
    scene = Scene()
    scene.read(*"abc")
    xid = {"kind": "xid", "uuid": "GPU-a", "xid": 79}

    if told_first:
        scene.board.fold(xid)
    scene.fail("a", "lost")
    scene.clock.advance(10)
    scene.fail("a", "lost")
    if not told_first:
        scene.board.fold(xid)

    assert scene.board.snapshot().xids["GPU-a", 79].count == 1


def test_the_same_card_lost_again_counts_again() -> None:
    scene = Scene()
    scene.fail("a", "lost")
    scene.clock.advance(7200)
    scene.read("a")

    scene.fail("a", "lost")

    assert scene.board.snapshot().xids["GPU-a", 79].count == 2


def test_without_a_driver_the_cards_fail_and_are_not_lost() -> None:
    scene = Scene()
    scene.read(*"abc")

    scene.board.fold({"kind": "driver", "state": "failed"})

    snapshot = scene.board.snapshot()
    assert scene.errors() == {"a": "driver", "b": "driver", "c": "driver"}
    assert (snapshot.driver, snapshot.devices, snapshot.lost) == ("failed", 0, frozenset())


@pytest.mark.parametrize(
    "message",
    [{"kind": "song"}, {"kind": "reading"}, {"kind": "reading", "uuid": "GPU-z", "took": 0, "values": {}}, {}],
    ids=["unknown kind", "half a message", "unknown card", "empty"],
)
def test_a_message_that_no_child_of_ours_sends_is_refused(message: dict[str, object]) -> None:
    scene = Scene()

    with pytest.raises((KeyError, TypeError, ValueError)):
        scene.board.fold(message)

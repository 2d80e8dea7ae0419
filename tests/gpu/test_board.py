"""What a daemon makes of its child's messages, with a clock that stands still."""

from __future__ import annotations

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.gpu.board import Board
from trainer_exporter.gpu.kernel import KernelXid
from trainer_exporter.model_gpu import GpuReading, GpuSnapshot

CARDS = [
    {"uuid": f"GPU-{name}", "index": index, "name": "card", "pci_bus_id": f"00000000:{index:02x}:00.0"} for index, name in enumerate("abc")
]


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

    def tell(self, source: str, xid: int, name: str = "a") -> None:
        """An Xid error, as the driver or as the kernel's log tells it."""
        if source == "nvml":
            self.board.fold({"kind": "xid", "uuid": f"GPU-{name}", "xid": xid})
        else:
            self.board.hear_kernel(KernelXid((0, "abc".index(name), 0), xid))

    def xids(self) -> dict[tuple[str, int], int]:
        return {(uuid[-1], xid): count.count for (uuid, xid), count in self.board.snapshot().xids.items()}

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


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("lost", "nvml"), id="lost, then told by the driver"),
        pytest.param(("nvml", "lost"), id="told, then lost"),
        pytest.param(("kernel", "kernel", "nvml", "lost"), id="two lines of the kernel, the driver, the loss"),
        pytest.param(("lost", "kernel"), id="lost, then told by the kernel"),
        pytest.param(("lost",), id="told by nobody"),
        pytest.param(("kernel",), id="told by the kernel alone"),
    ],
)
def test_a_card_that_falls_off_the_bus_counts_one_79_whoever_tells(order: tuple[str, ...]) -> None:
    scene = Scene()
    scene.read(*"abc")

    for source in order:
        scene.clock.advance(15)
        if source == "lost":
            scene.fail("a", "lost")
        else:
            scene.tell(source, 79)

    assert scene.xids() == {("a", 79): 1}


@pytest.mark.parametrize(
    ("told", "count"),
    [
        pytest.param(("nvml", "kernel"), 1, id="one error, two sources"),
        pytest.param(("kernel", "nvml"), 1, id="the kernel first"),
        pytest.param(("nvml", "nvml", "nvml"), 3, id="three, NVML alone"),
        pytest.param(("nvml", "nvml", "kernel", "kernel"), 2, id="two at once"),
        pytest.param(("kernel", "nvml", "nvml"), 2, id="one that the kernel held back"),
        pytest.param(("nvml", "later", "kernel"), 2, id="too far apart to be one"),
    ],
)
def test_an_xid_told_by_both_sources_counts_once(told: tuple[str, ...], count: int) -> None:
    scene = Scene()

    for source in told:
        if source == "later":
            scene.clock.advance(60)
        else:
            scene.tell(source, 94)
        scene.clock.advance(1)

    assert scene.xids() == {("a", 94): count}


def test_xids_of_the_kernel_wait_for_the_first_list_of_cards() -> None:
    clock = ManualClock()
    board = Board(clock, oldest_s=20.0)
    assert board.hear_kernel(KernelXid((0, 1, 0), 48))

    board.fold({"kind": "cards", "cards": CARDS})

    assert list(board.snapshot().xids) == [("GPU-b", 48)]
    assert not board.hear_kernel(KernelXid((0, 9, 0), 48)), "no card is there"


MIG = [{**CARDS[0], "uuid": f"MIG-{part}", "parent_uuid": "GPU-a", "gpu_instance": part, "compute_instance": "0"} for part in "37"]


def test_an_xid_of_a_mig_instance_is_its_own() -> None:
    scene = Scene()
    scene.board.fold({"kind": "cards", "cards": [*CARDS, *MIG]})

    scene.board.hear_kernel(KernelXid((0, 0, 0), 94, "7"))
    scene.board.fold({"kind": "xid", "uuid": "GPU-a", "xid": 94, "gpu_instance": "7", "compute_instance": "0"})
    scene.board.hear_kernel(KernelXid((0, 0, 0), 94, "5"))

    counts = {key: count.count for key, count in scene.board.snapshot().xids.items()}
    assert counts == {("MIG-7", 94): 1, ("GPU-a", 94): 1}, "an instance that nobody knows is the card's"


def test_mig_instances_are_no_devices_and_go_with_another_cut() -> None:
    scene = Scene()
    scene.board.fold({"kind": "cards", "cards": [*CARDS, *MIG]})
    for part in MIG:
        scene.board.fold({"kind": "reading", "uuid": part["uuid"], "took": 0.0, "values": {"utilization_ratio": 0.5}})
    scene.read(*"abc")
    before = scene.board.snapshot()
    assert (before.devices, before.devices_expected, len(before.readings)) == (3, 3, 5)

    scene.board.fold({"kind": "cards", "cards": [*CARDS, MIG[0]]})

    after = scene.board.snapshot()
    assert (after.devices, len(after.readings), after.lost) == (3, 4, frozenset())


def test_a_child_that_makes_room_costs_no_rows_while_they_are_fresh() -> None:
    scene = Scene()
    scene.read(*"abc")

    scene.board.fold({"kind": "renew", "why": "other cards"})
    scene.board.child_ended()

    assert scene.errors() == {"a": "", "b": "", "c": ""}
    scene.clock.advance(20.1)
    assert scene.errors() == {"a": "child", "b": "child", "c": "child"}
    scene.start(restarts=1)
    scene.board.child_ended()
    scene.clock.advance(1)
    assert scene.errors() == {"a": "child", "b": "child", "c": "child"}


def test_a_card_that_was_unbound_is_missing_without_an_xid() -> None:
    scene = Scene()
    scene.read(*"abc")
    scene.board.fold({"kind": "renew", "why": "released"})
    scene.board.child_ended()

    scene.board.child_started(restarts=1)
    scene.list("a", "b")

    assert scene.board.snapshot().lost == {"GPU-c"}
    assert scene.xids() == {}


def test_the_kernel_may_have_cards_that_the_driver_does_not_list() -> None:
    scene = Scene()

    scene.board.kernel_lists(4)
    scene.board.kernel_lists(0)

    assert (scene.board.snapshot().devices, scene.board.snapshot().devices_expected) == (3, 4)


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

"""GPUs that come, go, are cut up and are wanted by others: seen without a restart of the daemon, and never held for long."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import fake
from gpu_node import Node, reading_by_uuid, reading_of, until
from trainer_exporter.clock import SystemClock
from trainer_exporter.metrics import gpus
from trainer_exporter.model_gpu import GpuSnapshot


def has_new_child(node: Node, old: int) -> bool:
    return node.poller.snapshot().child_restarts >= 1 and node.child() != old


def is_open(driver: fake.FakeDriver) -> bool:
    """Whether somebody has a session with the driver."""
    calls = [call for _, word, call, _ in driver.trace() if word == "begin" and call in {"init", "shutdown"}]
    return calls.count("init") > calls.count("shutdown")


def test_a_card_taken_out_while_running_is_missed_and_found_again(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()

    driver.set(gpu=5, absent=1)

    snapshot = node.when(lambda now: now.lost == {fake.uuid(5)})
    assert (snapshot.devices, snapshot.devices_expected) == (7, 8)
    driver.set(gpu=5, absent=None)
    snapshot = node.when(lambda now: not now.lost and all(reading.success for reading in now.readings))
    assert snapshot.devices == 8
    assert node.health.snapshot().errors.keys() <= {("gpu", "card_lost")}


def test_a_card_that_goes_before_the_first_count_is_missed_too(node: Node, driver: fake.FakeDriver) -> None:
    driver.call("register", gpu=7, hang=fake.FOREVER)
    until(lambda: any(call == "register" and slot == 7 for _, _, call, slot in driver.trace()), driver.trace)

    driver.set(gpu=5, absent=1)
    driver.heal()

    node.when(lambda now: now.lost == {fake.uuid(5)})


def test_a_card_exchanged_for_another_is_told_by_the_kernel(node: Node, driver: fake.FakeDriver) -> None:
    driver.list_in_kernel(*range(8))
    node.when_all_answer()

    driver.driver("count", 9)
    driver.set(gpu=5, absent=1)
    driver.list_in_kernel(0, 1, 2, 3, 4, 6, 7, 8)

    snapshot = node.when(lambda now: len(now.readings) == 9 and reading_of(now, 8).success)
    assert snapshot.lost == {fake.uuid(5)}
    assert (snapshot.devices, snapshot.devices_expected) == (8, 8)


def test_a_renewal_costs_no_rows(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    first = node.child()
    failures: list[str] = []

    def is_renewed() -> bool:
        now = node.poller.snapshot()
        failures.extend(reading.error for reading in now.readings if not reading.success and reading.error != "timeout")
        return has_new_child(node, first)

    driver.list_in_kernel(0)
    until(is_renewed)

    node.when_all_answer()
    assert failures == []


def test_another_cut_of_a_card_is_seen(node: Node, driver: fake.FakeDriver) -> None:
    driver.set(gpu=0, mig=2)
    driver.set(gpu="0m0", used=100, total=1000, reserved=0, processes="4711:50")
    driver.set(gpu="0m1", used=200, total=1000, reserved=0)

    snapshot = node.when(lambda now: len(now.readings) == 10 and all(reading.success for reading in now.readings))

    part = reading_by_uuid(snapshot, fake.mig_uuid(0, 0))
    assert (part.identity.parent_uuid, part.identity.gpu_instance, part.identity.compute_instance) == (fake.uuid(0), "1", "0")
    assert (part.identity.index, [process.pid for process in part.processes]) == (0, [4711])
    assert reading_of(snapshot, 0).processes == ()
    assert snapshot.devices == 8
    driver.set(gpu=0, mig=1)
    snapshot = node.when(lambda now: len(now.readings) == 9 and all(reading.success for reading in now.readings))
    assert snapshot.lost == frozenset()
    driver.set(gpu=0, mig=None)
    node.when(lambda now: len(now.readings) == 8 and reading_of(now, 0).utilization_ratio is not None)


def test_the_loss_of_a_card_is_that_of_its_instances(node: Node, driver: fake.FakeDriver) -> None:
    driver.set(gpu=0, mig=1)
    driver.set(gpu="0m0", used=100, total=1000, reserved=0)
    node.when(lambda now: len(now.readings) == 9 and all(reading.success for reading in now.readings))

    driver.set(gpu=0, error=fake.GPU_IS_LOST)

    snapshot = node.when(lambda now: now.lost == {fake.uuid(0), fake.mig_uuid(0, 0)})
    assert snapshot.devices == 7
    assert set(snapshot.xids) == {(fake.uuid(0), 79)}


def test_a_card_after_its_reset_is_asked_for_everything_anew(node: Node, driver: fake.FakeDriver) -> None:
    driver.call("power", gpu=4, error=fake.NOT_SUPPORTED)
    node.when(lambda now: len(now.readings) == 8 and reading_of(now, 4).success and reading_of(now, 4).power_watts is None)

    driver.set(gpu=4, error=fake.RESET_REQUIRED)
    snapshot = node.when(lambda now: not reading_of(now, 4).success)
    assert reading_of(snapshot, 4).error == "reset_required"
    driver.heal()

    node.when(lambda now: reading_of(now, 4).power_watts is not None)


@pytest.mark.parametrize("how", ["the driver tells of it", "SIGUSR1"])
def test_gpus_that_somebody_wants_are_let_go_within_an_interval(node: Node, driver: fake.FakeDriver, how: str) -> None:
    node.when_all_answer()
    first = node.child()

    if how == "SIGUSR1":
        os.kill(first, signal.SIGUSR1)
    else:
        driver.driver("unbind", 1)
    began = time.monotonic()
    until(lambda: not is_open(driver))

    assert time.monotonic() - began < 5, "a busy machine needs longer than the second that it takes"
    until(lambda: has_new_child(node, first))
    node.when_all_answer()
    assert node.health.snapshot().errors == {}


def test_a_hang_holds_up_a_renewal_and_the_others_go_on(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    first = node.child()
    driver.set(gpu=3, hang=fake.FOREVER)
    node.when(lambda now: not reading_of(now, 3).success)

    driver.list_in_kernel(0)
    driver.set(util=66)

    snapshot = node.when(lambda now: all(card.utilization_ratio == 0.66 for card in now.readings if card.identity.index != 3))
    assert snapshot.child_restarts == 0
    driver.heal()
    until(lambda: has_new_child(node, first))


def test_an_xid_of_the_kernels_log_is_counted_with_that_of_the_driver(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()

    driver.say("NVRM: Xid (PCI:0000:16:00): 94, pid=7194, name=python3, Contained: CE User Channel (0x9)")
    driver.xid(6, 94)
    driver.say("NVRM: Xid (PCI:0000:12:00): 119, pid=44, name=trainer, Timeout after 6s of waiting for RPC response")
    driver.xid(2, 63)
    driver.say("NVRM: Xid (PCI:0000:ee:00): 48, pid=1, name=a card that nobody knows")

    expected = {(fake.uuid(6), 94): 1, (fake.uuid(2), 119): 1, (fake.uuid(2), 63): 1}
    node.when(lambda now: {key: count.count for key, count in now.xids.items()} == expected)
    until(lambda: node.health.snapshot().errors.get(("gpu", "xid_of_unknown_card")) == 1)


def test_while_a_card_hangs_for_a_minute_its_rows_are_gone_and_the_other_seven_stay_fresh(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    clock = SystemClock()

    driver.set(gpu=3, hang=60)
    node.when(lambda now: not reading_of(now, 3).success)
    seen: list[tuple[GpuSnapshot, float]] = []
    until(lambda: bool(seen.append((node.poller.snapshot(), clock.wall())) or len(seen) > 50))

    for snapshot, wall in seen:
        sick = {sample.family.name: sample.value for sample in gpus.samples(snapshot, (), wall) if sample.labels[:1] == (fake.uuid(3),)}
        assert sick["gpu_collect_success"] == 0
        assert sick.keys() <= {family.name for family in (gpus.SUCCESS, gpus.COLLECTED, gpus.LOST, gpus.INFO, gpus.XIDS)}
        others = [reading for reading in snapshot.readings if reading.identity.index != 3]
        assert [reading.success for reading in others] == [True] * 7
    oldest = min(reading.collected_wall for reading in seen[-1][0].readings if reading.success)
    assert seen[-1][1] - oldest < 2, "two intervals, and what a busy machine adds"
    assert Path(f"/proc/{node.child()}").exists()

"""The whole way from the driver to a snapshot: the real poller, a real child process, the real pynvml, a driver of our own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fake
from gpu_node import INTERVAL_S, Node, reading_of, until
from trainer_exporter.clock import SystemClock
from trainer_exporter.gpu.poller import Patience, Poller, Process, launcher
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuMemory, GpuProcess, GpuSnapshot


def failed(snapshot: GpuSnapshot) -> set[str]:
    return {reading.identity.uuid for reading in snapshot.readings if not reading.success}


def test_eight_healthy_cards_are_read_in_base_units(driver: fake.FakeDriver, node: Node) -> None:
    driver.set(util=97, memutil=31, used=70 << 30, power_mw=395500, energy_mj=12_000_500, reasons=0x4)
    driver.set(gpu=5, ecc_uncorrected_aggregate=2, processes="4711:1024,4712:-1")

    snapshot = node.when(lambda now: len(now.readings) == 8 and reading_of(now, 5).utilization_ratio == 0.97)

    card = reading_of(snapshot, 5)
    assert (snapshot.devices, snapshot.devices_expected, snapshot.driver, snapshot.child_alive) == (8, 8, "", True)
    assert (card.identity.index, card.identity.name, card.identity.pci_bus_id) == (5, "NVIDIA A100-SXM4-80GB", "00000000:15:00.0")
    assert (card.identity.driver_version, card.identity.minor) == ("570.86.10", "5")
    assert card.memory_bandwidth_utilization_ratio == 0.31
    assert card.memory == GpuMemory(total_bytes=80 << 30, used_bytes=70 << 30, reserved_bytes=600 << 20)
    assert (card.power_watts, card.power_limit_watts, card.energy_joules) == (395.5, 400.0, 12_000.5)
    assert (card.temperature_celsius, card.memory_temperature_celsius, card.slowdown_temperature_celsius) == (34, 41, 89)
    assert (card.sm_clock_hertz, card.memory_clock_hertz) == (1.41e9, 1.593e9)
    assert card.throttle_active is not None
    assert [reason for reason, active in card.throttle_active.items() if active] == ["sw_power_cap"]
    assert card.ecc_errors is not None
    assert card.ecc_errors["uncorrected", "aggregate"] == 2
    assert tuple(card.processes) == (GpuProcess(4711, 1024), GpuProcess(4712, None))


@pytest.mark.parametrize(
    ("call", "code", "field"),
    [
        pytest.param("power", fake.NOT_SUPPORTED, "power_watts", id="no power sensor"),
        pytest.param("ecc", fake.NOT_SUPPORTED, "ecc_errors", id="no ECC"),
        pytest.param("fields", fake.FUNCTION_NOT_FOUND, "memory_temperature_celsius", id="driver without field values"),
        pytest.param("memory_temperature", fake.NOT_SUPPORTED, "memory_temperature_celsius", id="field not supported"),
        pytest.param("util", fake.NOT_SUPPORTED, "utilization_ratio", id="MIG parent"),
    ],
)
def test_what_a_card_cannot_say_is_absent_and_no_failure(node: Node, driver: fake.FakeDriver, call: str, code: int, field: str) -> None:
    node.when_all_answer()

    driver.call(call, gpu=2, error=code)

    snapshot = node.when(lambda now: getattr(reading_of(now, 2), field) is None)
    assert reading_of(snapshot, 2).success
    assert getattr(reading_of(snapshot, 3), field) is not None


def test_an_old_driver_is_asked_by_the_old_names(node: Node, driver: fake.FakeDriver) -> None:
    driver.set(reasons=0x40)
    driver.call("reasons", error=fake.FUNCTION_NOT_FOUND)
    driver.call("memory", error=fake.FUNCTION_NOT_FOUND)

    snapshot = node.when(lambda now: len(now.readings) == 8 and bool((reading_of(now, 0).throttle_active or {}).get("hw_thermal_slowdown")))

    memory = reading_of(snapshot, 0).memory
    assert memory is not None
    assert memory.used_bytes == 600 << 20


def test_a_blank_value_is_absent(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()

    driver.set(gpu=1, power_mw=0xFFFFFFFF, memory_temperature=0)

    snapshot = node.when(lambda now: reading_of(now, 1).power_watts is None)
    assert reading_of(snapshot, 1).memory_temperature_celsius is None
    assert reading_of(snapshot, 1).success


def test_a_card_that_hangs_costs_only_its_own_rows(node: Node, driver: fake.FakeDriver) -> None:
    before = reading_of(node.when_all_answer(), 3)

    driver.set(gpu=3, hang=fake.FOREVER)
    driver.set(util=55)

    snapshot = node.when(lambda now: fake.uuid(3) in failed(now))
    hung = reading_of(snapshot, 3)
    assert (hung.error, hung.memory, hung.power_watts, hung.processes) == ("timeout", None, None, ())
    assert hung.collected_wall >= before.collected_wall
    snapshot = node.when(lambda now: all(reading.utilization_ratio == 0.55 for reading in now.readings if reading.success))
    assert failed(snapshot) == {fake.uuid(3)}
    assert snapshot.child_restarts == 0


def test_a_card_that_stops_hanging_is_served_again(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    driver.call("temperature", gpu=3, hang=fake.FOREVER)
    node.when(lambda now: fake.uuid(3) in failed(now))

    driver.heal()

    assert node.when_all_answer().child_restarts == 0


def test_a_card_whose_call_fails_shows_no_data_and_its_failure(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()

    driver.call("power", gpu=4, error=fake.UNKNOWN)

    snapshot = node.when(lambda now: fake.uuid(4) in failed(now))
    card = reading_of(snapshot, 4)
    assert (card.error, card.utilization_ratio, card.memory) == ("driver", None, None)
    assert failed(snapshot) == {fake.uuid(4)}
    assert snapshot.lost == frozenset()
    assert node.health.snapshot().errors["gpu", "card_driver"] >= 1


def test_a_child_that_the_driver_crashes_is_replaced(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    driver.call("energy", gpu=6, crash=1)

    snapshot = node.when(lambda now: len(failed(now)) == 8)
    assert {reading.error for reading in snapshot.readings} == {"child"}
    assert snapshot.devices == 8
    driver.heal()

    assert node.when_all_answer().child_restarts >= 1
    assert node.health.snapshot().errors["gpu", "child_died"] >= 1


def test_a_killed_child_is_replaced(node: Node) -> None:
    node.when_all_answer()
    first = node.child()

    os.kill(first, signal.SIGKILL)

    node.when(lambda now: len(failed(now)) == 8)
    assert node.when_all_answer().child_restarts == 1
    assert node.child() != first


def test_a_child_that_falls_silent_is_killed_and_replaced(driver: fake.FakeDriver) -> None:
    node = Node(driver)
    node.poller = Poller(
        SystemClock(),
        node.health,
        interval_s=INTERVAL_S,
        patience=Patience(silence_s=3.0, grace_s=0.5, first_pause_s=0.1),
        launch=launcher(INTERVAL_S, env=driver.env()),
    )
    node.poller.start()
    node.when_all_answer()
    first = node.child()

    os.kill(first, signal.SIGSTOP)

    node.when(lambda now: now.child_restarts == 1)
    node.when_all_answer()
    node.poller.stop()
    assert not Path(f"/proc/{first}").exists()
    assert node.health.snapshot().errors["gpu", "child_silent"] == 1


def test_a_lost_card_is_shown_as_lost_and_counts_one_xid_79(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()

    driver.set(gpu=1, error=fake.GPU_IS_LOST)

    snapshot = node.when(lambda now: fake.uuid(1) in now.lost)
    assert reading_of(snapshot, 1).error == "lost"
    assert (snapshot.devices, snapshot.devices_expected) == (7, 8)
    assert snapshot.xids[fake.uuid(1), 79].count == 1
    driver.xid(1, 79)
    driver.xid(2, 31)
    snapshot = node.when(lambda now: (fake.uuid(2), 31) in now.xids)
    assert snapshot.xids[fake.uuid(1), 79].count == 1


def test_a_card_that_is_no_longer_listed_is_lost_though_the_others_are_renumbered(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    driver.set(gpu=1, absent=1)

    os.kill(node.child(), signal.SIGKILL)

    snapshot = node.when(lambda now: now.lost == {fake.uuid(1)} and failed(now) == {fake.uuid(1)})
    assert (snapshot.devices, snapshot.devices_expected) == (7, 8)
    assert reading_of(snapshot, 7).identity.index == 6
    assert reading_of(snapshot, 1).identity.name == "NVIDIA A100-SXM4-80GB"
    driver.set(gpu=1, absent=None)
    os.kill(node.child(), signal.SIGKILL)
    assert node.when(lambda now: not now.lost and not failed(now)).devices == 8


def test_an_xid_is_counted_with_its_time(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    before = time.time()

    for xid in (94, 94, 63):
        driver.xid(7, xid)

    snapshot = node.when(lambda now: len(now.xids) == 2 and now.xids[fake.uuid(7), 94].count == 2)
    stamp = snapshot.xids[fake.uuid(7), 63].last_wall
    assert stamp is not None
    assert before <= stamp <= time.time()


def test_xids_are_heard_though_one_card_knows_no_events_and_the_wait_failed_once(node: Node, driver: fake.FakeDriver) -> None:
    driver.set(gpu=0, event_types=0)
    node.when_all_answer()
    driver.driver("wait.error", fake.GPU_IS_LOST)
    os.kill(node.child(), signal.SIGKILL)
    node.when(lambda now: now.child_restarts == 1)
    node.when_all_answer()

    driver.heal()

    def told() -> bool:
        driver.xid(2, 48)  # anew each time: one that comes before the new set stands is not told
        return bool(node.poller.snapshot().xids)

    until(told)
    assert set(node.poller.snapshot().xids) == {(fake.uuid(2), 48)}


def test_after_a_driver_reload_a_fresh_process_starts_a_fresh_session(node: Node, driver: fake.FakeDriver) -> None:
    node.when_all_answer()
    first = node.child()

    driver.set(error=fake.UNKNOWN)
    node.when(lambda now: len(failed(now)) == 8)
    node.when(lambda now: now.child_restarts >= 1)
    driver.heal()

    node.when_all_answer()
    assert node.child() != first
    assert ("gpu", "child_died") not in node.health.snapshot().errors


def test_a_driver_that_does_not_match_its_module_is_told_as_failed(driver: fake.FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    driver.driver("init.error", fake.VERSION_MISMATCH)
    node = Node(driver)
    node.poller.start()

    snapshot = node.when(lambda now: now.driver == "failed")

    node.poller.stop()
    assert (snapshot.devices, snapshot.readings) == (0, ())
    assert [record.levelname for record in caplog.records if "error 18" in record.getMessage()] == ["ERROR"]


def test_a_node_without_a_driver_has_no_devices_and_one_quiet_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    health = Health()
    env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    started: list[float] = []
    plain = launcher(INTERVAL_S, env=env)

    def launch() -> Process:
        started.append(time.monotonic())
        return plain()

    poller = Poller(SystemClock(), health, interval_s=INTERVAL_S, patience=Patience(first_pause_s=0.01), launch=launch)

    poller.start()
    until(lambda: poller.snapshot().driver == "absent" and not poller.snapshot().child_alive)
    poller.stop()

    snapshot = poller.snapshot()
    assert (snapshot.devices, snapshot.devices_expected, snapshot.readings) == (0, 0, ())
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert health.snapshot().errors == {}
    assert len(started) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "closed input"])
def test_a_child_told_to_end_finishes_the_call_in_flight_first(driver: fake.FakeDriver, how: str) -> None:
    driver.call("power", gpu=0, hang=2)
    command = [sys.executable, "-m", "trainer_exporter.gpu.child", "0.2"]
    child = subprocess.Popen(command, env=driver.env(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    until(lambda: (child.pid, "begin", "power", 0) in driver.trace())

    if how == "SIGTERM":
        child.terminate()
    else:
        assert child.stdin is not None
        child.stdin.close()

    assert child.wait(20) == 0
    calls = [row[1:] for row in driver.trace() if row[3] in {0, -1}]
    assert calls.index(("end", "power", 0)) < calls.index(("begin", "shutdown", -1))
    assert calls[-1] == ("begin", "shutdown", -1)


def test_a_daemon_that_stops_does_not_wait_for_a_card_that_hangs(driver: fake.FakeDriver) -> None:
    node = Node(driver)
    node.poller.start()
    node.when_all_answer()
    driver.set(gpu=3, hang=fake.FOREVER)
    node.when(lambda now: fake.uuid(3) in failed(now))
    child = node.child()

    began = time.monotonic()
    node.poller.stop()

    assert time.monotonic() - began < 10
    assert Path(f"/proc/{child}").exists(), "it was killed in the middle of a driver call"
    driver.heal()
    until(lambda: (child, "begin", "shutdown", -1) in driver.trace())


class Unkillable:
    """A child as the kernel shows one that is stuck inside the driver: SIGKILL does nothing."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid, self.stdin, self.stdout = process.pid, process.stdin, process.stdout

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        pass


class CountingClock(SystemClock):
    """Tells that the poller's thread goes round though nothing else shows it."""

    looks = 0

    def mono(self) -> float:
        self.looks += 1
        return super().mono()


def test_a_child_that_cannot_be_killed_is_left_and_has_one_successor() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def launch() -> Unkillable:
        mute = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        children.append(subprocess.Popen(mute, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return Unkillable(children[-1])

    health, clock = Health(), CountingClock()
    patience = Patience(silence_s=0.05, grace_s=0.05, first_pause_s=0.01, longest_pause_s=0.02)
    poller = Poller(clock, health, patience=patience, launch=launch)
    poller.start()
    until(lambda: health.snapshot().errors.get(("gpu", "child_unkillable"), 0) == 2)

    looks = clock.looks
    until(lambda: clock.looks > looks + 20)
    while_both_hang = len(children)
    children[0].kill()
    until(lambda: len(children) > while_both_hang)

    poller.stop()
    for child in children:
        child.kill()
        child.wait()
    assert while_both_hang == 2
    assert len(children) == 3

"""The daemon's poller on a driver of our own, and ways to wait for what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import fake
from trainer_exporter.clock import SystemClock
from trainer_exporter.gpu.poller import KernelPlaces, Patience, Poller, launcher
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuReading, GpuSnapshot

INTERVAL_S = 0.2
DEADLINE_S = 1.0
PATIENCE_S = 60.0  # for a condition; a busy machine starts a Python child in seconds


def until(condition: Callable[[], bool], last_seen: Callable[[], object] = lambda: "nothing that tells more") -> None:
    """Wait for a condition; fails when it does not come to hold in time, and then tells what was seen last."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"did not happen within {PATIENCE_S:.0f} s; last seen: {last_seen()}")
        time.sleep(0.02)


def in_short(snapshot: GpuSnapshot) -> str:
    """What most conditions look at, in one line."""
    cards = " ".join(f"{reading.identity.index}:{reading.error or 'ok'}" for reading in snapshot.readings)
    return (
        f"{snapshot.devices} of {snapshot.devices_expected} GPUs, lost {sorted(snapshot.lost)}, cards [{cards}], "
        f"{snapshot.child_restarts} restarts, child alive: {snapshot.child_alive}, driver: {snapshot.driver or 'ok'}"
    )


class Node:
    """A node with a driver, and the daemon's poller on it."""

    def __init__(self, driver: fake.FakeDriver, *, throughput: bool = False) -> None:
        self.driver = driver
        self.health = Health()
        self.poller = Poller(
            SystemClock(),
            self.health,
            interval_s=INTERVAL_S,
            deadline_s=DEADLINE_S,
            patience=Patience(silence_s=8.0, grace_s=2.0, first_pause_s=0.3, release_s=1.0),
            places=KernelPlaces(log=str(driver.kmsg), gpus=str(driver.gpus)),
            launch=launcher(INTERVAL_S, env=driver.env(), gpus=str(driver.gpus), throughput=throughput),
        )

    def when(self, condition: Callable[[GpuSnapshot], bool]) -> GpuSnapshot:
        """The first snapshot for which the condition holds; fails when none comes in time."""
        seen: list[GpuSnapshot] = []

        def holds() -> bool:
            seen[:] = [self.poller.snapshot()]
            return condition(seen[0])

        until(holds, lambda: in_short(seen[0]))
        return seen[0]

    def when_all_answer(self, gpus: int = 8) -> GpuSnapshot:
        return self.when(lambda now: len(now.readings) == gpus and all(reading.success for reading in now.readings))

    def child(self) -> int:
        """PID of the process that talked to the driver last."""
        return self.driver.trace()[-1][0]


def reading_of(snapshot: GpuSnapshot, gpu: int) -> GpuReading:
    return reading_by_uuid(snapshot, fake.uuid(gpu))


def reading_by_uuid(snapshot: GpuSnapshot, uuid: str) -> GpuReading:
    return next(reading for reading in snapshot.readings if reading.identity.uuid == uuid)

"""A simulated card: what it reads, as trainer-exporter publishes it and as dcgm-exporter does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CARD = "NVIDIA H100 80GB HBM3"
LIMIT_W = 700.0


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def noise(*what: object) -> float:
    """Of the normal distribution, and the same for the same question."""
    return random.Random("/".join(map(str, what))).gauss(0, 1)


def reading(
    *, busy: float, traffic: float, power: float, celsius: float, clock: float, used: float, throttled: bool = False
) -> dict[str, float]:
    size = 80 * 2.0**30
    return {
        "utilization_ratio": busy,
        "memory_bandwidth_utilization_ratio": max(0.0, traffic),
        "power_watts": power,
        "power_limit_watts": LIMIT_W,
        "memory_used_bytes": used * size,
        "memory_total_bytes": size,
        "memory_reserved_bytes": 0.006 * size,
        "temperature_celsius": celsius,
        "memory_temperature_celsius": celsius + 9,
        "slowdown_temperature_celsius": 92,
        "sm_clock_hertz": clock * 1e6,
        "throttled": throttled,
    }


DCGM_NAMES = {  # name, and what the reading is multiplied with
    "utilization_ratio": ("GPU_UTIL", 100),
    "memory_bandwidth_utilization_ratio": ("MEM_COPY_UTIL", 100),
    "power_watts": ("POWER_USAGE", 1),
    "power_limit_watts": ("ENFORCED_POWER_LIMIT", 1),
    "memory_used_bytes": ("FB_USED", 2.0**-20),
    "temperature_celsius": ("GPU_TEMP", 1),
    "memory_temperature_celsius": ("MEMORY_TEMP", 1),
    "slowdown_temperature_celsius": ("SLOWDOWN_TEMP", 1),
    "sm_clock_hertz": ("SM_CLOCK", 1e-6),
}


def card_samples(labels: Mapping[str, str], read: dict[str, float], *, node: int, is_dcgm: bool) -> Iterator[Sample]:
    throttled = read.pop("throttled")
    if is_dcgm:
        told = {"gpu": labels["gpu"], "UUID": labels["uuid"], "modelName": CARD, "DCGM_FI_DRIVER_VERSION": "570.86.15"}
        for reading, (name, factor) in DCGM_NAMES.items():
            yield Sample(f"DCGM_FI_DEV_{name}", told, read[reading] * factor)
        yield Sample("DCGM_FI_DEV_FB_FREE", told, (read["memory_total_bytes"] - read["memory_used_bytes"]) * 2.0**-20)
        return
    for reading, value in read.items():
        yield Sample(f"gpu_{reading}", labels, value)
    identity = {"name": CARD, "serial": f"16525{node:04d}{labels['gpu']}", "pci_bus_id": f"0000:1{labels['gpu']}:00.0"}
    yield Sample("gpu_info", {**labels, **identity, "driver_version": "570.86.15"}, 1)
    for name, value in (("lost", 0), ("collect_success", 1), ("nvlink_active_links", 18), ("pcie_replays_total", 0)):
        yield Sample(f"gpu_{name}", labels, value)
    for reason in ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"):
        yield Sample("gpu_throttle_active", {**labels, "reason": reason}, throttled and reason == "sw_thermal_slowdown")
    for kind in ("corrected", "uncorrected"):
        yield Sample("gpu_ecc_errors_total", {**labels, "kind": kind, "counter": "volatile"}, 0)
    yield Sample("gpu_xid_errors_total", {**labels, "xid": "79"}, 0)

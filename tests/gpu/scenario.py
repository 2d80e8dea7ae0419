"""Scenarios: what the cards of a node answer, as a file in the form of the fake driver's script, and what a page must show of it.

A file says everything that a card can say, in NVML's units; "CARD.CALL.error 3" or a key that is not there says that it cannot. ``ROWS``
is the one place that relates a key to its metric, for the tests and for what is recorded on a real machine (real.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fake

FOLDER = Path(__file__).with_name("scenarios")
ALL = sorted(FOLDER.glob("*.nvml"))

Series = tuple[str, ...]  # metric, uuid, gpu, further labels


class Row(NamedTuple):
    """A key, the driver call (or field) that answers for it, and the metric with its labels and the factor from NVML's unit."""

    key: str
    call: str
    metric: str
    labels: tuple[str, ...] = ()
    factor: float = 1.0
    absent: tuple[int, ...] = ()  # what stands for "no value"


BLANK = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
ROWS = (
    Row("util", "util", "gpu_utilization_ratio", factor=0.01),
    Row("memutil", "util", "gpu_memory_bandwidth_utilization_ratio", factor=0.01),
    Row("total", "", "gpu_memory_total_bytes"),
    Row("used", "", "gpu_memory_used_bytes"),
    Row("reserved", "", "gpu_memory_reserved_bytes"),
    Row("power_mw", "power", "gpu_power_watts", factor=1e-3, absent=BLANK),
    Row("power_limit_mw", "power_limit", "gpu_power_limit_watts", factor=1e-3),
    Row("energy_mj", "energy", "gpu_energy_joules_total", factor=1e-3, absent=BLANK),
    Row("temperature", "temperature", "gpu_temperature_celsius"),
    Row("memory_temperature", "memory_temperature", "gpu_memory_temperature_celsius", absent=(0,)),
    Row("slowdown", "threshold", "gpu_slowdown_temperature_celsius"),
    Row("sm_mhz", "clock", "gpu_sm_clock_hertz", factor=1e6),
    Row("memory_mhz", "clock", "gpu_memory_clock_hertz", factor=1e6),
    *(
        Row(f"ecc_{kind}_{counter}", "ecc", "gpu_ecc_errors_total", (kind, counter))
        for kind in ("corrected", "uncorrected")
        for counter in ("volatile", "aggregate")
    ),
    Row("remapped_corrected", "remapped", "gpu_remapped_rows", ("corrected",)),
    Row("remapped_uncorrected", "remapped", "gpu_remapped_rows", ("uncorrected",)),
    Row("remap_pending", "remapped", "gpu_row_remap_pending"),
    Row("remap_failure", "remapped", "gpu_row_remap_failure"),
    Row("retired_corrected", "retired", "gpu_retired_pages", ("corrected",)),
    Row("retired_uncorrected", "retired", "gpu_retired_pages", ("uncorrected",)),
    *(
        Row(f"nvlink_{kind}", f"nvlink_{kind}", "gpu_nvlink_errors_total", (kind,))
        for kind in ("crc_flit", "crc_data", "replay", "recovery", "ecc")
    ),
    Row("pcie_generation", "pcie", "gpu_pcie_link_generation"),
    Row("pcie_width", "pcie", "gpu_pcie_link_width"),
    Row("pcie_generation_max", "pcie", "gpu_pcie_link_generation_max"),
    Row("pcie_width_max", "pcie", "gpu_pcie_link_width_max"),
    Row("pcie_replays", "replays", "gpu_pcie_replays_total"),
    Row("pcie_transmit_kb", "throughput", "gpu_pcie_transmit_bytes_per_second", factor=1e3),
    Row("pcie_receive_kb", "throughput", "gpu_pcie_receive_bytes_per_second", factor=1e3),
    Row("gpm_graphics", "gpm", "gpu_graphics_engine_active_ratio", factor=0.01),
    Row("gpm_sm", "gpm", "gpu_sm_active_ratio", factor=0.01),
    Row("gpm_occupancy", "gpm", "gpu_sm_occupancy_ratio", factor=0.01),
    Row("gpm_tensor", "gpm", "gpu_tensor_active_ratio", factor=0.01),
    Row("gpm_dram", "gpm", "gpu_dram_active_ratio", factor=0.01),
)
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks": 0x100,
}


class Scenario:
    """One file, read."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[str, str] = dict(_lines(path))
        self.cards = int(self.lines["count"])
        self.has_throughput = any(key.endswith("pcie_transmit_kb") for key in self.lines)

    def parts(self) -> Mapping[str, tuple[int, str]]:
        """Card and UUID by the first word of the keys: of each card, and of each MIG instance."""
        found = {str(card): (card, fake.uuid(card)) for card in range(self.cards)}
        for card in range(self.cards):
            for part in range(int(self.lines.get(f"{card}.mig", "0"))):
                found[f"{card}m{part}"] = (card, fake.mig_uuid(card, part))
        return found

    def say(self, part: str, key: str) -> int | float | None:
        """What a card answers for a key; None where it has none."""
        word = self.lines.get(f"{part}.{key}", None if "m" in part else self.lines.get(f"*.{key}"))
        if word is None:
            return None
        return float(word) if "." in word else int(word, 0)

    def expected(self) -> dict[Series, float]:
        """Every series of a reading that the page must have, and no other."""
        return {
            (metric, uuid, str(card), *rest): value for part, (card, uuid) in self.parts().items() for metric, rest, value in self._of(part)
        }

    def _of(self, part: str) -> Iterator[tuple[str, tuple[str, ...], float]]:
        for row in ROWS:
            value = self.say(part, row.key)
            if value is not None and value not in row.absent and not self._fails(part, row):
                yield row.metric, row.labels, value * row.factor
        reasons = self.say(part, "reasons")
        for name, bit in REASONS.items() if reasons is not None else ():
            yield "gpu_throttle_active", (name,), float(bool(int(reasons or 0) & bit))
        yield from self._links(part)

    def _fails(self, part: str, row: Row) -> bool:
        return bool(self.say(part, f"{row.call}.error"))

    def _links(self, part: str) -> Iterator[tuple[str, tuple[str, ...], float]]:
        links = int(self.say(part, "nvlinks") or 0)
        if links:
            yield "gpu_nvlink_active_links", (), sum(self.say(part, f"nvlink_state.{link}") != 0 for link in range(links))
        for kind in ("receive", "recovery"):
            each = self.say(part, f"nvlink_each_{kind}")
            if each is not None:
                yield "gpu_nvlink_errors_total", (kind,), links * each


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition(" ")
            yield key, value

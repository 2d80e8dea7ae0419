"""What is asked of one GPU at each look, in base units, by the names that ``GpuReading`` has.

Runs in the child process. A quantity that a card cannot say is left out, and so is a sum or a count of which a part is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from trainer_exporter.errors import GpuError
from trainer_exporter.gpu.nvml import INSUFFICIENT_SIZE, Device, Driver, Field, Gpm

THROTTLE_REASONS: Final = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clocks"),
)
MEMORY_V2: Final = 0x2000028  # size and version of the struct that has "reserved"
SLOWDOWN_THRESHOLD: Final = 1
SM_CLOCK: Final = 1
MEMORY_CLOCK: Final = 2
# Causes of page retirement; cards before Ampere only.
RETIRED: Final = ((0, "corrected"), (1, "uncorrected"))

# Ids of the generic query (nvml.h, NVML_FI_DEV_*).
MEMORY_TEMPERATURE: Final[Field] = (82, 0)  # the HBM's sensor
LINK_COUNT: Final[Field] = (91, 0)
REPLAYS: Final[Field] = (94, 0)
LINK_STATE: Final = 165
LINKS_UP: Final = frozenset({1, 2})  # active, and asleep to save power
LINK_TOTALS: Final[tuple[tuple[Field, str], ...]] = (
    ((38, 0), "crc_flit"),
    ((45, 0), "crc_data"),
    ((52, 0), "replay"),
    ((59, 0), "recovery"),
    ((160, 0), "ecc"),
)
# Of each link, where the card has no totals (Blackwell).
LINK_ERRORS: Final = ((208, "receive"), (215, "recovery"))
MOST_LINKS: Final = 36


def scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


class Card:
    """One GPU of this process's NVML session, or one MIG instance of it."""

    def __init__(self, index: int, uuid: str, device: Device, *, facts: Mapping[str, str], probes: Sequence[Probe]) -> None:
        self.index = index
        self.uuid = uuid
        self.device = device
        self.instances: tuple[Card, ...] = ()
        self._facts = facts
        self._probes = probes

    def identity(self) -> dict[str, Any]:
        """What does not change while the card is in its slot."""
        name = self.device.once("nvmlDeviceGetName") or ""
        return {"uuid": self.uuid, "index": self.index, "name": name, **self._facts}

    def look(self) -> Iterator[tuple[str, Any]]:
        """Name and value of one quantity after the other, each with one or two driver calls.

        A generator, so that its reader can stop between two calls. Raises GpuError when the driver fails: the whole look is then void.
        """
        for probe in self._probes:
            yield from probe(self.device).items()

    def forget(self) -> None:
        """Ask for everything anew at the next look."""
        for each in (self, *self.instances):
            each.device.forget()

    def has_changed_layout(self) -> bool:
        """Whether MIG instances have come or gone since the session began. Raises GpuError."""
        return set(_instances(self.device)) != {instance.uuid for instance in self.instances}


Probe = Callable[[Device], Mapping[str, Any]]


def cards_of(driver: Driver, *, throughput: bool = False) -> list[Card]:
    """The cards that answer, each with its MIG instances. Raises GpuError when the driver cannot even count them."""
    found, version = [], driver.version()
    for index, uuid, device in driver.devices():
        pci, minor = device.ask("nvmlDeviceGetPciInfo"), device.ask("nvmlDeviceGetMinorNumber")
        facts = {
            "serial": device.ask("nvmlDeviceGetSerial") or "",
            "pci_bus_id": _text(pci.busId).lower() if pci is not None else "",
            "driver_version": version,
            "minor": "" if minor is None else str(minor),
        }
        parts = _instances(device)
        # The processes of a card that is cut up are those of its parts, and are told with them.
        own = (*PROBES, *((_throughput,) if throughput else ()), *(() if parts else (_Activity(Gpm(device)), _processes)))
        card = Card(index, uuid, device, facts=facts, probes=own)
        card.instances = tuple(_instance(card, part_uuid, part, facts) for part_uuid, part in parts.items())
        found.append(card)
    return found


def _instances(device: Device) -> dict[str, Device]:
    """The MIG instances of a card by UUID; none where it is not cut up. Raises GpuError."""
    mode = device.ask("nvmlDeviceGetMigMode")
    if mode is None or mode[0] != 1:
        return {}
    found = {}
    for place in range(device.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        handle = device.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)  # places may be empty
        part = Device(handle) if handle is not None else None
        uuid = part.ask("nvmlDeviceGetUUID") if part is not None else None
        if part is not None and uuid:
            found[uuid] = part
    return found


def _instance(card: Card, uuid: str, part: Device, facts: Mapping[str, str]) -> Card:
    gpu_instance = part.ask("nvmlDeviceGetGpuInstanceId")
    compute_instance = part.ask("nvmlDeviceGetComputeInstanceId")
    own = {
        **facts,
        "parent_uuid": card.uuid,
        "gpu_instance": "" if gpu_instance is None else str(gpu_instance),
        "compute_instance": "" if compute_instance is None else str(compute_instance),
    }
    activity = () if gpu_instance is None else (_Activity(Gpm(card.device, gpu_instance)),)
    return Card(card.index, uuid, part, facts=own, probes=(*INSTANCE_PROBES, *activity))


def _utilization(device: Device) -> Mapping[str, Any]:
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates is None or rates.gpu > 100 or rates.memory > 100:
        return {}
    return {"utilization_ratio": rates.gpu / 100, "memory_bandwidth_utilization_ratio": rates.memory / 100}


def _memory(device: Device) -> Mapping[str, Any]:
    memory = device.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2)
    if memory is not None:
        return _checked_memory(memory.total, memory.used, memory.reserved)
    # Drivers before R510 know only the first version, whose "used" holds what the driver reserves.
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    return _checked_memory(memory.total, memory.used, 0) if memory is not None else {}


def _checked_memory(total: int, used: int, reserved: int) -> Mapping[str, Any]:
    return {"memory": [total, used, reserved]} if total > 0 and used + reserved <= total else {}


def _power(device: Device) -> Mapping[str, Any]:
    return {
        "power_watts": scaled(device.ask("nvmlDeviceGetPowerUsage"), 1e-3),
        "power_limit_watts": scaled(device.ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
    }


def _energy(device: Device) -> Mapping[str, Any]:
    return {"energy_joules": scaled(device.ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)}


def _temperature(device: Device) -> Mapping[str, Any]:
    celsius = device.ask("nvmlDeviceGetTemperature", 0)
    if celsius is None:  # CUDA 14 will have the successor alone
        celsius = device.ask("nvmlDeviceGetTemperatureV", 0)
    limit = device.once("nvmlDeviceGetTemperatureThreshold", SLOWDOWN_THRESHOLD)
    return {"temperature_celsius": scaled(celsius, 1), "slowdown_temperature_celsius": scaled(limit or None, 1)}


def _clocks(device: Device) -> Mapping[str, Any]:
    return {
        "sm_clock_hertz": scaled(device.ask("nvmlDeviceGetClockInfo", SM_CLOCK), 1e6),
        "memory_clock_hertz": scaled(device.ask("nvmlDeviceGetClockInfo", MEMORY_CLOCK), 1e6),
    }


def _throttle(device: Device) -> Mapping[str, Any]:
    mask = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:  # drivers before R535 export the old name alone
        mask = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    if mask is None:
        return {}
    return {"throttle_active": {name: bool(mask & bit) for bit, name in THROTTLE_REASONS}}


def _ecc(device: Device) -> Mapping[str, Any]:
    counts = []
    for error, kind in enumerate(("corrected", "uncorrected")):
        for scope, counter in enumerate(("volatile", "aggregate")):
            count = device.ask("nvmlDeviceGetTotalEccErrors", error, scope)
            if count is not None:
                counts.append([kind, counter, count])
    return {"ecc_errors": counts} if counts else {}


def _rows(device: Device) -> Mapping[str, Any]:
    rows = device.ask("nvmlDeviceGetRemappedRows")
    if rows is None:
        return {}
    corrected, uncorrected, pending, failure = rows
    return {
        "remapped_rows": {"corrected": corrected, "uncorrected": uncorrected},
        "row_remap_pending": bool(pending),
        "row_remap_failure": bool(failure),
    }


def _pages(device: Device) -> Mapping[str, Any]:
    pages = {kind: device.ask("nvmlDeviceGetRetiredPages", cause) for cause, kind in RETIRED}
    counted = {kind: len(listed) for kind, listed in pages.items() if listed is not None}
    return {"retired_pages": counted} if counted else {}


def _pcie(device: Device) -> Mapping[str, Any]:
    return {
        "pcie_link_generation": device.ask("nvmlDeviceGetCurrPcieLinkGeneration") or None,
        "pcie_link_width": device.ask("nvmlDeviceGetCurrPcieLinkWidth") or None,
        "pcie_link_generation_max": device.once("nvmlDeviceGetMaxPcieLinkGeneration") or None,
        "pcie_link_width_max": device.once("nvmlDeviceGetMaxPcieLinkWidth") or None,
    }


def _throughput(device: Device) -> Mapping[str, Any]:
    """Each of the two calls counts for 20 ms, and blocks so long."""
    return {
        "pcie_transmit_bytes_per_second": scaled(device.ask("nvmlDeviceGetPcieThroughput", 0), 1e3),
        "pcie_receive_bytes_per_second": scaled(device.ask("nvmlDeviceGetPcieThroughput", 1), 1e3),
    }


def _fields(device: Device) -> Mapping[str, Any]:
    """All that the generic query has, with one call."""
    links = range(device.keep("links", lambda: _links(device)))
    wanted = [MEMORY_TEMPERATURE, REPLAYS, *(field for field, _ in LINK_TOTALS if links), *((LINK_STATE, link) for link in links)]
    found = device.fields(wanted)
    values: dict[str, Any] = {}
    celsius, replays = found.get(MEMORY_TEMPERATURE), found.get(REPLAYS)
    if celsius:  # 0 is what cards without the sensor answer; no memory runs that cold
        values["memory_temperature_celsius"] = float(celsius)
    values["pcie_replays"] = device.ask("nvmlDeviceGetPcieReplayCounter") if replays is None else replays
    if links:
        values["nvlink_active_links"] = _active_links(device, [found.get((LINK_STATE, link)) for link in links])
        totals = {kind: found[field] for field, kind in LINK_TOTALS if field in found}
        values["nvlink_errors"] = totals or _link_errors(device, links)
    return values


def _links(device: Device) -> int:
    """How many NVLinks a card has, whether or not they are up."""
    count = device.fields([LINK_COUNT]).get(LINK_COUNT)
    if count is not None:
        return min(int(count), MOST_LINKS)
    for link in range(MOST_LINKS):  # a driver that does not count them refuses the first one that is not there
        if device.ask("nvmlDeviceGetNvLinkState", link) is None:
            return link
    return MOST_LINKS


def _active_links(device: Device, states: Sequence[float | None]) -> int | None:
    if all(state is None for state in states):
        states = [device.ask("nvmlDeviceGetNvLinkState", link) for link in range(len(states))]
    return None if None in states else sum(state in LINKS_UP for state in states)


def _link_errors(device: Device, links: Sequence[int]) -> Mapping[str, float] | None:
    found = device.fields([(field, link) for field, _ in LINK_ERRORS for link in links])
    counted = {kind: [found.get((field, link)) for link in links] for field, kind in LINK_ERRORS}
    sums = {kind: sum(count or 0 for count in counts) for kind, counts in counted.items() if None not in counts}
    return sums or None


def _processes(device: Device) -> Mapping[str, Any]:
    for patience in (2, 1, 0):
        try:
            processes = device.ask("nvmlDeviceGetComputeRunningProcesses") or ()
        except GpuError as error:
            if patience and error.code == INSUFFICIENT_SIZE:  # the list has grown between two questions
                continue
            raise
        return {"processes": [[process.pid, process.usedGpuMemory] for process in processes]}
    return {}


class _Activity:
    """A probe that remembers its last sample."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def __call__(self, device: Device) -> Mapping[str, Any]:
        return self._gpm.look()


PROBES: Final[tuple[Probe, ...]] = (
    _utilization,
    _memory,
    _power,
    _energy,
    _temperature,
    _clocks,
    _throttle,
    _ecc,
    _rows,
    _pages,
    _pcie,
    _fields,
)
# What NVML knows of a part of a card; the rest is the card's.
INSTANCE_PROBES: Final[tuple[Probe, ...]] = (_utilization, _memory, _ecc, _processes)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

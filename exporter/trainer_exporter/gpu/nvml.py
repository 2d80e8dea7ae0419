"""The driver's calls, each through one wrapper: a value, None ("this card cannot say"), or GpuError ("the driver failed").

The only importer of pynvml. Runs in the child process alone, so it imports little: no dataclasses, nothing of the daemon's. Units are
base units on the way out. What the driver means by its numbers is told in nvml.h (nvidia-ml-py carries the same comments).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pynvml

from trainer_exporter.errors import GpuError

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
DRIVER_NOT_LOADED: Final = 9
LIBRARY_NOT_FOUND: Final = 12
GPU_IS_LOST: Final = 15
UNKNOWN: Final = 999
WAIT_ENDED: Final = 10  # NVML's TIMEOUT, which is how a wait for events ends when there was none

# Not supported, no permission, not found, function not found (driver older than the binding), corrupt inforom, no data, argument
# version (idem), deprecated, and INVALID_ARGUMENT, which is how a sensor or link that a card lacks is refused.
CANNOT_SAY: Final = frozenset({INVALID_ARGUMENT, 3, 4, 6, 13, 14, 21, 25, 26})

# What stands for "no value" inside a number: NVML's not-available of 32 and 64 bits, and DCGM's blanks, seen to leak through.
BLANKS: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4), *range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4)})

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
MEMORY_TEMPERATURE: Final = 82  # field id; the HBM's sensor
VALUE_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
XID_EVENT: Final = 8
SLOWDOWN_THRESHOLD: Final = 1
SM_CLOCK: Final = 1
MEMORY_CLOCK: Final = 2


def do(call: str, *arguments: Any) -> Any:
    """The result of a call that every driver must be able to answer. Raises GpuError, and AttributeError for a binding too old."""
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        raise GpuError(call, int(error.value), str(error)) from error


def ask(call: str, *arguments: Any) -> Any:
    """What the driver answers to one call; None when the card cannot say.

    Raises GpuError when the driver failed.
    """
    if not hasattr(pynvml, call):
        return None
    try:
        value = do(call, *arguments)
    except GpuError as error:
        if error.code in CANNOT_SAY:
            return None
        raise
    except UnicodeDecodeError:  # an identity read from a card that is half gone
        return None
    return None if isinstance(value, int) and value in BLANKS else value


def scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


class Card:
    """One GPU of this process's NVML session."""

    def __init__(self, index: int, handle: Any, *, uuid: str, driver_version: str) -> None:
        self.index = index
        self.handle = handle
        self.uuid = uuid
        self._driver_version = driver_version

    def identity(self) -> dict[str, Any]:
        """What does not change while the card is in its slot."""
        pci = ask("nvmlDeviceGetPciInfo", self.handle)
        return {
            "uuid": self.uuid,
            "index": self.index,
            "name": ask("nvmlDeviceGetName", self.handle) or "",
            "serial": ask("nvmlDeviceGetSerial", self.handle) or "",
            "pci_bus_id": _text(pci.busId).lower() if pci is not None else "",
            "driver_version": self._driver_version,
        }

    def look(self) -> Iterator[tuple[str, Any]]:
        """Name and value of one quantity after the other, each with one or two driver calls.

        A generator, so that its reader can stop between two calls. Raises GpuError when the driver fails: the whole look is then void.
        """
        for probe in PROBES:
            yield from probe(self.handle).items()


Probe = Callable[[Any], Mapping[str, Any]]


def _utilization(handle: Any) -> Mapping[str, Any]:
    rates = ask("nvmlDeviceGetUtilizationRates", handle)
    if rates is None:
        return {}
    return {"utilization_ratio": rates.gpu / 100, "memory_bandwidth_utilization_ratio": rates.memory / 100}


def _memory(handle: Any) -> Mapping[str, Any]:
    memory = ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if memory is not None:
        return {"memory": [memory.total, memory.used, memory.reserved]}
    # Drivers before R510 know only the first version, whose "used" holds what the driver reserves.
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    return {"memory": [memory.total, memory.used, 0]} if memory is not None else {}


def _power(handle: Any) -> Mapping[str, Any]:
    return {
        "power_watts": scaled(ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
        "power_limit_watts": scaled(ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
    }


def _energy(handle: Any) -> Mapping[str, Any]:
    return {"energy_joules": scaled(ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3)}


def _temperature(handle: Any) -> Mapping[str, Any]:
    celsius = ask("nvmlDeviceGetTemperature", handle, 0)
    if celsius is None:  # CUDA 14 will have the successor alone
        celsius = ask("nvmlDeviceGetTemperatureV", handle, 0)
    limit = ask("nvmlDeviceGetTemperatureThreshold", handle, SLOWDOWN_THRESHOLD)
    return {"temperature_celsius": scaled(celsius, 1), "slowdown_temperature_celsius": scaled(limit, 1)}


def _memory_temperature(handle: Any) -> Mapping[str, Any]:
    # 0 is what cards without the sensor answer; no memory runs that cold.
    celsius = _field(handle, MEMORY_TEMPERATURE)
    return {"memory_temperature_celsius": float(celsius)} if celsius else {}


def _clocks(handle: Any) -> Mapping[str, Any]:
    return {
        "sm_clock_hertz": scaled(ask("nvmlDeviceGetClockInfo", handle, SM_CLOCK), 1e6),
        "memory_clock_hertz": scaled(ask("nvmlDeviceGetClockInfo", handle, MEMORY_CLOCK), 1e6),
    }


def _throttle(handle: Any) -> Mapping[str, Any]:
    mask = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # drivers before R535 export the old name alone
        mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if mask is None:
        return {}
    return {"throttle_active": {name: bool(mask & bit) for bit, name in THROTTLE_REASONS}}


def _ecc(handle: Any) -> Mapping[str, Any]:
    counts = []
    for error, kind in enumerate(("corrected", "uncorrected")):
        for scope, counter in enumerate(("volatile", "aggregate")):
            count = ask("nvmlDeviceGetTotalEccErrors", handle, error, scope)
            if count is not None:
                counts.append([kind, counter, count])
    return {"ecc_errors": counts} if counts else {}


def _processes(handle: Any) -> Mapping[str, Any]:
    processes = ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {"processes": [[process.pid, process.usedGpuMemory] for process in processes]}


PROBES: Final[tuple[Probe, ...]] = (
    _utilization,
    _memory,
    _power,
    _energy,
    _temperature,
    _memory_temperature,
    _clocks,
    _throttle,
    _ecc,
    _processes,
)


def _field(handle: Any, field: int) -> float | None:
    """One value of the generic query, whose call succeeds even when the field did not."""
    values = ask("nvmlDeviceGetFieldValues", handle, [field])
    if values is None or values[0].nvmlReturn != 0:
        return None
    member = VALUE_MEMBERS.get(values[0].valueType)
    value = getattr(values[0].value, member) if member else None
    return None if value is None or value in BLANKS else value


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class Driver:
    """An NVML session: from ``open`` to ``close``. Handles live exactly as long."""

    def open(self) -> None:
        """Load the library and initialise it; may block for seconds a card where nothing else keeps the driver loaded.

        Raises GpuError.
        """
        do("nvmlInit")

    def cards(self) -> list[Card]:
        """The cards that answer. One that is lost or forbidden is left out: without its UUID nothing can be said of it.

        Raises GpuError when the driver cannot even count them.
        """
        version = ask("nvmlSystemGetDriverVersion") or ""
        found = []
        for index in range(do("nvmlDeviceGetCount")):
            try:
                handle = ask("nvmlDeviceGetHandleByIndex", index)
                uuid = ask("nvmlDeviceGetUUID", handle) if handle is not None else None
            except GpuError:
                continue
            if uuid:
                found.append(Card(index, handle, uuid=uuid, driver_version=version))
        return found

    def close(self) -> None:
        do("nvmlShutdown")


class XidEvents:
    """The Xid errors of some cards, as the driver tells them from now on; what happened before is not told."""

    def __init__(self, cards: list[Card]) -> None:
        self._set = do("nvmlEventSetCreate")
        self._uuids = {_address(card.handle): card.uuid for card in cards}
        for card in cards:
            self._register(card)

    def _register(self, card: Card) -> None:
        try:
            # One unsupported bit in the mask makes the whole registration fail.
            if (ask("nvmlDeviceGetSupportedEventTypes", card.handle) or 0) & XID_EVENT:
                do("nvmlDeviceRegisterEvents", card.handle, XID_EVENT, self._set)
        except GpuError:
            return  # a lost card has no more events to tell; its loss is seen by its own look

    def wait(self, timeout_ms: int) -> tuple[str, int] | None:
        """UUID and Xid of the next event, None when there was none in time. Raises GpuError: the set must then be built anew."""
        try:
            event = do("nvmlEventSetWait_v2", self._set, timeout_ms)
        except GpuError as error:
            if error.code == WAIT_ENDED:
                return None
            raise
        if not event.eventType & XID_EVENT:
            return None
        uuid = self._uuids.get(_address(event.device))
        return (uuid, int(event.eventData)) if uuid else None

    def close(self) -> None:
        do("nvmlEventSetFree", self._set)


def _address(handle: Any) -> int | None:
    """Two ctypes pointers to one card are not equal; their addresses are."""
    return ctypes.cast(handle, ctypes.c_void_p).value

"""The driver's calls, each through one wrapper: a value, None ("this card cannot say"), or GpuError ("the driver failed").

The only importer of pynvml. Runs in the child process alone, so it imports little: no dataclasses, nothing of the daemon's. Numbers are
as the driver gives them; ``card`` turns them into base units. What they mean is told in nvml.h (nvidia-ml-py carries the same comments).
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pynvml

from trainer_exporter.errors import GpuError

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
UNKNOWN: Final = 999
WAIT_ENDED: Final = 10  # NVML's TIMEOUT, which is how a wait for events ends when there was none

# Not supported, no permission, function not found (driver older than the binding), argument version (idem), deprecated: asking again in
# the same NVML session is of no use.
FOR_GOOD: Final = frozenset({3, 4, FUNCTION_NOT_FOUND, 25, 26})
# These too are no answer, but may be one the next time: not found, corrupt inforom, no data, and INVALID_ARGUMENT, which is how a link
# that a card lacks is refused.
CANNOT_SAY: Final = FOR_GOOD | {INVALID_ARGUMENT, 6, 14, 21}

# What stands for "no value" inside a number: NVML's not-available of 32 and 64 bits, and DCGM's blanks, seen to leak through.
BLANKS: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, *range(0x7FFFFFF0, 0x7FFFFFF4), *range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4)})

VALUE_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
NO_INSTANCE: Final = 0xFFFFFFFF
XID_EVENT: Final = 8
UNBIND_EVENT: Final = 1

# Metrics of GPM by the name of our figure, in percent (nvml.h, NVML_GPM_METRIC_*).
ACTIVITY: Final = (
    (1, "graphics_engine_active_ratio"),
    (2, "sm_active_ratio"),
    (3, "sm_occupancy_ratio"),
    (5, "tensor_active_ratio"),
    (10, "dram_active_ratio"),
)
SHORTEST_SPAN_S: Final = 0.1  # between two samples of GPM: nvml.h asks for no less

Field = tuple[int, int]  # id of the field, and the link it is asked for (0 where it has none)


def do(call: str, *arguments: Any) -> Any:
    """The result of a call that every driver must be able to answer. Raises GpuError, and AttributeError for a binding too old."""
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        raise GpuError(call, int(error.value), str(error)) from error


def _answer(call: str, *arguments: Any) -> tuple[Any, int]:
    """What the driver answers, and its code when that is "cannot say". Raises GpuError when the driver failed."""
    if not hasattr(pynvml, call):
        return None, FUNCTION_NOT_FOUND
    try:
        value = do(call, *arguments)
    except GpuError as error:
        if error.code in CANNOT_SAY:
            return None, error.code
        raise
    except UnicodeDecodeError:  # an identity read from a card that is half gone
        return None, 0
    return (None if isinstance(value, int) and value in BLANKS else value), 0


def ask(call: str, *arguments: Any) -> Any:
    """What the driver answers to one call that concerns no card; None when it cannot say. Raises GpuError when it failed."""
    return _answer(call, *arguments)[0]


class Device:
    """A handle of one NVML session, with what it was found unable to answer: that is not asked for again before the next session."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._mute: set[tuple[Any, ...]] = set()
        self._kept: dict[tuple[Any, ...], Any] = {}

    def ask(self, call: str, *arguments: Any) -> Any:
        """What the driver answers to one call; None when the card cannot say. Raises GpuError when the driver failed."""
        return self._ask((call, *arguments), call, *arguments)

    def once(self, call: str, *arguments: Any) -> Any:
        """As ``ask``, for what does not change in a session: asked for until there is an answer."""
        key = (call, *arguments)
        if key not in self._kept:
            value = self.ask(call, *arguments)
            if value is None:
                return None
            self._kept[key] = value
        return self._kept[key]

    def fields(self, wanted: Sequence[Field]) -> Mapping[Field, float]:
        """Values of the generic query, all with one call; it succeeds even when a field did not, and such a field is left out."""
        asked = [field for field in wanted if field not in self._mute]
        values = self._ask(("fields",), "nvmlDeviceGetFieldValues", asked) if asked else None
        found = {}
        for field, value in zip(asked, values or (), strict=False):
            if value.nvmlReturn in FOR_GOOD:
                self._mute.add(field)
            elif value.nvmlReturn not in CANNOT_SAY | {0}:
                raise GpuError(f"field {field[0]}", value.nvmlReturn, "the field's own code")
            member = VALUE_MEMBERS.get(value.valueType) if value.nvmlReturn == 0 else None
            number = getattr(value.value, member, None) if member else None
            if number is not None and number not in BLANKS:
                found[field] = number
        return found

    def keep(self, name: str, find: Callable[[], Any]) -> Any:
        """A figure that does not change in a session, found once."""
        if (name,) not in self._kept:
            self._kept[name,] = find()
        return self._kept[name,]

    def sample(self, call: str, *arguments: Any) -> bool:
        """Let the driver fill a sample (last argument); whether it did."""
        return self._ask((call,), call, *arguments) is not None

    def forget(self) -> None:
        """Ask for everything anew: what this device can say may have changed."""
        self._mute.clear()
        self._kept.clear()

    def _ask(self, key: tuple[Any, ...], call: str, *arguments: Any) -> Any:
        if key in self._mute:
            return None
        value, code = _answer(call, self.handle, *arguments)
        if code in FOR_GOOD:
            self._mute.add(key)
        return value


class Gpm:
    """How busy the parts of a device were between two looks, from the pair of samples around that time (Hopper and newer).

    ``instance`` is a GPU instance of MIG, whose samples are taken through the whole card.
    """

    def __init__(self, card: Device, instance: int | None = None) -> None:
        self._card = card
        self._instance = () if instance is None else (instance,)
        self._call = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        self._older: Any = None
        self._newer: Any = None
        self._taken = 0.0

    def look(self) -> Mapping[str, float]:
        """Ratios by name; none at the first look, on a card without GPM, and for what it cannot say. Raises GpuError."""
        support = self._card.once("nvmlGpmQueryDeviceSupport")
        now = time.monotonic()
        if support is None or not support.isSupportedDevice or now - self._taken < SHORTEST_SPAN_S:
            return {}
        fresh = self._older or ask("nvmlGpmSampleAlloc")
        if fresh is None or not self._card.sample(self._call, *self._instance, fresh):
            return {}
        self._older, self._newer, self._taken = self._newer, fresh, now
        return self._ratios() if self._older is not None else {}

    def _ratios(self) -> Mapping[str, float]:
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(ACTIVITY)
        asked.sample1, asked.sample2 = self._older, self._newer
        for metric, (number, _) in zip(asked.metrics, ACTIVITY, strict=False):
            metric.metricId = number
        if ask("nvmlGpmMetricsGet", asked) is None:
            return {}
        answered = zip(asked.metrics, ACTIVITY, strict=False)
        return {name: metric.value / 100 for metric, (_, name) in answered if metric.nvmlReturn == 0 and _is_percent(metric.value)}


def _is_percent(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= 100


class Driver:
    """An NVML session: from ``open`` to ``close``. Handles live exactly as long.

    ``listed`` is how many cards the driver listed when they were last enumerated, ``unanswered`` how many of them had no answer.
    """

    def __init__(self) -> None:
        self.listed = 0
        self.unanswered = 0

    def open(self) -> None:
        """Load the library and initialise it; may block for seconds a card where nothing else keeps the driver loaded.

        Raises GpuError.
        """
        do("nvmlInit")

    def version(self) -> str:
        """The driver's version, "" where it does not say."""
        return ask("nvmlSystemGetDriverVersion") or ""

    def count(self) -> int:
        """How many cards the driver lists, those included that do not answer. Raises GpuError when it cannot even count them."""
        return int(do("nvmlDeviceGetCount"))

    def devices(self) -> Iterator[tuple[int, str, Device]]:
        """Index, UUID and handle of the cards that answer. One that is lost or forbidden is left out: without its UUID nothing can be
        said of it. Raises GpuError when the driver cannot even count them.
        """
        self.unanswered = 0
        self.listed = self.count()
        for index in range(self.listed):
            try:
                handle = ask("nvmlDeviceGetHandleByIndex", index)
                uuid = ask("nvmlDeviceGetUUID", handle) if handle is not None else None
            except GpuError:
                self.unanswered += 1
                continue
            if uuid:
                yield index, uuid, Device(handle)

    def close(self) -> None:
        do("nvmlShutdown")


class XidEvents:
    """The Xid errors of some cards (UUID and handle), as the driver tells them from now on; what happened before is not told."""

    def __init__(self, cards: Mapping[str, Device]) -> None:
        self._set = do("nvmlEventSetCreate")
        self._uuids = {_address(card.handle): uuid for uuid, card in cards.items()}
        for card in cards.values():
            self._register(card)

    def _register(self, card: Device) -> None:
        try:
            # One unsupported bit in the mask makes the whole registration fail.
            if (ask("nvmlDeviceGetSupportedEventTypes", card.handle) or 0) & XID_EVENT:
                do("nvmlDeviceRegisterEvents", card.handle, XID_EVENT, self._set)
        except GpuError:
            return  # a lost card has no more events to tell; its loss is seen by its own look

    def wait(self, timeout_ms: int) -> dict[str, Any] | None:
        """UUID, Xid and, on MIG, instances of the next event; None when there was none in time.

        Raises GpuError: the set must then be built anew.
        """
        try:
            event = do("nvmlEventSetWait_v2", self._set, timeout_ms)
        except GpuError as error:
            if error.code == WAIT_ENDED:
                return None
            raise
        if not event.eventType & XID_EVENT:
            return None
        uuid = self._uuids.get(_address(event.device))
        instances = (("gpu_instance", event.gpuInstanceId), ("compute_instance", event.computeInstanceId))
        told = {name: str(number) for name, number in instances if number != NO_INSTANCE}
        return {"uuid": uuid, "xid": int(event.eventData), **told} if uuid else None

    def close(self) -> None:
        do("nvmlEventSetFree", self._set)


class Unbinding:
    """Hears that somebody wants to unbind a GPU from its driver, which waits until all have let go of it.

    Where the driver (or its binding) is too old to tell, ``is_asked`` is False for ever.
    """

    def __init__(self) -> None:
        self._set: Any = None
        try:
            self._set = pynvml.nvmlSystemEventSetCreate(pynvml.nvmlSystemEventSetCreateRequest_v1)
            pynvml.nvmlSystemRegisterEvents(pynvml.nvmlSystemRegisterEventRequest_v1, UNBIND_EVENT, self._set)
        except (AttributeError, pynvml.NVMLError):  # a binding or a driver that does not know them
            self._set = None

    def is_asked(self) -> bool:
        """Whether the driver has told so since the last call."""
        if self._set is None:
            return False
        events = (pynvml.c_nvmlSystemEventData_v1_t * 8)()
        try:
            told = pynvml.nvmlSystemEventSetWait(pynvml.nvmlSystemEventSetWaitRequest_v1, self._set, 1, events, len(events))
        except pynvml.NVMLError:
            self._set = None
            return False
        return any(event["eventType"] & UNBIND_EVENT for event in told)


def _address(handle: Any) -> int | None:
    """Two ctypes pointers to one card are not equal; their addresses are."""
    return ctypes.cast(handle, ctypes.c_void_p).value

"""What is known of a node's GPUs and to whom they were given: values that cross the borders between parts, as those of ``model`` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Frame buffer, NVML memory v2: ``used`` does not hold what the driver reserves."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that NVML lists on a GPU; the PID is the host's."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What does not change while a card is in its slot."""

    uuid: str
    index: int
    name: str
    serial: str = ""
    pci_bus_id: str = ""
    driver_version: str = ""
    minor: str = ""  # number of its device, /dev/nvidiaN
    parent_uuid: str = ""
    gpu_instance: str = ""
    compute_instance: str = ""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at one card. None: the card cannot say. A failed look has ``success`` False and no data at all."""

    identity: GpuIdentity
    success: bool
    collected_wall: float  # of the last look that succeeded; 0 when none did
    error: str = ""  # a short fixed word: lost, timeout, driver, ...
    utilization_ratio: float | None = None
    memory_bandwidth_utilization_ratio: float | None = None
    memory: GpuMemory | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    slowdown_temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    throttle_active: Mapping[str, bool] | None = None  # by reason
    ecc_errors: Mapping[tuple[str, str], int] | None = None  # (kind, counter): kind corrected|uncorrected, counter volatile|aggregate
    remapped_rows: Mapping[str, int] | None = None  # by kind corrected|uncorrected
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    retired_pages: Mapping[str, int] | None = None  # by kind corrected|uncorrected; cards before Ampere
    nvlink_active_links: int | None = None
    nvlink_errors: Mapping[str, int] | None = None  # by kind, summed over the links
    pcie_link_generation: int | None = None
    pcie_link_width: int | None = None
    pcie_link_generation_max: int | None = None  # that card and slot can have
    pcie_link_width_max: int | None = None
    pcie_replays: int | None = None
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    graphics_engine_active_ratio: float | None = None  # this and the next four: between two looks (GPM, Hopper and newer)
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    processes: Sequence[GpuProcess] = ()


@dataclass(frozen=True, slots=True)
class XidCount:
    """Xid errors of one card since the daemon started."""

    count: int
    last_wall: float | None


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All cards of the node as they were last seen."""

    readings: Sequence[GpuReading] = ()
    lost: frozenset[str] = frozenset()  # UUIDs
    xids: Mapping[tuple[str, int], XidCount] = field(default_factory=dict)  # by (uuid, xid)
    devices: int = 0
    devices_expected: int = 0
    child_restarts: int = 0
    child_alive: bool = False
    driver: str = ""  # "" while the driver answers, else a short fixed word: absent, failed


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """The run that a GPU serves, as its processes say."""

    uuid: str
    gpu: int
    run: str = ""
    rank: str = ""
    local_rank: str = ""
    job_id: str = ""
    pod: str = ""
    namespace: str = ""
    container: str = ""
    pid: int = 0
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """A GPU as a scheduler has given it out, whether or not anything runs on it. Texts are "" where the source does not say."""

    uuid: str
    gpu: int
    source: str  # a short fixed word: kubelet, job_mapping
    job_id: str = ""
    pod: str = ""
    namespace: str = ""
    container: str = ""  # its name

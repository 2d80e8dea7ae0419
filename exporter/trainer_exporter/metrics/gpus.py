"""The families of the GPUs, from a snapshot of NVML's readings and from the runs that the cards serve.

A card that could not be read has its failure here and no data. With dcgm-exporter on the node, ``readings`` is left away: what it does
not have stays (Xid counts, losses, the join with the runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from trainer_exporter.metrics.family import Family, Kind, Sample
from trainer_exporter.model_gpu import GpuOwner, GpuReading, GpuSnapshot

CARD: Final = ("uuid", "gpu")

# Xids that rules may ask for: there from 0, so that the first one is an increase. Any other has its series from its first time on.
KNOWN_XIDS: Final = (13, 31, 43, 45, 46, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 140, 143, 154, 158)


def _family(name: str, text: str, *labels: str, kind: Kind = "gauge") -> Family:
    return Family(f"gpu_{name}", kind, text, labels)


def _card(name: str, text: str, *labels: str, kind: Kind = "gauge") -> Family:
    return _family(name, text, *CARD, *labels, kind=kind)


DEVICES: Final = _family("devices", "GPUs that the driver lists and that are not lost; 0 without a driver (NVML).")
EXPECTED: Final = _family(
    "devices_expected",
    "GPUs that the node should have: as configured, else the most that the driver or the kernel has listed since the exporter started.",
)
SUCCESS: Final = _card(
    "collect_success", "Whether the latest look at this GPU succeeded and is recent; at 0 it has no other readings (NVML)."
)
COLLECTED: Final = _card("last_collect_timestamp_seconds", "Unix time of the last look at this GPU that succeeded; 0 when none did.")
LOST: Final = _card(
    "lost", "Whether this GPU is lost: the driver says so, or lists it no longer; kept for an hour after it is gone (NVML)."
)
INFO: Final = _card(
    "info",
    "Identity of a GPU, always 1; of a MIG instance, parent_uuid is the GPU that it is a part of (NVML).",
    "name",
    "serial",
    "pci_bus_id",
    "driver_version",
    "parent_uuid",
    "gpu_instance",
    "compute_instance",
)
RUN_INFO: Final = _card(
    "run_info",
    "The run that a GPU serves, always 1, from the processes on the GPU; a lost or unreadable GPU keeps its last one for an hour.",
    "run",
    "rank",
    "local_rank",
    "job_id",
    "pod",
    "namespace",
    "container",
)
XIDS: Final = _card(
    "xid_errors_total",
    "Xid errors since the exporter started (NVML events and the kernel's log); a loss that neither told counts as 79.",
    "xid",
    kind="counter",
)
XID_TIME: Final = _card("xid_last_timestamp_seconds", "Unix time of the last Xid error of this number.", "xid")

UTILIZATION: Final = _card(
    "utilization_ratio", "Share of the driver's last sample (up to 1 s) in which a kernel ran; 1 is no proof of work (NVML)."
)
BANDWIDTH: Final = _card(
    "memory_bandwidth_utilization_ratio",
    "Share of the driver's last sample (up to 1 s) in which memory was read or written; not bytes (NVML).",
)
MEMORY_USED: Final = _card("memory_used_bytes", "Memory in use in bytes, without what the driver reserves (NVML memory v2).")
MEMORY_TOTAL: Final = _card("memory_total_bytes", "Memory of the GPU in bytes, with what the driver reserves (NVML).")
MEMORY_RESERVED: Final = _card("memory_reserved_bytes", "Memory that the driver keeps for itself in bytes (NVML memory v2).")
POWER: Final = _card("power_watts", "Power drawn in watts: the mean of the last second, on A100 the present value (NVML).")
POWER_LIMIT: Final = _card("power_limit_watts", "Power limit in force in watts (NVML enforced limit).")
ENERGY: Final = _card(
    "energy_joules_total", "Energy used since the driver was loaded in joules; its rate is the best mean power (NVML).", kind="counter"
)
TEMPERATURE: Final = _card("temperature_celsius", "Temperature of the GPU in degrees Celsius (NVML).")
MEMORY_TEMPERATURE: Final = _card("memory_temperature_celsius", "Temperature of the memory in degrees Celsius (NVML).")
SLOWDOWN: Final = _card("slowdown_temperature_celsius", "Temperature at which the GPU slows itself down in degrees Celsius (NVML).")
SM_CLOCK: Final = _card("sm_clock_hertz", "Clock of the streaming multiprocessors in hertz (NVML).")
MEMORY_CLOCK: Final = _card("memory_clock_hertz", "Clock of the memory in hertz (NVML).")
THROTTLE: Final = _card("throttle_active", "Whether a reason that holds the clocks down is active at this moment (NVML).", "reason")
ECC: Final = _card(
    "ecc_errors_total",
    "Memory errors: volatile since the driver was loaded, aggregate over the card's life (NVML).",
    "kind",
    "counter",
    kind="counter",
)
REMAPPED: Final = _card(
    "remapped_rows", "Rows of memory that were replaced by spare ones over the card's life, by the kind of error (NVML).", "kind"
)
REMAP_PENDING: Final = _card("row_remap_pending", "Whether a row waits for a reset of the GPU to be replaced (NVML).")
REMAP_FAILURE: Final = _card("row_remap_failure", "Whether a row could not be replaced; the card is to be exchanged then (NVML).")
RETIRED: Final = _card("retired_pages", "Pages of memory no longer used, by the kind of error; cards before Ampere only (NVML).", "kind")
LINKS: Final = _card("nvlink_active_links", "NVLinks that are up (NVML).")
LINK_ERRORS: Final = _card(
    "nvlink_errors_total",
    "Errors of all NVLinks of a card since the driver was loaded or the card was reset (NVML).",
    "kind",
    kind="counter",
)
PCIE_GENERATION: Final = _card("pcie_link_generation", "PCIe generation at this moment; falls on an idle card to save power (NVML).")
PCIE_WIDTH: Final = _card("pcie_link_width", "PCIe lanes at this moment (NVML).")
PCIE_GENERATION_MAX: Final = _card("pcie_link_generation_max", "PCIe generation that card and slot can have (NVML).")
PCIE_WIDTH_MAX: Final = _card("pcie_link_width_max", "PCIe lanes that card and slot can have (NVML).")
REPLAYS: Final = _card("pcie_replays_total", "PCIe packets that had to be sent again since the driver was loaded (NVML).", kind="counter")
PCIE_TRANSMIT: Final = _card(
    "pcie_transmit_bytes_per_second", "PCIe traffic from the GPU during 20 ms in bytes per second; off unless configured (NVML)."
)
PCIE_RECEIVE: Final = _card(
    "pcie_receive_bytes_per_second", "PCIe traffic to the GPU during 20 ms in bytes per second; off unless configured (NVML)."
)
ENGINE_ACTIVE: Final = _card(
    "graphics_engine_active_ratio", "Share of time between two looks in which any work was on the GPU (NVML GPM, Hopper and newer)."
)
SM_ACTIVE: Final = _card(
    "sm_active_ratio", "Share of the streaming multiprocessors that were busy between two looks (NVML GPM, Hopper and newer)."
)
SM_OCCUPANCY: Final = _card(
    "sm_occupancy_ratio", "Warps in flight as a share of the most there can be, between two looks (NVML GPM, Hopper and newer)."
)
TENSOR_ACTIVE: Final = _card(
    "tensor_active_ratio", "Share of time between two looks in which the tensor cores worked (NVML GPM, Hopper and newer)."
)
DRAM_ACTIVE: Final = _card(
    "dram_active_ratio", "Memory bandwidth used between two looks as a share of the most there can be (NVML GPM, Hopper and newer)."
)

# The readings that are one number of a card.
FIGURES: Final[tuple[tuple[Family, Callable[[GpuReading], float | None]], ...]] = (
    (UTILIZATION, lambda card: card.utilization_ratio),
    (BANDWIDTH, lambda card: card.memory_bandwidth_utilization_ratio),
    (MEMORY_USED, lambda card: card.memory.used_bytes if card.memory else None),
    (MEMORY_TOTAL, lambda card: card.memory.total_bytes if card.memory else None),
    (MEMORY_RESERVED, lambda card: card.memory.reserved_bytes if card.memory else None),
    (POWER, lambda card: card.power_watts),
    (POWER_LIMIT, lambda card: card.power_limit_watts),
    (ENERGY, lambda card: card.energy_joules),
    (TEMPERATURE, lambda card: card.temperature_celsius),
    (MEMORY_TEMPERATURE, lambda card: card.memory_temperature_celsius),
    (SLOWDOWN, lambda card: card.slowdown_temperature_celsius),
    (SM_CLOCK, lambda card: card.sm_clock_hertz),
    (MEMORY_CLOCK, lambda card: card.memory_clock_hertz),
    (REMAP_PENDING, lambda card: card.row_remap_pending),
    (REMAP_FAILURE, lambda card: card.row_remap_failure),
    (LINKS, lambda card: card.nvlink_active_links),
    (PCIE_GENERATION, lambda card: card.pcie_link_generation),
    (PCIE_WIDTH, lambda card: card.pcie_link_width),
    (PCIE_GENERATION_MAX, lambda card: card.pcie_link_generation_max),
    (PCIE_WIDTH_MAX, lambda card: card.pcie_link_width_max),
    (REPLAYS, lambda card: card.pcie_replays),
    (PCIE_TRANSMIT, lambda card: card.pcie_transmit_bytes_per_second),
    (PCIE_RECEIVE, lambda card: card.pcie_receive_bytes_per_second),
    (ENGINE_ACTIVE, lambda card: card.graphics_engine_active_ratio),
    (SM_ACTIVE, lambda card: card.sm_active_ratio),
    (SM_OCCUPANCY, lambda card: card.sm_occupancy_ratio),
    (TENSOR_ACTIVE, lambda card: card.tensor_active_ratio),
    (DRAM_ACTIVE, lambda card: card.dram_active_ratio),
)
# Those that are a number for each kind of error.
KINDS: Final[tuple[tuple[Family, Callable[[GpuReading], Mapping[str, int] | None]], ...]] = (
    (REMAPPED, lambda card: card.remapped_rows),
    (RETIRED, lambda card: card.retired_pages),
    (LINK_ERRORS, lambda card: card.nvlink_errors),
)

FAMILIES: Final = (
    DEVICES,
    EXPECTED,
    SUCCESS,
    COLLECTED,
    LOST,
    INFO,
    RUN_INFO,
    XIDS,
    XID_TIME,
    *(family for family, _ in FIGURES),
    *(family for family, _ in KINDS),
    THROTTLE,
    ECC,
)


def samples(snapshot: GpuSnapshot, owners: Sequence[GpuOwner], now_wall: float, *, readings: bool = True) -> Iterator[Sample]:
    """The samples of all cards; ``now_wall`` bounds every time published. Without ``readings`` only what dcgm-exporter does not have."""
    yield Sample(DEVICES, (), snapshot.devices)
    yield Sample(EXPECTED, (), snapshot.devices_expected)
    for card in snapshot.readings:
        yield from _state(card, lost=card.identity.uuid in snapshot.lost, now_wall=now_wall)
        yield from _xids(card, snapshot, now_wall)
        if readings and card.success:
            yield from _data(card)
    for owner in owners:
        labels = (owner.run, owner.rank, owner.local_rank, owner.job_id, owner.pod, owner.namespace, owner.container)
        yield Sample(RUN_INFO, (owner.uuid, str(owner.gpu), *labels), 1)


def _labels(card: GpuReading) -> tuple[str, str]:
    return card.identity.uuid, str(card.identity.index)


def _state(card: GpuReading, *, lost: bool, now_wall: float) -> Iterator[Sample]:
    labels, identity = _labels(card), card.identity
    yield Sample(SUCCESS, labels, int(card.success))
    yield Sample(COLLECTED, labels, min(card.collected_wall, now_wall))
    yield Sample(LOST, labels, int(lost))
    instance = (identity.parent_uuid, identity.gpu_instance, identity.compute_instance)
    yield Sample(INFO, (*labels, identity.name, identity.serial, identity.pci_bus_id, identity.driver_version, *instance), 1)


def _xids(card: GpuReading, snapshot: GpuSnapshot, now_wall: float) -> Iterator[Sample]:
    labels = _labels(card)
    counted = {xid: count for (uuid, xid), count in snapshot.xids.items() if uuid == card.identity.uuid}
    known = () if card.identity.parent_uuid else KNOWN_XIDS  # of a MIG instance's, few ever come
    for xid in sorted({*known, *counted}):
        count = counted.get(xid)
        yield Sample(XIDS, (*labels, str(xid)), count.count if count else 0)
        if count and count.last_wall is not None:
            yield Sample(XID_TIME, (*labels, str(xid)), min(count.last_wall, now_wall))


def _data(card: GpuReading) -> Iterator[Sample]:
    labels = _labels(card)
    for family, figure in FIGURES:
        value = figure(card)
        if value is not None:
            yield Sample(family, labels, int(value) if isinstance(value, bool) else value)
    for family, counts in KINDS:
        for kind, number in (counts(card) or {}).items():
            yield Sample(family, (*labels, kind), number)
    for reason, active in (card.throttle_active or {}).items():
        yield Sample(THROTTLE, (*labels, reason), int(active))
    for (kind, counter), count in (card.ecc_errors or {}).items():
        yield Sample(ECC, (*labels, kind, counter), count)

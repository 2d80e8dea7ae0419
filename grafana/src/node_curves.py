"""Rows of the nodes' dashboard: do the cards work, and are they well?"""

from __future__ import annotations

from typing import Any

from house import (
    BLUE,
    ORANGE,
    RED,
    Page,
    columns,
    curve,
    fixed,
    grid,
    of_nodes,
    option,
    painted,
    rows,
    scraped_of_nodes,
    words,
)
from shapes import LIMIT, bars, zero

CARD_NAME = "{{instance}} GPU {{gpu}}"
TIERS = {"page": ("page", RED), "ticket": ("ticket", ORANGE), "info": ("program", BLUE)}


def each(metric: str) -> str:
    """One series a card of the chosen nodes."""
    return f"max by (cluster, instance, gpu) ({of_nodes(metric)})"


def _lines(title: str, metric: str, *, unit: str, about: str, absent: str = "nothing is read") -> Any:
    return curve(title, {CARD_NAME: each(metric)}, unit=unit, about=about, absent=absent)


def _share(title: str, metric: str, about: str) -> Any:
    return _lines(title, metric, unit="percentunit", about=about).min(0)


def work(page: Page) -> None:
    page.row("Does it work?")
    for panel in (_busy(), _traffic(), _power(), _headroom(), _clock(), _serves()):
        page.add(panel, width=8, height=8)


def _busy() -> Any:
    about = (
        "Share of time that some kernel ran. Normal: above 70 % in training; 100 % proves nothing: a hung collective spins. "
        "Without data the card is not read."
    )
    return _share("GPU utilization", "gpu:utilization_ratio:avg1m", about).max(1)


def _traffic() -> Any:
    about = (
        "Share of time that the memory was busy. Normal: tens of percent in training. Near 0 at full utilization: it waits for "
        "others. Without data the card is not read."
    )
    return _share("Memory traffic", "gpu:memory_bandwidth_utilization_ratio:avg1m", about).max(1)


def _power() -> Any:
    about = "Normal: 70 to 100 % in training, 14 to 25 % in a hang, 10 % idle; neighbours alike. Without data the card tells no limit."
    return _share("Power, share of the limit", "gpu:power_of_limit_ratio:avg1m", about).axis_soft_max(1)


def _headroom() -> Any:
    about = (
        "Memory that neither a run nor the driver holds. Normal: level. Shrinking for hours is a leak. Without data the card is not read."
    )
    return _share("Memory headroom", "gpu:memory_headroom_ratio:min", about).axis_soft_max(0.2)


def _clock() -> Any:
    about = (
        "Clock of the multiprocessors, mean of 5 minutes. Normal: all alike under load. One below the others is slow or held down. "
        "Without data the card is not read."
    )
    return _lines("Clock", "gpu:sm_clock_hertz:avg5m", unit="hertz", about=about)


def _serves() -> Any:
    about = (
        "GPUs given to each run on the chosen nodes. Normal: whole nodes, or the share that was asked for. "
        "Without data no process is known on the GPUs."
    )
    expr = f"count by (cluster, run) ({of_nodes('gpu:run:info')})"
    return curve("Whom it serves", {"{{run}}": expr}, unit="none", about=about, absent="nobody known").min(0).decimals(0)


def health(page: Page) -> None:
    page.row("Is it well?")
    for panel in (_heat(), _memory_heat(), _throttled(), _xid(), _ecc(), _links()):
        page.add(panel, width=8, height=8)
    page.add(_xids(), width=12, height=7)
    page.add(_identity(), width=12, height=7)


def _memory_heat() -> Any:
    about = "Temperature of the card's memory. Normal: below 95. Without data the card does not say it."
    absent = "the cards do not say it"
    return _lines("Memory temperature", "gpu:memory_temperature_celsius:max", unit="celsius", about=about, absent=absent)


def _heat() -> Any:
    about = (
        "Temperature of each card, and the lowest at which one of them slows itself down. Normal: well below it, neighbours alike, the "
        "rear of "
        "the air flow some degrees above the front. Without data the cards do not say it."
    )
    limit = f"min ({of_nodes('gpu:slowdown_temperature_celsius:min')})"
    panel = curve(
        "Temperature",
        {CARD_NAME: each("gpu:temperature_celsius:max"), "slows down": limit},
        unit="celsius",
        about=about,
        absent="the cards do not say it",
    )
    return panel.override_by_name("slows down", LIMIT)


def _throttled() -> Any:
    about = (
        "Cards that are held down, by the reason: heat, or power that is not there. The power cap is not among them: every busy card "
        "works under it. "
        "Normal: none, the line none at 0. Without data the cards do not say it."
    )
    some = f"sum by (reason) ({of_nodes('gpu:is_throttled:bool')}) > 0"
    none = zero(of_nodes("gpu:is_throttled:bool"), "reason")
    panel = curve(
        "Throttled cards", {"{{reason}}": f"{some} or on (reason) {none}"}, unit="none", about=about, absent="the cards do not say it"
    )
    return panel.min(0).decimals(0).axis_soft_max(1)


def _xid() -> Any:
    about = (
        "Xid errors by number. Normal: none; 13, 31, 43 and 45 are mostly the program's. 79: off the bus; 48, 94, 95: memory; 74: NVLink. "
        "Ours only: dcgm-exporter keeps the last number, without a time. Without data our exporter does not read the cards."
    )
    new = f"sum by (xid) (increase({scraped_of_nodes('gpu_xid_errors_total')}[$__rate_interval]))"
    some = f"{new} > 0"
    none = zero(scraped_of_nodes("gpu_collect_success"), "xid")
    panel = curve("Xid errors", {"{{xid}}": f"{some} or on (xid) {none}"}, unit="none", about=about, absent="not read by trainer-exporter")
    return bars(panel).decimals(0).axis_soft_max(1)


def _ecc() -> Any:
    about = (
        "Uncorrected memory errors since the driver was loaded, the worst eight cards of those that have some. Normal: none, the line none "
        "at 0. A step upwards: the card needs a "
        "reset, a row of them a new card. "
        "Without data the card has no error correction, or does not say it."
    )
    errors = each("gpu:ecc_uncorrected_errors:max")
    cards = {CARD_NAME: f"topk(8, {errors} > 0)", "none": f"0 * max ({errors})"}
    panel = curve("Uncorrected memory errors", cards, unit="none", about=about, absent="the cards do not say it")
    return panel.min(0).decimals(0).axis_soft_max(1)


def _links() -> Any:
    about = (
        "NVLinks that are up on each card, PCIe packets sent again per minute (right axis). Normal: level and alike; none sent again. "
        "Without data the cards have no NVLink, or do not say it."
    )
    replays = f"60 * sum ({of_nodes('gpu:pcie_replays:rate10m')})"
    panel = curve(
        "NVLink and PCIe",
        {CARD_NAME: each("gpu:nvlink_active_links:min"), "PCIe replays per minute": replays},
        unit="none",
        about=about,
        absent="the cards do not say it",
    ).min(0)
    right = [option("custom.axisPlacement", "right"), fixed("red"), option("custom.axisSoftMax", 1)]
    return panel.override_by_name("PCIe replays per minute", right)


def _xids() -> Any:
    some = f"min by (instance, gpu, xid, tier) ({of_nodes('gpu:xid_age_seconds:min')})"
    none = f'label_replace(-1 + 0 * max ({scraped_of_nodes("gpu_collect_success")}), "instance", "none", "", "")'
    about = (
        "The last Xid of each number on each card, with its age and who must hear of it: page, ticket, or a fault of the program. "
        "Normal: none, which is said. Without data our exporter does not read the cards."
    )
    panel = grid("Xid history", rows(f"{some} or on () {none}", ref="A"), unit="s", about=about, absent="not read by trainer-exporter")
    panel.transformations(columns("instance", "gpu", "xid", "tier", "Value", names={"Value": "ago", "tier": "concern"})[1:])
    panel.override_by_name("concern", painted(TIERS)).override_by_name("instance", [option("displayName", "node")])
    for name in ("gpu", "xid"):
        panel.override_by_name(name, [option("unit", "string")])
    return panel.override_by_name("ago", [option("mappings", words({"-1": ("–", "transparent")}))]).decimals(0)


def _identity() -> Any:
    about = (
        "What each card is: keep it for the ticket. Normal: one kind, one driver. An empty serial number: dcgm-exporter reads the card. "
        "Without data nobody does."
    )
    kinds = f"max by (instance, gpu, name, serial, pci_bus_id, driver_version, uuid) ({of_nodes('gpu:identity:info')})"
    panel = grid("Identity", rows(kinds, ref="A"), unit="string", about=about, absent="no card is read")
    names = {"instance": "node", "pci_bus_id": "bus", "driver_version": "driver"}
    order = ("instance", "gpu", "name", "serial", "pci_bus_id", "driver_version", "uuid")
    panel.transformations(columns(*order, hidden=("Time", "Value"), names=names)[1:])
    panel.override_by_name("name", [option("custom.width", 200)])
    return panel.override_by_name("gpu", [option("custom.width", 50)])

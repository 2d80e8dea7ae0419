"""The dashboard of nodes and their GPUs: which card is wrong, in what, and whom does it serve?

Every figure is one that the rules record from whichever exporter reads the card, ours or dcgm-exporter; where only ours can say it, the
description says so.
"""

from __future__ import annotations

from typing import Any

from alerts import RUNBOOK, firing, in_words
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import Dashboard
from house import (
    ALWAYS,
    GPU_STATES,
    GREEN,
    ORANGE,
    RED,
    RUN_OF_ROW,
    SEVERITIES,
    TAG,
    YELLOW,
    Page,
    columns,
    events,
    grid,
    label_variable,
    link,
    links,
    of_nodes,
    option,
    painted,
    placed,
    rows,
    scope,
    scraped_of_nodes,
    shaped,
    steps,
    thresholds,
    tile,
    timeline,
    words,
)
from node_curves import CARD_NAME, each, health, work
from oncall_stall import reasons
from shapes import AGE, NONE_IS_WELL, exporters, with_bars, without_place


def build() -> Dashboard:
    """The whole dashboard."""
    page = Page(
        "Node and GPU",
        uid="trainer-node",
        about="Which card is wrong, in what, and whom does it serve? Choose one node, or a run and all of its nodes.",
        tags=[TAG, "hardware"],
        since="now-6h",
        refresh="30s",
    )
    asked = '__name__=~"gpu:run:info|node:gpu_state:max",cluster=~"$cluster",run=~"$run"'
    page.variables(
        *scope("up"),
        label_variable("team", "Team", 'run:state:code{cluster=~"$cluster"}', many=True),
        label_variable("run", "Run", 'run:state:code{cluster=~"$cluster",team=~"$team"}', many=True),
        # With a run the nodes that serve it; without one those that serve none too. Not all at once: a fleet has thousands of cards.
        label_variable("node", "Node", f"{{{asked}}}", many=True, of="instance", all_of_them=False),
    )
    firing = of_nodes("ALERTS", 'alertstate="firing"', 'severity=~"critical|warning"')
    page.annotations(
        events("Alerts", f"max by (alertname, instance, gpu) ({firing})", color="red", title="{{alertname}}", text="{{instance}} {{gpu}}")
    )
    _now(page)
    work(page)
    health(page)
    return page.build()


# -- now


def _now(page: Page) -> None:
    for panel in (_states(), _runs(), _hottest(), _power(), _errors(), _exporter()):
        page.add(panel, width=4, height=5)
    page.add(_cards(), width=24, height=11)
    page.add(_history(), width=14, height=11)
    page.add(_alerts(), width=10, height=11)


def _states() -> Any:
    about = (
        "GPUs of the chosen nodes, and how many of them are not well: spinning, sick, silent or lost. Normal: all, and none. "
        "Without data none is read."
    )
    state = of_nodes("gpu:state:code")
    panel = tile(
        "Cards",
        {"GPUs": f"count ({state})", "not well": f"sum ({state} > bool 1)"},
        unit="none",
        about=about,
        absent="none",
    )
    return panel.override_by_name("not well", [NONE_IS_WELL])


def _runs() -> Any:
    about = (
        "Runs that the chosen nodes serve, and their GPUs that serve none. Normal: as you have scheduled. Without data no "
        "process is known on the GPUs."
    )
    idle = f"count ({of_nodes('gpu:state:code')} unless on (cluster, instance, uuid) {of_nodes('gpu:run:info')})"
    return tile(
        "Runs",
        {"runs": f"count (count by (cluster, run) ({of_nodes('gpu:run:info')}))", "free GPUs": f"{idle} or vector(0)"},
        unit="none",
        about=about,
        absent="none",
    )


def _hottest() -> Any:
    about = (
        "The hottest card, and the least distance of a card from the temperature at which it slows itself down. "
        "Normal: more than 4 degrees left. Without data the cards do not say it."
    )
    panel = tile(
        "Heat",
        {
            "hottest": f"max ({of_nodes('gpu:temperature_celsius:max')})",
            "to the limit": f"min ({of_nodes('gpu:temperature_margin_celsius:min')})",
        },
        unit="celsius",
        about=about,
        absent="unknown",
    )
    return panel.decimals(0).override_by_name("to the limit", [thresholds((ALWAYS, RED), (0, ORANGE), (4, GREEN))])


def _power() -> Any:
    about = (
        "Power of all GPUs of the chosen nodes, and its share of what their limits allow. Normal: 70 to 100 % in training. "
        "Without data none is read."
    )
    share = f"sum ({of_nodes('gpu:power_watts:avg1m')}) / sum ({of_nodes('gpu:power_limit_watts:max')})"
    panel = tile(
        "Power",
        {"drawn": f"sum ({of_nodes('gpu:power_watts:avg1m')})", "of the limit": share},
        unit="watt",
        about=about,
        absent="unknown",
    )
    return panel.decimals(1).override_by_name("of the limit", [option("unit", "percentunit"), option("decimals", 0)])


def _errors() -> Any:
    about = (
        "Cards with an Xid error in the last day (dcgm-exporter tells none with a time), and uncorrected memory errors since the driver "
        "was loaded. "
        "Normal: none. Without data nobody can say: a zero needs a card that is read."
    )
    none = f"0 * count ({scraped_of_nodes('gpu_collect_success')})"
    xid = f"count (count by (cluster, instance, uuid) ({of_nodes('gpu:xid_age_seconds:min')} < 86400)) or {none}"
    panel = tile(
        "Errors",
        {"Xid in a day": xid, "uncorrected ECC": f"sum ({of_nodes('gpu:ecc_uncorrected_errors:max')})"},
        unit="none",
        about=about,
        absent="unknown",
    )
    return panel.thresholds(steps((0, GREEN), (1, RED)))


def _exporter() -> Any:
    about = (
        "Exporters of the chosen nodes that answer, and that do not. Normal: all do. Without data Prometheus knows of none: the "
        "figures here are dcgm-exporter's."
    )
    return exporters(about)


def _cards() -> Any:
    about = (
        "Every card of the chosen nodes, first those that stand apart from the others of their run, with the reason, then those that are "
        "not well. A click on a run leads to it. Normal: rows that look alike, no throttling, no errors. An empty cell: the card, or its "
        "exporter, does not say it."
    )
    worst = f"max by (cluster, instance, gpu, uuid) ({of_nodes('gpu:state:code')})"
    busy = "max by (cluster, instance, gpu, uuid) ({})"
    figures = {
        "B": ("utilization", "gpu:utilization_ratio:avg1m"),
        "C": ("memory traffic", "gpu:memory_bandwidth_utilization_ratio:avg1m"),
        "D": ("power", "gpu:power_of_limit_ratio:avg1m"),
        "E": ("headroom", "gpu:memory_headroom_ratio:min"),
        "F": ("core", "gpu:temperature_celsius:max"),
        "G": ("memory", "gpu:memory_temperature_celsius:max"),
        "H": ("to the limit", "gpu:temperature_margin_celsius:min"),
        "I": ("clock", "gpu:sm_clock_hertz:avg5m"),
        "J": ("throttled", "gpu:throttled_ratio:avg5m"),
        "K": ("ECC", "gpu:ecc_uncorrected_errors:max"),
        "L": ("last Xid", "gpu:xid_age_seconds:min"),
    }
    serves = f"max by (cluster, instance, gpu, uuid, run) ({of_nodes('gpu:run:info')})"
    suspected = f"max by (cluster, instance, gpu, uuid, reason) ({of_nodes('run:suspect_gpu')})"
    apart = f"{suspected} or on (cluster, instance, uuid) 0 * {worst}"  # a value in each row, to sort by
    xid = f"min by (cluster, instance, gpu, uuid) ({of_nodes('gpu:xid_age_seconds:min')})"
    asked = {ref: xid if ref == "L" else busy.format(of_nodes(metric)) for ref, (_, metric) in figures.items()}
    panel = grid(
        "GPUs",
        rows(placed(worst), ref="A"),
        *(rows(placed(expr), ref=ref) for ref, expr in asked.items()),
        rows(placed(serves), ref="M"),
        rows(placed(apart), ref="N"),
        unit="percentunit",
        about=about,
        absent="–",
    )
    names = {"Value #A": "state", **{f"Value #{ref}": name for ref, (name, _) in figures.items()}}
    shown = ("instance", "gpu", "Value #A", "reason", "run", *(f"Value #{ref}" for ref in figures), "uuid")
    merge, organize = columns(*shown, hidden=("Time", "cluster", "Value #M", "Value #N"), names=names)
    worst_first = [shaped("sortBy", sort=[{"field": f"Value #{ref}", "desc": True}]) for ref in ("A", "N")]
    panel.transformations([merge, *worst_first, organize]).min(0).max(1).cell_height(looks.TableCellHeight.SM)
    return _dressed(panel)


def _dressed(panel: Any) -> Any:
    with_bars(panel, "utilization", "memory traffic", "power", "headroom")
    for name in ("core", "memory", "to the limit"):
        panel.override_by_name(name, [option("unit", "celsius"), option("decimals", 0), option("max", 110), option("custom.width", 90)])
    colored = painted()
    panel.override_by_name("to the limit", [*colored, thresholds((ALWAYS, RED), (0, ORANGE), (4, "transparent"))])
    panel.override_by_name("throttled", [*colored, thresholds((0, "transparent"), (0.01, YELLOW), (0.5, RED)), option("decimals", 0)])
    panel.override_by_name("ECC", [*colored, thresholds((0, "transparent"), (1, RED)), option("unit", "none"), option("custom.width", 60)])
    panel.override_by_name("clock", [option("unit", "hertz"), option("decimals", 2), option("custom.width", 105)])
    panel.override_by_name("last Xid", [option("unit", "s"), option("decimals", 0), option("custom.width", 100)])
    panel.override_by_name("state", [*painted(GPU_STATES), option("custom.width", 90)])
    without_place(panel)
    apart = [option("displayName", "stands apart"), option("mappings", reasons()), option("unit", "string"), option("custom.width", 150)]
    panel.override_by_name("reason", apart)
    panel.override_by_name("run", [links(link("Run", RUN_OF_ROW)), option("unit", "string"), option("custom.width", 170)])
    panel.override_by_name("instance", [option("displayName", "node"), option("unit", "string"), option("custom.width", 110)])
    panel.override_by_name("uuid", [option("unit", "string")])
    return panel.override_by_name("gpu", [option("unit", "string"), option("custom.width", 50)])


def _history() -> Any:
    about = (
        "The state of each card over time, of twenty at most; choose a node for the others. Normal: green while a run is there, blue "
        "between runs. "
        "A gap: nothing was read then."
    )
    panel = timeline("States", {CARD_NAME: each("gpu:state:code")}, unit="none", about=about, absent="nothing is read")
    return panel.mappings(words(GPU_STATES))


def _alerts() -> Any:
    since = f"{of_nodes('ALERTS_FOR_STATE')} and on (cluster, instance, uuid, alertname, severity) {firing()}"
    told = "on (cluster, run, alertname, severity)"
    of_runs = f'ALERTS_FOR_STATE{{cluster=~"$cluster",instance=""}} and {told} {firing()} and on (cluster, run) {of_nodes("gpu:run:info")}'
    some = f"time() - min by (severity, alertname, instance, gpu, run) ({since} or {of_runs})"
    nothing = f'label_replace(max (0 * {of_nodes("node:gpu_state:max")}) - 1, "alertname", "none", "", "")'
    about = (
        "Alerts that name a chosen node, and those of the runs that it serves. Normal: none, which is said. Without data the rules do not "
        "know the nodes: they are not loaded, or nothing is read."
    )
    panel = grid("Firing alerts", rows(f"{some} or on () {nothing}", ref="A"), unit="string", about=about, absent="not judged")
    panel.transformations(
        columns(
            "severity", "alertname", "run", "instance", "gpu", "Value", names={"Value": "age", "instance": "node", "alertname": "alert"}
        )[1:]
    )
    panel.override_by_name("age", AGE)
    for name, width in (("severity", 80), ("run", 140), ("node", 90), ("age", 90)):
        panel.override_by_name(name, [option("custom.width", width)])
    panel.override_by_name("alert", [option("mappings", in_words("summary")), links(link("Runbook", RUNBOOK))])
    panel.override_by_name("gpu", [option("custom.width", 50)])
    return panel.override_by_name("severity", painted(SEVERITIES))

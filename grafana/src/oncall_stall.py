"""Rows of the on-call dashboard: the anatomy of one run that stands still, node by node."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models.dashboard import DashboardRegexMapOptions, RegexMap, ValueMap, ValueMappingResult
from house import (
    NODE_OF_ROW,
    STATES,
    Page,
    columns,
    curve,
    fixed,
    grid,
    largest,
    largest_recorded,
    link,
    links,
    log_scale,
    of_the_run,
    option,
    placed,
    reading,
    recorded,
    rows,
    scraped,
    timeline,
    words,
)
from shapes import LIMIT, without_place, zero

REASONS = {
    "lost": "off the bus",
    "node_silent": "its node is silent",
    "ecc_uncorrected": "memory error",
    "process_gone": "its process is gone",
    "named_by_ras": "NCCL misses it",
    "named_by_flight_recorder": "PyTorch misses it",
    "no_reading": "does not answer",
    "idle_among_spinning": "idles, others spin",
    "waits_for_storage": "its node waits for storage",
    "throttled_sw_thermal_slowdown": "held down by heat",
    "throttled_hw_thermal_slowdown": "held down by heat",
    "throttled_hw_power_brake_slowdown": "held down for want of power",
    "throttled_hw_slowdown": "held down by the hardware",
    "low_clock": "low clock",
    "low_utilization": "low utilization",
    "none": "none stands apart",
}


def reasons() -> list[Any]:
    """Why a GPU is suspected, in words."""
    plain = ValueMap({name: ValueMappingResult(text) for name, text in REASONS.items()})
    numbered = DashboardRegexMapOptions(pattern="^xid_(.+)$", result=ValueMappingResult("Xid $1"))
    return [plain, RegexMap(numbered)]


def anatomy(page: Page) -> None:
    page.row("Does $run stand still, and why?")
    page.add(_states(), width=10, height=5)
    page.add(suspects(), width=6, height=5)
    page.add(_missing(), width=4, height=5)
    page.add(_processes(), width=4, height=5)
    page.add(_silence(), width=6, height=8)
    page.add(
        _by_node(
            "Utilization by node",
            "gpu:utilization_ratio:avg1m",
            "Mean of the run's GPUs on each node. Normal: above 70 %, all alike. In a hang all read 100 %, and the culprit's node less.",
        ),
        width=6,
        height=8,
    )
    page.add(
        _by_node(
            "Power by node",
            "gpu:power_of_limit_ratio:avg1m",
            "Share of the limit. Normal: 70 to 100 %, all alike. Full utilization at 14 to 25 % of the power is a hung collective.",
        ),
        width=6,
        height=8,
    )
    page.add(
        _by_node(
            "Memory traffic by node",
            "gpu:memory_bandwidth_utilization_ratio:avg1m",
            "Share of time that the memory was busy. Normal: tens of percent. Near 0 beside full utilization: they wait for one another.",
        ),
        width=6,
        height=8,
    )


def _states() -> Any:
    about = "What the run did. Normal: training, with short spells of evaluating and saving. A gap: nothing was published then."
    panel = timeline("Phase", {"{{run}}": largest_recorded("run:state:code")}, unit="none", about=about, absent="no run is chosen")
    return panel.mappings(words(STATES))


def _silence() -> Any:
    about = (
        "Time since the last step, and the silence at which this run counts as hung; logarithmic. Normal: a saw far below the limit. "
        "Without data the run is over, or the rules are not loaded."
    )
    panel = curve(
        "Silence",
        {
            "since last step": largest_recorded("run:progress_age_seconds:min"),
            "hang": largest_recorded("run:source_stall_threshold_seconds:max"),
        },
        unit="s",
        about=about,
        absent="no step yet",
    ).scale_distribution(log_scale())
    hang = LIMIT
    return panel.min(1).override_by_name("since last step", [fixed("blue")]).override_by_name("hang", hang)


def _by_node(title: str, metric: str, about: str) -> Any:
    expr = f"avg by (cluster, instance) ({of_the_run(reading(metric))})"
    about = f"{about} Without data no GPU is attributed to the run."
    panel = curve(title, {"{{instance}}": expr}, unit="percentunit", about=about, absent="no GPU attributed")
    return panel.min(0).max(1)


def suspects() -> Any:
    about = (
        "GPUs that stand apart from the others of the run, and why; the surest first. Normal: none, which is said where the run's GPUs "
        "are known. "
        "Without data no GPU is attributed to the run."
    )
    some = f"max by (cluster, instance, gpu, reason) ({recorded('run:suspect_gpu')})"
    nobody = zero(recorded("run:gpus:count"), "reason")
    panel = grid("Suspects", rows(placed(f"{some} or on () {nobody}"), ref="A"), unit="string", about=about, absent="no GPU attributed")
    panel.transformations(columns("instance", "gpu", "reason", hidden=("Time", "cluster", "Value"))[1:])
    panel.override_by_name("instance", [option("displayName", "node"), links(link("Node", NODE_OF_ROW))])
    panel.override_by_name("reason", [option("mappings", reasons())])
    return without_place(panel)


def _missing() -> Any:
    about = (
        "Ranks that the others wait for, and who says so: NCCL's status, or PyTorch's dumps of its collectives. Collected while a run "
        "makes no step, where evidence.enabled is set. Normal: nobody, which is said. Without data the run is not published."
    )
    named = largest("trainer_hang_suspect_info", by="rank, source")
    nobody = zero(scraped("trainer_run_info"), "rank", "nobody")
    panel = grid("Ranks waited for", rows(f"{named} or on () {nobody}", ref="A"), unit="string", about=about, absent="run unknown")
    panel.transformations(columns("rank", "source", hidden=("Time", "cluster", "run", "Value"), names={"source": "says"})[1:])
    said = {"ras": "NCCL", "flight_recorder": "PyTorch"}
    return panel.override_by_name("says", [option("mappings", [ValueMap({key: ValueMappingResult(text) for key, text in said.items()})])])


def _processes() -> Any:
    about = (
        "Processes of the run on all of its nodes by what they do. Normal: running and sleeping. Uninterruptible ones that stay wait for "
        "storage or a driver; zombies and stopped ones do nothing any more. Without data no process of the run is known."
    )
    states = f"sum by (state) ({scraped('trainer_processes')}) > 0"
    panel = grid("Processes", rows(states, ref="A"), unit="none", about=about, absent="none known")
    panel.transformations(columns("state", "Value", names={"Value": "number"})[1:])
    return panel.override_by_name("number", [option("custom.width", 80)])

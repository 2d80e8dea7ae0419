"""A job of four nodes with eight GPUs each stops: what the rules make of it, and whom they suspect. And what looks like it and is none.

One table of scenes, each composed into promtool's own tests. In each the job trains for five minutes; then something happens.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from rulebook import RULES, group_order

ORDER = ("labels", "gpu", "gpu_health", "gpu_limits", "gpu_links", "exporter", "progress", "suspects", "efficiency")
NODES, CARDS = 4, 8
INTERVAL_S = 15
BEFORE = 20  # samples of health
AFTER = 30
RUN = "pt-70b"
HUNG = {"TrainingNcclStall", "TrainingStalled"}

Place = tuple[int, int]  # node, GPU
ALL = [(node, gpu) for node in range(NODES) for gpu in range(CARDS)]

# utilization, share of time that the memory was busy, watts of 400
COMPUTES = ("0.97", "0.42", "352")
SPINS = ("1", "0.01", "92")
IDLES = ("0", "0", "68")
WAITS = ("0.04", "0.02", "88")


@dataclass(frozen=True)
class Scene:
    """What the cards do after the five minutes, what else is published then, and what must follow."""

    then: tuple[str, str, str] = SPINS
    apart: Mapping[Place, tuple[str, str, str]] = field(default_factory=dict)  # cards that do something else than the others
    detached: Sequence[Place] = ()  # their processes are gone
    unread: Sequence[Place] = ()  # NVML says nothing of them
    silent: int | None = None  # a node that is gone
    steps: bool = False
    phase: str = "training"
    extra: Mapping[str, str] = field(default_factory=dict)  # series and values beside them
    alerts: frozenset[str] = frozenset(HUNG)
    cause: str = "collective"
    suspects: frozenset[tuple[int, int, str]] = frozenset()


def card(place: Place) -> str:
    return f'instance="node-{place[0]}", uuid="GPU-{place[0]}{place[1]}", gpu="{place[1]}"'


def of(name: str, place: Place, **labels: str) -> str:
    return f"{name}{{{card(place)}, {matchers(labels)}}}" if labels else f"{name}{{{card(place)}}}"


def matchers(labels: Mapping[str, str]) -> str:
    return ", ".join(f'{key}="{value}"' for key, value in labels.items())


def later(value: str, *, before: str = "_") -> str:
    """A series that changes, or begins, when it happens."""
    return f"{before}x{BEFORE} {value}x{AFTER}"


def suspects(places: Iterable[Place], reason: str) -> frozenset[tuple[int, int, str]]:
    return frozenset((node, gpu, reason) for node, gpu in places)


def named_rank(rank: int, source: str = "ras") -> Mapping[str, str]:
    return {f'trainer_hang_suspect_info{{instance="node-0", run="{RUN}", rank="{rank}", source="{source}"}}': later("1")}


NODE_2 = [place for place in ALL if place[0] == 2]
NODE_3 = [place for place in ALL if place[0] == 3]
DISK = {
    f'trainer_checkpoint_filesystem_avail_bytes{{instance="node-0", run="{RUN}"}}': "900000000x60",
    f'trainer_checkpoint_filesystem_size_bytes{{instance="node-0", run="{RUN}"}}': "1000000000000x60",
}
IN_PROGRESS = {f'trainer_checkpoint_in_progress_seconds{{instance="node-0", run="{RUN}"}}': f"0x{BEFORE} 15+15x{AFTER}"}


def blocked(number: int, wait: str, *, node: int = 0) -> dict[str, str]:
    """Processes on a node that become uninterruptible, and what they wait for."""
    log = f'instance="node-{node}", run="{RUN}"'
    return {
        f'trainer_processes{{{log}, state="uninterruptible"}}': later(str(number), before="0"),
        f'trainer_uninterruptible_processes{{{log}, wait="{wait}"}}': later(str(number)),
    }


SICK = {
    "all_ranks_wait_in_a_collective": Scene(),
    "a_rank_stands_outside_of_the_collective": Scene(
        apart={(2, 5): IDLES}, cause="dead_rank", suspects=suspects([(2, 5)], "idle_among_spinning")
    ),
    "half_of_the_cards_spin_and_the_others_idle": Scene(
        apart=dict.fromkeys(ALL[16:], IDLES), cause="dead_rank", suspects=suspects(ALL[16:], "idle_among_spinning")
    ),
    "fewer_than_half_spin": Scene(apart=dict.fromkeys(ALL[15:], IDLES), cause="data", alerts=frozenset({"TrainingStalled"})),
    "five_percent_busy_is_idle": Scene(
        apart={(2, 5): ("0.05", "0", "70")}, cause="dead_rank", suspects=suspects([(2, 5)], "idle_among_spinning")
    ),
    "six_percent_busy_is_not": Scene(apart={(2, 5): ("0.06", "0", "70")}),
    "a_rank_has_died_and_freed_its_card": Scene(
        apart={(2, 5): IDLES}, detached=[(2, 5)], cause="dead_rank", suspects=suspects([(2, 5)], "process_gone")
    ),
    "a_node_has_gone": Scene(silent=3, cause="sick_gpu", suspects=suspects(NODE_3, "node_silent")),
    "a_card_is_lost": Scene(
        unread=[(1, 7)],
        extra={of("gpu_lost", (1, 7)): later("1", before="0"), of("gpu_xid_last_timestamp_seconds", (1, 7), xid="79"): later("298")},
        cause="sick_gpu",
        suspects=suspects([(1, 7)], "lost"),
        alerts=frozenset({*HUNG, "GpuLost", "GpuXidError"}),
    ),
    "a_card_does_not_answer": Scene(unread=[(1, 7)], cause="dead_rank", suspects=suspects([(1, 7)], "no_reading")),
    "an_xid_on_a_card_that_spins_like_the_others": Scene(
        extra={of("gpu_xid_last_timestamp_seconds", (0, 3), xid="74"): later("297")},
        cause="sick_gpu",
        suspects=suspects([(0, 3)], "xid_74"),
        alerts=frozenset({*HUNG, "GpuXidError"}),
    ),
    "an_xid_of_the_program_is_surer_than_idleness": Scene(
        apart={(2, 5): IDLES, (2, 6): IDLES},
        extra={of("gpu_xid_last_timestamp_seconds", (2, 5), xid="31"): later("297")},
        cause="dead_rank",
        suspects=suspects([(2, 5)], "xid_31"),
    ),
    "a_memory_error": Scene(
        extra={of("gpu_ecc_errors_total", (3, 0), kind="uncorrected", counter="volatile"): later("1", before="0")},
        cause="sick_gpu",
        suspects=suspects([(3, 0)], "ecc_uncorrected"),
        alerts=frozenset({*HUNG, "GpuEccUncorrected"}),
    ),
    "all_cards_look_alike_and_the_evidence_names_a_rank": Scene(
        extra={**named_rank(21), **named_rank(21, "flight_recorder")}, cause="dead_rank", suspects=suspects([(2, 5)], "named_by_ras")
    ),
    "a_flight_recorder_knows_better_than_the_look_of_the_cards": Scene(
        apart={(0, 0): IDLES},
        extra=named_rank(21, "flight_recorder"),
        cause="dead_rank",
        suspects=suspects([(2, 5)], "named_by_flight_recorder"),
    ),
    "the_rank_that_is_named_has_lost_its_card": Scene(
        unread=[(1, 7)],
        extra={**named_rank(15), of("gpu_lost", (1, 7)): later("1", before="0")},
        cause="sick_gpu",
        suspects=suspects([(1, 7)], "lost"),
        alerts=frozenset({*HUNG, "GpuLost"}),
    ),
    "a_rank_is_named_whose_card_nobody_knows": Scene(extra=named_rank(99)),
    "data_that_does_not_come": Scene(then=WAITS, cause="data", alerts=frozenset({"TrainingStalled"})),
    "a_full_disk": Scene(then=IDLES, extra=DISK, cause="storage", alerts=frozenset({"TrainingStalled"})),
    "a_save_that_never_ends_while_the_others_wait_for_rank_0": Scene(
        apart={(0, 0): IDLES}, extra=IN_PROGRESS, cause="storage", suspects=suspects([(0, 0)], "idle_among_spinning")
    ),
    "rank_0_waits_for_a_file_server_and_the_others_for_rank_0": Scene(
        apart={(0, 0): IDLES}, extra=blocked(1, "nfs"), cause="storage", suspects=suspects([(0, 0)], "idle_among_spinning")
    ),
    "the_loaders_of_one_node_wait_for_a_disk": Scene(
        then=WAITS,
        extra=blocked(12, "io", node=2),
        cause="storage",
        suspects=suspects(NODE_2, "waits_for_storage"),
        alerts=frozenset({"TrainingStalled"}),
    ),
    "half_of_the_nodes_wait_for_a_file_server": Scene(
        then=WAITS,
        extra={**blocked(3, "nfs", node=0), **blocked(3, "nfs", node=1)},
        cause="storage",
        alerts=frozenset({"TrainingStalled"}),
    ),
    "the_ranks_of_a_node_wait_for_a_file_server_and_the_others_for_them": Scene(
        apart=dict.fromkeys(NODE_2, IDLES),
        extra=blocked(8, "nfs", node=2),
        cause="storage",
        suspects=suspects(NODE_2, "idle_among_spinning"),
    ),
    "somebody_waits_for_what_may_not_be_read": Scene(
        then=IDLES,
        extra=blocked(1, "unknown"),
        cause="storage",
        suspects=suspects(ALL[:8], "waits_for_storage"),
        alerts=frozenset({"TrainingStalled"}),
    ),
    "a_process_that_waits_for_the_driver_waits_for_no_disk": Scene(
        apart={(2, 5): IDLES}, extra=blocked(1, "driver", node=2), cause="dead_rank", suspects=suspects([(2, 5)], "idle_among_spinning")
    ),
    "processes_that_wait_for_a_disk_now_and_then": Scene(
        then=WAITS,
        extra={**blocked(3, "io"), f'trainer_processes{{instance="node-0", run="{RUN}", state="uninterruptible"}}': "0x20" + " 3 2 0" * 10},
        cause="data",
        alerts=frozenset({"TrainingStalled"}),
    ),
    "most_cards_do_not_answer": Scene(unread=ALL[:20], cause="unknown", alerts=frozenset({"TrainingStalled"})),
    "nothing_is_read_of_any_card": Scene(unread=ALL, cause="unknown", alerts=frozenset({"TrainingStalled"})),
}

# An hour each, since a page may come late.
WELL = {
    "training": Scene(then=COMPUTES, steps=True),
    "evaluating": Scene(then=COMPUTES, phase="evaluating"),
    "saving_while_all_wait_for_rank_0": Scene(then=SPINS, apart={(0, 0): IDLES}, phase="checkpointing", extra=IN_PROGRESS),
    "ended": Scene(then=IDLES, phase="ended", detached=ALL),
}


def gpu_series(scene: Scene, after: int) -> Iterator[tuple[str, str]]:
    names = ("gpu_utilization_ratio", "gpu_memory_bandwidth_utilization_ratio", "gpu_power_watts")
    for place in ALL:
        is_silent = place[0] == scene.silent
        ends = f"x{BEFORE - 1} stale"
        for name, before, then in zip(names, COMPUTES, scene.apart.get(place, scene.then), strict=True):
            gone = is_silent or place in scene.unread
            yield of(name, place), f"{before}{ends}" if gone else f"{before}x{BEFORE} {then}x{after}"
        yield of("gpu_power_limit_watts", place), f"400{ends}" if is_silent else f"400x{BEFORE + after}"
        rank = str(place[0] * CARDS + place[1])
        detached = is_silent or place in scene.detached
        yield of("gpu_run_info", place, run=RUN, rank=rank), f"1{ends}" if detached else f"1x{BEFORE + after}"


def run_series(scene: Scene, after: int) -> Iterator[tuple[str, str]]:
    log = f'instance="node-0", run="{RUN}"'
    yield f'trainer_run_phase{{{log}, phase="training"}}', f"1x{BEFORE} {int(scene.phase == 'training')}x{after}"
    if scene.phase != "training":
        yield f'trainer_run_phase{{{log}, phase="{scene.phase}"}}', f"0x{BEFORE} 1x{after}"
    yield f"trainer_step{{{log}}}", f"100+2x{BEFORE} {'142+2' if scene.steps else '140'}x{after}"
    yield f"trainer_progress_age_seconds{{{log}}}", f"4x{BEFORE} {'4' if scene.steps else '15+15'}x{after}"
    for quantile, gap in (("0.95", 8), ("1", 9)):
        yield f'trainer_progress_gap_seconds{{{log}, quantile="{quantile}"}}', f"{gap}x{BEFORE + after}"
    for node in range(NODES):
        yield f'up{{job="trainer-exporter", instance="node-{node}"}}', f"1x{BEFORE} {int(node != scene.silent)}x{after}"


def document(scene: Scene, expectations: Sequence[Mapping[str, object]], *, after: int = AFTER, every: str = "30s") -> Mapping[str, object]:
    """What promtool reads. Rules that are seldom evaluated are cheap: no more often than an expectation needs."""
    series = {**dict(gpu_series(scene, after)), **dict(run_series(scene, after)), **scene.extra}
    return {
        "rule_files": [str(path) for path in RULES if path.stem != "wall"],  # which judges nothing
        "group_eval_order": group_order(*ORDER),
        "evaluation_interval": every,
        "tests": [
            {
                "interval": f"{INTERVAL_S}s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": list(expectations),
            }
        ],
    }


def play(scene: Scene, expectations: Sequence[Mapping[str, object]], directory: Path, *, after: int = AFTER, every: str = "30s") -> None:
    """Let promtool judge; fails with what it says."""
    path = directory / "scene.yml"
    path.write_text(yaml.safe_dump(document(scene, expectations, after=after, every=every)))
    played = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stdout + played.stderr


def expected(expr: str, rows: Iterable[Mapping[str, str]], *, at: str) -> Mapping[str, object]:
    """An expression whose every value is 1, and the labels of its series."""
    samples = [{"labels": f"{{{matchers(row)}}}", "value": 1} for row in rows]
    return {"expr": expr, "eval_time": at, "exp_samples": samples}


def told(scene: Scene) -> list[Mapping[str, object]]:
    """The suspects and the cause that follow."""
    named = [{"instance": f"node-{node}", "gpu": str(gpu), "reason": reason} for node, gpu, reason in sorted(scene.suspects)]
    return [
        expected("group by (instance, gpu, reason) (run:suspect_gpu)", named, at="9m"),
        expected("group by (cause) (run:stall_cause:info)", [{"cause": scene.cause}], at="9m"),
    ]


@pytest.mark.parametrize("scene", SICK.values(), ids=SICK)
def test_a_hang_is_named_by_its_cause_and_by_the_gpu_that_differs(scene: Scene, tmp_path: Path) -> None:
    firing = [{"alertname": name} for name in sorted(scene.alerts)]

    paged = expected('group by (alertname) (ALERTS{alertstate="firing", severity="critical"})', firing, at="9m")

    play(scene, [*told(scene), paged], tmp_path)


@pytest.mark.parametrize("scene", WELL.values(), ids=WELL)
def test_a_job_that_is_well_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    never = expected('count_over_time(ALERTS{alertstate="firing", alertname!="Watchdog"}[1h])', (), at="64m")

    play(scene, [never], tmp_path, after=240, every="1m")


def test_a_job_that_compiles_for_twenty_minutes_is_left_alone(tmp_path: Path) -> None:
    """It has made no step yet, so nothing of it is learned; its cards are busy now and then."""
    log = f'instance="node-0", run="{RUN}"'
    starting = {f'trainer_run_phase{{{log}, phase="starting"}}': "1x80", f'trainer_run_phase{{{log}, phase="training"}}': "0x80"}
    starting |= {f"trainer_progress_age_seconds{{{log}}}": "0+15x80", f"trainer_step{{{log}}}": "0x80"}
    starting |= {f'trainer_progress_gap_seconds{{{log}, quantile="{quantile}"}}': "_x80" for quantile in ("0.95", "1")}
    scene = Scene(then=("0.3", "0.05", "120"), apart={(0, 0): IDLES}, extra=starting)

    play(scene, [expected('count_over_time(ALERTS{alertstate="firing", alertname!="Watchdog"}[20m])', (), at="20m")], tmp_path, after=60)


@pytest.mark.parametrize(
    "scene",
    [Scene(then=COMPUTES, steps=True, detached=NODE_3), Scene(then=IDLES, phase="ended", detached=NODE_3)],
    ids=["goes_on_without_them", "has_ended"],
)
def test_the_members_that_left_are_forgotten_when_the_run(scene: Scene, tmp_path: Path) -> None:
    play(scene, [expected("run:suspect_gpu", (), at="9m")], tmp_path)


def test_a_daemon_that_restarts_while_the_run_hangs_makes_no_suspect_of_its_node(tmp_path: Path) -> None:
    restarts = {'up{job="trainer-exporter", instance="node-3"}': "1x33 0x1 1x20"}

    play(Scene(extra=restarts), [expected("run:suspect_gpu", (), at=moment) for moment in ("8m30s", "8m45s", "9m")], tmp_path, every="15s")


@pytest.mark.parametrize(
    ("braked", "named"),
    [(15, [{"reason": "throttled_hw_power_brake_slowdown"}]), (16, [])],
    ids=["fewer_than_half", "half"],
)
def test_slowness_that_half_of_the_run_shares_tells_nobody_apart(braked: int, named: Sequence[Mapping[str, str]], tmp_path: Path) -> None:
    brakes = {of("gpu_throttle_active", place, reason="hw_power_brake_slowdown"): later("1", before="0") for place in ALL[:braked]}

    scene = Scene(then=COMPUTES, steps=True, extra=brakes)

    play(scene, [expected("group by (reason) (run:suspect_gpu)", named, at="12m")], tmp_path)


def test_a_card_whose_xid_the_run_has_survived_is_suspected_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    scene = Scene(then=COMPUTES, steps=True, extra={of("gpu_xid_last_timestamp_seconds", (0, 3), xid="63"): "10x100"})
    suspect = {"instance": "node-0", "gpu": "3", "reason": "xid_63"}

    expectations = [
        expected("group by (instance, gpu, reason) (run:suspect_gpu)", [suspect], at="15m"),
        expected("run:suspect_gpu", (), at="16m"),
    ]

    play(scene, expectations, tmp_path, after=60)

"""Exporters that are scraped: one entry a scene, which the labels in exporters.yml are about. What they say of themselves is composed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer_exporter.backtest import promtool
from trainer_exporter.backtest.rulebook import Rulebook
from trainer_exporter.backtest.tape import INTERVAL_S, Tape, series
from trainer_exporter.backtest.values import Firing

START = 1_773_478_800.0
FINE_S = 1800  # before anything happens


@dataclass(frozen=True)
class Exporter:
    """What one is like at a moment; rates are a second."""

    answers: bool = True
    at_work: bool = True  # it follows a run that makes steps
    read: float = 0.5  # lines that tell something
    unmatched: float = 3.0
    errors: float = 0.0
    dropped: float = 0.0
    lag_bytes: float = 0.0
    collects: bool = True
    reloaded: bool = True
    gpus: bool = False  # at work, where no log tells of it


Scene = tuple[Exporter, Sequence[tuple[int, Mapping[str, object]]], int]  # first, what changes when, seconds in all


def _scene(seconds: int, *changes: tuple[int, Mapping[str, object]], **first: object) -> Scene:
    return replace(Exporter(), **first), changes, seconds  # type: ignore[arg-type]


SCENES: Mapping[str, Scene] = {
    "healthy_exporter": _scene(6000),
    "healthy_exporter_restarts": _scene(4500, (FINE_S, {"answers": False}), (FINE_S + 60, {"answers": True})),
    "healthy_exporter_hiccups": _scene(
        4500,
        (FINE_S, {"collects": False, "errors": 0.1, "lag_bytes": 5e7}),
        (FINE_S + 200, {"collects": True, "errors": 0.0, "lag_bytes": 0.0}),
    ),
    "healthy_exporter_of_a_chatty_log": _scene(9000, (FINE_S, {"unmatched": 500.0, "read": 0.01})),
    "exporter_dies_with_a_run": _scene(3000, (FINE_S, {"answers": False})),
    "exporter_dies_idle": _scene(3000, (FINE_S, {"answers": False}), at_work=False),
    "log_is_not_understood": _scene(9000, (FINE_S, {"read": 0.0}), gpus=True, at_work=False),
    "collector_fails": _scene(3000, (FINE_S, {"collects": False})),
    "errors_go_on": _scene(6000, (FINE_S, {"errors": 0.01})),
    "reload_is_refused": _scene(3000, (FINE_S, {"reloaded": False})),
    "exporter_lags": _scene(4000, (FINE_S, {"lag_bytes": 5e7})),
    "runs_are_dropped": _scene(3000, (FINE_S, {"dropped": 0.01})),
    "run_goes_out_of_sight": _scene(4000, (FINE_S, {"at_work": False})),
}


def fired(names: Iterable[str]) -> dict[str, list[Firing]]:
    """The alerts of these scenes by the shipped rules, in one Prometheus."""
    tapes = {name: taped(name) for name in names}
    rules = Rulebook(sorted(Path(__file__).parents[2].joinpath("alertmanager", "rules").glob("*.yml")))
    said = promtool.evaluate(list(tapes.values()), rules.about({metric for tape in tapes.values() for metric in tape.metrics}))
    found: dict[str, dict[tuple[str, str], list[float]]] = {name: {} for name in tapes}
    for at_s, labels in said:
        name = labels.get("run") or labels.get("instance", "")
        if at_s < tapes[name].scrapes * INTERVAL_S:  # what comes after the scene's end is no part of it
            found[name].setdefault((labels["alertname"], labels["severity"]), []).append(at_s)
    return {name: [each for key, moments in alerts.items() for each in _episodes(key, moments)] for name, alerts in found.items()}


def _episodes(key: tuple[str, str], moments: Sequence[float]) -> Iterator[Firing]:
    begin = moments[0]
    for before, at_s in zip(moments, [*moments[1:], float("inf")], strict=True):
        if at_s - before > INTERVAL_S:
            yield Firing(*key, "", 0, None, START + begin, START + before + INTERVAL_S, at_s=begin)
            begin = at_s


def taped(name: str) -> Tape:
    """What Prometheus scrapes in this scene."""
    state, changes, seconds = SCENES[name]
    tape, totals = Tape(), {"read": 0.0, "unmatched": 0.0, "errors": 0.0, "dropped": 0.0}
    waiting = list(changes)
    for now in range(0, seconds, INTERVAL_S):
        while waiting and waiting[0][0] <= now:
            state = replace(state, **waiting.pop(0)[1])  # type: ignore[arg-type]
        totals = {key: value + getattr(state, key) * INTERVAL_S if state.answers else 0.0 for key, value in totals.items()}
        tape.scrape(dict(_samples(name, state, now, totals)))
    return tape


def _samples(name: str, state: Exporter, now: int, totals: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    target = {"job": "trainer-exporter", "instance": name}

    def sample(metric: str, value: float, **labels: str) -> tuple[str, float]:
        return series(metric, {**target, **labels}), float(value)

    yield sample("up", state.answers)
    if not state.answers:
        return
    yield sample("trainer_exporter_lines_total", totals["read"], result="parsed")
    yield sample("trainer_exporter_lines_total", totals["unmatched"], result="unmatched")
    if totals["errors"]:  # these are born with their first count
        yield sample("trainer_exporter_errors_total", totals["errors"], site="follow", reason="unreadable")
    if totals["dropped"]:
        yield sample("trainer_exporter_dropped_total", totals["dropped"], reason="runs")
    yield sample("trainer_exporter_read_lag_bytes", state.lag_bytes)
    yield sample("trainer_exporter_collector_success", state.collects, collector="runs")
    yield sample("trainer_exporter_config_last_reload_successful", state.reloaded)
    if state.gpus:
        yield sample("gpu_utilization_ratio", 0.95, uuid="GPU-a", gpu="0")
    if state.at_work:
        yield sample("trainer_run_info", 1, run=name, format="megatron")
        yield sample("trainer_run_phase", 1, run=name, phase="training")
        yield sample("trainer_step", now // 2, run=name)
        yield sample("trainer_step_timestamp_seconds", now, run=name)
        yield sample("trainer_progress_age_seconds", 1, run=name)
        yield sample("trainer_writer_alive", 1, run=name)
        yield from (sample("trainer_progress_gap_seconds", 2, run=name, quantile=quantile) for quantile in ("0.5", "0.95", "1.0"))

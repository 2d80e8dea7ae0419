"""Why a job of four nodes with eight GPUs hangs, and which node to look at, by four real daemons and the real Prometheus; in a hurry.

Eight jobs share the nodes, so that one minute plays them all: steps come every half second, and the shipped rules' durations are divided by
four (hurry.py). ``make test-hangs`` plays these and more with the durations as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import yaml

import hang_watch as watch
from hang_fleet import CARDS, NODES, Job, Library, Node, at_work, started
from hang_scenes import SCENES
from hurry import hurried_rules
from rulebook import RULES
from stack import Prometheus, Receiver, alertmanager, alertmanager_config, eventually, prometheus, prometheus_config, receiver

pytestmark = pytest.mark.e2e

TIMES = 4.0
INTERVAL = "2s"
SICK = ("collective", "node_outside", "data_stop", "xid_79", "ecc")
WELL = ("well", "evaluating", "saving")
CALM_S = 15.0
KNOWN_S = 30.0  # a hang that has lasted for so long has a cause
PATIENCE_S = 120.0  # a busy machine; what is judged is what is said in the end, not how soon


@dataclass
class Seen:
    """All that the tests ask for, of every scene."""

    jobs: Mapping[str, Job]
    told: dict[str, watch.Told] = field(default_factory=lambda: {name: watch.Told() for name in SICK})
    wrong: dict[str, list[str]] = field(default_factory=dict)
    fired: dict[str, list[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("hangs")
    library = Library(folder)
    names = SICK + WELL
    nodes = [
        Node(f"127.0.9.{1 + at}", folder / f"node-{at}", library, cards=CARDS * len(names), config="gpu: {interval: 2s, deadline: 10s}")
        for at in range(NODES)
    ]
    jobs = {name: Job(name, 4711 + at, nodes, folder / name, first=CARDS * at, pace_s=0.5) for at, name in enumerate(names)}
    with ExitStack() as stack:
        stack.enter_context(started(nodes))
        stack.enter_context(at_work(list(jobs.values())))
        pager = stack.enter_context(receiver())
        alerts = stack.enter_context(
            alertmanager(folder / "alertmanager", alertmanager_config(pager.url, group_wait="2s", group_interval="2s"))
        )
        targets = [f"{node.address}:{node.daemon.port}" for node in nodes]
        config = yaml.safe_load(
            prometheus_config(targets, alertmanager_url=alerts.url, scrape_interval=INTERVAL, evaluation_interval=INTERVAL)
        )
        config["rule_files"] = [hurried_rules(RULES[0].parent, folder / "rules", times=TIMES)]
        server = stack.enter_context(prometheus(folder / "prometheus", yaml.safe_dump(config)))
        yield story(Seen(jobs), server, pager)


def story(seen: Seen, server: Prometheus, pager: Receiver) -> Seen:
    for name, job in seen.jobs.items():
        SCENES[name].prepare(job, CALM_S)
    for job in seen.jobs.values():
        known = f'run:gpus:count{{run="{job.run}"}} == {NODES * CARDS} and on (run) run:source_gap_seconds:p95'
        at_ease = f"{known} unless on (run) run:suspect_gpu and on (run) run:gpu_power_of_limit_ratio:avg1m > 0.8"
        eventually(
            lambda ask=at_ease: server.query(ask),
            within_s=PATIENCE_S,
            what=f"{job.run} at ease",
            seen=lambda: server.query("up or run:gpus:count or run:suspect_gpu"),
        )
    calm_wall = time.time()
    for name, job in seen.jobs.items():
        SCENES[name].happens(job)
    happened_wall = time.time()

    for name in SICK:
        due = {"scene": SCENES[name], "job": seen.jobs[name], "server": server, "receiver": pager, "happened_wall": happened_wall}
        eventually(
            lambda name=name, due=due: watch.look(seen.told[name], **due), within_s=PATIENCE_S, what=f"a page of {name}", seen=server.firing
        )

    known_wall = happened_wall + KNOWN_S
    eventually(lambda: time.time() > known_wall, within_s=PATIENCE_S, what="a cause")
    for name in SICK:
        told, job = seen.told[name], seen.jobs[name]
        seen.wrong[name] = watch.wrong(told, SCENES[name], job, server=server, receiver=pager, known_wall=known_wall)
    alerts = watch.alerts_since(server, calm_wall)
    seen.fired = {name: watch.fired(alerts, seen.jobs[name]) for name in WELL}
    return seen


@pytest.mark.parametrize("name", SICK)
def test_a_hang_is_told_with_its_cause_and_its_suspect(seen: Seen, name: str) -> None:
    assert seen.wrong[name] == []


@pytest.mark.parametrize("name", WELL)
def test_nobody_hears_of_a_job_that_is_well(seen: Seen, name: str) -> None:
    assert seen.fired[name] == []

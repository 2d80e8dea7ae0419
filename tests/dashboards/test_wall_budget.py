"""What the wall asks of Prometheus at 1,250 nodes and 375 runs, counted: series read and rows sent, not seconds that a busy machine blurs.

The wall reads nothing but what the rules record, so that is what Prometheus has here. tests/bench/wall.py measures seconds, rules included.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

import stack
from boards import built, metrics_in, queries

NODES, RUNS, PAGING, TICKETS = 1250, 375, 12, 40
GPU_STATES = ("idle", "working", "spinning", "sick", "silent", "lost")
RUN_STATES = ("starting", "training", "evaluating", "saving", "ended", "failed", "hung", "crashed")


class Cost(NamedTuple):
    """Of one query: series that it read, rows that it sent."""

    read: int
    rows: int


def labelled(name: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """The series that a recorded name has in a fleet of that size, by its level."""
    level = name.partition(":")[0]
    if name.startswith("ALERTS"):
        fired = {"alertstate": "firing"} if name == "ALERTS" else {}
        yield {**fired, "alertname": "Watchdog", "severity": "none"}, 1
        for number in range(PAGING + TICKETS):
            severity = "critical" if number < PAGING else "warning"
            yield {**fired, "alertname": "TrainingStalled", "severity": severity, "run": f"run{number:03}"}, 1
    elif level == "run":
        yield from (({"run": f"run{number:03}", "team": f"team{number % 9}"}, 1 + number % 8) for number in range(RUNS))
    elif level == "node":
        yield from (({"instance": f"node{number:04}"}, number % 6) for number in range(NODES))
    else:
        yield from (({"state": state, "team": f"team{team}"}, 7) for state in {*GPU_STATES, *RUN_STATES} for team in range(9))


def written(name: str, labels: Mapping[str, str], value: float, moment: int) -> str:
    told = ",".join(f'{label}="{text}"' for label, text in {**labels, "cluster": "c1"}.items())
    return f"{name}{{{told}}} {value} {moment}\n"


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> list[Cost]:
    """Of each query of the wall."""
    folder = tmp_path_factory.mktemp("fleet")
    asked = list(queries(built("wall")))
    now = int(time.time())
    names = sorted({name for query in asked for name in metrics_in(query.expr)})
    lines = (written(name, labels, value, now) for name in names for labels, value in labelled(name))
    (folder / "recorded.txt").write_text(f"{''.join(lines)}# EOF\n")
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "recorded.txt"), str(folder / "data")]
    subprocess.run(make, check=True, capture_output=True, timeout=120)
    with stack.prometheus(folder, "global: {}\n") as server:
        return [cost(server, re.sub(r"\$[a-z]+", ".*", query.expr), now) for query in asked]


def cost(server: stack.Prometheus, expr: str, moment: int) -> Cost:
    asked = urlencode({"query": expr, "time": moment, "stats": "all"})
    with urllib.request.urlopen(f"{server.url}/api/v1/query?{asked}", timeout=60) as answer:
        data = json.load(answer)["data"]
    return Cost(data["stats"]["samples"]["totalQueryableSamples"], len(data["result"]))


def test_a_refresh_reads_under_25000_series_of_a_fleet_of_ten_thousand_gpus(costs: list[Cost]) -> None:
    assert sum(cost.read for cost in costs) <= 25_000
    assert max(cost.read for cost in costs) <= 2_500


def test_a_refresh_sends_a_few_hundred_rows_whatever_the_size_of_the_fleet(costs: list[Cost]) -> None:
    assert all(cost.rows for cost in costs)
    assert sum(cost.rows for cost in costs) <= 400
    assert max(cost.rows for cost in costs) <= 96, "tiles of nodes"

"""What a wall display costs Prometheus at 1,250 nodes of eight GPUs: ``python tests/bench/wall.py [NODES] [INTERVAL]``.

The pages are simulated (fleet.py); Prometheus, its configuration and the rules are the shipped ones. Beside the whole wall stand its two
panels of GPUs alone, as they are and if nothing were recorded: each recorded name replaced by what the rules say of it. For the rows of
runs that cannot be tried at this size: at 160 GPUs a refresh of them took half a minute. INTERVAL is that of scrapes and rules.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import yaml

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dashboards")]

import fleet  # noqa: E402 - idem

import boards  # noqa: E402 - found by the line above
import stack  # noqa: E402 - idem

READY = "count(run:attention:score)"
PATIENCE_S = 900.0
REFRESHES = 20
IDLE_S = 30.0  # two rounds of scrapes and rules
TICK_S = 0.01  # of /proc/PID/stat
LIMIT_S = 120.0


class Cost(NamedTuple):
    """What a query read: series, and the samples of them."""

    rows: int
    samples: int


@contextmanager
def watched(nodes: int, folder: Path, *, interval: str = "15s") -> Iterator[stack.Prometheus]:
    """A Prometheus that scrapes that many nodes and has judged them, ready to be asked by a wall."""
    seen = fleet.Fleet(nodes, time.time())
    with fleet.pages(seen) as port:
        config = yaml.safe_load(
            stack.prometheus_config([], alertmanager_url="http://127.0.0.1:9", scrape_interval=interval, evaluation_interval=interval)
        )
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": list(map(str, range(nodes)))}]
        # A target's number is its path; all are one server.
        job["relabel_configs"] = [
            {"source_labels": ["__address__"], "target_label": "instance", "replacement": "node$1"},
            {"source_labels": ["__address__"], "target_label": "__metrics_path__", "replacement": "/$1"},
            {"target_label": "cluster", "replacement": "c1"},
            {"target_label": "__address__", "replacement": f"127.0.0.1:{port}"},
        ]
        with stack.prometheus(folder, yaml.safe_dump(config)) as server:
            runs = sum(node % fleet.TILE == run.first for node in range(nodes) for run in fleet.RUNS)
            ready = f"{READY} == {runs} and on () count(node:gpu_state:max) == {nodes} and on () cluster:gpus:count"
            stack.eventually(lambda: _holds(server, ready), within_s=PATIENCE_S, what=ready, every_s=1)
            yield server


def _holds(server: stack.Prometheus, expr: str) -> bool:
    """Not yet, where the server is too busy to say."""
    try:
        return bool(server.query(expr))
    except OSError:
        return False


def queries(*panels: str) -> list[str]:
    """The wall's, with everything chosen; of these panels alone where they are named (by how they begin)."""
    return [re.sub(r"\$[a-z]+", ".*", query.expr) for query in boards.queries(boards.built("wall")) if query.title.startswith(panels or "")]


def cost(server: stack.Prometheus, expr: str) -> Cost:
    """What Prometheus says that a query reads."""
    with urllib.request.urlopen(f"{server.url}/api/v1/query?{urlencode({'query': expr, 'stats': 'all'})}", timeout=60) as answer:
        data: dict[str, Any] = json.load(answer)["data"]
    return Cost(len(data["result"]), data["stats"]["samples"]["totalQueryableSamples"])


def cpu_s(server: stack.Prometheus) -> float:
    """Processor time that the server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def unrecorded(expr: str) -> str:
    """The expression from what is scraped alone, as far as it asks for the present: what a rule says of the past stays recorded."""
    said = {rule["record"]: re.sub(r"#[^\n]*", "", rule["expr"]) for rule in boards.rules() if "record" in rule}

    def inlined(text: str, above: frozenset[str]) -> str:
        def replaced(found: re.Match[str]) -> str:
            name = found[1]
            if name not in said or name in above or re.match(r"\s*(\[|offset|@)", text[found.end() :]):
                return found[0]
            return f"({inlined(said[name], above | {name})})"

        return re.sub(r"([a-z]+:[a-z0-9_:]+)(?:\{[^}]*\})?", replaced, text)

    return inlined(expr, frozenset())


def refresh_s(server: stack.Prometheus, asked: Sequence[str], times: int) -> tuple[float, float]:
    """Processor time and wall time of one refresh, without what scrapes and rules take meanwhile."""
    before, began = cpu_s(server), time.monotonic()
    time.sleep(IDLE_S)
    idle = (cpu_s(server) - before) / (time.monotonic() - began)
    before, began = cpu_s(server), time.monotonic()
    for _ in range(times):
        for expr in asked:
            _ask(server, expr)
    took = time.monotonic() - began
    return (cpu_s(server) - before - idle * took) / times, took / times


def _ask(server: stack.Prometheus, expr: str) -> None:
    try:
        with urllib.request.urlopen(f"{server.url}/api/v1/query", urlencode({"query": expr}).encode(), timeout=LIMIT_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.read().decode()} {expr[:400]}")


def main(nodes: int, interval: str) -> None:
    asked = queries()
    with tempfile.TemporaryDirectory() as folder, watched(nodes, Path(folder), interval=interval) as server:
        costs = [cost(server, expr) for expr in asked]
        scraped = server.query("count({__name__=~'trainer_.*|gpu_.*|process_.*|DCGM_.*|up'})")[0]["value"][1]
        sys.stdout.write(f"{nodes} nodes, {nodes * fleet.CARDS} GPUs, {scraped} series scraped every {interval}\n")
        sys.stdout.write(
            f"{len(asked)} queries a refresh, {sum(c.rows for c in costs)} rows, {sum(c.samples for c in costs)} samples read\n"
        )
        of_gpus = queries("GPUs", "Nodes")
        raw = [unrecorded(expr) for expr in of_gpus]
        for what, those, times in (
            ("wall", asked, REFRESHES),
            ("GPUs and nodes", of_gpus, REFRESHES),
            ("the same, nothing recorded", raw, 2),
        ):
            used, took = refresh_s(server, those, times)
            sys.stdout.write(f"{what}: {len(those)} queries, {used:.3f} s of CPU a refresh, answered within {took:.2f} s\n")
            sys.stdout.flush()
        before, began = cpu_s(server), time.monotonic()
        time.sleep(60)
        share = (cpu_s(server) - before) / (time.monotonic() - began)
        sys.stdout.write(f"scrapes and all rules: {share:.2f} of a core\n")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    main(int(given.get(1, 1250)), given.get(2, "15s"))

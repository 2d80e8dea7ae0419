"""One bad morning of 1,250 nodes, in real time: ``python tests/scale/incident.py [--engine prometheus|victoria] [--nodes 1250]``.

A job on 128 nodes hangs in a collective, another job loses a card, twenty are healthy and one evaluates for twelve minutes; then all end.
The nodes' pages are simulated (tests/bench/fleet.py), their cards' readings stand still within a state; engine, rules, routes and
Alertmanager are real and shipped, but for group_interval, which is a minute. It prints every page and ticket with its delay and what the
engine cost, and fails unless there were exactly two pages, all was resolved, and no page came after that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "bench")]
os.environ["PATH"] += os.pathsep + os.environ.get("PROGRAMS_DIR", "")

import fleet  # noqa: E402 - found by the line above

import stack  # noqa: E402 - idem

SCALE_OUT = stack.REPOSITORY / "deploy" / "scale-out"
HUNG_NODES, SICK_NODES, ASIDE_NODES, HEALTHY_RUNS = 128, 16, 16, 20
CALM_S = 150.0  # from the first round on, before anything happens
HANGS_S, LOST_S, ENDS_S = 0.0, 20.0, 210.0  # after that; the evaluation has gone on for EVALUATED_S by then, and goes on until the end
EVALUATED_S = 600.0
QUIET_S = 90.0  # after the last resolve, in which no page may come
PATIENCE_S = 600.0
TICK_S = 0.01  # of /proc/PID/stat


def runs(nodes: int) -> list[fleet.Run]:
    """What that many nodes do: all of them serve a run."""
    made = [
        fleet.Run("pretrain-405b", "llm", 0, HUNG_NODES, 5.8, 1.78, 0.44, 0.18, "hung"),
        fleet.Run("moe-8x22b", "llm", HUNG_NODES, SICK_NODES, 6.3, 2.05, 0.42, 0.62, "lost"),
        fleet.Run("qwen-72b-eval", "align", HUNG_NODES + SICK_NODES, ASIDE_NODES, 8.2, 1.31, 0.43, 0.49, "evaluating"),
    ]
    first = HUNG_NODES + SICK_NODES + ASIDE_NODES
    for number in range(HEALTHY_RUNS):
        last = first + (nodes - first) // (HEALTHY_RUNS - number)
        made.append(fleet.Run(f"healthy-{number + 1:02}", "llm", first, last - first, 2.0 + number / 4, 1.5, 0.45, 0.05 + number / 25))
        first = last
    return made


@dataclass
class Pages:
    """A node's page at the moment at which it is asked for; what does not change within a state is kept."""

    fleet: fleet.Fleet
    kept: dict[tuple[int, bool, bool], bytes] = field(default_factory=dict)

    def __call__(self, node: int) -> bytes:
        moment = time.time()
        return fleet.text(self.fleet.of_run(node, moment)) + self.of_node(node, moment)

    def of_node(self, node: int, moment: float) -> bytes:
        """What the node tells of itself, made once for each state that it can be in."""
        run = self.fleet.run_on(node)
        state = (node, moment >= self.fleet.end, run is not None and self.fleet.sick_for_s(run, moment) > 0)
        if state not in self.kept:
            self.kept[state] = fleet.text(self.fleet.of_node(node, moment))
        return self.kept[state]

    def warm(self) -> None:
        """Make the pages of every state, so that nothing is late for that."""
        for node in range(self.fleet.nodes):
            for moment in (self.fleet.now, self.fleet.end - 1, self.fleet.end):
                self.of_node(node, moment)


@dataclass(frozen=True)
class Engine:
    """What scrapes and judges: how to ask it, and its processes by name."""

    ask: Callable[[str], list[dict[str, Any]]]
    processes: Mapping[str, int]
    judge: str  # the address of what evaluates rules
    took: str  # how its page says how long a group took: a pattern of name and seconds

    def cpu_s(self) -> dict[str, float]:
        """Processor time that each has used."""
        return {name: _cpu_s(pid) for name, pid in self.processes.items()}

    def slowest(self) -> list[str]:
        """The groups of rules that take longest, with seconds."""
        with urllib.request.urlopen(f"{self.judge}/metrics", timeout=30) as page:
            found = re.findall(self.took, page.read().decode())
        return [f"{name} {seconds:.1f}" for seconds, name in sorted(((float(took), name) for name, took in found), reverse=True)[:6]]

    def memory_mib(self) -> dict[str, int]:
        """The most that each has held."""
        return {name: _peak_mib(pid) for name, pid in self.processes.items()}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _peak_mib(pid: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def scrape_job(nodes: int, port: int) -> dict[str, Any]:
    """All nodes are one server; a target's number is its path."""
    return {
        "job_name": "trainer-exporter",
        "static_configs": [{"targets": list(map(str, range(nodes)))}],
        "relabel_configs": [
            {"source_labels": ["__address__"], "target_label": "instance", "replacement": "node$1"},
            {"source_labels": ["__address__"], "target_label": "__metrics_path__", "replacement": "/$1"},
            {"target_label": "cluster", "replacement": "c1"},
            {"target_label": "__address__", "replacement": f"127.0.0.1:{port}"},
        ],
    }


@contextlib.contextmanager
def prometheus(folder: Path, job: dict[str, Any], alertmanager: stack.Alertmanager, interval: str) -> Iterator[Engine]:
    """The shipped configuration with these nodes in it."""
    config = yaml.safe_load(
        stack.prometheus_config([], alertmanager_url=alertmanager.url, scrape_interval=interval, evaluation_interval=interval)
    )
    config["scrape_configs"] = [job]
    with stack.prometheus(folder, yaml.safe_dump(config)) as server:
        yield Engine(server.query, {"prometheus": server.process.pid}, server.url, PROMETHEUS_TOOK)


@contextlib.contextmanager
def victoria(folder: Path, job: dict[str, Any], alertmanager: stack.Alertmanager, interval: str) -> Iterator[Engine]:
    """vmagent, VictoriaMetrics and vmalert with the flags of the shipped units; addresses and places are this machine's."""
    ports = {name: stack.free_port() for name in ("victoria-metrics", "vmagent", "vmalert")}
    storage = f"http://127.0.0.1:{ports['victoria-metrics']}"
    scrapes, rules = folder / "vmagent.yml", folder / "rules.yml"
    folder.mkdir(parents=True, exist_ok=True)
    agent = yaml.safe_load((SCALE_OUT / "vmagent.yml").read_text())
    scrapes.write_text(yaml.safe_dump({**agent, "global": {**agent["global"], "scrape_interval": interval}, "scrape_configs": [job]}))
    built = [sys.executable, str(SCALE_OUT / "build.py"), "--interval", interval.removesuffix("s")]
    rules.write_text(subprocess.run(built, check=True, capture_output=True, text=True).stdout)
    ours: dict[str, dict[str, str]] = {
        "victoria-metrics": {"storageDataPath": str(folder / "data"), "dedup.minScrapeInterval": interval},
        "vmagent": {
            "promscrape.config": str(scrapes),
            "remoteWrite.url": f"{storage}/api/v1/write",
            "remoteWrite.tmpDataPath": str(folder / "queue"),
            "promscrape.cluster.membersCount": "1",
            "promscrape.cluster.memberNum": "0",
        },
        "vmalert": {
            "rule": str(rules),
            "datasource.url": storage,
            "remoteRead.url": storage,
            "remoteWrite.url": storage,
            "notifier.url": alertmanager.url,
            "evaluationInterval": interval,
        },
    }
    with contextlib.ExitStack() as started:
        processes = {}
        for name, port in ports.items():
            flags = {**shipped_flags(name), **ours[name], "httpListenAddr": f"127.0.0.1:{port}"}
            arguments = [f"-{flag}={value}" for flag, value in flags.items()]
            processes[name] = started.enter_context(stack.running([name], arguments, directory=folder, port=port))
        asked = stack.Prometheus(storage, processes["victoria-metrics"])  # it answers as Prometheus does
        judge = f"http://127.0.0.1:{ports['vmalert']}"
        pids = {name: process.pid for name, process in processes.items()}
        yield Engine(asked.query, pids, judge, VMALERT_TOOK)


def shipped_flags(name: str) -> dict[str, str]:
    """The flags of a shipped unit."""
    unit = (SCALE_OUT / f"{name}.service").read_text().replace("\\\n", " ")
    command = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0]
    pairs = (word.lstrip("-").split("=", 1) for word in shlex.split(command)[1:])
    return {pair[0]: pair[1] if len(pair) > 1 else "true" for pair in pairs}


PROMETHEUS_TOOK = r'prometheus_rule_group_last_duration_seconds\{rule_group="[^"]*;(\w+)"\} (\S+)'
VMALERT_TOOK = r'vmalert_iteration_duration_seconds\{group="([\w-]+)".*quantile="0.99"\} (\S+)'

ENGINES = {"prometheus": prometheus, "victoria": victoria}


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def active(alertmanager: stack.Alertmanager) -> list[str]:
    """Alerts that Alertmanager holds as firing, Watchdog apart."""
    return sorted(
        f"{labels['alertname']}({labels['severity']}) {labels.get('run', labels.get('instance', ''))}"
        for labels in (alert["labels"] for alert in alertmanager.alerts())
        if labels["alertname"] != "Watchdog"
    )


def told(found: Sequence[stack.Notification], since: float) -> list[str]:
    """Each first notification of a group: when, what, of which run."""
    lines = []
    for each in found:
        labels = each.body["groupLabels"]
        lines.append(
            f"{each.wall - since:6.1f} s  {labels.get('run') or labels.get('instance')}: {', '.join(sorted(set(each.alertnames)))}"
        )
    return lines


def first_of_groups(notifications: Sequence[stack.Notification]) -> list[stack.Notification]:
    first: dict[str, stack.Notification] = {}
    for each in notifications:
        if each.body["status"] == "firing":
            first.setdefault(each.group, each)
    return list(first.values())


def play(engine: Engine, pages: Pages, alertmanager: stack.Alertmanager, receiver: stack.Receiver, begins: float) -> list[str]:
    """From the calm to the last resolve; what went wrong in it."""
    hangs, end = begins + HANGS_S, pages.fleet.end
    nodes = pages.fleet.nodes
    count = f'count(up{{job="trainer-exporter"}} == 1) == {nodes} and on () count(run:labels:info) == {len(pages.fleet.runs)}'
    stack.eventually(lambda: engine.ask(count), within_s=PATIENCE_S, what=count, every_s=2, seen=lambda: engine.ask("count(up == 1)"))
    say(f"{nodes} nodes are scraped and judged; the job on {HUNG_NODES} nodes hangs in {hangs - time.time():.0f} s")
    wrong = [f"a page in the calm: {line}" for line in told(receiver.pages(), hangs)]
    stack.eventually(lambda: time.time() > hangs, within_s=PATIENCE_S, what="the hang", every_s=1)
    before, began = engine.cpu_s(), time.time()
    stack.eventually(lambda: time.time() > end, within_s=PATIENCE_S, what="the end", every_s=1)
    share = {name: round((spent - before[name]) / (time.time() - began), 2) for name, spent in engine.cpu_s().items()}
    say(f"everything ends; cores in use meanwhile: {share}, most memory in MiB: {engine.memory_mib()}; firing now:")
    sys.stdout.writelines(f"    {line}\n" for line in active(alertmanager))
    seen = receiver.pages()
    if [bool(each.body["groupLabels"].get("run")) for each in seen] != [True, True]:
        wrong.append(f"{len(seen)} pages where two were due")
    stack.eventually(
        lambda: not active(alertmanager), within_s=PATIENCE_S, what="all resolved", every_s=2, seen=lambda: active(alertmanager)
    )
    say(f"all is resolved, {time.time() - end:.0f} s after the end")
    stack.eventually(
        lambda: {each.group for each in receiver.at("/page") if each.body["status"] == "resolved"} >= {each.group for each in seen},
        within_s=PATIENCE_S,
        what="the pager is told so",
        every_s=2,
    )
    say(f"the pager knows, {time.time() - end:.0f} s after the end")
    quiet = time.time() + QUIET_S
    stack.eventually(lambda: time.time() > quiet, within_s=PATIENCE_S, what="quiet", every_s=1)
    wrong += [f"a page after the end: {line}" for line in told([each for each in receiver.pages() if each not in seen], hangs)]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="A hang and a lost card among 1,250 nodes: exactly two pages.")
    parser.add_argument("--engine", choices=ENGINES, default="prometheus")
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--interval", default="15s", help="of scrapes and rules; 30s where the machine is too small")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with it
    begins = time.time() + CALM_S + asked.nodes / 25  # the engine's start, and the first rounds
    sick_s = {"hung": -CALM_S, "lost": -CALM_S - LOST_S, "evaluating": EVALUATED_S - CALM_S}
    pages = Pages(fleet.Fleet(asked.nodes, begins - CALM_S, runs(asked.nodes), asked.nodes, sick_s, begins + ENDS_S))
    pages.warm()
    say(f"pages of {asked.nodes} nodes are ready, {sum(map(len, pages.kept.values())) >> 20} MiB")
    with contextlib.ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        receiver = started.enter_context(stack.receiver())
        config = stack.alertmanager_config(receiver.url, group_interval="1m")
        alertmanager = started.enter_context(stack.alertmanager(folder / "alertmanager", config))
        port = started.enter_context(fleet.served(pages))
        job = scrape_job(asked.nodes, port)
        engine = started.enter_context(ENGINES[asked.engine](folder / "engine", job, alertmanager, asked.interval))
        wrong = play(engine, pages, alertmanager, receiver, begins)
        costs(engine)
    hangs = begins + HANGS_S
    say(f"pages, after the hang (the card is lost {LOST_S - HANGS_S:.0f} s after it):")
    sys.stdout.writelines(f"    {line}\n" for line in told(receiver.pages(), hangs))
    say("tickets:")
    sys.stdout.writelines(f"    {line}\n" for line in told(first_of_groups(receiver.at("/ticket")), hangs))
    sys.stdout.writelines(f"WRONG: {line}\n" for line in wrong)
    return 1 if wrong else 0


def costs(engine: Engine) -> None:
    """What the engine says of itself: series, and its slowest groups."""
    for what, expr in (("samples scraped a round", "sum(scrape_samples_scraped)"), ("longest scrape", "max(scrape_duration_seconds)")):
        say(f"{what}: {[found['value'][1] for found in engine.ask(expr)]}")
    say(f"groups of rules that took longest, in s: {', '.join(engine.slowest())}")


if __name__ == "__main__":
    sys.exit(main())

"""A job of four nodes with eight GPUs each, as four daemons see it: while it trains nobody hears of it; then one rank dies, and the page
names its node and its GPU.

The nodes are four addresses of this machine, each with a daemon and a driver of its own (tests/gpu/fake_nvml.c); every rank is a process,
and only that of rank 0 writes a log. A fifth node trains beside them, and goes on. Prometheus and Alertmanager are the real ones with the
shipped rules and routes, at shorter intervals. It takes three minutes, because a hang is told from a pause by waiting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon import Daemon
from stack import Notification, Prometheus, Receiver, alertmanager, alertmanager_config, eventually, prometheus, prometheus_config, receiver

sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "gpu"))
import fake

pytestmark = pytest.mark.e2e

NODES, CARDS = 4, 8
RUN, OTHER = "pt-70b", "sft-8b"
DEAD = (2, 5)  # node, GPU
LOST = (3, 1)
INTERVAL = "2s"
STALL_S = 90.0
TRAINER = """
import time
for step in range(1, 99999):
    print(f"step: {step}, loss: {2 + 50 / (step + 50):.4f}", flush=True)
    time.sleep(0.5)
"""

COMPUTES = {"util": 97, "memutil": 42, "power_mw": 352_000}
SPINS = {"util": 100, "memutil": 1, "power_mw": 92_000}
IDLES = {"util": 0, "memutil": 0, "power_mw": 68_000}


class Node:
    """A node of a job: a daemon at an address of its own, eight cards, and a process on each."""

    def __init__(self, number: int, root: Path, library: Path, *, run: str, first_rank: int) -> None:
        self.folder = root / f"node-{number}"
        self.folder.mkdir()
        self.driver = fake.FakeDriver(library, self.folder, gpus=CARDS)
        self.driver.set(power_limit_mw=400_000, **COMPUTES)
        self.ranks = [self._rank(first_rank + gpu, gpu, run) for gpu in range(CARDS)]
        for gpu, process in enumerate(self.ranks):
            self.driver.set(gpu, processes=f"{process.pid}:70000000000")
        config = self.folder / "config.yml"
        source = f"sources: [{{path: {self.folder / 'log'}}}]\n" if first_rank == 0 else ""
        config.write_text(f"{source}gpu: {{interval: 2s, deadline: 4s}}\n")
        self.daemon = Daemon(f"--config.file={config}", log=self.folder / "daemon.log", env=self.driver.env(), host=address(number))

    def _rank(self, rank: int, gpu: int, run: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TRAINER_RUN_NAME": run, "RANK": str(rank), "LOCAL_RANK": str(gpu), "WORLD_SIZE": str(NODES * CARDS)}
        if rank > 0:
            return subprocess.Popen(["sleep", "900"], env=env)
        (self.folder / "log").mkdir()
        with (self.folder / "log" / "console.log").open("w") as output:
            return subprocess.Popen([sys.executable, "-c", TRAINER], stdout=output, env=env)

    def lose_rank(self, gpu: int) -> None:
        """Its process dies, and its card has nothing to do."""
        self.ranks[gpu].kill()
        self.ranks[gpu].wait()
        self.driver.set(gpu, processes="", **IDLES)

    def stop(self) -> None:
        self.driver.heal()
        for process in self.ranks:
            process.kill()
            process.wait()


def address(number: int) -> str:
    return f"127.0.0.{number + 1}"


@dataclass
class Outcome:
    """What was seen, for all tests of this file."""

    hung_wall: float = 0.0
    attributed: float = 0.0
    firing_in_health: list[dict[str, Any]] = field(default_factory=list)
    suspects_in_health: list[dict[str, Any]] = field(default_factory=list)
    page: Notification | None = None
    causes: set[str] = field(default_factory=set)
    dead: set[tuple[str, str, str]] = field(default_factory=set)
    gone: set[tuple[str, str, str]] = field(default_factory=set)
    lost: set[tuple[str, str, str]] = field(default_factory=set)
    pages: list[Notification] = field(default_factory=list)
    other: list[dict[str, Any]] = field(default_factory=list)


def suspects(server: Prometheus) -> set[tuple[str, str, str]]:
    """Instance, GPU and reason of each."""
    rows = [series["metric"] for series in server.query(f'run:suspect_gpu{{run="{RUN}"}}')]
    return {(row["instance"], row["gpu"], row["reason"]) for row in rows}


def figure(server: Prometheus, expr: str) -> float:
    found = server.query(expr)
    return float(found[0]["value"][1]) if found else 0.0


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    root = tmp_path_factory.mktemp("fleet")
    library = fake.build(tmp_path_factory.mktemp("driver"))
    with ExitStack() as stack:
        nodes = []
        for number in range(NODES + 1):
            first_rank = number * CARDS if number < NODES else 0
            nodes.append(Node(number, root, library, run=RUN if number < NODES else OTHER, first_rank=first_rank))
            stack.callback(nodes[-1].stop)
            stack.enter_context(nodes[-1].daemon)
        pager = stack.enter_context(receiver())
        config = alertmanager_config(pager.url, group_wait="1s", group_interval="2s")
        alerts = stack.enter_context(alertmanager(root / "alertmanager", config))
        targets = [f"{node.daemon.host}:{node.daemon.port}" for node in nodes]
        judged = prometheus_config(targets, alertmanager_url=alerts.url, scrape_interval=INTERVAL, evaluation_interval=INTERVAL)
        server = stack.enter_context(prometheus(root / "prometheus", judged))
        seen = Outcome()
        story(nodes, server, pager, seen)
        yield seen


def story(nodes: list[Node], server: Prometheus, pager: Receiver, seen: Outcome) -> None:
    eventually(lambda: figure(server, f'run:gpus:count{{run="{RUN}"}}') == NODES * CARDS, within_s=60, what="32 GPUs of the run")
    eventually(lambda: server.query(f'trainer_progress_gap_seconds{{run="{RUN}"}}'), within_s=60, what="gaps that are known")
    read = f'count(gpu:run:info{{run="{RUN}"}} and on (instance, uuid) gpu:utilization_ratio:avg1m)'
    eventually(lambda: figure(server, read) == NODES * CARDS, within_s=60, what="readings of 32 GPUs")
    eventually(lambda: figure(server, f'run:gpu_power_of_limit_ratio:avg1m{{run="{RUN}"}}') > 0.8, within_s=60, what="readings at work")
    # On a busy machine the readings of a node may come seconds after those of its peers, which is a reason to suspect it until then.
    eventually(lambda: not server.query("run:suspect_gpu"), within_s=60, what="a job in which nobody is suspected")
    seen.attributed = figure(server, f'count(gpu_run_info{{run="{RUN}"}})')
    seen.firing_in_health = server.query('ALERTS{alertname!="Watchdog", alertstate="firing"}')
    seen.suspects_in_health = server.query("run:suspect_gpu")

    seen.hung_wall = time.time()
    for node in nodes[:NODES]:
        node.driver.set(**SPINS)
    nodes[DEAD[0]].lose_rank(DEAD[1])
    nodes[0].ranks[0].send_signal(signal.SIGSTOP)

    eventually(pager.pages, within_s=STALL_S + 60, what="a page")
    seen.page = pager.pages()[0]
    seen.dead = suspects(server)
    seen.causes = {series["metric"]["cause"] for series in server.query(f'run:stall_cause:info{{run="{RUN}"}}')}
    process_gone = (address(DEAD[0]), str(DEAD[1]), "process_gone")
    eventually(lambda: suspects(server) == {process_gone}, within_s=90, what="the card whose process is gone")
    seen.gone = suspects(server)

    nodes[LOST[0]].driver.set(LOST[1], error=fake.GPU_IS_LOST)
    eventually(lambda: "GpuLost" in server.firing(), within_s=60, what="the lost card")
    seen.lost = suspects(server)
    seen.pages = pager.pages()
    seen.other = server.query(f'ALERTS{{run="{OTHER}", alertstate="firing"}} or run:suspect_gpu{{run="{OTHER}"}}')


def test_every_gpu_of_every_node_serves_the_run_whose_log_one_node_has(outcome: Outcome) -> None:
    assert outcome.attributed == NODES * CARDS


def test_a_healthy_job_is_silent_and_suspects_nobody(outcome: Outcome) -> None:
    assert outcome.firing_in_health == []
    assert outcome.suspects_in_health == []


def test_the_page_names_the_node_and_the_gpu_of_the_dead_rank(outcome: Outcome) -> None:
    assert outcome.page is not None
    assert outcome.page.alertnames == ["TrainingNcclStall"]

    (alert,) = outcome.page.body["alerts"]

    assert alert["labels"]["run"] == RUN
    assert alert["annotations"]["suspect"].startswith(f"{address(DEAD[0])}, GPU {DEAD[1]}: ")
    assert "One rank does not take part." in alert["annotations"]["description"]
    assert STALL_S <= outcome.page.wall - outcome.hung_wall <= STALL_S + 30


def test_the_dead_rank_is_told_from_a_hang_in_which_all_take_part(outcome: Outcome) -> None:
    ((instance, gpu, reason),) = outcome.dead

    assert (instance, gpu) == (address(DEAD[0]), str(DEAD[1]))
    assert reason in {"idle_among_spinning", "process_gone"}
    assert outcome.causes == {"dead_rank"}


def test_a_card_stays_the_suspect_when_nothing_on_it_tells_of_the_run_any_more(outcome: Outcome) -> None:
    assert outcome.gone == {(address(DEAD[0]), str(DEAD[1]), "process_gone")}


def test_a_card_that_is_lost_meanwhile_is_the_surer_suspect_and_no_second_page(outcome: Outcome) -> None:
    assert outcome.lost == {(address(LOST[0]), str(LOST[1]), "lost")}
    assert [page.body["groupLabels"].get("run") for page in outcome.pages] == [RUN]


def test_the_job_beside_it_goes_on_and_is_silent(outcome: Outcome) -> None:
    assert outcome.other == []

"""From a line in a log to a page at the receiver, with the shipped rules and routes, at the shipped intervals of 15 s.

Three trainings run side by side, each with its own kind of log. The daemon is restarted in the middle; then one diverges, one hangs, and
one goes on. It takes minutes, because a hang is told from a pause by waiting.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemon import Daemon
from stack import Notification, Prometheus, Receiver, alertmanager, alertmanager_config, eventually, prometheus, prometheus_config, receiver

pytestmark = pytest.mark.e2e

RECORD_S = 1.0
LEARNING_S = 20.0  # enough records to know the usual pause
PAGE_S = 60.0  # the promise for NaN: scrape 15, evaluation 15, group_wait 15
STALL_S = 90.0
USUAL_GAP = 'trainer_progress_gap_seconds{quantile="0.95"}'


class Training(threading.Thread, ABC):
    """Writes a log like a trainer does, a record a second, until told otherwise."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        path.parent.mkdir(parents=True)
        self._file = path.open("a", buffering=1)
        self._stopping = threading.Event()
        self.hangs = False
        self.diverges = False
        self.step = 0

    def run(self) -> None:
        started = time.monotonic()
        while not self._stopping.wait(RECORD_S):
            if not self.hangs:
                self.step += 1
                self._file.write(self.lines(self.step, time.monotonic() - started))

    @abstractmethod
    def lines(self, step: int, elapsed_s: float) -> str:
        """What it writes at a step."""

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._file.close()


class LlamaFactory(Training):
    def lines(self, step: int, elapsed_s: float) -> str:
        record = {"current_steps": step, "total_steps": 5000, "loss": 1.5 - step * 1e-4, "lr": 5e-5, "epoch": step / 1000}
        record |= {
            "percentage": step / 50,
            "elapsed_time": f"0:{int(elapsed_s) // 60:02d}:{int(elapsed_s) % 60:02d}",
            "remaining_time": "1:00:00",
        }
        return json.dumps(record) + "\n"


class HfTrainer(Training):
    def lines(self, step: int, elapsed_s: float) -> str:
        bar = f"\r{step / 50:3.0f}%|          | {step}/5000 [00:{int(elapsed_s) % 60:02d}<1:23:00,  1.00s/it]"
        loss, norm = ("0", "nan") if self.diverges else (f"{2.5 - step * 1e-4:.4g}", "0.7312")  # the Trainer hides a NaN of the loss
        return (
            f"{bar}{' ' * 80}\r{{'loss': '{loss}', 'grad_norm': '{norm}', 'learning_rate': '5e-05', 'epoch': '{step / 1000:.4g}'}}\n{bar}"
        )


class Megatron(Training):
    def lines(self, step: int, elapsed_s: float) -> str:
        return (
            f" iteration {step:8d}/    5000 | consumed samples: {step * 256:12d} | elapsed time per iteration (ms): 1000.0 |"
            f" learning rate: 1.500000E-04 | global batch size:   256 | lm loss: {6.5 - step * 1e-4:.6E} | loss scale: 1.0 |"
            f" grad norm: 0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


@dataclass
class Outcome:
    """What was seen, for all tests of this file."""

    diverged_wall: float = 0.0
    hung_wall: float = 0.0
    pages_before_the_faults: list[Notification] = field(default_factory=list)
    pages: list[Notification] = field(default_factory=list)
    attempts: dict[str, float] = field(default_factory=dict)
    resets: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    firing: set[str] = field(default_factory=set)

    def of(self, run: str) -> list[Notification]:
        return [page for page in self.pages if page.body["commonLabels"].get("run") == run]


def by_run(server: Prometheus, expr: str) -> dict[str, float]:
    return {series["metric"]["run"]: float(series["value"][1]) for series in server.query(expr)}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    root = tmp_path_factory.mktemp("fleet")
    trainings = {
        "healthy": LlamaFactory(root / "runs" / "healthy" / "trainer_log.jsonl"),
        "diverging": HfTrainer(root / "runs" / "diverging" / "console.log"),
        "hanging": Megatron(root / "runs" / "hanging" / "rank0.out"),
    }
    with (
        receiver() as pager,
        alertmanager(root / "alertmanager", alertmanager_config(pager.url)) as alerts,
        Daemon(root / "runs", "--no-gpu", log=root / "daemon.log") as daemon,
        prometheus(root / "prometheus", prometheus_config([f"127.0.0.1:{daemon.port}"], alertmanager_url=alerts.url)) as server,
    ):
        for training in trainings.values():
            training.start()
        seen = Outcome()
        try:
            story(trainings, daemon, server, pager, seen)
        finally:
            for training in trainings.values():
                training.stop()
        yield seen


def story(trainings: dict[str, Training], daemon: Daemon, server: Prometheus, pager: Receiver, seen: Outcome) -> None:
    eventually(lambda: min(training.step for training in trainings.values()) > LEARNING_S, within_s=60, what="records")
    # The hang below is judged by the gaps that were known before the restart: a log without times gives the new daemon none.
    eventually(lambda: len(by_run(server, USUAL_GAP)) == 3, within_s=60, what="the usual gaps of three runs in Prometheus")

    daemon.kill()
    daemon.start()
    restarted = time.time()
    eventually(
        lambda: by_run(server, "timestamp(trainer_step)").get("healthy", 0) > restarted, within_s=60, what="a scrape after the restart"
    )
    seen.pages_before_the_faults = pager.pages()

    seen.diverged_wall = seen.hung_wall = time.time()
    trainings["diverging"].diverges = True
    trainings["hanging"].hangs = True

    eventually(lambda: len(pager.pages()) >= 1, within_s=PAGE_S + 30, what="a page of the training that diverged")
    eventually(
        lambda: len(pager.pages()) >= 2,
        within_s=STALL_S + PAGE_S + 30,
        what="a page of the training that hangs",
        seen=lambda: [
            by_run(server, expr) for expr in ("trainer_progress_age_seconds", USUAL_GAP, "run:source_stall_threshold_seconds:max")
        ],
    )
    seen.pages = pager.pages()
    seen.firing = server.firing()
    seen.attempts = by_run(server, "trainer_run_attempts_total")
    seen.resets = by_run(server, "resets(trainer_step[10m])")
    seen.steps = by_run(server, "trainer_step")


def test_a_restart_of_the_daemon_pages_nobody(outcome: Outcome) -> None:
    assert outcome.pages_before_the_faults == []


def test_a_restart_of_the_daemon_leaves_no_mark_in_the_series(outcome: Outcome) -> None:
    assert outcome.attempts == {"healthy": 1.0, "diverging": 1.0, "hanging": 1.0}
    assert outcome.resets == {"healthy": 0.0, "diverging": 0.0, "hanging": 0.0}


def test_a_training_that_diverges_is_one_page_within_a_minute(outcome: Outcome) -> None:
    (page,) = outcome.of("diverging")

    assert page.alertnames == ["TrainingLossNotFinite"]
    assert page.wall - outcome.diverged_wall <= PAGE_S


def test_a_training_that_hangs_is_one_page_when_no_pause_was_ever_so_long(outcome: Outcome) -> None:
    (page,) = outcome.of("hanging")

    assert page.alertnames == ["TrainingStalled"]
    assert STALL_S <= page.wall - outcome.hung_wall <= STALL_S + PAGE_S


def test_a_healthy_training_beside_them_is_no_page(outcome: Outcome) -> None:
    assert outcome.of("healthy") == []
    assert len(outcome.pages) == 2
    assert outcome.steps["healthy"] > outcome.steps["hanging"] + 60


def test_a_page_names_the_run_and_leads_to_its_runbook(outcome: Outcome) -> None:
    for page in outcome.pages:
        (alert,) = page.body["alerts"]
        assert alert["labels"]["run"] in alert["annotations"]["description"]
        assert alert["annotations"]["runbook_url"].endswith(f"/{alert['labels']['alertname']}.md")

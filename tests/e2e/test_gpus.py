"""The daemon on a node with GPUs: whose cards they are, and that a sick one or a dead child costs its own rows alone.

The driver is ours (tests/gpu/fake_nvml.c), reached through the real pynvml in the daemon's real child process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake
import kubelet
import uninterruptible
from daemon import Daemon
from stack import eventually

pytestmark = pytest.mark.e2e

TRAINER = "import time\nfor step in range(1, 99999):\n    print(f'step: {step}, loss: 2.5', flush=True)\n    time.sleep(0.2)\n"


class Node:
    """A daemon, its driver with four cards, and a trainer that uses them all."""

    def __init__(self, root: Path, library: Path, *, trainer: str = TRAINER, more: str = "") -> None:
        (root / "heron").mkdir(parents=True)
        self.log = root / "heron" / "console.log"
        with self.log.open("w") as output:
            self.trainer = subprocess.Popen(
                [sys.executable, "-c", trainer], stdout=output, env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"}
            )
        self.driver = fake.FakeDriver(library, root, gpus=4)
        self.driver.set(util=97, memutil=40, power_mw=330_000, power_limit_mw=400_000, processes=f"{self.trainer.pid}:60000000000")
        config = root / "config.yml"
        config.write_text(f"sources: [{{path: {self.log.parent}}}]\ngpu: {{interval: 1s, deadline: 2s}}\n{more}")
        self.daemon = Daemon(f"--config.file={config}", log=root / "log", env=self.driver.env())

    def success(self, gpu: int) -> float | None:
        return self.daemon.value("gpu_collect_success", uuid=fake.uuid(gpu), gpu=str(gpu))

    def all_answer(self) -> bool:
        return all(self.success(gpu) == 1 for gpu in range(4))

    def serves(self, gpu: int) -> bool:
        labels = {"uuid": fake.uuid(gpu), "gpu": str(gpu), "run": "heron", "rank": "0", "local_rank": "0"}
        empty = dict.fromkeys(("job_id", "pod", "namespace", "container"), "")
        return self.daemon.value("gpu_run_info", **labels, **empty) == 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    made = Node(tmp_path, library)
    try:
        with made.daemon:
            eventually(made.all_answer, within_s=20, what="four cards")
            eventually(lambda: all(made.serves(gpu) for gpu in range(4)), within_s=20, what="the run on its cards")
            yield made
    finally:
        made.driver.heal()
        made.trainer.kill()
        made.trainer.wait()


def test_the_cards_serve_the_run_whose_log_their_process_writes(node: Node) -> None:
    # Who holds the log is looked up apart from who holds the cards.
    eventually(lambda: node.daemon.value("trainer_writer_alive", run="heron") == 1, within_s=20, what="the writer")

    samples = node.daemon.samples()

    assert samples["gpu_devices"] == 4
    assert samples[f'gpu_utilization_ratio{{gpu="2",uuid="{fake.uuid(2)}"}}'] == pytest.approx(0.97)
    assert samples['trainer_writer_alive{run="heron"}'] == 1
    assert node.daemon.get("/").count("heron, rank 0") == 4


def test_a_lost_card_is_named_with_its_run_and_the_others_go_on(node: Node) -> None:
    node.driver.set(2, error=fake.GPU_IS_LOST)

    eventually(lambda: node.daemon.value("gpu_lost", uuid=fake.uuid(2), gpu="2") == 1, within_s=20, what="the loss")
    assert node.serves(2)
    assert node.success(2) == 0
    assert node.success(1) == 1
    assert node.daemon.value("gpu_utilization_ratio", uuid=fake.uuid(2), gpu="2") is None
    assert node.daemon.value("gpu_xid_errors_total", uuid=fake.uuid(2), gpu="2", xid="79") == 1


def test_a_card_whose_driver_call_hangs_costs_its_own_rows_and_no_scrape_waits(node: Node) -> None:
    node.driver.set(1, hang=fake.FOREVER)
    eventually(lambda: node.success(1) == 0, within_s=20, what="the card that hangs is missed")

    started = time.monotonic()
    samples = node.daemon.samples()

    assert time.monotonic() - started < 1.0
    assert samples[f'gpu_collect_success{{gpu="0",uuid="{fake.uuid(0)}"}}'] == 1
    assert samples['trainer_exporter_collector_success{collector="gpu"}'] == 1


def test_a_card_is_known_to_be_given_out_before_anything_runs_on_it_and_processes_that_wait_are_seen(tmp_path: Path, library: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/3").write_text("8121")
    server = kubelet.Kubelet(tmp_path / "k.sock")
    server.pods = [kubelet.pod("ml", "heron-0", trainer={"nvidia.com/gpu": [fake.uuid(0), fake.uuid(2)]})]
    server.start()
    waiting = f"import subprocess\nsubprocess.Popen(['{uninterruptible.build(tmp_path)}'])\n{TRAINER}"
    more = f"attribution: {{kubelet_socket: {server.socket}, job_mapping_dir: {tmp_path / 'jobs'}}}\n"
    node = Node(tmp_path / "node", library, trainer=waiting, more=more)
    node.driver.set(2, processes="")
    node.driver.set(3, processes="")

    pod = 'container="trainer",gpu="{0}",job_id="",namespace="ml",pod="heron-0",source="kubelet",uuid="{1}"'
    job = f'container="",gpu="3",job_id="8121",namespace="",pod="",source="job_mapping",uuid="{fake.uuid(3)}"'
    names = [*(pod.format(gpu, fake.uuid(gpu)) for gpu in (0, 2)), job]
    expected = {f"gpu_allocation_info{{{labels}}}" for labels in names}
    seen: dict[str, float] = {}

    def is_shown() -> bool:
        seen.clear()
        seen.update(node.daemon.samples())
        return expected <= seen.keys() and seen.get('trainer_processes{run="heron",state="uninterruptible"}') == 1

    try:
        with node.daemon:
            eventually(is_shown, within_s=60, what="what was given out, and a process that waits")
    finally:
        server.stop()
        node.trainer.kill()
        node.trainer.wait()
    assert {key for key in seen if key.startswith("gpu_allocation_info{")} == expected
    runs = {key for key in seen if key.startswith("gpu_run_info{")}
    assert len(runs) == 2
    assert {key for key in runs if 'pod="heron-0"' in key and 'container="trainer"' in key} == {key for key in runs if 'gpu="0"' in key}


def test_kill_9_of_the_child_that_reads_nvml_is_survived(node: Node) -> None:
    (child,) = subprocess.run(["pgrep", "-P", str(node.daemon.process.pid)], capture_output=True, text=True, check=True).stdout.split()

    os.kill(int(child), signal.SIGKILL)

    eventually(lambda: node.success(0) == 0, within_s=20, what="the readings of a dead child are not served")
    eventually(node.all_answer, within_s=30, what="a new child")
    assert node.daemon.value("trainer_exporter_errors_total", site="gpu", reason="child_died")
    assert node.daemon.stop() == 0

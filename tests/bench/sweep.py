"""What a look at eight cards costs, beside nvitop-exporter on the same driver of our own; and the rules, in Prometheus.

``nvitop-exporter`` is found on the PATH (``pip install nvitop-exporter``); each is asked to look once a second. The driver reads its
script and writes down each call, so its own work is in both figures, more of it where there are more calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]

import fleet  # noqa: E402 - idem
import wall  # noqa: E402 - idem
from costs import driver  # noqa: E402 - idem
from figures import Figure, cpu_s, held  # noqa: E402 - idem

import fake  # noqa: E402 - found by the line above
from daemon import Daemon  # noqa: E402 - idem
from stack import eventually, free_port  # noqa: E402 - idem

SECONDS = 20.0
CARDS = 8


def version() -> str:
    """Of nvitop-exporter; "" where it is not installed."""
    program = shutil.which("nvitop-exporter")
    if program is None:
        return ""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\S*", told.stdout + told.stderr)
    return found[0] if found else "?"


def sweeps() -> Iterator[Figure]:
    """CPU of a look at eight cards, ours and the peer's."""
    own, calls = _own()
    yield held("NVML sweep", "8 cards", "CPU", 1000 * own, "ms")
    yield held("NVML sweep", "8 cards", "driver calls", calls, "")
    if not version():
        yield Figure("NVML sweep", "8 cards", "nvitop-exporter is not installed", 0, "")
        return
    theirs, calls = _theirs()
    yield held("NVML sweep", "8 cards, nvitop-exporter", "CPU", 1000 * theirs, "ms")
    yield held("NVML sweep", "8 cards, nvitop-exporter", "driver calls", calls, "")
    yield held("NVML sweep", "8 cards", "times nvitop-exporter's looks for the same CPU", theirs / own, "", least=1.0)


def _own() -> tuple[float, float]:
    with driver() as cards, tempfile.TemporaryDirectory() as made:
        config = Path(made) / "config.yml"
        config.write_text("gpu: {interval: 1s}\nprocesses: {discover: false}\n")
        with Daemon(f"--config.file={config}", log=Path(made) / "daemon.log", env=cards.env()) as daemon:
            eventually(lambda: daemon.get("/metrics").count("gpu_collect_success{") == CARDS, within_s=60, what="all cards answer")
            return _a_look(daemon.process.pid, cards)


def _theirs() -> tuple[float, float]:
    with driver() as cards:
        port = free_port()
        command = ["nvitop-exporter", "--bind-address=127.0.0.1", f"--port={port}", "--interval=1", "--hostname=node"]
        with subprocess.Popen(command, env=cards.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                eventually(lambda: _shown(port) == CARDS, within_s=60, what="nvitop-exporter shows all cards")
                return _a_look(process.pid, cards)
            finally:
                process.terminate()


def _shown(port: int) -> int:
    """How many cards nvitop-exporter's page tells of."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            page = str(answer.read().decode())
    except (urllib.error.URLError, ConnectionError):
        return 0
    return len(set(re.findall(r'^gpu_utilization_Percentage\{[^}]*index="(\d+)"', page, re.MULTILINE)))


def _a_look(pid: int, cards: fake.FakeDriver) -> tuple[float, float]:
    """CPU seconds of the tree and driver calls for one look at all cards, one a second; nobody scrapes meanwhile."""
    time.sleep(3)
    before, used = len(cards.trace()), cpu_s(pid)
    time.sleep(SECONDS)
    calls = sum(word == "begin" for _, word, _, _ in cards.trace()[before:])
    return (cpu_s(pid) - used) / SECONDS, calls / SECONDS


def judging(nodes: int) -> Iterator[Figure]:
    """What the shipped rules cost Prometheus, for 1,000 GPUs."""
    cards = nodes * fleet.CARDS
    with tempfile.TemporaryDirectory() as folder, wall.watched(nodes, Path(folder)) as server:
        before, began = wall.cpu_s(server), time.monotonic()
        time.sleep(60)
        used = (wall.cpu_s(server) - before) / (time.monotonic() - began)
    yield held("rules", f"{cards} GPUs", "scrapes and rules", used * 1000 / cards, "cores per 1,000 GPUs")

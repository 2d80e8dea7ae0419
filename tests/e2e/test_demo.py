"""``make demo`` keeps its promises: two faults, two pages, and nothing left behind however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
PATIENCE_S = 30.0

pytestmark = pytest.mark.e2e
needs_stack = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")),
    reason="Prometheus or Alertmanager is not installed",
)


def demo(directory: Path, seconds: str) -> subprocess.Popen[str]:
    """The demo as make starts it, with its temporary directory inside ours."""
    environment = dict(os.environ, TMPDIR=str(directory), DEMO_SECONDS=seconds)
    return subprocess.Popen(
        [sys.executable, "-B", DEMO / "demo.py"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory: every program of the demo gets its files from there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


def lines_until(process: subprocess.Popen[str], words: str) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if words in line:
            return
    pytest.fail(f"the demo ended without saying {words!r}")


@needs_stack
def test_the_demo_pages_both_faults_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = demo(tmp_path, "300")

    said, _ = process.communicate(timeout=360)

    assert process.returncode == 0, said
    assert re.search(r"PAGE - paged \d+ s after the first bad line", said), said
    assert "TrainingLossNotFinite (critical): The loss of run wren-7b-fp16 is NaN or infinite" in said
    assert "/runbooks/TrainingLossNotFinite.md" in said
    assert re.search(r"PAGE - paged \d+ s after the last step", said), said
    assert "TrainingStalled (critical): Run heron-1b-sft has made no step for" in said
    assert "/runbooks/TrainingStalled.md" in said
    assert "pages in all: 2" in said
    assert re.search(r"dashboards +(PROMETHEUS_URL=http://127.0.0.1:\d+ docker compose|python3 grafana/upload.py) ", said), said
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@needs_stack
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_demo_that_is_ended_early_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = demo(tmp_path, "")
    list(lines_until(process, "LLaMA-Factory) train"))
    assert processes_of(tmp_path)

    process.send_signal(number)

    assert process.wait(timeout=PATIENCE_S) == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    assert wait_until(lambda: not processes_of(tmp_path)), processes_of(tmp_path)
    assert wait_until(lambda: not list(tmp_path.iterdir())), list(tmp_path.iterdir())


@pytest.mark.parametrize("recording", sorted(path.name for path in (DEMO / "recordings").iterdir()))
def test_a_recording_is_played_byte_for_byte(tmp_path: Path, recording: str) -> None:
    source = DEMO / "recordings" / recording

    subprocess.run([sys.executable, "-B", DEMO / "player.py", source, tmp_path, "--speed", "1e6"], check=True)

    played = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert played == {times.stem: times.with_suffix("").read_bytes() for times in source.glob("*.times")}


def test_a_duration_that_is_no_number_is_told(tmp_path: Path) -> None:
    process = demo(tmp_path, "soon")

    said, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    assert "DEMO_SECONDS: found 'soon', expected a number of seconds" in said

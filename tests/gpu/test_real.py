"""The script for machines with a real GPU, on the driver of our own: it finds what differs, and keeps a scenario that says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fake
from scenario import FOLDER, Scenario

SCRIPT = Path(__file__).with_name("real.py")


@pytest.mark.parametrize("name", ["a100x8", "h100"])
def test_the_script_finds_no_difference_and_keeps_the_answers(name: str, nvml_library: Path, tmp_path: Path) -> None:
    scenario, kept = Scenario(FOLDER / f"{name}.nvml"), tmp_path / "kept.nvml"
    driver = fake.FakeDriver(nvml_library, tmp_path, lines=scenario.lines)

    command = [sys.executable, SCRIPT, "--seconds=1", f"--keep={kept}"]
    done = subprocess.run(command, env=driver.env(), capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{scenario.cards} cards" in done.stdout
    again = {series: value for series, value in scenario.expected().items() if "bytes_per_second" not in series[0]}
    assert Scenario(kept).expected() == pytest.approx(again)
    assert "GPU-" not in kept.read_text()

"""The unit, read by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[2] / "deploy" / "systemd" / "trainer-exporter.service"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit as it would be on a machine where program and user exist."""
    text = SHIPPED.read_text().replace("/usr/bin/trainer-exporter", sys.executable)
    path = tmp_path / SHIPPED.name
    path.write_text(re.sub(r"(?m)^(User|Group)=.*$", r"\1=daemon", text))
    return path


def test_systemd_has_nothing_to_say_against_it(unit: Path) -> None:
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")


def test_its_exposure_is_called_ok(unit: Path) -> None:
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=False
    )

    (score,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", checked.stdout)
    assert float(score) <= 3.3, checked.stdout


def test_it_waits_for_the_call_of_the_child_that_reads_nvml_and_does_not_signal_it(unit: Path) -> None:
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit.read_text()))

    assert settings["KillMode"] == "mixed"  # SIGTERM to the daemon alone: it asks its child to finish
    assert int(settings["TimeoutStopSec"]) > 60

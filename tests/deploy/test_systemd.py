"""The unit, read by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
SHIPPED = FOLDER / "trainer-exporter.service"

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


def test_its_user_and_its_directories_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    user, directories = (FOLDER / f"trainer-exporter.{kind}.conf" for kind in ("sysusers", "tmpfiles"))

    made = [
        subprocess.run([program, f"--root={tmp_path}", *options, file], capture_output=True, text=True, check=False)
        for program, options, file in (("systemd-sysusers", [], user), ("systemd-tmpfiles", ["--create"], directories))
    ]

    assert [one.returncode for one in made] == [0, 0], [one.stderr for one in made]
    (account,) = re.findall(r"(?m)^trainer-exporter:.*$", (tmp_path / "etc" / "passwd").read_text())
    assert account.endswith("nologin")
    modes = [(tmp_path / place).stat().st_mode & 0o777 for place in ("etc/trainer-exporter", "run/trainer-exporter/jobs")]
    assert modes == [0o750, 0o755]


def test_every_looser_line_gives_its_reason() -> None:
    lines = SHIPPED.read_text().splitlines()
    said = "\n".join(line for line in lines if line.startswith("#"))

    # What systemd's own examination holds against the unit and what the unit could not do without.
    for left_out in ("PrivateTmp", "PrivateDevices", "ProtectProc", "ProcSubset", "ProtectKernelLogs", "PrivateUsers", "PrivateNetwork"):
        assert not [line for line in lines if line.startswith(f"{left_out}=")]
        assert left_out in said


def test_its_variables_are_read_as_systemd_reads_them() -> None:
    names = re.findall(r"(?m)^#?([A-Z_]+)=", (FOLDER / "trainer-exporter.default").read_text())

    assert "TRAINER_EXPORTER_ARGS" in names
    assert "$TRAINER_EXPORTER_ARGS" in SHIPPED.read_text()

"""What takes effect of a configuration, and what a report for somebody who helps holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_exporter import cli, config, support

FULL = """
sources:
  - path: /data/runs/*/train.log
    run: llama-sft
    labels: {team: nlp, page: "yes"}
    owner: here
    model: {parameters: 8.03B, sequence_length: 4096, dtype: bf16, gpu: NVIDIA H100 80GB HBM3}
  - path: /data/other
limits: {history: 512MiB, line: 1KiB, files: 10, max_age: 36h}
runs: {name: "{job_name}", latch: 90s, ended_grace: 90m, maximum: 3}
gpu: {metrics: false, interval: 2500ms, devices: 8}
processes: {discover: true, pids: [1], cgroups: ["*/job_*"], procfs: /host/proc}
attribution: {kubelet: false, job_mapping_dir: /run/jobs}
evidence: {enabled: true, maximum: 100MiB, after: 2m, ras: "[::1]:28028", flight_recorder: [/scratch/trace_*], stacks: false}
web: {listen_address: "[::1]:19400", enable_lifecycle: true}
"""


@pytest.mark.parametrize(
    "text", ["", FULL, "evidence: {ras: false}", "limits: {history: 1500000B}"], ids=["empty", "full", "no RAS", "odd"]
)
def test_what_takes_effect_can_be_loaded_again_and_is_the_same(text: str) -> None:
    loaded = config.parse(text, file="a.yml")

    shown = config.effective(loaded)

    assert config.parse(shown, file="a.yml") == loaded


def test_it_is_told_in_the_units_of_the_file() -> None:
    shown = config.effective(config.parse("limits: {max_age: 36h}", file="a.yml"))

    assert "  history: 1GiB\n" in shown
    assert "  max_age: 36h\n" in shown


def test_a_report_without_a_daemon_says_so() -> None:
    loaded = replace(config.parse(FULL, file="a.yml"), web=config.WebConfig(listen_address="127.0.0.1:1"))

    told = "\n".join(support.report(loaded))

    assert "run: llama-sft" in told
    assert "prometheus-client " in told
    assert "http://127.0.0.1:1 does not answer" in told


def test_a_configuration_that_cannot_be_used_is_part_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yml").write_text("sources: [{pth: /data}]\n")
    monkeypatch.setattr(config, "DEFAULT_PATH", str(tmp_path / "config.yml"))

    code = cli.main(["support"])

    told = capsys.readouterr().out
    assert code == 0
    assert f"cannot be used: {tmp_path}/config.yml: sources[0].pth: found an unknown key" in told
    assert "prometheus-client " in told


@pytest.mark.parametrize(
    ("words", "code"), [(["replay", "--summary", "{log}"], 0), (["serve"], 2)], ids=["a user's own log", "the daemon itself"]
)
def test_the_daemons_configuration_is_no_matter_for_a_user_who_may_not_read_it(words: list[str], code: int, tmp_path: Path) -> None:
    closed, log = tmp_path / "closed", tmp_path / "train.log"
    closed.mkdir(mode=0o000)
    log.write_text("step: 1, loss: 2.5\n")
    words = [word.format(log=log) for word in words]
    script = f"from trainer_exporter import cli, config; config.DEFAULT_PATH = '{closed}/config.yml'; raise SystemExit(cli.main({words}))"

    done = subprocess.run([*without_capabilities(), sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{closed}/config.yml" in done.stderr


def without_capabilities() -> list[str]:
    """What takes from root, if that is who runs this, the right to read everything."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and setpriv is not here to change that")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


def test_a_report_holds_no_hash_of_a_password(tmp_path: Path) -> None:
    hashed = "$2b$04$" + "a" * 53
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{ada: '{hashed}'}}\n")
    loaded = config.parse(f"web: {{listen_address: '127.0.0.1:1', config_file: {tmp_path}/web.yml}}", file="a.yml")

    told = "\n".join(support.report(loaded))

    assert "plain HTTP; users: 1" in told
    assert hashed not in told
    assert "ada" not in told

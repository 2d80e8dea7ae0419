"""The daemon as a user starts it: what it shows of logs that grow, what it survives, what it says when it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually, free_port

pytestmark = pytest.mark.e2e

PACKAGE = Path(__file__).parents[2] / "exporter" / "trainer_exporter"


def record(step: int, loss: float | str = 2.0, **more: object) -> str:
    fields: dict[str, object] = {"current_steps": step, "total_steps": 1000, "loss": loss, "lr": 1e-4, "epoch": step / 100}
    text = json.dumps({**fields, "elapsed_time": f"0:{step // 60:02d}:{step % 60:02d}", **more})
    return text.replace('"NaN"', "NaN") + "\n"


def prefix(ago_s: float) -> str:
    """What transformers puts before its own messages."""
    return time.strftime("[INFO|trainer.py:4309] %Y-%m-%d %H:%M:%S,000 >> ", time.localtime(time.time() - ago_s))


def written(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(lines)
    return path


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_exporter", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_log_that_appears_while_running_is_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with Daemon(tmp_path / "runs", "--no-gpu", log=tmp_path / "log") as daemon:
        written(tmp_path / "runs" / "heron" / "trainer_log.jsonl", record(1), record(2, loss=1.5))

        eventually(lambda: daemon.value("trainer_loss", run="heron") == 1.5, within_s=20, what="the new run")

        assert daemon.value("trainer_exporter_files_followed") == 1


def test_what_stood_in_the_log_counts_and_kill_9_changes_nothing(tmp_path: Path) -> None:
    log = written(tmp_path / "heron" / "trainer_log.jsonl", *(record(step) for step in range(1, 51)))
    written(log, record(51, loss="NaN"), record(52, loss="NaN"))

    with Daemon(tmp_path / "heron", "--no-gpu", log=tmp_path / "log") as daemon:
        before = daemon.samples()
        assert before['trainer_nonfinite_steps_total{field="loss",run="heron"}'] == 2

        daemon.kill()
        written(log, record(53))
        daemon.start()

        eventually(lambda: daemon.value("trainer_step", run="heron") == 53, within_s=10, what="the record of the pause")
        after = daemon.samples()
        assert after['trainer_nonfinite_steps_total{field="loss",run="heron"}'] == 2
        assert after['trainer_run_attempts_total{run="heron"}'] == 1
        assert after['trainer_loss_baseline{run="heron"}'] == before['trainer_loss_baseline{run="heron"}']


def test_a_rotated_log_is_read_on(tmp_path: Path) -> None:
    log = written(tmp_path / "heron" / "trainer_log.jsonl", record(1))
    with Daemon(tmp_path / "heron", "--no-gpu", log=tmp_path / "log") as daemon:
        written(log, record(2))
        log.rename(log.with_suffix(".jsonl.1"))
        written(log, record(3, loss=1.25))

        eventually(lambda: daemon.value("trainer_step", run="heron") == 3, within_s=10, what="the new file")

        assert daemon.value("trainer_loss", run="heron") == 1.25
        assert daemon.value("trainer_run_attempts_total", run="heron") == 1


def test_a_console_that_saves_elsewhere_joins_the_run_of_the_directory_it_names(tmp_path: Path) -> None:
    saves = tmp_path / "saves" / "heron-lora"
    written(saves / "trainer_log.jsonl", *(record(step) for step in (10, 20)))
    written(
        tmp_path / "consoles" / "job-7.log",
        f"{prefix(600)}***** Running training *****\n",
        "{'loss': '1.5', 'grad_norm': '0.25', 'learning_rate': '1e-05', 'epoch': '0.2'}\n",
        f"{prefix(0)}Saving model checkpoint to {saves}/checkpoint-20\n",
    )

    with Daemon(tmp_path / "saves", tmp_path / "consoles", "--no-gpu", log=tmp_path / "log") as daemon:
        eventually(
            lambda: daemon.value("trainer_grad_norm", run="heron-lora") == 0.25, within_s=20, what="the console's grad_norm in the run"
        )

        assert daemon.value("trainer_loss", run="heron-lora") == 2.0
        assert [run["run"] for run in json.loads(daemon.get("/api/v1/runs"))["runs"]] == ["heron-lora"]


def test_a_checkpoint_directory_is_timed_though_no_line_tells_of_it(tmp_path: Path) -> None:
    run = tmp_path / "heron"
    written(run / "trainer_log.jsonl", record(1))
    with Daemon(run, "--no-gpu", log=tmp_path / "log") as daemon:
        eventually(
            lambda: daemon.value("trainer_checkpoint_filesystem_avail_bytes", run="heron"), within_s=10, what="the directory is watched"
        )

        written(run / "checkpoint-1" / "model.safetensors", "x" * 5000)
        written(run / "checkpoint-1" / "trainer_state.json", '{"global_step": 1}')

        eventually(lambda: daemon.value("trainer_checkpoint_step", run="heron") == 1, within_s=15, what="the checkpoint")
        assert daemon.value("trainer_checkpoint_duration_seconds_count", run="heron") == 1
        assert (daemon.value("trainer_checkpoint_bytes", run="heron") or 0) > 5000


def test_a_trainer_that_is_killed_has_failed(tmp_path: Path) -> None:
    log = tmp_path / "heron" / "trainer_log.jsonl.log"
    log.parent.mkdir()
    script = "import sys, time\nfor step in range(1, 9999):\n    print('step: %d, loss: 2.5' % step, flush=True)\n    time.sleep(0.2)\n"
    with log.open("w") as output:
        trainer = subprocess.Popen([sys.executable, "-c", script], stdout=output)
    try:
        with Daemon(log, "--no-gpu", log=tmp_path / "log") as daemon:
            eventually(lambda: daemon.value("trainer_writer_alive", run="heron") == 1, within_s=20, what="the writer is seen")

            trainer.kill()
            trainer.wait()

            eventually(lambda: daemon.value("trainer_writer_alive", run="heron") == 0, within_s=20, what="the writer is missed")
            eventually(lambda: daemon.value("trainer_run_phase", run="heron", phase="failed") == 1, within_s=10, what="failed")
    finally:
        trainer.kill()
        trainer.wait()


def test_an_unreadable_file_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "heron" / "trainer_log.jsonl", record(1))
    os.mkfifo(tmp_path / "runs" / "pipe.log")

    with Daemon(tmp_path / "runs" / "heron", tmp_path / "runs" / "pipe.log", "--no-gpu", log=tmp_path / "log") as daemon:
        assert daemon.value("trainer_step", run="heron") == 1
        assert daemon.value("trainer_exporter_errors_total", site="follow", reason="irregular")
        assert "Traceback" not in daemon.log()


def test_both_formats_of_the_page_and_the_probes(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--no-gpu", log=tmp_path / "log") as daemon:
        request = urllib.request.Request(
            f"http://127.0.0.1:{daemon.port}/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )
        with urllib.request.urlopen(request, timeout=5) as response:
            assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
            assert response.read().endswith(b"# EOF\n")

        assert daemon.get("/-/healthy") == "healthy\n"
        assert "No run yet" in daemon.get("/")


def test_sigterm_ends_it_with_0_and_sighup_takes_over_new_sources(tmp_path: Path) -> None:
    written(tmp_path / "heron" / "trainer_log.jsonl", record(1))
    config = tmp_path / "config.yml"
    config.write_text("sources: []\n")
    with Daemon(f"--config.file={config}", "--no-gpu", log=tmp_path / "log") as daemon:
        config.write_text(f"sources: [{{path: {tmp_path}/heron, labels: {{team: nlp}}}}]\n")
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: daemon.value("trainer_step", run="heron") == 1, within_s=30, what="the new source")
        assert 'team="nlp"' in daemon.get("/metrics")

        config.write_text("sources: 3\n")
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: daemon.value("trainer_exporter_config_last_reload_successful") == 0, within_s=30, what="the refusal")
        assert daemon.value("trainer_step", run="heron") == 1

        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log()


def test_a_package_that_is_replaced_beneath_it_does_not_end_it_at_the_next_reload(tmp_path: Path) -> None:
    written(tmp_path / "heron" / "trainer_log.jsonl", record(1))
    installed = tmp_path / "site" / "trainer_exporter"
    shutil.copytree(PACKAGE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    config = tmp_path / "config.yml"
    config.write_text("sources: []\n")
    with Daemon(f"--config.file={config}", "--no-gpu", log=tmp_path / "log", env={"PYTHONPATH": str(installed.parent)}) as daemon:
        (installed / "formats" / "coming.py").write_text("from trainer_exporter.formats.base import what_only_the_next_version_has\n")

        config.write_text(f"sources: [{{path: {tmp_path}/heron}}]\n")
        daemon.process.send_signal(signal.SIGHUP)

        eventually(lambda: daemon.value("trainer_step", run="heron") == 1, within_s=60, what="the new source")
        assert daemon.value("trainer_exporter_config_last_reload_successful") == 1
        assert daemon.stop() == 0


def test_a_port_that_is_taken_stops_the_start_with_2(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--no-gpu", log=tmp_path / "log") as daemon:
        refused = command("serve", tmp_path, "--no-gpu", f"--web.listen-address=127.0.0.1:{daemon.port}")

    assert refused.returncode == 2
    assert "Address already in use; choose another address with --web.listen-address" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runz: 1", "config.yml: runz: found an unknown key, expected one of attribution, evidence, formats, gpu, limits, processes, runs"),
        ("web: {listen_address: x}", "config.yml: web.listen_address: found 'x', expected host:port or :port"),
        ("a: [", "config.yml: line 1, column 5: found broken YAML"),
    ],
)
def test_a_bad_configuration_stops_check_and_start_with_the_same_words(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "config.yml"
    config.write_text(text)

    for refused in (command("check-config", config), command("serve", f"--config.file={config}", "--no-gpu")):
        assert refused.returncode == 2
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_configuration_that_is_named_and_missing_is_an_error(tmp_path: Path) -> None:
    refused = command("serve", f"--config.file={tmp_path}/none.yml", "--no-gpu")

    assert refused.returncode == 2
    assert "found No such file or directory, expected a readable YAML file" in refused.stderr


def test_the_other_commands_answer(tmp_path: Path) -> None:
    log = written(tmp_path / "trainer_log.jsonl", record(1), "hello\n", record(2, loss="NaN"))
    config = tmp_path / "config.yml"
    config.write_text("sources: [{path: /data}]\n")

    replayed = [json.loads(line) for line in command("replay", "--json", log).stdout.splitlines()]

    assert [(item["line"], item["step"], item["loss"]) for item in replayed] == [(1, 1, 2.0), (3, 2, "NaN")]
    assert "trainer_loss{run}  (gauge)" in command("metrics").stdout
    assert "megatron" in command("formats").stdout
    assert command("check-config", config).stdout == f"{config}: OK, 1 source\n"


def test_a_full_disk_is_said_by_replay_and_silences_nothing_but_the_daemons_own_log(tmp_path: Path) -> None:
    log = written(tmp_path / "heron" / "trainer_log.jsonl", record(1))
    with Path("/dev/full").open("w") as full:
        replay = subprocess.run(
            [sys.executable, "-m", "trainer_exporter", "replay", log], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (replay.returncode, replay.stderr) == (2, "trainer-exporter: the output cannot be written: no space left on device\n")

    port = free_port()
    with Path("/dev/full").open("w") as full:
        command_line = [sys.executable, "-m", "trainer_exporter", "serve", log, "--no-gpu", f"--web.listen-address=127.0.0.1:{port}"]
        daemon = subprocess.Popen(command_line, stderr=full)
    try:
        eventually(lambda: shown(port, 'trainer_step{run="heron"} 1.0'), within_s=20, what="the page")
    finally:
        daemon.terminate()

    assert daemon.wait(timeout=15) == 0


def shown(port: int, line: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return line in response.read().decode()
    except OSError:
        return False

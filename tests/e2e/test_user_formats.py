"""A format of one's own, as a user gets there: replay shows what it catches, serve exports it, a reload takes it over."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually

pytestmark = pytest.mark.e2e

README = (Path(__file__).parents[2] / "README.md").read_text()
FIVE_LINES, OTHER_KINDS = (text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if text.startswith("formats:"))
(LINE,) = re.findall(r"```text\n(it .*?)```", README, re.DOTALL)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_exporter", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )


def said(config: Path, log: Path, *arguments: str) -> list[dict[str, object]]:
    done = command("replay", "--json", "--config.file", config, log, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_five_lines_of_the_readme_read_the_line_of_the_readme(tmp_path: Path) -> None:
    config = written(tmp_path / "config.yml", FIVE_LINES)
    log = written(tmp_path / "train.log", "loading\n" + LINE + LINE.replace("ce 2.314", "ce nan"))

    first, second = said(config, log)

    assert len(FIVE_LINES.strip().splitlines()) == 5
    assert first == {
        "line": 2,
        "format": "heron",
        "step": 1200,
        "target_steps": 50000,
        "loss": 2.314,
        "grad_norm": 0.87,
        "step_duration_seconds": 0.4125,
    }
    assert (second["line"], second["loss"]) == (3, "NaN")


def test_the_other_kinds_of_the_readme_read_what_stands_beside_them(tmp_path: Path) -> None:
    config = written(tmp_path / "config.yml", OTHER_KINDS)
    log = written(tmp_path / "train.log", '{"it": 5, "train": {"ce": 2.5}}\niter=6 crossent=2.25\niter: 7 crossent: 2.0\n')
    table = written(tmp_path / "under_header.csv", "number,ce\n8,1.75\n")
    bare = written(tmp_path / "bare.csv", "1,2.5,x,1e-4\n2,2.25,x,1e-4\n")

    read = [(item["format"], item["step"], item["loss"]) for path in (log, table, bare) for item in said(config, path)]

    assert read == [("kestrel", 5, 2.5), ("jay", 6, 2.25), ("jay", 7, 2.0), ("rook", 8, 1.75), ("crow", 1, 2.5), ("crow", 2, 2.25)]


def test_check_config_says_which_lines_a_format_looks_at_or_what_is_wrong_with_it(tmp_path: Path) -> None:
    good = command("check-config", written(tmp_path / "good.yml", FIVE_LINES))
    bad = command("check-config", written(tmp_path / "bad.yml", FIVE_LINES.replace(r"(?P<loss>\S+)", r"(?P<loss>(\S+ ?)+)")))
    taken = command("check-config", written(tmp_path / "taken.yml", FIVE_LINES.replace("heron", "megatron")))

    assert (good.returncode, good.stderr) == (0, "")
    assert "heron: lines with" in good.stdout
    assert (bad.returncode, taken.returncode) == (2, 2)
    assert f"{tmp_path}/bad.yml: formats[0].pattern: found one repeat inside another" in bad.stderr
    assert f"{tmp_path}/taken.yml: formats[0].name: found 'megatron', expected" in taken.stderr


def test_serve_exports_a_format_that_a_reload_brings(tmp_path: Path) -> None:
    log = written(tmp_path / "heron" / "train.log", LINE)
    sources = f"sources: [{{path: {log.parent}, owner: here}}]\n"
    config = written(tmp_path / "config.yml", sources)
    with Daemon("--config.file", config, "--no-gpu", log=tmp_path / "log") as daemon:
        assert daemon.value("trainer_loss", run="heron") is None

        config.write_text(sources + FIVE_LINES)
        daemon.process.send_signal(signal.SIGHUP)

        eventually(lambda: daemon.value("trainer_loss", run="heron") == 2.314, within_s=30, what="the history, read anew")
        with log.open("a") as file:
            file.write(LINE.replace("it 1200", "it 1201").replace("ce 2.314", "ce 2.25"))
        eventually(lambda: daemon.value("trainer_loss", run="heron") == 2.25, within_s=10, what="the next step")
        assert daemon.value("trainer_step", run="heron") == 1201
        assert 'format="heron"' in daemon.get("/metrics")


def test_backtest_reads_a_format_of_ones_own(tmp_path: Path) -> None:
    config = written(tmp_path / "config.yml", FIVE_LINES)
    log = written(tmp_path / "train.log", "".join(LINE.replace("1200", str(step)).replace("2.314", "nan") for step in range(1, 60)))

    done = command("backtest", "--json", "--config.file", config, log)

    assert done.returncode == 0, done.stderr
    assert "TrainingLossNotFinite" in {fired["alert"] for fired in json.loads(done.stdout)}


def test_a_pinned_source_is_read_as_its_format_alone(tmp_path: Path) -> None:
    log = written(tmp_path / "heron" / "train.log", LINE + "step 9999 | loss: 9.5\n{'loss': 9.5, 'grad_norm': 1.0, 'epoch': 3.0}\n")
    config = written(tmp_path / "config.yml", f"sources: [{{path: {log}, owner: here, format: heron}}]\n" + FIVE_LINES)

    with Daemon("--config.file", config, "--no-gpu", log=tmp_path / "log") as daemon:
        eventually(lambda: daemon.value("trainer_loss", run="heron") == 2.314, within_s=10, what="the private line")

        assert daemon.value("trainer_step", run="heron") == 1200
        assert daemon.value("trainer_epoch", run="heron") is None
    assert [item["format"] for item in said(config, log, "--format", "heron")] == ["heron"]

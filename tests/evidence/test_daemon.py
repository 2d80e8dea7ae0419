"""The daemon from end to end: a run stalls, the suspect is on its page, and goes when the run makes a step."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import yaml

from daemon import Daemon
from stack import eventually

DUMPS = Path(__file__).parent / "dumps"


def line(step: int, wall: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(wall))} step: {step}, loss: {3 / step:.4f}\n"


def configuration(log: Path, evidence: Path, dumps: Path) -> str:
    return yaml.safe_dump(
        {
            "sources": [{"path": str(log), "run": "llama"}],
            "gpu": {"enabled": False},
            "evidence": {
                "enabled": True,
                "directory": str(evidence),
                "ras": False,
                "stacks": False,
                "flight_recorder": [f"{dumps}/trace_rank_*"],
            },
        }
    )


def suspects(daemon: Daemon) -> list[str]:
    return [name for name in daemon.samples() if name.startswith("trainer_hang_suspect_info")]


def test_a_run_that_stalls_names_its_suspect_until_it_makes_a_step(tmp_path: Path) -> None:
    log, dumps, stopped = tmp_path / "train.log", tmp_path / "dumps", time.time() - 120
    log.write_text("".join(line(step, stopped - 2 * (40 - step)) for step in range(1, 41)))
    dumps.mkdir()
    for dump in DUMPS.glob("trace_rank_*"):
        shutil.copyfile(dump, dumps / dump.name)
    (tmp_path / "config.yml").write_text(configuration(log, tmp_path / "evidence", dumps))

    with log.open("a") as writer, Daemon("--config.file", tmp_path / "config.yml", log=tmp_path / "log") as daemon:
        named = eventually(lambda: suspects(daemon), within_s=60, what="a suspect", seen=lambda: daemon.get("/api/v1/runs"))
        (run,) = json.loads(daemon.get("/api/v1/runs"))["runs"]
        page = daemon.get("/")
        writer.write(line(41, time.time()))
        writer.flush()
        eventually(lambda: not suspects(daemon), within_s=60, what="no suspect", seen=lambda: daemon.get("/api/v1/runs"))

    assert named == ['trainer_hang_suspect_info{rank="3",run="llama",source="flight_recorder"}']
    assert run["evidence"]["suspects"] == [{"rank": 3, "source": "flight_recorder", "reason": "behind"}]
    assert Path(run["evidence"]["folder"], "flight-recorder-rank-3").read_bytes() == (DUMPS / "trace_rank_3").read_bytes()
    assert "What stalled runs show" in page
    assert "rank 3</span> behind, says flight recorder" in page

"""Whatever launchers, loggers and containers wrap around a line, it reads as the same record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter import replay
from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(path.parent for path in FIXTURES.glob("*/plain/input.log"))
WRAPPED = {"cri", "docker", "srun_labels"}
# A bar that is redrawn by backspaces goes through no logger: they would take its prefix away.
BARE = sorted(
    path.parent
    for path in FIXTURES.glob("*/*/input.log")
    if path.parent.name not in WRAPPED and "\b" not in path.read_text(encoding="utf-8")
)

Wrapper = Callable[[str], str]


def _before(prefix: str) -> Wrapper:
    return lambda line: prefix + line


def _docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-03-01T12:00:00.123456789Z"}, separators=(",", ":"))


def _journal(line: str) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1772366400000000", "_HOSTNAME": "gpu-17", "_PID": "4711", "MESSAGE": line})


# Around every line of a file; a container's runtime and the journal are outermost.
OUTER: dict[str, Wrapper] = {
    "cri": _before("2026-03-01T12:00:00.123456789Z stdout F "),
    "docker": _docker,
    "journal json": _journal,
    "journal short": _before("Mar 01 12:00:00 gpu-17 python[4711]: "),
    "journal short-iso": _before("2026-03-01T12:00:00+0100 gpu-17 python3.11[4711]: "),
    "syslog 3164": _before("<14>Mar  1 12:00:00 gpu-17 train.sh[4711]: "),
    "syslog 5424": _before("<14>1 2026-03-01T12:00:00.123456Z gpu-17 python 4711 - - "),
    "rsyslog": _before("2026-03-01T12:00:00.123456+01:00 gpu-17 srun[4711]: "),
    "kubectl timestamps": _before("2026-03-01T12:00:00.123456789Z "),
    "kubectl prefix": _before("[pod/llama-0/trainer] "),
    "srun -l": _before(" 3: "),
    "srun -l of a heterogeneous job": _before("P0  3: "),
    "pdsh": _before("gpu-17: "),
    "compose": _before("trainer-1  | "),
}
INNER: dict[str, Wrapper] = {
    "torchrun": _before("[default3]:"),
    "torchrun of a role": _before("[rank3]:"),
    "ray": _before("(WorkerDict pid=4711, ip=10.0.0.2) "),
    "ray coloured": _before("\x1b[36m(Policy[rank=3] pid=4711)\x1b[0m "),
    "raylet": _before("(raylet, ip=10.0.0.2) "),
    "loguru": _before("2026-03-01 12:00:00.123 | INFO     | trainer.loop:step:17 - "),
    "rich": lambda line: f"[12:00:00] INFO     {line}      loop.py:17",
    "python logging": _before("2026-03-01 12:00:00,123 - trainer - INFO - "),
    "level first": _before("2026-03-01 12:00:00,123 - INFO - "),
    "level in brackets": _before("2026-03-01 12:00:00,123 [INFO] "),
    "hydra": _before("[2026-03-01 12:00:00,123][trainer.loop][INFO] - "),
    "default logging": _before("INFO:trainer:"),
    "glog": _before("I0301 12:00:00.482913 139842 loop.py:17] "),
    "composer": _before("2026-03-01 12:00:00,123: rank3[4711][MainThread]: INFO: composer.trainer: "),
}
WRAPPERS = OUTER | INNER


def told(text: str) -> list[dict[str, Any]]:
    """What the lines say, but not when they were said, nor what follows from that for a save."""
    found = replay.items([Chunk(text.encode(), 1, 0.0, live=False)], Intake(registry()))
    timeless = [{key: value for key, value in item.items() if key not in {"stamp", "stamp_zoned", "checkpoint"}} for item in found]
    return [item for item in timeless if item.keys() - {"line", "format"}]


def wrapped(lines: list[str], *wrappers: Wrapper) -> str:
    for one in wrappers:
        lines = ["\r".join(one(piece) for piece in line.split("\r")) if one not in (_docker, _journal) else one(line) for line in lines]
    return "".join(f"{line}\n" for line in lines)


def lines_of(path: Path) -> list[str]:
    """Behind as many lines of others as show that each one of the file has a label."""
    quiet = [f"worker {number % 3} is up" for number in range(20)]
    return quiet + (path / "input.log").read_text(encoding="utf-8").split("\n")


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_line_reads_as_the_bare_one(name: str) -> None:
    for path in CASES:
        lines = lines_of(path)

        assert told(wrapped(lines, WRAPPERS[name])) == told(wrapped(lines)), path.parent.name


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BARE), st.sampled_from(sorted(INNER)), st.sampled_from(sorted(WRAPPERS)))
def test_a_line_in_two_wrappers_reads_as_the_bare_one(path: Path, inner: str, outer: str) -> None:
    lines = lines_of(path)

    assert told(wrapped(lines, INNER[inner], WRAPPERS[outer])) == told(wrapped(lines))

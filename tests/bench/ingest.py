"""CPU seconds for a gigabyte of log, beside mtail and grep on the same files: ``python tests/bench/ingest.py [CASE ...]``.

Every program is a process of its own, and what it costs when the file is empty is taken off. Of the exporter the daemon is measured as it
is started for use, with all it does with what it reads; of mtail one pass with a program of four patterns, and one with a program that
finds all the fields which the exporter reads; of grep one word.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

sys.path[:0] = [str(Path(__file__).parent)]

import mtail_programs  # noqa: E402 - found by the line above
from mtail_programs import NUMBER, each  # noqa: E402 - idem

CHUNK_LINES = 20_000
RUNS = 3  # the least of them counts: what a busy machine adds is not the program's


@dataclass(frozen=True)
class Case:
    """A log, the lines of which mtail and grep are to find."""

    lines: Callable[[random.Random], Iterator[str]]
    mtail: str
    mtail_all: str  # that finds all which the exporter reads
    word: str
    name: str = "train.log"


def _noise(chance: random.Random, count: int) -> Iterator[str]:
    shapes = (
        "[2026-03-01 10:{0:02d}:{1:02d},{2:03d}] [INFO] [loader.py:{2}:fetch] worker {0} fetched shard {3} of the corpus in {1}.{2:03d} s",
        "DEBUG:urllib3.connectionpool:https://data.example:443 GET /shards/{3}.bin HTTP/1.1 206 {2}",
        "node{0:03d}:{3}:{2} [{1}] NET/IB : GPU Direct RDMA enabled for HCA {0} 'mlx5_{1}', channel {2}",
        '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line {2}, in __next__',
        "sampled text: the quick brown fox {3} jumps over {2} lazy dogs and then some more of it {1}",
    )
    for _ in range(count):
        yield chance.choice(shapes).format(chance.randrange(60), chance.randrange(60), chance.randrange(1000), chance.randrange(10**6))


def _megatron(chance: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        yield (
            f" [2026-03-01 10:{step // 60 % 60:02d}:{step % 60:02d}] iteration {step:8d}/ 9000000 | consumed samples: {step * 1024:12d} |"
            f" elapsed time per iteration (ms): {chance.uniform(4000, 4200):.1f} |"
            f" throughput per GPU (TFLOP/s/GPU): {chance.uniform(400, 420):.1f} |"
            f" learning rate: {chance.uniform(1e-5, 3e-4):.6E} | global batch size:  1024 | lm loss: {chance.uniform(2, 3):.6E} |"
            f" loss scale: 1.0 | grad norm: {chance.uniform(0.2, 2):.3f} |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        yield from _noise(chance, 9)


def _clock(step: int) -> str:
    return f"{step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d}"


def _hf_console(chance: random.Random) -> Iterator[str]:
    step = 0
    while True:
        bars = ""
        for _ in range(10):
            step += 1
            bars += f"\r{step / 90000:3.0f}%|{' ' * 10}| {step}/9000000 [{_clock(step)}<2500:00:00,  1.01it/s]"
        loss, norm = chance.uniform(1, 2), chance.uniform(0.2, 2)
        record = f"{{'loss': '{loss:.4g}', 'grad_norm': '{norm:.4g}', 'learning_rate': '4.9e-05', 'epoch': '{step / 9000:.4g}'}}"
        yield f"{bars}{' ' * 40}\r{record}"


def _jsonl(chance: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 10
        record = {"current_steps": step, "total_steps": 90000000, "loss": round(chance.uniform(1, 2), 4)}
        record |= {"lr": round(chance.uniform(1e-6, 5e-5), 12), "epoch": round(step / 9000, 6), "percentage": round(step / 900000, 2)}
        yield json.dumps({**record, "elapsed_time": _clock(step), "remaining_time": "2500:00:00"})


def _pure_noise(chance: random.Random) -> Iterator[str]:
    while True:
        yield from _noise(chance, 1000)


def _ray(chance: random.Random) -> Iterator[str]:
    names = [f"{box}/{one}/{part}" for box in ("actor", "critic", "timing_s") for one in "abcdefgh" for part in ("mean", "max", "min")]
    step = 0
    while True:
        step += 1
        figures = "".join(f" - {name}:{chance.uniform(-2, 2):.6f}" for name in names)
        yield (
            f"\x1b[36m(TaskRunner pid=4711)\x1b[0m step:{step} - global_seqlen/mean:61213.5{figures}"
            f" - actor/pg_loss:{chance.uniform(0, 1):.5f} - actor/grad_norm:{chance.uniform(0, 1):.5f} - actor/lr:1e-06"
            f" - training/global_step:{step} - perf/throughput:{chance.uniform(900, 999):.3f}"
        )
        for one in _noise(chance, 3):
            yield f"\x1b[36m(WorkerDict pid={chance.randrange(5000, 5008)})\x1b[0m {one}"


CASES = {
    "megatron": Case(
        _megatron,
        each(r"iteration +(\d+)\/", rf"lm loss: {NUMBER}", rf"learning rate: {NUMBER}", rf"grad norm: {NUMBER}"),
        mtail_programs.ALL_OF_MEGATRON,
        "iteration ",
    ),
    "hf_console": Case(
        _hf_console,
        each(r"\| (\d+)\/\d+ \[", rf"'loss': '{NUMBER}'", rf"'learning_rate': '{NUMBER}'", rf"'grad_norm': '{NUMBER}'"),
        mtail_programs.ALL_OF_HF_CONSOLE,
        "'loss'",
    ),
    "jsonl": Case(
        _jsonl,
        each(r"\"current_steps\": (\d+)", rf"\"loss\": {NUMBER}", rf"\"lr\": {NUMBER}", rf"\"epoch\": {NUMBER}"),
        mtail_programs.ALL_OF_JSONL,
        "current_steps",
        name="trainer_log.jsonl",
    ),
    "noise": Case(
        _pure_noise,
        each(r"iteration +(\d+)\/", rf"lm loss: {NUMBER}", rf"learning rate: {NUMBER}", rf"grad norm: {NUMBER}"),
        mtail_programs.ALL_OF_MEGATRON,
        "iteration ",
    ),
    "ray": Case(
        _ray,
        each(r"step:(\d+) ", rf"actor\/pg_loss:{NUMBER}", rf"actor\/lr:{NUMBER}", rf"actor\/grad_norm:{NUMBER}"),
        mtail_programs.ALL_OF_VERL,
        "actor/pg_loss",
    ),
}


@dataclass(frozen=True)
class Row:
    """CPU seconds a gigabyte, each less an empty start, and what follows from them."""

    case: str
    megabytes: float
    exporter: float
    mtail: Mapping[str, float]  # by program
    mtail_all: Mapping[str, float]  # idem, where it looks for all fields
    grep: float

    @property
    def times_mtail(self) -> float:
        """How many times as much as the fastest mtail a CPU second reads."""
        return min(self.mtail.values()) / self.exporter

    @property
    def times_mtail_all(self) -> float:
        """The same, beside mtail that looks for all fields."""
        return min(self.mtail_all.values()) / self.exporter

    @property
    def times_grep(self) -> float:
        """How many times the CPU of grep is taken."""
        return self.exporter / self.grep


def seeded() -> random.Random:
    """Chance that is the same at every call."""
    return random.Random(7)


def write(case: Case, path: Path, size: int) -> None:
    """A log of about ``size`` bytes; the same at every call."""
    lines = case.lines(seeded())
    with path.open("w", newline="") as log:
        while log.tell() < size:
            log.write("".join(f"{next(lines)}\n" for _ in range(CHUNK_LINES)))


def _cpu(
    command: Sequence[str],
    until: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> float:
    """CPU seconds of a process and of all it has waited for, itself waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Not to /dev/null: grep sees that nobody reads its count, and ends at the first line that it finds.
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output, stderr=stderr) as process:
        until(process)
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _is_read(port: int, size: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    read = re.search(r"^trainer_exporter_read_bytes_total (\S+)", page, re.M)
    return read is not None and float(read[1]) >= size


def exporter(path: Path, folder: Path) -> float:
    """The daemon, until it has read the file."""
    log = folder / "daemon.log"

    def read(process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit(f"the exporter ended: {log.read_text()}")
            port = re.search(r"serving on port (\d+)", log.read_text())
            if port and _is_read(int(port[1]), path.stat().st_size):
                break
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)

    command = [sys.executable, "-m", "trainer_exporter", "serve", "--no-gpu", "--web.listen-address=127.0.0.1:0", str(path)]
    with log.open("wb") as output:
        return _cpu(command, read, stderr=output)


def version(program: str) -> str:
    """mtail's name and version."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\S+)", told.stdout + told.stderr)
    return f"mtail {found[1] if found else '?'}"


def mtail(path: Path, folder: Path, rules: str, *, program: str = "mtail") -> float:
    """One pass over the file."""
    (folder / "program.mtail").write_text(rules)
    return _cpu([program, "--one_shot", f"--progs={folder / 'program.mtail'}", f"--logs={path}", "--port=0", f"--log_dir={folder}"])


def grep(path: Path, word: str) -> float:
    return _cpu(["grep", "-c", word, str(path)])


def measure(name: str, megabytes: int, folder: Path, *, mtails: Sequence[str] = ("mtail",)) -> Row:
    case = CASES[name]
    full, empty = folder / "full" / case.name, folder / "empty" / case.name
    for path in (full, empty):
        path.parent.mkdir(exist_ok=True)
    write(case, full, megabytes * 10**6)
    empty.write_text("")
    gigabytes = full.stat().st_size / 1e9

    def less_empty(cost: Callable[[Path], float]) -> float:
        return max(min(cost(full) for _ in range(RUNS)) - min(cost(empty) for _ in range(RUNS)), 1e-4) / gigabytes

    def less_empty_of(rules: str) -> dict[str, float]:
        return {program: less_empty(partial(mtail, folder=folder, rules=rules, program=program)) for program in mtails}

    row = Row(
        name,
        gigabytes * 1000,
        less_empty(lambda path: exporter(path, folder)),
        less_empty_of(case.mtail),
        less_empty_of(case.mtail_all),
        less_empty(lambda path: grep(path, case.word)),
    )
    full.unlink()
    return row


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--mtail", default="mtail", help="the program to compare with")
    parser.add_argument("--json", action="store_true", help="one object a case")
    asked = parser.parse_args()
    if not shutil.which(asked.mtail):
        parser.error("mtail is missing; on Debian or Ubuntu: sudo apt-get install mtail")
    os.environ["LC_ALL"] = "C"
    if not asked.json:
        mtails = f"{'mtail s/GB':>11} {'all fields':>11} {'grep s/GB':>10} {'x mtail':>8} {'x all':>6}"
        _say(f"{'case':12} {'exporter s/GB':>14} {mtails} {'x grep':>7}")
    for name in asked.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, asked.megabytes, Path(folder), mtails=[asked.mtail])
        if asked.json:
            times = {"times_mtail": row.times_mtail, "times_mtail_all": row.times_mtail_all, "times_grep": row.times_grep}
            _say(json.dumps(asdict(row) | times))
        else:
            costs = f"{row.exporter:14.2f} {min(row.mtail.values()):11.2f} {min(row.mtail_all.values()):11.2f} {row.grep:10.3f}"
            _say(f"{name:12} {costs} {row.times_mtail:8.2f} {row.times_mtail_all:6.2f} {row.times_grep:7.1f}")


if __name__ == "__main__":
    main()

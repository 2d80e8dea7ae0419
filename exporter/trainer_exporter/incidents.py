"""Trouble that any trainer's log may show, as one table of named patterns. Pure; nothing is de-duplicated here.

The patterns ask for the real shape of a message (an exception's name, a number of bytes, Slurm's asterisks), because the same
words stand in prose, in the names of tests and in printed source. Messages of other ranks get glued onto half lines, so
most patterns search anywhere in the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trainer_exporter.model import Incident, Line


@dataclass(frozen=True, slots=True)
class Trouble:
    """One row: its name becomes a label; ``word`` stands in every line that the pattern can match."""

    name: str
    fatal: bool
    word: str
    pattern: re.Pattern[str]


_ERROR: Final = r"(?:Error|Exception)(?:\(\w+\))?: "
_MAX_TEXT: Final = 4096  # characters looked at from either end of a line: messages are glued onto long ones
_ACCELERATOR: Final = r"(?:CUDA|HIP|XPU|NPU)"
_SLURMSTEPD: Final = r"slurmstepd(?: +0x\w+)?: error: \*\*\* (?:JOB|STEP) \S+ ON \S+"
_SLURM: Final = _SLURMSTEPD + r" CANCELLED AT \S+"


def _row(name: str, word: str, pattern: str, *, fatal: bool = True) -> Trouble:
    return Trouble(name, fatal, word, re.compile(pattern))


# The first row that matches names the line. Sources: torch c10d and elastic, NCCL's debug.cc, slurmstepd and srun, the
# kernel's OOM killer, safetensors.
TROUBLES: Final[tuple[Trouble, ...]] = (
    _row("nccl_timeout", "ProcessGroupNCCL", r"Watchdog caught collective operation timeout: WorkNCCL\("),
    _row("nccl_timeout", "ProcessGroupNCCL", r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out!"),
    _row("cuda_oom", "ut of memory", rf"\b{_ACCELERATOR} out of memory\. Tried to allocate [\d.]+ (?:[KMG]iB|bytes)"),
    _row("cuda_oom", "ut of memory", rf"{_ERROR}CUDA error: out of memory"),
    _row("cuda_oom", "ut of memory", rf"{_ERROR}RESOURCE_EXHAUSTED: Out of memory"),
    _row("killed", "ut of memory", r"(?:Memory cgroup o|\bO)ut of memory: Kill(?:ed)? process \d+ \("),
    _row("disk_full", "rror", rf"(?:\[Errno 28\] |{_ERROR}.{{0,200}}|: )No space left on device"),
    _row("disk_full", "rror", r"\[Errno 122\] |code: (?:28|122), kind: |\(os error (?:28|122)\)"),
    _row("disk_full", "rror", rf"{_ERROR}.{{0,200}}PytorchStreamWriter failed writing file \S+: file write failed"),
    _row("disk_full", "rror", rf"{_ERROR}.{{0,200}}unexpected pos \d+ vs \d+"),
    _row("nccl_error", "rror", r"\bNCCL error in: \S|\bnccl(?:Remote|System|Internal|UnhandledCuda)Error: \S"),
    _row("nccl_error", "rror", rf"{_ERROR}NCCL communicator was aborted on rank \d+"),
    _row("nccl_error", "educe failed", r"\b(?i:all_?reduce) failed\b"),
    _row("cuda_error", "rror", rf"{_ERROR}(?:CUDA|HIP) error: \S"),
    _row("cuda_error", "ProcessGroupNCCL", r"watchdog thread terminated with exception: CUDA error: \S"),
    _row("time_limit", "rror", rf"{_SLURM} DUE TO TIME LIMIT \*\*\*"),
    _row("preempted", "rror", rf"{_SLURM} (?:DUE TO PREEMPTION|DUE TO JOB REQUEUE) \*\*\*"),
    _row("node_fail", "rror", rf"{_SLURM} DUE TO NODE ?FAIL|srun: error: Node failure on \S"),
    _row("rank_failed", "rror", rf"{_SLURM} DUE TO TASK FAILURE \*\*\*|{_SLURMSTEPD} FAILED"),
    _row("cancelled", "rror", rf"{_SLURM}(?: DUE [tT][oO] SIGNAL \w+)? \*\*\*"),
    _row("killed", "rror", r"Detected \d+ oom[-_]kill events?(?:\(s\))? in StepId="),
    _row("killed", "rror", r"srun: error: \S+: tasks? [\d,-]+: (?:Killed|Out Of Memory)"),
    _row("rank_failed", "rror", r"srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code|Aborted|Segm|Bus error)"),
    _row("killed", "exit", r"failed \(exitcode: -9\) local_rank: \d+|^ +exitcode +: -9 \(pid: \d+\)"),
    _row("killed", "exit", r"exits with return code = -9\b"),
    _row("rank_failed", "exit", r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)"),
    _row("rank_failed", "exit", r"exits with return code = -?[1-9]"),
    _row("rank_failed", "rror", r"elastic\.multiprocessing\.errors\.ChildFailedError: *$"),
    _row("killed", "Killed", r"\S: line \d+: +\d+ Killed\b|^Killed$"),
    _row("traceback", "Traceback (most recent call last)", r"Traceback \(most recent call last\): *$", fatal=False),
)

KINDS: Final = tuple(sorted({row.name for row in TROUBLES}))


def incident(line: Line) -> Incident | None:
    """The trouble that a line tells of, if any."""
    text = line.text
    if len(text) > _MAX_TEXT:
        text = text[:_MAX_TEXT] + "\n" + text[-_MAX_TEXT:]
    for row in TROUBLES:
        if row.word in text and row.pattern.search(text):
            return Incident(line.number, row.name, row.fatal, line.stamp, line.rank)
    return None


def words() -> tuple[bytes, ...]:
    """Byte strings of which one at least stands in every line that tells of trouble."""
    return tuple(dict.fromkeys(row.word.encode() for row in TROUBLES))

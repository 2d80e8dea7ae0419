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
    """One row: its name becomes a label; ``word`` stands in every line that the pattern can match. It is searched
    for in all bytes, which is the quicker the rarer its first two letters are side by side.
    """

    name: str
    fatal: bool
    word: str
    pattern: re.Pattern[str]


# An exception as Python or C++ prints it, glued to what stood there before; not where a sentence quotes it.
_ERROR: Final = r"(?<![\w.`'\"(])[\w.]{0,100}(?:Error|Exception)(?:\(\w+\))?: "
_MAX_TEXT: Final = 4096  # characters looked at from either end of a line: messages are glued onto long ones
_ACCELERATOR: Final = r"(?:CUDA|HIP|XPU|NPU)"
_WATCHDOG: Final = r"watchdog thread terminated with exception: "
# With the node's name where several slurmd may share a machine, as Debian builds it.
_STEPD: Final = r"slurmstepd(?:-[\w.-]{1,64})?(?: +0x\w+)?: error: "
_SLURMSTEPD: Final = _STEPD + r"\*\*\* (?:JOB|STEP) \S+ ON \S+"
_SLURM: Final = _SLURMSTEPD + r" CANCELLED AT \S+"
_TASK: Final = r"srun: error: \S+: tasks? [\d,-]+: "
_WORKER: Final = r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) "
_NCCL_WARN: Final = r"NCCL WARN .{0,200}?"


def _row(name: str, word: str, pattern: str, *, fatal: bool = True) -> Trouble:
    return Trouble(name, fatal, word, re.compile(pattern))


# The first row that matches names the line. Sources: torch c10d, elastic and DataLoader, Ray, NCCL's debug.cc and net_ib.cc, torch_npu and
# CANN, XLA, slurmstepd and srun, DeepSpeed's launcher, bash, the kernel's OOM killer and NVRM, safetensors, and each trainer's own
# words for a loss that it gives up on. What only follows such a message ("taking the entire process down") has no row.
TROUBLES: Final[tuple[Trouble, ...]] = (
    _row("nccl_timeout", "CCL", r"Watchdog caught collective operation timeout: Work[NHRX]CCL\("),
    _row("nccl_timeout", "CCL", r"ProcessGroup\w*CCL.{0,200}(?:watchdog got stuck for \d+ seconds|Heartbeat monitor timed out!)"),
    _row("nccl_timeout", "CCL", r"Received a dump signal due to a collective timeout from +rank \d"),
    _row("nccl_timeout", "EI000", r"\bEI000[26]: .{0,200}times out"),
    _row("cuda_oom", "ut of memory", rf"\b{_ACCELERATOR} out of memory\. Tried to allocate [\d.]+ (?:[KMG]iB|bytes)"),
    _row("cuda_oom", "ut of memory", rf"{_ERROR}(?:CUDA|HIP) error: out of memory"),
    _row("cuda_oom", "ut of memory", rf"{_ERROR}RESOURCE_EXHAUSTED: .{{0,200}}ut of memory"),
    _row("cuda_oom", "ut of memory", rf"{_NCCL_WARN}Cuda failure (?:\d+ )?'out of memory'"),
    _row("cuda_oom", "rror", r"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    _row("killed", "ut of memory", r"(?:Memory cgroup o|\bO)ut of memory: Kill(?:ed)? process \d+ \("),
    _row("killed", "rror", rf"{_STEPD}(?:Job|Step) \S+ exceeded memory limit \(.{{1,80}}being killed"),
    _row("disk_full", "rror", rf"(?:{_ERROR}.{{0,200}}|error: )No space left on device"),
    _row("disk_full", "rror", r"\[Errno 122\] Disk quota|code: (?:28|122), kind: |\(os error (?:28|122)\)|error: Disk quota exceeded"),
    _row("disk_full", "rror", rf"{_ERROR}.{{0,200}}PytorchStreamWriter failed writing file \S+: file write failed"),
    _row("disk_full", "rror", rf"{_ERROR}.{{0,200}}unexpected pos \d+ vs \d+"),
    _row("nccl_error", "rror", r"\b[NH]CCL error in: \S|\bnccl(?:Remote|System|Internal|UnhandledCuda)Error: \S"),
    _row("nccl_error", "rror", rf"\bDist(?:Network|Store)Error: \S|{_ERROR}NCCL communicator was aborted on rank \d+"),
    _row("nccl_error", "rror", rf"{_ERROR}.{{0,200}}(?:HCCL function error: \w|\bHccl\w+, error code is \d|gloo/transport/)"),
    _row("nccl_error", "CCL", rf"{_WATCHDOG}NCCL error"),
    _row("nccl_error", "CCL", rf"{_NCCL_WARN}Got completion (?:from peer .{{1,100}})?with (?:status|error)[= ]\d"),
    _row("nccl_error", "CCL", rf"{_NCCL_WARN}(?:Call to \w+ .{{0,100}}failed|[Cc]onnection closed by remote peer)"),
    _row("nccl_error", "CCL", r"NCCL \w+ NET/IB : \S+ async fatal event"),
    _row("nccl_error", "uce failed", r"\b(?i:all_?reduce) failed\b"),
    _row("cuda_error", "CCL", rf"{_WATCHDOG}(?:CUDA|HIP) error: \S|{_NCCL_WARN}Cuda failure (?:\d+ )?'"),
    _row("cuda_error", "rror", rf"{_ERROR}(?:CUDA|HIP) error: \S|{_ERROR}.{{0,200}}NPU function error: \w"),
    _row("xid", "Xid (PCI:", r"\bNVRM: Xid \(PCI:[\da-fA-F:. A-Z-]+\): \d+|\bSXid \(PCI:[\da-fA-F:.]+\): \d+, Fatal", fatal=False),
    _row("time_limit", "rror", rf"{_SLURM} DUE TO TIME LIMIT \*\*\*"),
    _row("preempted", "rror", rf"{_SLURM} (?:DUE TO PREEMPTION|DUE TO JOB REQUEUE) \*\*\*"),
    _row("node_fail", "rror", rf"{_SLURM} DUE TO NODE ?FAIL|srun: error: Node failure on \S"),
    _row("node_fail", "rror", rf"{_STEPD}\*\*\* (?:JOB|STEP) \S+ STEPD TERMINATED ON \S+ AT \S+ DUE TO "),
    _row("rank_failed", "rror", rf"{_SLURM} DUE TO TASK FAILURE \*\*\*|{_SLURMSTEPD} FAILED"),
    _row("cancelled", "rror", rf"{_SLURM}(?: DUE [tT][oO] SIGNAL \w+)? \*\*\*"),
    _row("cancelled", "KeyboardInterrupt", r"^KeyboardInterrupt$|\bDetected KeyboardInterrupt, attempting graceful shutdown"),
    _row("killed", "rror", r"Detected \d+ oom[-_]kill events?(?:\(s\))? in StepId="),
    _row("killed", "rror", rf"{_TASK}(?:Killed|Out Of Memory|Exited with exit code 137\b)"),
    _row("rank_failed", "rror", rf"{_TASK}(?:Exited with exit code [1-9]|Aborted|Segm|Bus error)"),
    _row("killed", "rror", rf"{_WORKER}is killed by signal: Killed"),
    _row("rank_failed", "rror", rf"{_WORKER}(?:is killed by signal: \w|exited unexpectedly)"),
    _row("killed", "exit", r"failed \(exitcode: (?:-9|137)\) local_rank: \d+|^ +exitcode +: (?:-9|137) \(pid: \d+\)"),
    _row("killed", "exit", r"exits with return code = (?:-9|137)\b"),
    _row("rank_failed", "exit", r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)"),
    _row("rank_failed", "exit", r"exits with return code = -?[1-9]"),
    _row("rank_failed", "rror", r"elastic\.multiprocessing\.errors\.ChildFailedError: *$"),
    _row("nan_abort", "rror", rf"{_ERROR}(?:Loss became infinite or NaN at iteration|Minimum loss scale reached \()"),
    _row("nan_abort", "rror", rf"{_ERROR}(?:nan loss encountered|The loss returned in `training_step` is (?:nan|inf))"),
    _row("nan_abort", "rror", rf"{_ERROR}(?:.{{0,200}}Train loss contains a NaN|Function '\w+' returned nan values in its \d+th output)"),
    _row("nan_abort", "rror", rf"{_ERROR}.{{0,200}}(?:found (?:NaN|Inf) in local |Unexpected result (?:nan|inf))"),
    _row("nan_abort", "Loss is ", r"^Loss is (?:nan|inf), stopping training"),
    _row("nan_abort", "NaN loss", r"\bAborting training due to NaN loss"),
    _row("nan_abort", "scale already", r"\bException: Current loss scale already at minimum"),
    _row("nan_abort", "detected in output", r"\b(?:NaN|Inf) detected in output of \S+, shape: "),  # fairseq looks for it before it gives up
    _row("rank_failed", "rror", r"terminate called after throwing an instance of '[\w:]*(?:Error|error)'"),
    _row("rank_failed", "rror", r"^Fatal Python error: \S"),
    _row("killed", "rror", rf"{_ERROR}Task was killed due to the node running low on memory"),
    _row("rank_failed", "rror", rf"\bA worker died or was killed while executing a task|{_ERROR}The actor died (?:unexpectedly|because)"),
    _row("killed", "Killed", r"\S: line \d+: +\d+ Killed\b|^Killed$"),
    _row("rank_failed", "dumped", r"\S: line \d+: +\d+ (?:Segmentation fault|Aborted|Bus error) +\(core dumped\)"),
    _row("traceback", "Traceback (most recent call last)", r"Traceback \(most recent call last\): *$", fatal=False),
)

KINDS: Final = tuple(sorted({row.name for row in TROUBLES}))
_WORDS: Final = tuple(dict.fromkeys(row.word for row in TROUBLES))


# Told by the scheduler or the user of whatever the job runs. Any other trouble may be another program's where no trainer has spoken.
OF_THE_JOB: Final = frozenset({"time_limit", "preempted", "cancelled", "node_fail"})


def incident(line: Line) -> Incident | None:
    """The trouble that a line tells of, if any."""
    text = line.text
    if len(text) > _MAX_TEXT:
        text = text[:_MAX_TEXT] + "\n" + text[-_MAX_TEXT:]
    present = [word for word in _WORDS if word in text]
    for row in TROUBLES if present else ():
        if row.word in present and row.pattern.search(text):
            return Incident(line.number, row.name, row.fatal, line.stamp, line.rank)
    return None


def words() -> tuple[bytes, ...]:
    """Byte strings of which one at least stands in every line that tells of trouble."""
    return tuple(word.encode() for word in _WORDS)

"""What the processes of a run are doing, as the kernel sees it: how many run, sleep, or wait for something that no signal ends.

A process that stays uninterruptible waits for a disk, a file server or a driver; ``wchan`` (readable by root) names the function of the
kernel in which it does. Only the main thread of each is looked at: the threads of a trainer are hundreds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainer_exporter.attribution.proc import Proc
from trainer_exporter.model import RunProcesses

MOST_PROCESSES: Final = 1024  # of one run: eight ranks with their loaders are some 200
STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
}
UNINTERRUPTIBLE: Final = "uninterruptible"
# What a function of the kernel waits for; the first that fits. An NFS server is also waited for in functions that all file systems
# share, which count as "io".
WAITS: Final = (
    ("nfs", re.compile(r"^(nfs|rpc_|xprt_)")),
    ("lustre", re.compile(r"^(ll_|cl_|osc_|lov_|mdc_|ldlm_|ptlrpc|obd_)")),
    ("gpfs", re.compile(r"^(cxi|mmfs|gpfs)")),
    ("ceph", re.compile(r"^ceph_")),
    ("fuse", re.compile(r"^(fuse_|request_wait_answer)")),
    ("driver", re.compile(r"^(nvidia|_?nv_|_nv\d|nvkms|uvm_|os_acquire|ib_|mlx\d)")),
    (
        "io",
        re.compile(
            r"^(io_schedule|(__)?(wait_on_(page|buffer)|folio_wait)|balance_dirty|blk_|bio_|submit_bio|rq_qos|jbd2_|ext4_|xfs_|xlog_|btrfs_"
            r"|cv_|(__)?cv_wait|zil_|txg_|sync_|do_get_write_access|writeback_)"
        ),
    ),
    ("lock", re.compile(r"^(rwsem_|(__)?down|(__)?mutex_|futex_|percpu_rwsem)")),
)
OTHER: Final = "other"
UNKNOWN: Final = "unknown"  # it may not be read


class States:
    """Looks anew each time."""

    def __init__(self, root: str | Path = "/proc") -> None:
        self._proc = Proc(root)

    def of(self, runs: Mapping[int, str]) -> tuple[RunProcesses, ...]:
        """The states of the processes of each run (``runs`` is by PID) and of what these have started; none of a run that has none left."""
        members: dict[str, list[int]] = defaultdict(list)
        for pid, run in sorted(runs.items()):
            members[run].append(pid)
        return tuple(found for run in sorted(members) if (found := self._run(run, members[run])) is not None)

    def _run(self, run: str, pids: Sequence[int]) -> RunProcesses | None:
        states: Counter[str] = Counter()
        waits: Counter[str] = Counter()
        for pid in self._with_children(pids):
            seen = self._proc.stat(pid)
            state = STATES.get(seen.state) if seen is not None else None
            if state is None:
                continue
            states[state] += 1
            if state == UNINTERRUPTIBLE:
                waits[wait(self._proc.text(pid, "wchan"))] += 1
        return RunProcesses(run, {state: states[state] for state in STATES.values()}, dict(waits)) if states else None

    def _with_children(self, pids: Sequence[int]) -> Iterator[int]:
        """The processes and what their main threads have started, which loaders of data are; each once."""
        waiting, seen = list(pids), set(pids)
        while waiting and len(seen) <= MOST_PROCESSES:
            pid = waiting.pop(0)
            yield pid
            children = {int(word) for word in self._proc.text(pid, "task", pid, "children").split() if word.isdecimal()}
            waiting.extend(sorted(children - seen))
            seen |= children


def wait(function: str) -> str:
    """What a process waits for, by the function of the kernel that /proc/PID/wchan names ("0" where it may not be read)."""
    if function in {"", "0"}:
        return UNKNOWN
    return next((name for name, pattern in WAITS if pattern.match(function)), OTHER)

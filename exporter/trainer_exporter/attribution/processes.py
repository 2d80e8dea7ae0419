"""What a process on a GPU shows of the run that it serves, read from /proc.

/proc/PID/environ holds secrets: the variables of ``ALLOWED`` are picked out, the rest is dropped at once and never logged. It is the
environment at exec: what a program set later is not in it, and a program that renames itself (setproctitle) wipes it; then its
ancestors are asked.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from trainer_exporter.model import NO_FACTS

ALLOWED: Final = frozenset(
    {
        "TRAINER_RUN_NAME",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NAME",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NTASKS",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "KUBERNETES_SERVICE_HOST",
        "HOSTNAME",
        "POD_NAME",
        "POD_NAMESPACE",
    }
)
# The launcher's own task number is not the rank of what it launched, so these count only where the process itself shows them.
OWN_ONLY: Final = frozenset({"SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"})
ANCESTORS: Final = 8
READ_BYTES: Final = 1 << 20  # of one file of /proc; an environment of many exported functions has some 100 KiB
VALUE_LENGTH: Final = 200

_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_ARGUMENT = re.compile(r"-{0,2}(output[_-]dir|run[_-]name)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What one process shows of the run that it serves. Texts are "" where it shows nothing."""

    pid: int
    start_ticks: int  # since boot, as the kernel counts; with the PID it names a process for good, since PIDs are used again
    user: str = ""
    cwd: str = ""
    rank: str = ""
    local_rank: str = ""
    world_size: str = ""
    job_id: str = ""
    job_name: str = ""
    output_dir: str = ""
    run_name: str = ""  # as the command line has it
    log_files: tuple[str, ...] = ()  # regular files behind standard output and standard error
    pod: str = ""
    pod_uid: str = ""
    namespace: str = ""
    container: str = ""  # its id
    environment: Mapping[str, str] = field(default_factory=lambda: NO_FACTS)  # of ``ALLOWED`` only


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    state: str
    start_ticks: int


class Processes:
    """Reads /proc. A process that vanished, died or may not be read is no error: it shows nothing.

    ``root`` is where /proc is (a container has the host's elsewhere), ``user_name`` turns a user id into a name.
    """

    def __init__(self, root: str | Path = "/proc", *, user_name: Callable[[int], str] | None = None) -> None:
        self._root = Path(root)
        self._user_name = user_name or _user_name

    def describe(self, pid: int) -> ProcessFacts | None:
        """What a process shows; None when there is no such process, or only its zombie."""
        seen = self._stat(pid)
        if seen is None or seen.state in "ZX":
            return None
        own = self._environment(pid)
        environment = {**self._inherited(seen.parent, own), **own}
        groups = self._text(pid, "cgroup")
        cwd = self._link(pid, "cwd")
        arguments = _arguments(self._text(pid, "cmdline").split("\0"))
        facts = ProcessFacts(
            pid,
            seen.start_ticks,
            user=self._user(pid),
            cwd=cwd,
            output_dir=_absolute(arguments.get("output_dir", ""), cwd),
            run_name=arguments.get("run_name", ""),
            log_files=self._log_files(pid),
            environment=environment,
        )
        return self._with_pod(_with_job(_with_rank(facts, environment), groups), groups)

    def start_ticks(self, pid: int) -> int | None:
        """When a process started, for telling two of the same PID apart; None when it is gone."""
        seen = self._stat(pid)
        return None if seen is None or seen.state in "ZX" else seen.start_ticks

    def _with_pod(self, facts: ProcessFacts, groups: str) -> ProcessFacts:
        pod, container = _POD.search(groups), _CONTAINER.search(groups)
        environment = facts.environment
        in_pod = pod is not None or "KUBERNETES_SERVICE_HOST" in environment
        host = environment.get("HOSTNAME", "") if self._has_own_host_name(facts.pid) else ""
        return replace(
            facts,
            pod=(environment.get("POD_NAME") or host) if in_pod else "",
            pod_uid=pod[1].replace("_", "-") if pod else "",
            namespace=environment.get("POD_NAMESPACE", "") if in_pod else "",
            container=container[1] if container else "",
        )

    def _has_own_host_name(self, pid: int) -> bool:
        """Whether its host name is its pod's: a pod on the host's network (usual with RDMA) has the node's name instead."""
        own, host = self._link(pid, "ns/uts"), self._link(1, "ns/uts")
        return bool(own and host) and own != host

    def _inherited(self, parent: int, own: Mapping[str, str]) -> Mapping[str, str]:
        """What the nearest ancestor shows, for a process that shows nothing itself."""
        if own:
            return NO_FACTS
        for _ in range(ANCESTORS):
            seen = self._stat(parent) if parent > 1 else None
            if seen is None:
                return NO_FACTS
            found = self._environment(parent)
            if found.keys() - {"HOSTNAME"}:
                return {name: value for name, value in found.items() if name not in OWN_ONLY}
            parent = seen.parent
        return NO_FACTS

    def _environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in self._text(pid, "environ").split("\0"))
        return {name: value[:VALUE_LENGTH] for name, equals, value in pairs if equals and value and name in ALLOWED}

    def _stat(self, pid: int) -> _Stat | None:
        # The name of the program is in brackets and may hold anything, brackets too.
        _, _, rest = self._text(pid, "stat").rpartition(") ")
        words = rest.split()
        try:
            return _Stat(int(words[1]), words[0], int(words[19]))
        except (IndexError, ValueError):
            return None

    def _user(self, pid: int) -> str:
        for line in self._text(pid, "status").splitlines():
            if line.startswith("Uid:"):
                return self._user_name(int(line.split()[2]))
        return ""

    def _log_files(self, pid: int) -> tuple[str, ...]:
        found = []
        for descriptor in ("1", "2"):
            path = self._link(pid, f"fd/{descriptor}")
            if path.startswith("/") and path not in found and self._is_regular(pid, descriptor):
                found.append(path)
        return tuple(found)

    def _is_regular(self, pid: int, descriptor: str) -> bool:
        """Whether a file is behind a descriptor, and not one that was deleted."""
        try:
            status = (self._root / str(pid) / "fd" / descriptor).stat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_nlink > 0

    def _link(self, pid: int, name: str) -> str:
        try:
            return str((self._root / str(pid) / name).readlink())
        except OSError:
            return ""

    def _text(self, *names: str | int) -> str:
        try:
            with self._root.joinpath(*map(str, names)).open("rb") as file:
                return file.read(READ_BYTES).decode(errors="replace")
        except OSError:
            return ""


def _with_rank(facts: ProcessFacts, environment: Mapping[str, str]) -> ProcessFacts:
    def number(*names: str) -> str:
        return next((environment[name] for name in names if environment.get(name, "").isdecimal()), "")

    return replace(
        facts,
        rank=number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
        local_rank=number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
        world_size=number("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
    )


def _with_job(facts: ProcessFacts, groups: str) -> ProcessFacts:
    environment = facts.environment
    group = _SLURM_JOB.search(groups)
    job_id = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or (group[1] if group else "")
    return replace(facts, job_id=job_id, job_name=environment.get("SLURM_JOB_NAME", ""))


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """run_name and output_dir of a command line: ``--name VALUE``, ``--name=VALUE`` or ``name=VALUE``; the last counts."""
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        match = _ARGUMENT.fullmatch(word)
        if match is None:
            continue
        name, value = match[1].replace("-", "_"), match[2]
        if value is None and word.startswith("--") and not following.startswith("--"):
            value = following
        if value:
            found[name] = value[:4096]
    return found


def _absolute(path: str, cwd: str) -> str:
    if not path:
        return ""
    return os.path.normpath(Path(cwd, path)) if cwd else path


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

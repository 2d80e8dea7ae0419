"""What a process on a GPU shows of the run that it serves, read from /proc.

/proc/PID/environ holds secrets: the variables of ``ALLOWED`` are picked out, the rest is dropped at once and never logged. It is the
environment at exec: what a program set later is not in it, and a program that renames itself (setproctitle) wipes it; then its
ancestors are asked.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from trainer_exporter.attribution.proc import Proc
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
        "TORCHELASTIC_ERROR_FILE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "KUBERNETES_SERVICE_HOST",
        "HOSTNAME",
        "POD_NAME",
        "POD_NAMESPACE",
    }
)
# The launcher's own task number is not the rank of what it launched, so these count only where the process itself shows them.
OWN_ONLY: Final = frozenset({"SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"})
ANCESTORS: Final = 8
VALUE_LENGTH: Final = 200
PATH_LENGTH: Final = 4096
_PATHS: Final = frozenset({"TORCHELASTIC_ERROR_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"})

_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
# What trainers call the two: HF, then nanoGPT, mmengine, fairseq, Lightning, verl, torchtitan. Hydra puts the name of a section before it.
_ARGUMENT = re.compile(
    r"-{0,2}(?:(?:trainer|training|train|job|run|args)\.)?(?:(?P<output_dir>output[_-]dir|out[_-]dir|work[_-]dir|save[_-]dir"
    r"|default[_-]root[_-]dir|default[_-]local[_-]dir|dump[_-]folder)|(?P<run_name>run[_-]name|experiment[_-]name))(?:=(?P<value>.*))?",
    re.DOTALL,
)


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


class Processes:
    """Reads /proc. A process that vanished, died or may not be read is no error: it shows nothing.

    ``root`` is where /proc is (a container has the host's elsewhere), ``pods`` where the kubelet keeps the logs of pods, ``user_name``
    turns a user id into a name.
    """

    def __init__(
        self, root: str | Path = "/proc", *, pods: str | Path = "/var/log/pods", user_name: Callable[[int], str] | None = None
    ) -> None:
        self.proc = Proc(root)
        self._pods = Path(pods)
        self._user_name = user_name or _user_name

    def describe(self, pid: int) -> ProcessFacts | None:
        """What a process shows; None when there is no such process, or only its zombie."""
        seen = self.proc.stat(pid)
        if seen is None or seen.is_dead:
            return None
        own = self._environment(pid)
        environment = {**self._inherited(seen.parent, own), **own}
        groups = self.proc.text(pid, "cgroup")
        cwd = self.proc.link(pid, "cwd")
        arguments = _arguments(self.proc.text(pid, "cmdline").split("\0"))
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
        seen = self.proc.stat(pid)
        return None if seen is None or seen.is_dead else seen.start_ticks

    def _with_pod(self, facts: ProcessFacts, groups: str) -> ProcessFacts:
        pod, container = _POD.search(groups), _CONTAINER.search(groups)
        environment = facts.environment
        in_pod = pod is not None or "KUBERNETES_SERVICE_HOST" in environment
        host = environment.get("HOSTNAME", "") if self._has_own_host_name(facts.pid) else ""
        uid = pod[1].replace("_", "-") if pod else ""
        namespace, name = self._logged(uid)
        return replace(
            facts,
            pod=(environment.get("POD_NAME") or name or host) if in_pod else "",
            pod_uid=uid,
            namespace=(environment.get("POD_NAMESPACE") or namespace) if in_pod else "",
            container=container[1] if container else "",
        )

    def _logged(self, uid: str) -> tuple[str, str]:
        """Namespace and name of a pod as the kubelet calls the directory of its logs, NAMESPACE_NAME_UID; no name holds a "_"."""
        found = next(self._pods.glob(f"*_{uid}"), None) if uid else None
        parts = found.name.split("_") if found is not None else []
        return (parts[0], parts[1]) if len(parts) == 3 else ("", "")

    def _has_own_host_name(self, pid: int) -> bool:
        """Whether its host name is its pod's: a pod on the host's network (usual with RDMA) has the node's name instead."""
        own, host = self.proc.link(pid, "ns/uts"), self.proc.link(1, "ns/uts")
        return bool(own and host) and own != host

    def _inherited(self, parent: int, own: Mapping[str, str]) -> Mapping[str, str]:
        """What the nearest ancestor shows, for a process that shows nothing itself."""
        if own:
            return NO_FACTS
        for _ in range(ANCESTORS):
            seen = self.proc.stat(parent) if parent > 1 else None
            if seen is None:
                return NO_FACTS
            found = self._environment(parent)
            if found.keys() - {"HOSTNAME"}:
                return {name: value for name, value in found.items() if name not in OWN_ONLY}
            parent = seen.parent
        return NO_FACTS

    def _environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in self.proc.text(pid, "environ").split("\0"))
        kept = ((name, value) for name, equals, value in pairs if equals and value and name in ALLOWED)
        return {name: value[: PATH_LENGTH if name in _PATHS else VALUE_LENGTH] for name, value in kept}

    def _user(self, pid: int) -> str:
        uid = self.proc.uid(pid)
        return "" if uid is None else self._user_name(uid)

    def _log_files(self, pid: int) -> tuple[str, ...]:
        opened = (self.proc.regular(pid, descriptor) for descriptor in ("1", "2"))
        return tuple(dict.fromkeys(each.path for each in opened if each is not None))


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
        name, value = "output_dir" if match["output_dir"] else "run_name", match["value"]
        if value is None and word.startswith("--") and not following.startswith("--"):
            value = following
        if value:
            found[name] = value[:PATH_LENGTH]
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

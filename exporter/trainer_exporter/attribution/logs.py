"""The logs that a process writes, each with the reason why it is one, in words that are safe to show.

Nothing is asked of anybody: no scheduler, no container runtime; all is read from /proc and from where logs lie. Of a command line
only the values of the arguments named here and in ``processes`` are kept.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_exporter.attribution.pipes import Pipes, written
from trainer_exporter.attribution.places import Places
from trainer_exporter.attribution.proc import Open
from trainer_exporter.attribution.processes import ANCESTORS, Processes, ProcessFacts
from trainer_exporter.clock import Clock

CHAIN: Final = 3  # processes behind a pipe, one behind the other
MOST_FILES: Final = 16  # of one process behind a pipe: of more nobody can tell which are this trainer's
SLURM_EVERY_S: Final = 30.0
STREAMS: Final = (("1", "standard output"), ("2", "standard error"))

# What they write are their own logs, or those of others too: behind them another way leads to the file.
_OPAQUE: Final = ("slurmstepd", "containerd", "dockerd", "systemd", "rsyslogd", "sshd", "journald")
# Names of programs that may be shown; a process can call itself anything.
_SHOWN: Final = frozenset(
    {"tee", "cat", "script", "srun", "conmon", "supervisord", "svlogd", "multilog", "s6-log", "rotatelogs", "cronolog"}
)
_LAUNCHERS: Final = re.compile(r"(?:.*/)?torchrun|(?:.*/)?torch[./]distributed[./](?:run|launch)(?:\.py)?")
_LOG_DIR: Final = re.compile(r"--log[-_]dir(?:=(?P<value>.+))?", re.DOTALL)
# torch elastic gives each worker <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/error.json, beside its stdout.log and stderr.log.
_ERROR_FILE: Final = re.compile(r"(?P<run>/.+)/attempt_\d+/\d+/error\.json")
_COMMON: Final = re.compile(r"bin|data|dev|etc|home|mnt|opt|proc|root|run|scratch|srv|sys|tmp|usr|var|workspace")
_SLURM: Final = {"srun": "srun of job {job}", "slurm_script": "batch script of job {job}"}


@dataclass(frozen=True, slots=True)
class Log:
    """Where a process's run shows itself."""

    path: str  # a file, a directory, or a glob
    why: str  # of a directory or glob: as it goes on behind the name of a file
    facts: ProcessFacts


class Logs:
    """From what a process shows to its logs. ``host_root`` is where /var of the node lies."""

    def __init__(self, processes: Processes, clock: Clock, *, host_root: str | Path = "/") -> None:
        self._processes = processes
        self._proc = processes.proc
        self._clock = clock
        self._var = Path(host_root) / "var"
        self._places = Places(processes.proc)
        self._pipes = Pipes(processes.proc, clock)
        self._slurm: dict[str, list[tuple[str, int]]] = {}  # job -> (program, PID)
        self._slurm_mono = clock.mono() - SLURM_EVERY_S

    def of(self, facts: ProcessFacts, who: str) -> Iterator[Log]:
        """The logs of a process; ``who`` names it in the reasons."""
        if self._proc.text(facts.pid, "comm").startswith("slurmstepd"):
            return  # in its job's control group and with the job's output open, but nothing of the job stands in its environment
        ends_here = True
        for descriptor, stream in STREAMS:
            traced = list(self._stream(facts, descriptor, f"{stream} of {who}"))
            yield from traced
            ends_here &= bool(traced) or self._proc.link(facts.pid, f"fd/{descriptor}") == "/dev/null"
        if not ends_here:
            yield from list(self._of_job(facts)) or self._of_container(facts)
        yield from self._of_torchrun(facts, who)
        yield from self._in_output_dir(facts, who)

    def _stream(self, facts: ProcessFacts, descriptor: str, what: str) -> Iterator[Log]:
        opened = self._proc.regular(facts.pid, descriptor)
        if opened is not None:
            yield from self._files(facts.pid, [opened], what, facts)
        elif pipe := self._proc.pipe(facts.pid, descriptor):
            yield from self._behind(pipe, what, facts)

    def _behind(self, pipe: str, what: str, facts: ProcessFacts) -> Iterator[Log]:
        writer = facts.pid
        for _ in range(CHAIN):
            reader = self._pipes.reader(pipe, writer=writer) if pipe else None
            if reader is None:
                return
            program = self._proc.text(reader, "comm").strip()
            if program.startswith(_OPAQUE):
                return
            files = written(self._proc, reader)
            if files:
                why = f"{program if program in _SHOWN else 'the process'} behind {what}"
                yield from self._files(reader, files[:MOST_FILES] if len(files) <= MOST_FILES else (), why, facts)
                return
            writer, pipe = reader, self._proc.pipe(reader, "1")

    def _files(self, pid: int, files: Sequence[Open], why: str, facts: ProcessFacts) -> Iterator[Log]:
        for opened in files:
            place = self._places.seen(pid, opened.path, opened.identity)
            if place:
                yield Log(place, why, facts)

    # -- launchers

    def _of_job(self, facts: ProcessFacts) -> Iterator[Log]:
        """What srun or the batch script of its Slurm job writes on this node: the job's StdOut is behind one of them."""
        if not facts.job_id.isdecimal():
            return
        for program, pid in sorted(self._slurm_processes().get(facts.job_id, ()), reverse=True):
            yield from self._files(pid, written(self._proc, pid)[:MOST_FILES], _SLURM[program].format(job=facts.job_id), facts)

    def _slurm_processes(self) -> dict[str, list[tuple[str, int]]]:
        now = self._clock.mono()
        if now - self._slurm_mono >= SLURM_EVERY_S:
            self._slurm_mono, self._slurm = now, {}
            for pid in self._proc.pids():
                program = self._proc.text(pid, "comm").strip()
                described = self._processes.describe(pid) if program in _SLURM else None
                if described is not None and described.job_id:
                    self._slurm.setdefault(described.job_id, []).append((program, pid))
        return self._slurm

    def _of_container(self, facts: ProcessFacts) -> Iterator[Log]:
        """The file that a container's output is kept in: by the kubelet's names, else where docker has it."""
        if not facts.container:
            return
        places = (*self._linked(facts.container), *self._of_pod(facts), self._of_docker(facts.container))
        found = next((place for place in places if place.is_file()), None)
        if found is not None:
            yield Log(str(found), f"log of container {facts.container[:12]}", facts)

    def _linked(self, container: str) -> Iterator[Path]:
        """/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log points to /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log."""
        for link in (self._var / "log/containers").glob(f"*-{container}.log"):
            target = os.readlink(link) if link.is_symlink() else ""  # noqa: PTH115
            yield self._var.parent / target.lstrip("/") if target.startswith("/") else link

    def _of_pod(self, facts: ProcessFacts) -> Sequence[Path]:
        """The newest log of the pod's only container; of several nobody says here which is whose."""
        folders = {path.parent for path in (self._var / "log/pods").glob(f"*_{facts.pod_uid}/*/*.log")} if facts.pod_uid else set()
        if len(folders) != 1:
            return ()
        numbered = [path for path in folders.pop().glob("*.log") if path.stem.isdecimal()]
        return sorted(numbered, key=lambda path: int(path.stem), reverse=True)

    def _of_docker(self, container: str) -> Path:
        return self._var / "lib/docker/containers" / container / f"{container}-json.log"

    def _of_torchrun(self, facts: ProcessFacts, who: str) -> Iterator[Log]:
        """The files that torchrun redirects its workers to."""
        if match := _ERROR_FILE.fullmatch(facts.environment.get("TORCHELASTIC_ERROR_FILE", "")):
            if place := self._places.seen(facts.pid, match["run"]):
                yield Log(place, f"of torchrun's --log-dir, for {who}", facts)
            return
        for pid in (facts.pid, *self._proc.ancestors(facts.pid, ANCESTORS)):
            directory = self._log_dir(pid)
            place = self._places.seen(pid, directory) if directory else ""
            if place:
                run = facts.environment.get("TORCHELASTIC_RUN_ID", "")
                pattern = f"{glob.escape(place)}/{glob.escape(run) if '/' not in run else ''}*/attempt_*/*/std*.log"
                yield Log(pattern, f"of torchrun's --log-dir, for {who}", facts)
                return

    def _log_dir(self, pid: int) -> str:
        words = self._proc.text(pid, "cmdline").split("\0")
        if not any(_LAUNCHERS.fullmatch(word) for word in words[:6]):
            return ""
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if match := _LOG_DIR.fullmatch(word):
                return os.path.normpath(Path(self._proc.link(pid, "cwd"), match["value"] or following))
        return ""

    # -- the trainer's own files

    def _in_output_dir(self, facts: ProcessFacts, who: str) -> Iterator[Log]:
        if place := self.directory(facts, facts.output_dir):
            yield Log(place, f"in the output_dir of {who}", facts)

    def directory(self, facts: ProcessFacts, directory: str) -> str:
        """A directory that a process or its log names, as a path of ours; "" where it cannot be one run's alone, or cannot be reached."""
        path = os.path.normpath(Path(facts.cwd, directory)) if directory else ""
        return "" if not path.startswith("/") or _is_too_wide(path, facts.cwd) else self._places.seen(facts.pid, path)


def _is_too_wide(directory: str, cwd: str) -> bool:
    """Whether a directory holds more than a run: a person's home, what all share, what the code lies in."""
    parts = [part for part in directory.split("/") if part]
    is_home = len(parts) == 2 and parts[0] == "home"
    is_common = len(parts) < 2 and (not parts or bool(_COMMON.fullmatch(parts[0])))
    return is_home or is_common or cwd == directory or cwd.startswith(f"{directory}/")

"""Looks around: which files are there, who writes them, which run they belong to, which GPUs serve it. Part of the composition.

Runs in a thread of its own, because walking a file system and /proc can take long; what it finds is handed over as frozen values. The
border that it keeps: sources know files, attribution knows processes, the store knows what logs say of themselves; here the three meet.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer_exporter.attribution import Attribution, Processes, ProcessFacts, run_name
from trainer_exporter.clock import Clock
from trainer_exporter.config import Config
from trainer_exporter.config_model import ModelConfig
from trainer_exporter.feeds import Assignment
from trainer_exporter.health import Health
from trainer_exporter.model import GpuOwner, GpuSnapshot
from trainer_exporter.names import sanitise
from trainer_exporter.runs.store import Store
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Found, Spec
from trainer_exporter.sources.files import Identity
from trainer_exporter.sources.holders import Held, Holders, Process
from trainer_exporter.sources.mounts import is_shared
from trainer_exporter.sources.naming import Named, run_names, tracker_of

REMEMBERED_S = 3600.0
# Written by opening, appending and closing for each record: that nobody holds it open says nothing about its writer.
REOPENED = ("trainer_log.jsonl", "running_log.txt")


@dataclass(slots=True)
class _Writer:
    """What is known about the processes that write one file."""

    processes: tuple[Process, ...] = ()
    facts: ProcessFacts | None = None


@dataclass(slots=True)
class _View:
    """What one look saw; replaced as a whole, so that readers need no lock."""

    assignments: tuple[Assignment, ...] = ()
    directories: tuple[str, ...] = ()
    saves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    owners: tuple[GpuOwner, ...] = ()


class Scout:
    """Finds files and their runs, again and again."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        gpus: Callable[[], GpuSnapshot],
        clock: Clock,
        health: Health,
        proc_root: str = "/proc",
    ) -> None:
        self.has_looked = False
        self._config = config
        self._store = store
        self._gpus = gpus
        self._clock = clock
        self._health = health
        self._processes = Processes(proc_root)
        self._holders = Holders(clock, proc_root=proc_root)
        self._attribution = Attribution(clock, self._processes, template=config.runs.name or None)
        self._discovery = self._new_discovery()
        self._named: dict[str, Named] = {}
        self._joined: dict[str, Named] = {}  # consoles whose run turned out to be that of a trainer's own files
        self._from_process: dict[str, str] = {}
        self._writers: defaultdict[str, _Writer] = defaultdict(_Writer)
        self._seen_mono: dict[str, float] = {}
        self._known_at_start: frozenset[str] | None = None
        self._view = _View()

    def reconfigure(self, config: Config) -> None:
        """Take over the sources of another configuration at the next look."""
        self._config = config
        self._discovery = self._new_discovery()

    def assignments(self) -> tuple[Assignment, ...]:
        """Files and their runs, as last seen."""
        return self._view.assignments

    def directories(self) -> tuple[str, ...]:
        """Where new files may appear and followed ones grow."""
        return self._view.directories

    def save_directories(self) -> Mapping[str, tuple[str, ...]]:
        """Directories in which runs may save checkpoints, by run."""
        return self._view.saves

    def models(self) -> Mapping[str, ModelConfig]:
        """What the configuration says of the training behind the logs, by run."""
        return self._view.models

    def owners(self) -> tuple[GpuOwner, ...]:
        """The runs that GPUs serve."""
        return self._view.owners

    def look(self, *, now: bool = False) -> None:
        """Look once; ``now``: something has changed, so walk the file system though that was done moments ago."""
        found = self._discovery.scan(now=now, held=lambda identities: self._holders.scan(identities).by.keys())
        found = self._with_logs_of_gpu_processes(found)
        held = self._holders.scan([each.identity for each in found])
        followed = [each for each in found if self._is_ours(each, held)]
        self._forget_the_gone(followed)
        self._note_writers(followed, held)
        self._name(followed)
        assignments = tuple(self._assignment(each) for each in followed)
        self._known_at_start = self._known_at_start or frozenset(each.path for each in followed)
        self._view = _View(
            assignments=assignments,
            directories=tuple(sorted({str(Path(each.path).parent) for each in followed} | set(self._discovery.directories))),
            saves=self._save_directories(assignments),
            models=self._models(followed),
            owners=self._owners(assignments),
        )
        self._report_writers(assignments, held, {each.path: each.identity for each in followed})
        self.has_looked = True

    # -- files

    def _new_discovery(self) -> Discovery:
        limits = DiscoveryLimits(max_age_s=self._config.limits.max_age_s, files=self._config.limits.files)
        specs = [
            Spec(
                source.path,
                source.run,
                source.labels,
                owner_here=source.owner == "here",
                from_command_line=source.explicit,
                format=source.format,
            )
            for source in self._config.sources
        ]
        return Discovery(specs, self._clock, self._health, limits=limits)

    def _with_logs_of_gpu_processes(self, found: Sequence[Found]) -> Sequence[Found]:
        """Where nothing is configured, the logs of what runs on the GPUs are followed."""
        if self._config.sources:
            return found
        logs = {path for facts in self._attribution.processes() for path in facts.log_files}
        return [*found, *(each for path in sorted(logs) if (each := _found(path)) is not None)]

    def _is_ours(self, found: Found, held: Held) -> bool:
        """A file on a shared file system is published by the node on which a process holds it (design, decision 12)."""
        if found.spec.owner_here or found.spec.from_command_line or found.path in self._named or not is_shared(found.path):
            return True
        if found.identity in held.by:
            return True
        directory = os.path.dirname(found.path)  # noqa: PTH120 - text only
        return Path(found.path).name in REOPENED and any(os.path.dirname(path) == directory for path in self._named)  # noqa: PTH120

    def _forget_the_gone(self, followed: Sequence[Found]) -> None:
        """What is known of a path outlives its file for a while: in the middle of a rotation nothing stands there."""
        now = self._clock.mono()
        self._seen_mono.update((each.path, now) for each in followed)
        for path in [path for path, seen in self._seen_mono.items() if now - seen > REMEMBERED_S]:
            for known in (self._seen_mono, self._named, self._joined, self._from_process, self._writers):
                known.pop(path, None)

    # -- processes

    def _note_writers(self, followed: Sequence[Found], held: Held) -> None:
        for each in followed:
            processes = held.by.get(each.identity, ())
            writer = self._writers[each.path]
            if processes:
                writer.facts = self._best(processes) or writer.facts
                writer.processes = processes

    def _best(self, processes: Sequence[Process]) -> ProcessFacts | None:
        """Of several writers (tee, a launcher, its ranks) the one that shows most of its run."""
        described = [facts for process in processes if (facts := self._processes.describe(process.pid)) is not None]
        named = [facts for facts in described if run_name(facts, self._config.runs.name or None)]
        return next(iter(named or described), None)

    def _report_writers(self, assignments: Sequence[Assignment], held: Held, identities: Mapping[str, Identity]) -> None:
        by_run: dict[str, list[str]] = defaultdict(list)
        for assignment in assignments:
            by_run[assignment.run].append(assignment.path)
        for run, paths in by_run.items():
            self._store.note_writer(run, self._is_written(run, paths, held, identities))

    def _is_written(self, run: str, paths: Sequence[str], held: Held, identities: Mapping[str, Identity]) -> bool | None:
        if any(identities[path] in held.by for path in paths):
            return True
        if any(owner.run == run and self._processes.start_ticks(owner.pid) is not None for owner in self._view.owners):
            return True
        if any(self._writers[path].processes for path in paths):
            return False  # they were seen, and none of them holds it any more
        consoles = [path for path in paths if Path(path).name not in REOPENED]
        return False if consoles and held.complete else None

    # -- names

    def _name(self, followed: Sequence[Found]) -> None:
        """Configuration, then process, then place; a name once given stays, unless the file turns out to belong to another run."""
        by_place = [each.path for each in followed if not each.spec.run]
        self._named |= run_names(by_place, self._named)
        for each in followed:
            facts = self._writers[each.path].facts
            if facts is not None and each.path not in self._from_process:
                name = run_name(facts, self._config.runs.name or None)
                if name:
                    self._from_process[each.path] = sanitise(name)
        self._join(followed)

    def _join(self, followed: Sequence[Found]) -> None:
        """A console whose trainer saves into the directory of another run's own files is that run's (design, decision 7)."""
        trackers = {os.path.dirname(each.path): each.path for each in followed if Path(each.path).name in REOPENED}  # noqa: PTH120
        for each in followed:
            if Path(each.path).name in REOPENED or each.path in self._joined or each.spec.run:
                continue
            output_dir = self._store.facts(self._run(each)).get("output_dir", "")
            directory = os.path.dirname(each.path)  # noqa: PTH120
            if not output_dir or directory in trackers:
                continue
            tracker = tracker_of(output_dir, tuple(trackers), console_directory=directory, cwd=self._cwd(each.path))
            if tracker is not None:
                self._joined[each.path] = self._named[trackers[tracker]]

    def _run(self, found: Found) -> str:
        if found.spec.run:
            return sanitise(found.spec.run)
        named = self._joined.get(found.path) or self._named[found.path]
        group = [path for path, other in (self._named | self._joined).items() if other.group == named.group]
        return next((self._from_process[path] for path in sorted(group) if path in self._from_process), named.run)

    def _assignment(self, found: Found) -> Assignment:
        facts = self._writers[found.path].facts
        shown = {} if facts is None else {"job_id": facts.job_id, "user": facts.user, "output_dir": facts.output_dir}
        return Assignment(
            path=found.path,
            run=self._run(found),
            present_at_start=self._known_at_start is None or found.path in self._known_at_start,
            labels=found.spec.labels,
            facts={name: value for name, value in shown.items() if value},
            format=found.spec.format,
        )

    # -- what follows from the names

    def _models(self, followed: Sequence[Found]) -> Mapping[str, ModelConfig]:
        told = {(source.path, source.run): source.model for source in self._config.sources}
        return {self._run(each): model for each in followed if (model := told.get((each.spec.pattern, each.spec.run))) is not None}

    def _save_directories(self, assignments: Sequence[Assignment]) -> Mapping[str, tuple[str, ...]]:
        """The output directory that a run names; else that of its own files; else where its log lies, if no other run's does."""
        runs_in: dict[str, set[str]] = defaultdict(set)
        for assignment in assignments:
            runs_in[str(Path(assignment.path).parent)].add(assignment.run)
        saves: dict[str, set[str]] = defaultdict(set)
        for assignment in assignments:
            directory = str(Path(assignment.path).parent)
            named = self._resolved(self._store.facts(assignment.run).get("output_dir", ""), assignment.path)
            if named:
                saves[assignment.run].add(named)
            elif Path(assignment.path).name in REOPENED or runs_in[directory] == {assignment.run}:
                saves[assignment.run].add(directory)
        return {run: tuple(sorted(places)) for run, places in saves.items()}

    def _resolved(self, output_dir: str, console: str) -> str:
        """An output directory as a path that exists; "" where a relative one leads nowhere."""
        if not output_dir or os.path.isabs(output_dir):  # noqa: PTH117
            return output_dir
        cwd = self._cwd(console)
        bases = [cwd] if cwd else [str(parent) for parent in Path(console).parents]
        places = (os.path.normpath(f"{base}/{output_dir}") for base in bases)
        return next((place for place in places if os.path.isdir(place)), "")  # noqa: PTH112

    def _cwd(self, path: str) -> str:
        facts = self._writers[path].facts
        return facts.cwd if facts is not None else ""

    def _owners(self, assignments: Sequence[Assignment]) -> tuple[GpuOwner, ...]:
        writers = {process.pid: each.run for each in assignments for process in self._writers[each.path].processes}
        return tuple(self._attribution.owners(self._gpus(), self._runs_by_path(assignments), writers=writers))

    def _runs_by_path(self, assignments: Sequence[Assignment]) -> Mapping[str, str]:
        """Logs and output directories of the runs that are known, for the processes on the GPUs."""
        known = {assignment.path: assignment.run for assignment in assignments}
        for assignment in assignments:
            output_dir = self._resolved(self._store.facts(assignment.run).get("output_dir", ""), assignment.path)
            if output_dir:
                known.setdefault(output_dir, assignment.run)
        return known


def _found(path: str) -> Found | None:
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return Found(path, Spec(path, owner_here=True), (seen.st_dev, seen.st_ino))

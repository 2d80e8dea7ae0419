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

from trainer_exporter.attribution import Attribution, Logs, Name, Processes, ProcessFacts, Wanted, Watched, believed, named
from trainer_exporter.clock import Clock
from trainer_exporter.config import Config
from trainer_exporter.config_model import ModelConfig
from trainer_exporter.feeds import Assignment
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuAllocation, GpuOwner, GpuSnapshot
from trainer_exporter.names import sanitise
from trainer_exporter.remembered import Remembered, is_away
from trainer_exporter.runs.store import Store
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Found, Spec
from trainer_exporter.sources.holders import Held, Holders, Process
from trainer_exporter.sources.mounts import is_shared
from trainer_exporter.sources.naming import Named, grouped, is_of_output, is_reopened, run_directory, run_names, tracker_of


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
    allocations: tuple[GpuAllocation, ...] = ()
    pids: Mapping[int, str] = field(default_factory=dict)


def nobody(_: GpuSnapshot) -> Sequence[GpuAllocation]:
    """No scheduler is asked what it has given out."""
    return ()


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
        allocations: Callable[[GpuSnapshot], Sequence[GpuAllocation]] = nobody,
        proc_root: str = "/proc",
        host_root: str = "/",
    ) -> None:
        self.has_looked = False
        self._config = config
        self._store = store
        self._gpus = gpus
        self._given_out = allocations
        self._clock = clock
        self._health = health
        self._started_wall = clock.wall()
        self._processes = Processes(proc_root, pods=Path(host_root, "var/log/pods"))
        logs = Logs(self._processes, clock, host_root=host_root)
        self._watched = Watched(self._processes, logs, clock, health=health, remembered_s=config.limits.max_age_s)
        self._holders = Holders(clock, proc_root=proc_root)
        self._attribution = Attribution(clock, self._processes, template=config.runs.name or None)
        self._discovery = self._new_discovery()
        self._named: dict[str, Named] = {}
        self._joined: dict[str, Named] = {}  # consoles whose run turned out to be that of a trainer's own files
        self._from_process: dict[str, Name] = {}
        self._output_dirs: Mapping[str, str] = {}
        self._writers: defaultdict[str, _Writer] = defaultdict(_Writer)
        self._groups: Mapping[str, Sequence[str]] = {}
        self._remembered = Remembered(clock)
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

    def allocations(self) -> tuple[GpuAllocation, ...]:
        """The GPUs that a scheduler has given out."""
        return self._view.allocations

    def pids(self) -> Mapping[int, str]:
        """The processes of runs on this node, each with its run: those on the GPUs, and those that write the logs."""
        return self._view.pids

    def look(self, *, now: bool = False) -> None:
        """Look once; ``now``: something has changed, so walk the file system though that was done moments ago."""
        self._discovery.also(self._found_out())
        found = self._discovery.scan(now=now, held=lambda identities: self._holders.scan(identities).by.keys())
        held = self._holders.scan([each.identity for each in found])
        followed = [each for each in found if self._is_ours(each, held)]
        self._forget_the_gone(followed)
        self._note_writers(followed, held)
        self._name(followed)
        assignments = tuple(self._assignment(each) for each in followed)
        gpus = self._gpus()
        allocations = self._given_out(gpus)
        writers = self._writing(assignments)
        owners = self._owners(assignments, gpus, allocations, writers=writers)
        self._known_at_start = self._known_at_start or frozenset(each.path for each in followed)
        self._view = _View(
            assignments=assignments,
            directories=tuple(sorted({str(Path(each.path).parent) for each in followed} | set(self._discovery.directories))),
            saves=self._save_directories(assignments),
            models=self._models(followed),
            owners=owners,
            allocations=believed(allocations, owners),
            pids={**{owner.pid: owner.run for owner in owners if owner.pid and owner.run}, **writers},
        )
        self._report_writers(assignments, held, {each.path: each for each in followed})
        for each in followed:
            self._remembered.see(each.path, run=self._run(each), led_by=self._led_by(each))
        self._output_dirs = self._named_output_dirs(followed)
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

    def _found_out(self) -> Sequence[Spec]:
        """The logs of the processes that are named, and of those on the GPUs where nothing is configured or it is asked for."""
        processes = self._config.processes
        discover = not self._config.sources if processes.discover is None else processes.discover
        wanted = Wanted(tuple(processes.pids), tuple(processes.cgroups))
        logs = self._watched.look(self._gpus() if discover else GpuSnapshot(), wanted)
        known = {log.path for log in logs}
        named = [Spec(place, why="in the output_dir that its log names") for place in sorted(self._output_dirs.keys() - known)]
        return [*(Spec(log.path, why=log.why) for log in logs), *named]

    def _named_output_dirs(self, followed: Sequence[Found]) -> Mapping[str, str]:
        """What logs that were found out name as their trainers' directories, and the spec that led to such a log."""
        named = {}
        for each in followed:
            directory = self._store.facts(self._run(each)).get("output_dir", "") if each.spec.why else ""
            if place := self._watched.directory(self._led_by(each), directory):
                named[place] = self._led_by(each)
        return named

    def _led_by(self, found: Found) -> str:
        """What the processes that led to a file are known by."""
        return self._output_dirs.get(found.spec.pattern, found.spec.pattern)

    def _is_ours(self, found: Found, held: Held) -> bool:
        """A file on a shared file system is published by the node on which a process holds it (design, decision 12)."""
        if found.spec.owner_here or found.spec.from_command_line or found.path in self._named or not is_shared(found.path):
            return True
        if found.identity in held.by:
            return True
        if not (is_reopened(found.path) or is_of_output(found.path)):
            return False
        if found.spec.why:
            return self._watched.is_of_first_rank(self._led_by(found))
        directory = run_directory(found.path)
        return any(run_directory(path) == directory for path in self._named)

    def _forget_the_gone(self, followed: Sequence[Found]) -> None:
        """What is known of a path outlives its file for a while; of a run without any nothing will be heard any more."""
        most = self._config.limits.files
        gone = self._remembered.forget({each.path for each in followed}, most=most, is_written_on=self._is_written_on)
        for path, runs in gone.items():
            for known in (self._named, self._joined, self._from_process, self._writers):
                known.pop(path, None)
            for run in runs:
                self._store.note_writer(run, False)

    # -- processes

    def _note_writers(self, followed: Sequence[Found], held: Held) -> None:
        for each in followed:
            processes = held.by.get(each.identity, ())
            writer = self._writers[each.path]
            if processes:
                writer.facts = self._best(processes) or writer.facts
                writer.processes = processes
            if each.spec.why:  # whoever holds it (tee, the container runtime) shows less
                writer.facts = self._watched.facts(self._led_by(each)) or writer.facts

    def _best(self, processes: Sequence[Process]) -> ProcessFacts | None:
        """Of several writers (tee, a launcher, its ranks) the one that shows most of its run."""
        described = [facts for process in processes if (facts := self._processes.describe(process.pid)) is not None]
        telling = [facts for facts in described if named(facts, self._config.runs.name or None)]
        telling.sort(key=lambda facts: not facts.environment)  # slurmstepd shows the number of its job by its control group, and no more
        return next(iter(telling or described), None)

    def _report_writers(self, assignments: Sequence[Assignment], held: Held, followed: Mapping[str, Found]) -> None:
        by_run: dict[str, list[str]] = defaultdict(list)
        for assignment in assignments:
            by_run[assignment.run].append(assignment.path)
        left = self._remembered.by_run(followed.keys())
        for run, paths in by_run.items():
            alive = self._is_written(run, [followed[path] for path in paths], held)
            self._store.note_writer(run, self._left_alive(left.get(run, ())) if alive is None else alive)
        for run, gone in left.items():
            if run in by_run or not all(map(is_away, gone)):
                continue
            if (alive := self._left_alive(gone)) is not None:  # its writers may have ended in the moment in which its logs went
                self._store.note_writer(run, alive)

    def _left_alive(self, paths: Sequence[str]) -> bool | None:
        """What is known of the writers of logs that are not followed any more."""
        return any(map(self._is_written_on, paths)) if any(self._writers[path].processes for path in paths) else None

    def _is_written_on(self, path: str) -> bool:
        """Whether a process that wrote a log still runs, though the log has gone."""
        return self._watched.is_alive(self._remembered.led_by(path)) or any(map(self._holders.alive, self._writers[path].processes))

    def _is_written(self, run: str, files: Sequence[Found], held: Held) -> bool | None:
        if any(each.identity in held.by or self._watched.is_alive(self._led_by(each)) for each in files):
            return True
        if any(owner.run == run and self._processes.start_ticks(owner.pid) is not None for owner in self._view.owners):
            return True
        if any(self._writers[each.path].processes or each.spec.why for each in files):
            return False  # they were seen, and none of them holds it any more
        consoles = [each for each in files if not is_reopened(each.path)]
        return False if consoles and held.complete else None

    # -- names

    def _name(self, followed: Sequence[Found]) -> None:
        """Configuration, then process, then place; a name once given stays, unless the file turns out to belong to another run."""
        by_place = [each.path for each in followed if not each.spec.run]
        self._named |= run_names(by_place, self._named)
        self._groups = grouped(self._named | self._joined)
        for each in followed:
            facts = self._writers[each.path].facts
            if facts is not None and each.path not in self._from_process:
                name = named(facts, self._config.runs.name or None)
                if name is not None:
                    self._from_process[each.path] = name
        self._join(followed)
        self._groups = grouped(self._named | self._joined)

    def _join(self, followed: Sequence[Found]) -> None:
        """A console whose trainer saves into the directory of another run's own files is that run's (design, decision 7)."""
        trackers = {run_directory(each.path): each.path for each in followed if is_of_output(each.path) and not each.spec.run}
        for each in followed:
            if is_of_output(each.path) or each.path in self._joined or each.spec.run:
                continue
            output_dir = self._store.facts(self._run(each)).get("output_dir", "")
            directory = run_directory(each.path)
            if not output_dir or directory in trackers:
                continue
            tracker = tracker_of(output_dir, tuple(trackers), console_directory=directory, cwd=self._cwd(each.path))
            if tracker is not None:
                self._joined[each.path] = self._named[trackers[tracker]]

    def _run(self, found: Found) -> str:
        return self._run_name(found).text

    def _run_name(self, found: Found) -> Name:
        if found.spec.run:
            return Name(sanitise(found.spec.run), "from the configuration")
        joined = self._joined.get(found.path)
        placed = joined or self._named[found.path]
        group = self._groups.get(placed.group, ())
        told = next((self._from_process[path] for path in group if path in self._from_process), None)
        return told or Name(placed.run, "from the output_dir that its log names" if joined else _origin(placed.run, found.path))

    def _assignment(self, found: Found) -> Assignment:
        facts = self._writers[found.path].facts
        shown = {} if facts is None else {"job_id": facts.job_id, "user": facts.user, "output_dir": facts.output_dir}
        name = self._run_name(found)
        return Assignment(
            path=found.path,
            run=name.text,
            run_origin=name.origin,
            why=found.why,
            present_at_start=self._known_at_start is None or found.path in self._known_at_start or self._is_older(found),
            labels=found.spec.labels,
            facts={name: value for name, value in shown.items() if value},
            format=found.spec.format,
        )

    def _is_older(self, found: Found) -> bool:
        """Whether a log that was found late is of a process that is older than we: what stands in it is history."""
        facts = self._watched.facts(self._led_by(found)) if found.spec.why else None
        started = self._holders.started_wall(facts.pid) if facts is not None else None
        return started is not None and started < self._started_wall

    # -- what follows from the names

    def _models(self, followed: Sequence[Found]) -> Mapping[str, ModelConfig]:
        told = {(source.path, source.run): source.model for source in self._config.sources}
        return {self._run(each): model for each in followed if (model := told.get((each.spec.pattern, each.spec.run))) is not None}

    def _save_directories(self, assignments: Sequence[Assignment]) -> Mapping[str, tuple[str, ...]]:
        """The output directory that a run names; else that of its own files; else where its log lies, if no other run's does."""
        runs_in: dict[str, set[str]] = defaultdict(set)
        for assignment in assignments:
            runs_in[run_directory(assignment.path)].add(assignment.run)
        saves: dict[str, set[str]] = defaultdict(set)
        for assignment in assignments:
            directory = run_directory(assignment.path)
            output_dir = self._resolved(self._store.facts(assignment.run).get("output_dir", ""), assignment.path)
            if output_dir:
                saves[assignment.run].add(output_dir)
            elif is_of_output(assignment.path) or runs_in[directory] == {assignment.run}:
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

    def _writing(self, assignments: Sequence[Assignment]) -> Mapping[int, str]:
        runs = {each.path: each.run for each in assignments}
        writers = {pid: runs[path] for pid, path in self._watched.writers() if path in runs}
        return writers | {process.pid: each.run for each in assignments for process in self._writers[each.path].processes}

    def _owners(
        self,
        assignments: Sequence[Assignment],
        gpus: GpuSnapshot,
        allocations: Sequence[GpuAllocation],
        *,
        writers: Mapping[int, str],
    ) -> tuple[GpuOwner, ...]:
        known = self._runs_by_path(assignments)
        return tuple(self._attribution.owners(gpus, known, writers=writers, allocations=allocations))

    def _runs_by_path(self, assignments: Sequence[Assignment]) -> Mapping[str, str]:
        """Logs and output directories of the runs that are known, for the processes on the GPUs."""
        known = {assignment.path: assignment.run for assignment in assignments}
        for assignment in assignments:
            output_dir = self._resolved(self._store.facts(assignment.run).get("output_dir", ""), assignment.path)
            if output_dir:
                known.setdefault(output_dir, assignment.run)
        return known


def _origin(run: str, path: str) -> str:
    """Where a name that was made of a path comes from."""
    return "from its directory" if run.rpartition("/")[2] in Path(path).parent.parts else "from the name of its file"

"""Which processes' logs are wanted, and what was found of them so far.

A log outlives its process here: that nobody writes it any more is what makes a run a crashed one, and somebody has to say so.
"""

from __future__ import annotations

import fnmatch
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.attribution.logs import Log, Logs
from trainer_exporter.attribution.processes import Processes, ProcessFacts
from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuSnapshot

MOST_PROCESSES: Final = 1024
MOST_LOGS: Final = 2048  # remembered; a process could write to another file each second
MOST_WRITERS: Final = 256  # of one log, before those that have ended are forgotten
EVERY_S: Final = 10.0  # all processes of the node are gone through for those below a PID or in a control group


@dataclass(frozen=True, slots=True)
class Wanted:
    """Processes that are named rather than found on a GPU."""

    pids: tuple[int, ...] = ()  # with all that they have started
    cgroups: tuple[str, ...] = ()  # patterns; * stands for any text, / too

    def __bool__(self) -> bool:
        return bool(self.pids or self.cgroups)


@dataclass(slots=True)
class _Kept:
    log: Log
    seen_mono: float
    writers: dict[int, ProcessFacts]  # all processes that led to it, by PID


class Watched:
    """The processes and their logs; one thread at a time, not for the path of a scrape."""

    def __init__(self, processes: Processes, logs: Logs, clock: Clock, *, health: Health, remembered_s: float) -> None:
        self._processes = processes
        self._proc = processes.proc
        self._logs = logs
        self._clock = clock
        self._health = health
        self._remembered_s = remembered_s
        self._facts: dict[int, ProcessFacts] = {}
        self._first: dict[int, int] = {}  # start ticks of the PIDs that were named, when they were first seen
        self._kept: dict[str, _Kept] = {}
        self._named: Mapping[int, str] = {}
        self._named_for = Wanted()
        self._named_mono = clock.mono() - EVERY_S

    def look(self, snapshot: GpuSnapshot, wanted: Wanted) -> Sequence[Log]:
        """The logs of the processes on the cards and of those named, the remembered ones included, by path."""
        now = self._clock.mono()
        who = {**self._named_now(wanted, now), **_on_cards(snapshot)}
        self._facts = {pid: facts for pid in list(who)[:MOST_PROCESSES] if (facts := self._described(pid)) is not None}
        for pid, facts in sorted(self._facts.items()):
            for log in self._logs.of(facts, who[pid]):
                self._keep(log, now)
        self._forget(now)
        return [self._kept[path].log for path in sorted(self._kept)]

    def facts(self, path: str) -> ProcessFacts | None:
        """Of the process that led to a log, by the log's ``path``."""
        kept = self._kept.get(path)
        return kept.log.facts if kept else None

    def directory(self, path: str, directory: str) -> str:
        """A directory that a log names, as a path of ours; "" where it cannot be followed."""
        facts = self.facts(path)
        return self._logs.directory(facts, directory) if facts is not None else ""

    def is_alive(self, path: str) -> bool:
        """Whether a process that led to a log still runs."""
        kept = self._kept.get(path)
        return kept is not None and any(self._is_running(each) for each in kept.writers.values())

    def is_of_first_rank(self, path: str) -> bool:
        """Whether the job's first rank runs here, which alone writes the trainer's own files; so it is where nobody shows a rank."""
        kept = self._kept.get(path)
        ranks = {facts.rank for facts in kept.writers.values() if facts.rank} if kept else set()
        return kept is not None and (not ranks or "0" in ranks)

    def writers(self) -> Iterator[tuple[int, str]]:
        """(PID, path) of each process and each of its logs."""
        for path, kept in sorted(self._kept.items()):
            yield from ((pid, path) for pid in kept.writers if pid in self._facts)

    def _keep(self, log: Log, now: float) -> None:
        """The first process that led to a log stands for it as long as it lives: reasons on a page should not flicker."""
        kept = self._kept.setdefault(log.path, _Kept(log, now, {}))
        kept.seen_mono = now
        if self._facts.get(kept.log.facts.pid) != kept.log.facts:
            kept.log, kept.writers = log, {}
        kept.writers[log.facts.pid] = log.facts

    def _forget(self, now: float) -> None:
        recent = [(path, kept) for path, kept in self._kept.items() if now - kept.seen_mono <= self._remembered_s]
        if (beyond := len(recent) - MOST_LOGS) > 0:
            recent = sorted(recent, key=lambda each: each[1].seen_mono)[beyond:]
            self._health.drop("process_logs", beyond)
        self._kept = dict(recent)
        for kept in self._kept.values():
            if len(kept.writers) > MOST_WRITERS:  # loaders of data come and go by the thousand
                kept.writers = {pid: facts for pid, facts in kept.writers.items() if self._is_running(facts)}

    def _described(self, pid: int) -> ProcessFacts | None:
        known = self._facts.get(pid)
        return known if known is not None and self._is_running(known) else self._processes.describe(pid)

    def _is_running(self, facts: ProcessFacts) -> bool:
        return self._processes.start_ticks(facts.pid) == facts.start_ticks

    # -- those named

    def _named_now(self, wanted: Wanted, now: float) -> Mapping[int, str]:
        if wanted != self._named_for or now - self._named_mono >= EVERY_S:
            self._named_for, self._named_mono = wanted, now
            self._named = {pid: f"PID {pid}" for pid in self._search(wanted)} if wanted else {}
        return self._named

    def _search(self, wanted: Wanted) -> Iterator[int]:
        """Our own process is never one of them: it would read what it says of what it reads."""
        pids = self._proc.pids()
        if wanted.pids:
            yield from self._with_all_below([pid for pid in wanted.pids if self._is_the_same(pid)], pids)
        if wanted.cgroups:
            yield from (pid for pid in pids if pid != os.getpid() and self._is_in(pid, wanted.cgroups))

    def _with_all_below(self, roots: Sequence[int], pids: Sequence[int]) -> Iterator[int]:
        children: dict[int, list[int]] = defaultdict(list)
        for pid in pids:
            seen = self._proc.stat(pid)
            if seen is not None and not seen.is_dead:
                children[seen.parent].append(pid)
        waiting = list(roots)
        while waiting:
            pid = waiting.pop(0)
            if pid != os.getpid():
                yield pid
                waiting.extend(children.get(pid, ()))

    def _is_the_same(self, pid: int) -> bool:
        """Whether a PID that was named is still the process that it was at first."""
        start = self._processes.start_ticks(pid)
        return start is not None and self._first.setdefault(pid, start) == start

    def _is_in(self, pid: int, patterns: Sequence[str]) -> bool:
        groups = [line.split(":", 2)[2] for line in self._proc.text(pid, "cgroup").splitlines() if line.count(":") >= 2]
        return any(fnmatch.fnmatchcase(group, each) for group in groups for pattern in patterns for each in (pattern, f"{pattern}/*"))


def _on_cards(snapshot: GpuSnapshot) -> Mapping[int, str]:
    who: dict[int, str] = {}
    for reading in snapshot.readings:
        for process in reading.processes:
            who.setdefault(process.pid, f"PID {process.pid} on GPU {reading.identity.index}")
    return who

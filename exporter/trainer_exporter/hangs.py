"""Runs that make no step, and the evidence of each. Part of the composition.

Has a thread of its own: a collection takes up to minutes. What is found is frozen, and shown only while the run stands where it stood.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from trainer_exporter.attribution import Places, Processes, dump_patterns
from trainer_exporter.clock import Clock
from trainer_exporter.config_evidence import EvidenceConfig
from trainer_exporter.evidence import FLIGHT_RECORDER, Answer, Collector, Request, Stall, Stalls, Trainer, folder_name, mark_of
from trainer_exporter.health import Health
from trainer_exporter.model import Evidence, Phase, RunSnapshot, Suspect

MOST_PROCESSES: Final = 256
SLACK_S: Final = 5.0  # the clocks of a file server and of a node differ
OVER: Final = frozenset({Phase.ENDED, Phase.FAILED})


@dataclass(frozen=True, slots=True)
class _Kept:
    """The evidence of one stall, and what was read for it."""

    stall: Stall
    evidence: Evidence
    mark: str = ""  # of the dumps


@dataclass(frozen=True, slots=True)
class Sight:
    """What the other parts know of runs."""

    runs: Callable[[], Sequence[RunSnapshot]]
    pids: Callable[[], Mapping[int, str]]


class HangWatch:
    """Collects when it is due."""

    def __init__(
        self,
        config: EvidenceConfig,
        sight: Sight,
        *,
        clock: Clock,
        health: Health,
        collector: Collector | None = None,
        proc_root: str = "/proc",
    ) -> None:
        self._config = config
        self._sight = sight
        self._collector = collector or Collector(health)
        self._processes = Processes(proc_root)
        self._places = Places(self._processes.proc)
        self._stalls = Stalls(clock, least_s=config.after_s, cool_down_s=config.cool_down_s)
        self._kept: Mapping[str, _Kept] = {}  # by run; replaced as a whole

    def look(self) -> None:
        """Collect of each run that has stalled, one after the other, and look for dumps that have come since."""
        runs = self._sight.runs()
        self._kept = {name: kept for name, kept in self._kept.items() if name in {run.run for run in runs}}
        for run in self._stalls.due(runs):
            if (stall := self._stalls.begin(run)) is not None:
                folder = folder_name(run.run, stall.begun_wall)
                place = str(PurePosixPath(self._config.directory, folder))
                self._keep(run.run, _Kept(stall, Evidence(run.run, stall.begun_wall, place)))
                self._collect(run, self._request(run, folder))
        for stall in self._stalls.waiting(runs):
            run = next(run for run in runs if run.run == stall.run)
            request = self._request(run, folder_name(run.run, stall.begun_wall))
            self._collect(run, replace(request, ras=None, stacks=0))

    def evidence(self, runs: Sequence[RunSnapshot]) -> Sequence[Evidence]:
        """Of those runs that have not made a step since."""
        kept = self._kept
        return tuple(
            kept[run.run].evidence
            for run in runs
            if run.run in kept and kept[run.run].stall.mark == mark_of(run) and run.phase is not Phase.ENDED
        )

    def stop(self) -> None:
        """End the collection in progress."""
        self._collector.stop()

    def _collect(self, run: RunSnapshot, request: Request) -> None:
        if not self._collector.collect(request, lambda answer: self._take(run.run, answer)):
            self._stalls.give_up(run.run)

    def _take(self, run: str, answer: Answer) -> None:
        kept = self._kept[run]
        if answer.source == FLIGHT_RECORDER and answer.mark == kept.mark and FLIGHT_RECORDER in kept.evidence.notes:
            return
        others = [suspect for suspect in kept.evidence.suspects if suspect.source != answer.source]
        own = [Suspect(rank, answer.source, reason) for rank, reason in sorted(answer.suspects.items())]
        notes = {**kept.evidence.notes, answer.source: tuple(answer.notes)}
        evidence = replace(kept.evidence, suspects=(*others, *own), notes=notes)
        self._keep(run, replace(kept, evidence=evidence, mark=answer.mark or kept.mark))

    def _keep(self, run: str, kept: _Kept) -> None:
        self._kept = {**self._kept, run: kept}

    def _request(self, run: RunSnapshot, folder: str) -> Request:
        config, kept = self._config, self._kept[run.run]
        pids = self._sight.pids()
        living = {other.run for other in self._sight.runs() if other.phase not in OVER} | set(pids.values())
        alone = living <= {run.run}
        trainers, patterns, size = self._trainers([pid for pid, name in sorted(pids.items()) if name == run.run])
        told = [pattern for pattern in config.flight_recorder if alone or "{run}" in pattern or "{job_id}" in pattern]
        names = {"{run}": run.run, "{job_id}": run.info.get("job_id", "")}
        return Request(
            directory=config.directory,
            folder=folder,
            maximum_bytes=config.maximum_bytes,
            trainers=trainers,
            ras=config.ras,
            stacks=config.processes if config.stacks else 0,
            dumps=(*patterns, *(_filled(pattern, names) for pattern in told)),
            newer_than=(run.progress_wall or 0.0) - SLACK_S,
            known=kept.mark,
            world_size=size or int(run.gauges.get("world_size", 0)),
            is_alone=alone,
        )

    def _trainers(self, pids: Sequence[int]) -> tuple[Sequence[Trainer], Sequence[str], int]:
        """The run's processes, those with a rank first; where their recorders write; how many ranks they say there are."""
        trainers: list[Trainer] = []
        patterns: list[str] = []
        size = 0
        for pid in pids[:MOST_PROCESSES]:
            facts = self._processes.describe(pid)
            if facts is None:
                continue
            rank = int(facts.rank) if facts.rank and len(facts.rank) < 8 else None
            trainers.append(Trainer(pid, rank, self._processes.proc.inner_pid(pid)))
            patterns += dump_patterns(facts, self._places)
            size = max(size, int(facts.world_size[:7] or 0))
        trainers.sort(key=lambda trainer: (trainer.rank is None, trainer.rank, trainer.pid))
        return trainers, tuple(dict.fromkeys(patterns)), size


def _filled(pattern: str, names: Mapping[str, str]) -> str:
    """A name of a run holds no wildcard that counts, and leads nowhere else."""
    for place, name in names.items():
        pattern = pattern.replace(place, glob.escape(name.replace("/", "_")) or "_")
    return pattern

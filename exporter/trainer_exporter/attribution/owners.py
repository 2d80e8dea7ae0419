"""Whose GPU is it now, and whose was it before it could no longer be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from trainer_exporter.attribution.allocations import completed
from trainer_exporter.attribution.naming import run_name
from trainer_exporter.attribution.processes import Processes, ProcessFacts
from trainer_exporter.clock import Clock
from trainer_exporter.model import NO_FACTS
from trainer_exporter.model_gpu import GpuAllocation, GpuOwner, GpuReading, GpuSnapshot

NO_WRITERS: Final[Mapping[int, str]] = MappingProxyType({})
MEMORY_S: Final = 3600.0  # design decision 14
CONTEXT_BYTES: Final = 256 << 20  # a card on which nothing runs has a few MiB in use, and the smallest CUDA context some 300


def attribute(
    snapshot: GpuSnapshot,
    describe: Callable[[int], ProcessFacts | None],
    known_runs: Mapping[str, str] = NO_FACTS,
    *,
    writers: Mapping[int, str] = NO_WRITERS,
    template: str | None = None,
) -> tuple[GpuOwner, ...]:
    """The owners of the cards that answered: one for each card, run and rank.

    ``known_runs`` names the runs that we know already by the absolute path of a log or of an output directory, ``writers`` by the PID
    that holds such a log; both win, so that a configured name and a directory's name reach the GPU side too. A process that names no
    run owns nothing.
    """
    found: dict[tuple[str, str, str], GpuOwner] = {}
    for reading in snapshot.readings:
        for facts in _described(reading, describe):
            run = writers.get(facts.pid) or _known(facts, known_runs) or run_name(facts, template)
            if run:
                found.setdefault((reading.identity.uuid, run, facts.rank), _owner(reading, run, facts))
    return tuple(found.values())


class Attribution:
    """Owners over time: a card that is lost or cannot be read keeps its last ones for an hour (design decision 14).

    Not for the path of a scrape: it reads /proc. One thread at a time.
    """

    def __init__(self, clock: Clock, processes: Processes, *, template: str | None = None) -> None:
        self._clock = clock
        self._processes = processes
        self._template = template
        self._facts: dict[int, ProcessFacts] = {}
        self._last: dict[str, tuple[float, tuple[GpuOwner, ...]]] = {}  # UUID -> when it last answered, its owners then

    def owners(
        self,
        snapshot: GpuSnapshot,
        known_runs: Mapping[str, str] = NO_FACTS,
        *,
        writers: Mapping[int, str] = NO_WRITERS,
        allocations: Sequence[GpuAllocation] = (),
    ) -> Sequence[GpuOwner]:
        """The owners of all cards as of now, those remembered included.

        ``allocations`` say what processes do not show; where processes can be told of but not seen (no hostPID), they stand for them.
        """
        now = self._clock.mono()
        listed = {process.pid for reading in snapshot.readings for process in reading.processes}
        self._facts = {pid: facts for pid, facts in self._facts.items() if pid in listed}
        fresh = attribute(snapshot, self._describe, known_runs, writers=writers, template=self._template)
        for reading in snapshot.readings:
            if not reading.success:
                continue
            uuid = reading.identity.uuid
            granted = [each for each in allocations if each.uuid == uuid]
            seen = tuple(completed(owner, granted) for owner in fresh if owner.uuid == uuid)
            if self._is_evidence(reading):
                self._last[uuid] = (now, seen or self._unseen(reading, granted))
            elif uuid not in self._last or not any(owner.pid for owner in self._last[uuid][1]):
                self._last[uuid] = (now, self._unseen(reading, granted))
        self._last = {uuid: last for uuid, last in self._last.items() if now - last[0] <= MEMORY_S}
        return tuple(owner for _, owners in self._last.values() for owner in owners)

    def _unseen(self, reading: GpuReading, granted: Sequence[GpuAllocation]) -> tuple[GpuOwner, ...]:
        """Whom a card was given to that is in use by processes which nothing shows."""
        if not _is_in_use(reading) or any(process.pid in self._facts for process in reading.processes):
            return ()
        found = {}
        for each in granted:
            told = ProcessFacts(0, 0, job_id=each.job_id, pod=each.pod, namespace=each.namespace)
            owner = GpuOwner(each.uuid, each.gpu, run=run_name(told, self._template), job_id=each.job_id)
            found[owner.run] = replace(owner, pod=each.pod, namespace=each.namespace, container=each.container)
        return tuple(found.values())

    def processes(self) -> Sequence[ProcessFacts]:
        """The processes that the cards listed at the last look."""
        return tuple(self._facts.values())

    def _is_evidence(self, reading: GpuReading) -> bool:
        """Whether a reading says who is on the card now. One whose processes have all died since does not: a trainer often dies with its
        card, seconds before the next look finds that one lost.
        """
        return not reading.processes or any(process.pid in self._facts for process in reading.processes)

    def _describe(self, pid: int) -> ProcessFacts | None:
        """As /proc has it; read anew only for another process, since what we take stands from exec on."""
        known = self._facts.get(pid)
        if known is not None and self._processes.start_ticks(pid) == known.start_ticks:
            return known
        facts = self._processes.describe(pid)
        if facts is None:
            self._facts.pop(pid, None)
        else:
            self._facts[pid] = facts
        return facts


def _is_in_use(reading: GpuReading) -> bool:
    """Whether something runs on a card, as the card itself has it. In a container that does not share the host's PIDs the list of
    processes is empty, or names none that we can find. A driver too old to say what it reserves counts that as used.
    """
    memory = reading.memory
    has_context = memory is not None and memory.reserved_bytes > 0 and memory.used_bytes >= CONTEXT_BYTES
    return bool(reading.processes) or has_context


def _described(reading: GpuReading, describe: Callable[[int], ProcessFacts | None]) -> Iterator[ProcessFacts]:
    for process in reading.processes:
        facts = describe(process.pid)
        if facts is not None:
            yield facts


def _known(facts: ProcessFacts, known_runs: Mapping[str, str]) -> str:
    paths = (*facts.log_files, facts.output_dir)
    return next((known_runs[path] for path in paths if path in known_runs), "")


def _owner(reading: GpuReading, run: str, facts: ProcessFacts) -> GpuOwner:
    shown = {"user": facts.user, "cwd": facts.cwd, "output_dir": facts.output_dir, "log": next(iter(facts.log_files), "")}
    shown["world_size"] = facts.world_size
    return GpuOwner(
        reading.identity.uuid,
        reading.identity.index,
        run=run,
        rank=facts.rank,
        local_rank=facts.local_rank,
        job_id=facts.job_id,
        pod=facts.pod,
        namespace=facts.namespace,
        container=facts.container,
        pid=facts.pid,
        facts={name: value for name, value in shown.items() if value},
    )

"""Which GPU was given to whom, by those who give them out: the kubelet, and the directory that a scheduler's prolog fills.

Looked at in a thread of its own, because a kubelet may be slow. What it said last is kept for an hour while it does not answer: it is an
identity, not a reading, and a kubelet that is down gives nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainer_exporter.attribution.job_mapping import JobMapping
from trainer_exporter.attribution.kubelet import Answer, Kubelet
from trainer_exporter.clock import Clock
from trainer_exporter.model_gpu import GpuAllocation, GpuIdentity, GpuOwner, GpuSnapshot
from trainer_exporter.names import sanitise

KEPT_S: Final = 3600.0  # design decision 14
KUBELET: Final = "kubelet"
JOB_MAPPING: Final = "job_mapping"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look saw; replaced as a whole, so that readers need no lock."""

    answer: Answer | None = None
    answered_mono: float = 0.0
    jobs: Mapping[str, tuple[str, ...]] | None = None


class Allocations:
    """What has been given out, as last seen. ``kubelet`` and ``mapping`` are None where they are not to be asked."""

    def __init__(self, clock: Clock, *, kubelet: Kubelet | None = None, mapping: JobMapping | None = None) -> None:
        self._clock = clock
        self._kubelet = kubelet
        self._mapping = mapping
        self._seen = _Seen()

    @property
    def are_known(self) -> bool:
        """Whether anybody is asked at all."""
        return self._kubelet is not None or self._mapping is not None

    def look(self) -> None:
        """Ask both; waits for the kubelet."""
        answer = self._kubelet.ask() if self._kubelet is not None else None
        seen = self._seen if answer is None else replace(self._seen, answer=answer, answered_mono=self._clock.mono())
        self._seen = replace(seen, jobs=self._mapping.jobs() if self._mapping is not None else None)

    def of(self, snapshot: GpuSnapshot) -> tuple[GpuAllocation, ...]:
        """Those of the cards that are known, each once."""
        cards = [reading.identity for reading in snapshot.readings]
        return tuple(dict.fromkeys((*self._from_kubelet(cards), *self._from_mapping(cards))))

    def allocatable(self, snapshot: GpuSnapshot) -> Mapping[tuple[str, int], bool]:
        """By UUID and index, whether the kubelet would give a card out; none where it does not say. A card that is cut into MIG instances
        is given out by these alone.
        """
        answer = self._answer()
        if answer is None or not answer.allocatable:
            return {}
        cards = [reading.identity for reading in snapshot.readings]
        cut = {card.parent_uuid for card in cards}
        given = {card.uuid for name, card in _by_device(cards).items() if name in answer.allocatable}
        return {(card.uuid, card.index): card.uuid in given for card in cards if card.uuid not in cut}

    def _answer(self) -> Answer | None:
        seen = self._seen
        return seen.answer if self._clock.mono() - seen.answered_mono <= KEPT_S else None

    def _from_kubelet(self, cards: Sequence[GpuIdentity]) -> Iterator[GpuAllocation]:
        answer = self._answer()
        by_device = _by_device(cards)
        for device, pod, namespace, container in answer.granted if answer is not None else ():
            card = by_device.get(device)
            if card is not None:
                names = {"pod": sanitise(pod), "namespace": sanitise(namespace), "container": sanitise(container)}
                yield GpuAllocation(card.uuid, card.index, KUBELET, **names)

    def _from_mapping(self, cards: Sequence[GpuIdentity]) -> Iterator[GpuAllocation]:
        jobs = self._seen.jobs or {}
        for card in cards:
            name = f"{card.index}.{card.gpu_instance}" if card.parent_uuid else str(card.index)
            yield from (GpuAllocation(card.uuid, card.index, JOB_MAPPING, job_id=job) for job in jobs.get(name, ()))


def _by_device(cards: Sequence[GpuIdentity]) -> Mapping[str, GpuIdentity]:
    """Cards and instances by all names that a kubelet may have for them."""
    by_number = {f"nvidia{card.minor}" + (f"/gi{card.gpu_instance}" if card.parent_uuid else ""): card for card in cards if card.minor}
    return by_number | {card.uuid: card for card in cards}


def believed(allocations: Sequence[GpuAllocation], owners: Sequence[GpuOwner]) -> tuple[GpuAllocation, ...]:
    """Those that no process contradicts: a job whose file an epilog left behind is over when another job's process is on its card."""
    seen: dict[str, set[str]] = {}
    for owner in owners:
        if owner.job_id and owner.pid:
            seen.setdefault(owner.uuid, set()).add(owner.job_id)
    return tuple(each for each in allocations if not each.job_id or each.job_id in seen.get(each.uuid, {each.job_id}))


def completed(owner: GpuOwner, granted: Sequence[GpuAllocation]) -> GpuOwner:
    """An owner with what its processes do not show, where the allocations of its card leave no choice; where they disagree, it stays."""
    pods = [each for each in granted if each.pod and owner.pod in {"", each.pod} and owner.namespace in {"", each.namespace}]
    jobs = [each for each in granted if each.job_id]
    if len(pods) == 1 and not owner.job_id:
        owner = replace(owner, pod=pods[0].pod, namespace=pods[0].namespace, container=pods[0].container)
    if len(jobs) == 1 and not owner.job_id:
        owner = replace(owner, job_id=jobs[0].job_id)
    return owner

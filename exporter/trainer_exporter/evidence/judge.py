"""Who holds the others up, from how far each rank has come in each of its groups. Pure.

A rank that a group waits for is often itself a victim: it waits in another group. The one to look at is behind and waits nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """How far one rank has come in one group, in collectives from the group's first."""

    enqueued: int
    completed: int | None = None  # None: not known


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one communicator or process group; ranks are those of the job."""

    name: str
    places: Mapping[int, Place]

    @property
    def front(self) -> int:
        """The last collective that any of its ranks has entered."""
        return max((place.enqueued for place in self.places.values()), default=0)

    @property
    def behind(self) -> frozenset[int]:
        """The ranks that have not entered, or not completed, what others of the group have."""
        done = max((-1 if place.completed is None else place.completed for place in self.places.values()), default=-1)
        return frozenset(rank for rank, place in self.places.items() if place.enqueued < self.front or _is_short_of(place, done))

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that stand in a collective, as far as any has come. Where completion is not known: those that others are behind of."""
        behind = self.behind
        ahead = self.places.keys() - behind
        return frozenset(rank for rank in ahead if _is_inside(self.places[rank], others_are_behind=bool(behind)))


def culprits(groups: Iterable[Group]) -> frozenset[int]:
    """The ranks that hold the others up; none where half of all ranks or more would be, for then nobody differs."""
    lags: Counter[int] = Counter()
    waiting: set[int] = set()
    everybody: set[int] = set()
    for group in groups:
        if len(group.places) > 1:
            everybody |= group.places.keys()
            lags.update(group.behind)
            waiting |= group.waiting
    found = {rank for rank in lags if rank not in waiting}
    if not found and lags:
        most = max(lags.values())
        found = {rank for rank, votes in lags.items() if votes == most}
    return few(found, len(everybody))


def few(found: Iterable[int], of: int) -> frozenset[int]:
    """``found``, unless they are more than half of all: of two ranks, one is the odd one out."""
    ranks = frozenset(found)
    return ranks if 2 * len(ranks) <= of else frozenset()


def _is_short_of(place: Place, done: int) -> bool:
    return place.completed is not None and place.completed < done


def _is_inside(place: Place, *, others_are_behind: bool) -> bool:
    return others_are_behind if place.completed is None else place.completed < place.enqueued

"""The families of what the processes of runs are doing on this node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from trainer_exporter.metrics.family import Family, Sample
from trainer_exporter.model import RunProcesses

PROCESSES: Final = Family(
    "trainer_processes",
    "gauge",
    "Processes of a run on this node by state at the last look (some 6 s): those that write its log or are on its GPUs, and what they have "
    "started. One that stays uninterruptible waits for storage or a driver.",
    ("run", "state"),
)
BLOCKED: Final = Family(
    "trainer_uninterruptible_processes",
    "gauge",
    "Uninterruptible processes of a run on this node by what they wait for, as the function of the kernel tells that they wait in; unknown "
    "where that may not be read.",
    ("run", "wait"),
)
FAMILIES: Final = (PROCESSES, BLOCKED)


def samples(runs: Iterable[RunProcesses]) -> Iterator[Sample]:
    """Every state has its series, a wait only while somebody is in it."""
    for each in runs:
        yield from (Sample(PROCESSES, (each.run, state), number) for state, number in each.states.items())
        yield from (Sample(BLOCKED, (each.run, wait), number) for wait, number in each.waits.items())

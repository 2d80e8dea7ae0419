"""The families of what schedulers have given out, whether or not anything runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from trainer_exporter.metrics.family import Family, Sample
from trainer_exporter.model_gpu import GpuAllocation

ALLOCATION: Final = Family(
    "gpu_allocation_info",
    "gauge",
    "To whom a GPU was given, always 1: by the kubelet (pod-resources), or to a job by the scheduler (job mapping directory). Of what runs "
    "on it this says nothing; gpu_run_info does.",
    ("uuid", "gpu", "source", "job_id", "pod", "namespace", "container"),
)
ALLOCATABLE: Final = Family(
    "gpu_allocatable",
    "gauge",
    "Whether the kubelet counts a GPU among those that it can give to pods; 0 where its device plugin calls the card unhealthy or does "
    "not offer it. Absent where the kubelet does not say.",
    ("uuid", "gpu"),
)
FAMILIES: Final = (ALLOCATION, ALLOCATABLE)


def samples(allocations: Sequence[GpuAllocation], allocatable: Mapping[tuple[str, int], bool]) -> Iterator[Sample]:
    """``allocatable`` is by UUID and index."""
    for each in allocations:
        labels = (each.uuid, str(each.gpu), each.source, each.job_id, each.pod, each.namespace, each.container)
        yield Sample(ALLOCATION, labels, 1)
    for (uuid, gpu), is_allocatable in allocatable.items():
        yield Sample(ALLOCATABLE, (uuid, str(gpu)), int(is_allocatable))

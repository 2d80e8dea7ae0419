"""The family of suspects: which rank holds a run up, as NCCL or PyTorch themselves say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer_exporter.metrics.family import Family, Sample
from trainer_exporter.model import Evidence

SUSPECT = Family(
    "trainer_hang_suspect_info",
    "gauge",
    "A rank that the others of a run without steps wait for: as NCCL's status (source ras) or PyTorch's dumps (flight_recorder) have it. "
    "Always 1; goes away when the run makes a step. Only with evidence.enabled.",
    ("run", "rank", "source"),
)

FAMILIES = (SUSPECT,)


def samples(evidence: Sequence[Evidence]) -> Iterator[Sample]:
    """One for each rank and source."""
    for each in evidence:
        for suspect in each.suspects:
            yield Sample(SUSPECT, (each.run, str(suspect.rank), suspect.source), 1)

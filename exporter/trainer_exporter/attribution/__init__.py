"""Whose GPU is it, and where is its log: from processes to the run, rank, job and pod that they serve, and to the files they write."""

from trainer_exporter.attribution.allocations import Allocations, believed
from trainer_exporter.attribution.job_mapping import JobMapping
from trainer_exporter.attribution.kubelet import SOCKET, Kubelet, MissingGrpcError
from trainer_exporter.attribution.logs import Log, Logs
from trainer_exporter.attribution.naming import Name, named, run_name
from trainer_exporter.attribution.owners import Attribution, attribute
from trainer_exporter.attribution.places import Places
from trainer_exporter.attribution.processes import Processes, ProcessFacts
from trainer_exporter.attribution.recorder import dump_patterns
from trainer_exporter.attribution.states import States
from trainer_exporter.attribution.watched import Wanted, Watched

__all__ = [
    "SOCKET",
    "Allocations",
    "Attribution",
    "JobMapping",
    "Kubelet",
    "Log",
    "Logs",
    "MissingGrpcError",
    "Name",
    "Places",
    "ProcessFacts",
    "Processes",
    "States",
    "Wanted",
    "Watched",
    "attribute",
    "believed",
    "dump_patterns",
    "named",
    "run_name",
]

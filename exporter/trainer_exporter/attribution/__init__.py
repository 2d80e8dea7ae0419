"""Whose GPU is it: from the processes that NVML lists on a card to the run, rank, job and pod that they serve."""

from trainer_exporter.attribution.naming import Name, named, run_name
from trainer_exporter.attribution.owners import Attribution, attribute
from trainer_exporter.attribution.processes import Processes, ProcessFacts

__all__ = ["Attribution", "Name", "ProcessFacts", "Processes", "attribute", "named", "run_name"]

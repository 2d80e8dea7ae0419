"""What a run shows while it hangs: NCCL's own status, the dumps of flight recorders, stacks.

Collected once a stall, kept as files, and read for the ranks that hold the others up. Everything risky happens in a process of its own; the
trainer is read, never touched.
"""

from trainer_exporter.evidence.collector import Collector
from trainer_exporter.evidence.keep import folder_name
from trainer_exporter.evidence.request import FLIGHT_RECORDER, Answer, Request, Trainer
from trainer_exporter.evidence.stalls import Stall, Stalls, mark_of

__all__ = ["FLIGHT_RECORDER", "Answer", "Collector", "Request", "Stall", "Stalls", "Trainer", "folder_name", "mark_of"]

"""The part ``evidence`` of the configuration: what is collected of a run that makes no step, and where it is kept. Off by default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Final

from trainer_exporter.config_section import Section

ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]\s]+)):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class EvidenceConfig:
    """``after_s`` is the least time without a step; where a run is slower, six times the 95th percentile of its pauses counts."""

    enabled: bool = False
    directory: str = "/var/lib/trainer-exporter/evidence"
    maximum_bytes: int = 256 << 20
    after_s: float = 90.0
    cool_down_s: float = 600.0
    ras: tuple[str, int] | None = ("localhost", 28028)  # None: NCCL is not asked
    flight_recorder: Sequence[str] = ()  # patterns of dumps, beside those that the processes' environments name
    stacks: bool = True
    processes: int = 16  # whose stacks are taken, at most


def evidence(section: Section) -> EvidenceConfig:
    """What a section says; ConfigError where it cannot be."""
    defaults = EvidenceConfig()
    found = EvidenceConfig(
        enabled=section.boolean("enabled", default=False),
        directory=section.text("directory") or defaults.directory,
        maximum_bytes=section.size("maximum", defaults.maximum_bytes, minimum=1 << 20),
        after_s=section.duration("after", defaults.after_s, minimum=1.0),
        cool_down_s=section.duration("cool_down", defaults.cool_down_s, minimum=1.0),
        ras=_address(section),
        flight_recorder=section.texts("flight_recorder"),
        stacks=section.boolean("stacks", default=True),
        processes=section.whole("processes", defaults.processes, minimum=1),
    )
    section.finish(field.name.removesuffix("_s").removesuffix("_bytes") for field in fields(EvidenceConfig))
    if not PurePosixPath(found.directory).is_absolute():
        raise section.error("directory", found.directory, "an absolute path")
    for at, pattern in enumerate(found.flight_recorder):
        if not pattern.startswith("/"):
            raise section.error(f"flight_recorder[{at}]", pattern, "a pattern of absolute paths, such as /scratch/{run}/trace_rank_*")
    return found


def _address(section: Section) -> tuple[str, int] | None:
    value = section.raw("ras")
    if value is None:
        return EvidenceConfig().ras
    if value is False:
        return None
    match = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[3]) < 65536:
        raise section.error("ras", value, "host:port, with a port of 1 to 65535, or false")
    return match[1] or match[2], int(match[3])

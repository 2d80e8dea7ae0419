"""What a measurement says, and what a process tree costs. Shared by the parts of the bench."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """One figure of one part; ``goal`` is a comparison in words, "" where there is none, and ``met`` whether it holds."""

    part: str
    case: str
    what: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None


def held(part: str, case: str, what: str, value: float, unit: str, *, least: float | None = None, most: float | None = None) -> Figure:
    """A figure with its goal."""
    if least is not None:
        return Figure(part, case, what, value, unit, f">= {least:g}", value >= least)
    if most is not None:
        return Figure(part, case, what, value, unit, f"< {most:g}", value < most)
    return Figure(part, case, what, value, unit)


def tree(pid: int) -> Iterator[int]:
    """The process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from tree(int(child))


def cpu_s(pid: int) -> float:
    """CPU that the tree has used; of children that ended too, once they are waited for."""
    total = 0
    for each in tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def resident_mb(pid: int) -> tuple[float, float]:
    """RSS of the tree as the kernel counts it for each process, and with shared pages counted once (PSS), in MB."""
    found = {"Rss": 0, "Pss": 0}
    for each in tree(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            name = line.partition(":")[0]
            if name in found:
                found[name] += int(line.split()[1])
    return found["Rss"] / 1000, found["Pss"] / 1000


def quantile(took: list[float], share: float) -> float:
    return sorted(took)[min(len(took) - 1, int(share * len(took)))]

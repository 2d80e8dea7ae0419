"""What the GPUs showed while a log was written, from a file beside it, so that rules about GPUs can be judged too.

The file holds samples as Prometheus writes them with their times: its text format (milliseconds; seconds where the file ends in
``# EOF``, as OpenMetrics), or what ``promtool tsdb dump --match='{__name__=~"gpu_.*|DCGM_FI_.*"}' DATA`` prints:

    gpu_utilization_ratio{uuid="GPU-8a1f",gpu="0"} 1 1712345678000
    {__name__="DCGM_FI_DEV_POWER_USAGE", UUID="GPU-8a1f", gpu="0"} 95.2 1712345678000

Times below 1e8 seconds count from the first line of the log.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from trainer_exporter.backtest.tape import series
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.numbers import number

HELD_S: Final = 60.0  # how long a value holds; who looks less often than that has gaps
RELATIVE_S: Final = 1e8
ZONE_STEP_S: Final = 900.0
ZONE_REACH: Final = range(-14 * 4, 14 * 4 + 1)

_SAMPLE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)?\{(?P<labels>.*)\} (?P<value>\S+) (?P<time>-?[\d.]+(?:e[+-]?\d+)?)$")
_LABEL: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_OURS: Final = re.compile(r"gpu_\w+|DCGM_FI_\w+")
_RUN_INFO: Final = "gpu_run_info"
_FLEET: Final = frozenset({"__name__", "cluster", "job", "run", "job_id"})  # the log's run has none of these: it is joined by its name

_Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """Samples of GPUs by series, in seconds since the start of the log (once placed)."""

    path: str
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], Sequence[tuple[float, float]]]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time."""
        return min(points[0][0] for points in self.samples.values()), max(points[-1][0] for points in self.samples.values())

    def placed(self, start: float, seconds: float, *, zoned: bool) -> GpuSeries:
        """In the time of a log that began at ``start`` (Unix time; a local one unless ``zoned``) and went on for ``seconds``.

        A local time is shifted by the quarter hours that bring the two together best.
        """
        first, last = self.span
        if last < RELATIVE_S:
            return self
        offsets = [0.0] if zoned else sorted((step * ZONE_STEP_S for step in ZONE_REACH), key=abs)
        shared = {offset: min(last, start - offset + seconds) - max(first, start - offset) for offset in offsets}
        offset = max(offsets, key=lambda offset: shared[offset])
        if shared[offset] < 0:
            raise TrainerExporterError(
                f"{self.path}: found times from {_when(first)} to {_when(last)}, "
                f"expected those of the log, {_when(start)} to {_when(start + seconds)}"
            )
        begin = start - offset
        return GpuSeries(self.path, {key: [(at - begin, value) for at, value in points] for key, points in self.samples.items()})

    def at(self, now: float, *, run: str, instance: str = "backtest") -> dict[str, float]:
        """What a scrape at ``now`` finds: the cards are those of ``run``, on ``instance`` where the file names no node."""
        found: dict[str, float] = {}
        for (name, labels), points in self.samples.items():
            place = bisect_right(points, (now, float("inf"))) - 1
            if place >= 0 and now - points[place][0] < HELD_S:
                given = {"instance": instance, **dict(labels), **({"run": run} if name == _RUN_INFO else {})}
                found[series(name, given)] = points[place][1]
        if not any(name == _RUN_INFO for name, _ in self.samples):
            found |= {series(_RUN_INFO, {"instance": instance, **card, "run": run}): 1.0 for card in self._cards()}
        return found

    def _cards(self) -> list[dict[str, str]]:
        """Their labels, each card once."""
        cards: dict[str, dict[str, str]] = {}
        for labels in (dict(labels) for _, labels in self.samples):
            if uuid := labels.get("uuid") or labels.get("UUID", ""):
                cards[uuid] = {"uuid": uuid, **{name: labels[name] for name in ("instance", "gpu") if name in labels}}
        return list(cards.values())


def read_gpus(path: str) -> GpuSeries:
    """The samples of GPUs in a file; one that has none is a TrainerExporterError that says where it stops being readable."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TrainerExporterError(f"{path}: cannot be read as text; --gpu takes samples as Prometheus writes them") from error
    scale = 1.0 if "# EOF" in lines[-2:] else 0.001
    found: dict[tuple[str, tuple[tuple[str, str], ...]], _Points] = {}
    for at, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, labels, value, seconds = _sample(line, f"{path}:{at}", scale)
        if _OURS.fullmatch(name):
            found.setdefault((name, labels), []).append((seconds, value))
    if not found:
        raise TrainerExporterError(f"{path}: no sample of a GPU (gpu_* or DCGM_FI_*) in it")
    return GpuSeries(path, {key: sorted(points) for key, points in found.items()})


def _sample(line: str, where: str, scale: float) -> tuple[str, tuple[tuple[str, str], ...], float, float]:
    match = _SAMPLE.match(line.strip())
    value = number(match["value"]) if match is not None else None
    if match is None or value is None:
        raise TrainerExporterError(f'{where}: found {line[:80]!r}, expected name{{uuid="...",...}} value time')
    labels = {name: str(ast.literal_eval(text)) for name, text in _LABEL.findall(match["labels"])}
    name = match["name"] or labels.get("__name__", "")
    kept = {key: text for key, text in labels.items() if key not in _FLEET}
    return name, tuple(sorted(kept.items())), value, float(match["time"]) * scale


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")

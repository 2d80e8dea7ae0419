"""Series as Prometheus would have scraped them, in the notation of promtool's unit tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from trainer_exporter.names import sendable

INTERVAL_S: Final = 15


class Tape:
    """Series as Prometheus would have scraped them, every ``INTERVAL_S`` from 0 on."""

    def __init__(self) -> None:
        self.scrapes = 0
        self._series: dict[str, list[str]] = {}

    def scrape(self, samples: Mapping[str, float]) -> None:
        """Add one scrape: series -> value. A series that is missing after it was there goes stale, as with Prometheus."""
        for series, value in samples.items():
            values = self._series.setdefault(series, ["_"] * self.scrapes)
            values.append(repr(value))
        self.scrapes += 1
        for values in self._series.values():
            if len(values) < self.scrapes:
                values.append("stale" if values[-1] not in {"_", "stale"} else "_")

    @property
    def metrics(self) -> set[str]:
        """Names of all metrics that were ever scraped."""
        return {series.split("{", 1)[0] for series in self._series}

    def input_series(self) -> list[dict[str, str]]:
        """As promtool's unit tests have it."""
        return [{"series": series, "values": " ".join(_compressed(values))} for series, values in self._series.items()]


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as it is written; an empty label is none."""
    shown = ",".join(f"{label}={json.dumps(sendable(value), ensure_ascii=False)}" for label, value in sorted(labels.items()) if value)
    return f"{name}{{{shown}}}"


def _compressed(values: Sequence[str]) -> Iterator[str]:
    """Equal values in a row as promtool writes them: ``2+0x5`` is the value 2 and five more."""
    start = 0
    while start < len(values):
        end = start + 1
        while end < len(values) and values[end] == values[start]:
            end += 1
        value = values[start]
        if end - start == 1 or value in {"stale", "nan", "inf", "-inf"}:
            yield from [_literal(value)] * (end - start)
        elif value == "_":
            yield f"_x{end - start}"
        else:
            yield f"{value}+0x{end - start - 1}"
        start = end


def _literal(value: str) -> str:
    return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(value, value)

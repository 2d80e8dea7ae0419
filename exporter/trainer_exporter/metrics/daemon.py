"""The families of the daemon itself: what it follows, how far it lags, what went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trainer_exporter.health import HealthSnapshot
from trainer_exporter.metrics.family import Family, Sample

PREFIX = "trainer_exporter_"


def _family(name: str, kind: str, text: str, *labels: str) -> Family:
    return Family(PREFIX + name, "counter" if kind == "counter" else "gauge", text, labels)


BUILD_INFO = _family("build_info", "gauge", "Version of the exporter and of the Python it runs on; always 1.", "version", "python")
LINES = _family("lines_total", "counter", "Lines read, by what became of them.", "result")
READ_BYTES = _family("read_bytes_total", "counter", "Bytes read from followed files.")
READ_LAG = _family("read_lag_bytes", "gauge", "Bytes that followed files hold and that have not been read yet, all files together.")
FILES = _family("files_followed", "gauge", "Files followed now.")
ERRORS = _family(
    "errors_total", "counter", "Errors inside the exporter, by site and reason; both are words fixed in the code.", "site", "reason"
)
DROPPED = _family("dropped_total", "counter", "What a bound made the exporter let go, by reason.", "reason")
COLLECTOR_DURATION = _family("collector_duration_seconds", "gauge", "Time that a collector took in this scrape.", "collector")
COLLECTOR_SUCCESS = _family(
    "collector_success", "gauge", "Whether a collector succeeded in this scrape; without success it has no samples.", "collector"
)
RELOAD_SUCCESS = _family("config_last_reload_successful", "gauge", "Whether the last load of the configuration succeeded.")
RELOAD_TIMESTAMP = _family(
    "config_last_reload_success_timestamp_seconds", "gauge", "When a configuration was last loaded with success, Unix time."
)
SERIES = _family("series", "gauge", "Series on this page, this family excluded.")

FAMILIES = (
    BUILD_INFO,
    LINES,
    READ_BYTES,
    READ_LAG,
    FILES,
    ERRORS,
    DROPPED,
    COLLECTOR_DURATION,
    COLLECTOR_SUCCESS,
    RELOAD_SUCCESS,
    RELOAD_TIMESTAMP,
    SERIES,
)


@dataclass(frozen=True, slots=True)
class DaemonSnapshot:
    """The daemon as it was a moment ago."""

    version: str
    python: str
    lines: Mapping[str, int] = field(default_factory=dict)  # by result
    read_bytes: int = 0
    lag_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class Reload:
    """How the last load of the configuration ended, and when one last succeeded."""

    successful: bool
    wall: float


def samples(daemon: DaemonSnapshot, reload: Reload, health: HealthSnapshot) -> Iterator[Sample]:
    """All samples but those that the page itself adds (collectors, series)."""
    yield Sample(BUILD_INFO, (daemon.version, daemon.python), 1)
    for result, count in daemon.lines.items():
        yield Sample(LINES, (result,), count)
    yield Sample(READ_BYTES, (), daemon.read_bytes)
    yield Sample(READ_LAG, (), daemon.lag_bytes)
    yield Sample(FILES, (), daemon.files)
    for (site, reason), count in health.errors.items():
        yield Sample(ERRORS, (site, reason), count)
    for reason, count in health.dropped.items():
        yield Sample(DROPPED, (reason,), count)
    yield Sample(RELOAD_SUCCESS, (), int(reload.successful))
    yield Sample(RELOAD_TIMESTAMP, (), reload.wall)

"""The daemon's view of its own troubles: counters by site and reason, and the one guard around foreign code.

Everything that goes wrong without stopping the daemon is counted here; nothing is swallowed without a count.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """Counters since the start of the daemon."""

    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by (site, reason)
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason: what a bound made us let go
    latest: Mapping[tuple[str, str], str] = field(default_factory=dict)  # last message, for the status page only


class Health:
    """Counts errors by site and reason; both are words fixed in the code, so they can be labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[str] = Counter()
        self._latest: dict[tuple[str, str], str] = {}

    def count(self, site: str, reason: str, *, detail: str = "") -> bool:
        """Count one error; True when it is the first of its kind (which is when it is worth a log line)."""
        key = (site, reason)
        with self._lock:
            self._errors[key] += 1
            if detail:
                self._latest[key] = detail[:300]
            return self._errors[key] == 1

    def drop(self, reason: str, number: int = 1) -> None:
        """Count what a bound made us let go."""
        with self._lock:
            self._dropped[reason] += number

    def snapshot(self) -> HealthSnapshot:
        """A frozen copy of all counters."""
        with self._lock:
            return HealthSnapshot(dict(self._errors), dict(self._dropped), dict(self._latest))

    @contextmanager
    def guard(self, site: str) -> Iterator[None]:
        """Run code that must not take the daemon down: an exception is counted by its class, its traceback logged once."""
        try:
            yield
        except Exception as error:
            if self.count(site, type(error).__name__, detail=str(error)):
                log.exception("bug in %s; it is counted from now on without a traceback", site)

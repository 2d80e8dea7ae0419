"""The trackers: one module each, with a constant TRACKER. They do not import each other."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import cache

from trainer_exporter.regular import start_of
from trainer_exporter.sources.trackers.base import Batch, Lister, MissingExtraError, Reader, Tracker

__all__ = ["Batch", "Lister", "MissingExtraError", "Reader", "Tracker", "holder_named", "registry", "tracker_for", "tracker_named", "whole"]

_HEAD_BYTES = 4096
_QUIET_LOOKS = 8  # a document that seems half written is looked at several times before its reader calls it broken


@cache
def registry() -> tuple[Tracker, ...]:
    """Every tracker of this package, by name."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        candidate = getattr(importlib.import_module(f"{__name__}.{module.name}"), "TRACKER", None)
        if isinstance(candidate, Tracker):
            found.append(candidate)
    return tuple(sorted(found, key=lambda one: one.name))


def tracker_named(path: str) -> Tracker | None:
    """The tracker that a file at this path belongs to, by the path alone; the first of several that share the name."""
    return next((each for each in registry() if each.paths.search(path)), None)


def holder_named(path: str) -> Tracker | None:
    """The tracker that keeps many runs at this place."""
    return next((each for each in registry() if each.holds is not None and each.holds.search(path)), None)


def tracker_for(path: str) -> Tracker | None:
    """The tracker whose file this is, its content looked at where the path is not enough; None: it is a log, or empty."""
    named = [each for each in registry() if each.paths.search(path)]
    named = named or [each for each in registry() if each.on_request is not None and each.on_request.search(path)]
    if len(named) == 1 and named[0].opens is None:
        return named[0]
    if named:
        return _opened(path, named)
    head = _head(path)
    return next((each for each in registry() if each.lone is not None and each.lone(head)), None)


def whole(tracker: Tracker, path: str) -> Iterator[Batch]:
    """All that a file tells, from beginning to end. Raises OSError, MissingExtraError."""
    reader = tracker.reader(path)
    quiet = 0
    while quiet < _QUIET_LOOKS:
        batch = reader.poll()
        quiet = 0 if batch.more or batch.records else quiet + 1
        yield batch


def _opened(path: str, named: Sequence[Tracker]) -> Tracker | None:
    head = _head(path)
    return next((each for each in named if each.opens is None or each.opens(head)), None)


def _head(path: str) -> bytes:
    """The first bytes of a file; none of what is no file, or cannot be read."""
    try:
        return start_of(path, _HEAD_BYTES)
    except OSError:
        return b""

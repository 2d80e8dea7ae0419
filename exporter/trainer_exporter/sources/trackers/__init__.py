"""The trackers: one module each, with a constant TRACKER. They do not import each other."""

from __future__ import annotations

import importlib
import os
import pkgutil
import stat
from collections.abc import Sequence
from functools import cache

from trainer_exporter.sources.trackers.base import Batch, MissingExtraError, Reader, Tracker

__all__ = ["Batch", "MissingExtraError", "Reader", "Tracker", "registry", "tracker_for", "tracker_named"]

_HEAD_BYTES = 4096


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
    """The tracker that files of this name belong to, wherever they lie; the first of several that share the name."""
    name = path.rpartition("/")[2]
    return next((each for each in registry() if each.names.fullmatch(name)), None)


def tracker_for(path: str, *, on_request: bool) -> Tracker | None:
    """The tracker whose file this is, its content looked at where the name is not enough; None: it is a log.

    ``on_request``: the user named this very file, so that names count which anybody might give to anything.
    """
    name = path.rpartition("/")[2]
    named = [each for each in registry() if each.names.fullmatch(name)]
    if on_request and not named:
        named = [each for each in registry() if each.on_request is not None and each.on_request.fullmatch(name)]
    if len(named) == 1 and named[0].opens is None:
        return named[0]
    if named:
        return _opened(path, named)
    lone = [each for each in registry() if each.lone is not None] if on_request else []
    head = _head(path) if lone else b""
    return next((each for each in lone if each.lone is not None and each.lone(head)), None)


def _opened(path: str, named: Sequence[Tracker]) -> Tracker | None:
    head = _head(path)
    return next((each for each in named if each.opens is None or each.opens(head)), None)


def _head(path: str) -> bytes:
    """The first bytes of a file; none of what is no file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, _HEAD_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)

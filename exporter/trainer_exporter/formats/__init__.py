"""The log formats: one module each, with a constant FORMAT. They do not import each other."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from trainer_exporter.formats.base import Format, Parser, Reading

__all__ = ["Format", "Parser", "Reading", "registry"]


@cache
def registry() -> tuple[Format, ...]:
    """Every format of this package, by name; what is installed later beneath a running daemon is not looked at."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        candidate = getattr(importlib.import_module(f"{__name__}.{module.name}"), "FORMAT", None)
        if isinstance(candidate, Format):
            found.append(candidate)
    return tuple(sorted(found, key=lambda one: one.name))

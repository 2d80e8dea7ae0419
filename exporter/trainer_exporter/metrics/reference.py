"""Every family that the exporter can show, found where it is declared; no list is kept by hand."""

from __future__ import annotations

import importlib
import pkgutil

from trainer_exporter import metrics
from trainer_exporter.metrics.family import Family


def families() -> tuple[Family, ...]:
    """The families of all collectors, by name."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(metrics.__path__, f"{metrics.__name__}."):
        declared: tuple[Family, ...] = getattr(importlib.import_module(module.name), "FAMILIES", ())
        found.update((family.name, family) for family in declared)
    return tuple(found[name] for name in sorted(found))

"""A configuration as it takes effect, defaults included, in the keys and units of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from trainer_exporter.config_section import DURATION_UNITS, SIZE_UNITS

INTERNAL: Final = frozenset({"file", "explicit"})  # where it stood, and what the command line has said
COMPILED: Final = frozenset({"formats"})  # a pattern that has been taken apart is not put together again
ADDRESSES: Final = frozenset({"ras"})


def document(value: Any) -> Any:
    """Mappings, lists and scalars; loading them again gives the same configuration, private formats apart. What is not said is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = (_entry(field.name, getattr(value, field.name)) for field in fields(value) if field.name not in INTERNAL | COMPILED)
        return {key: shown for key, shown in pairs if shown not in (None, "", [], {})}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [document(item) for item in value]
    return value


def _entry(name: str, value: Any) -> tuple[str, Any]:
    if name in ADDRESSES:
        return name, False if value is None else _address(*value)
    if name.endswith("_s"):
        return name.removesuffix("_s"), _in_units(value, DURATION_UNITS)
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), _in_units(value, SIZE_UNITS)
    return name, document(value)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _in_units(value: float, units: Mapping[Any, float]) -> str:
    """In the largest unit of which it is a whole number."""
    unit = max((unit for unit in units if unit and value % units[unit] == 0), key=lambda unit: units[unit], default=None)
    return f"{value / units[unit]:.0f}{unit}" if unit and value else f"{value:f}".rstrip("0").rstrip(".") + ("s" if "s" in units else "B")

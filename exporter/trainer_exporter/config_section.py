"""Typed access to one mapping of the configuration file; what is wrong there is told with its file and the path of its key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from trainer_exporter.errors import ConfigError

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
RESERVED_LABELS = frozenset({"run", "job", "instance", "format", "job_id", "user", "output_dir", "quantile", "le"})
AMOUNT = r"(\d{1,15}(?:\.\d{1,15})?)"  # more digits would be an infinity to float()
DURATION = re.compile(AMOUNT + r"(ms|s|m|h|d)\Z")
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE = re.compile(AMOUNT + r"(KiB|MiB|GiB|B)?\Z")
SIZE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
COUNT = re.compile(AMOUNT + r"(K|M|B|T)\Z")
MOST = 10**27  # of a count
COUNT_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class Section:
    """One mapping of the file: typed access to its keys, and the place of each for messages."""

    def __init__(self, file: str, key: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._key = key
        self._values = values

    def error(self, name: str, found: Any, expected: str) -> ConfigError:
        return ConfigError(self.file, self._path(name), found=shown(found), expected=expected)

    def told(self, name: str, found: str, expected: str) -> ConfigError:
        """An error about more than the value that stands there."""
        return ConfigError(self.file, self._path(name), found=found, expected=expected)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def section(self, name: str) -> Section:
        return self._child(name, self._values.get(name))

    def sections(self, name: str) -> list[Section]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, value, "a list")
        return [self._child(f"{name}[{number}]", item) for number, item in enumerate(value)]

    def text(self, name: str, *, required: bool = False) -> str:
        value = self._values.get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, value, "a text that is not empty")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.error(name, value, "a list of texts")
        for at, item in enumerate(value):
            if item in value[:at] and item != "_":
                raise self.error(f"{name}[{at}]", item, "each text once")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, str]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping of texts to texts")
        for key, text in value.items():
            if not isinstance(key, str) or not key.strip() or not isinstance(text, str):
                raise self.error(f"{name}.{key}", text, "a text on either side of the colon")
        return dict(value)

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            raise self.error(name, value, "one of " + ", ".join(allowed))
        return str(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def whole(self, name: str, default: int, *, minimum: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, value, f"a whole number, {minimum} or more")
        return value

    def count(self, name: str) -> int | None:
        """How many of something, 1 or more; None where it is not said."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str) and (match := COUNT.match(value)) is not None:
            value = round(float(match[1]) * COUNT_UNITS[match[2]])
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise self.error(name, value, "a whole number, 1 or more, or one such as 350M or 8.03B")
        return value

    def wholes(self, name: str, *, minimum: int) -> tuple[int, ...]:
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.error(name, value, "a list of whole numbers")
        for at, item in enumerate(value):
            if isinstance(item, bool) or not isinstance(item, int) or item < minimum:
                raise self.error(f"{name}[{at}]", item, f"a whole number, {minimum} or more")
        return tuple(value)

    def duration(self, name: str, default: float, *, minimum: float) -> float:
        expected = f"a duration such as 30s, 5m or 2h, {minimum:g}s or more"
        return self._quantity(name, default, pattern=DURATION, units=DURATION_UNITS, minimum=minimum, expected=expected)

    def size(self, name: str, default: int, *, minimum: int) -> int:
        expected = f"a size such as 64KiB, 10MiB or 1GiB, {minimum} bytes or more"
        return int(self._quantity(name, default, pattern=SIZE, units=SIZE_UNITS, minimum=minimum, expected=expected))

    def labels(self, name: str) -> Mapping[str, str]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping of label names to texts")
        for label, text in value.items():
            if not isinstance(label, str) or not LABEL_NAME.match(label) or label.startswith("__"):
                raise self.error(f"{name}.{label}", label, "a label name: letters, digits and _, not beginning with a digit or __")
            if label in RESERVED_LABELS:
                raise self.error(f"{name}.{label}", label, "a name that the exporter and Prometheus do not use themselves")
            if not isinstance(text, str):
                raise self.error(f"{name}.{label}", text, 'a text (quote it: "yes" and "1" are read as other types otherwise)')
        return dict(value)

    def finish(self, known: Iterable[str]) -> None:
        """ConfigError for a key that is none of these. To be asked first where a key is required: a mistyped one says more than none."""
        names = sorted(known)
        for name in self._values:
            if name not in names:
                near = get_close_matches(str(name), [other for other in names if other not in self._values], n=1)
                expected = "one of " + ", ".join(names) + "".join(f"; {other} is near" for other in near)
                raise ConfigError(self.file, self._path(str(name)), found="an unknown key", expected=expected)

    def _child(self, name: str, value: Any) -> Section:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping")
        return Section(self.file, self._path(name), value)

    def _path(self, name: str) -> str:
        return f"{self._key}.{name}" if self._key else name

    def _quantity(
        self, name: str, default: float, *, pattern: re.Pattern[str], units: Mapping[Any, float], minimum: float, expected: str
    ) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        match = pattern.match(value) if isinstance(value, str) else None
        amount = float(match[1]) * units[match[2]] if match else None
        if amount is None or amount < minimum:
            raise self.error(name, value, expected)
        return amount


def shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

"""The part ``formats`` of the configuration: private formats, in the user's words, become specifications that can be built as they are.

All that can be wrong with one by itself is said here: names that are no figures, patterns that are broken or could run away, units that
nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from trainer_exporter.config_section import Section
from trainer_exporter.model import FIELDS, FormatSpec, LinePattern, Place
from trainer_exporter.patterns import PatternError, checked

KINDS: Final = ("pattern", "json", "csv", "key_value")
MAX_FORMATS: Final = 32
MAX_PLACES: Final = 64
MIN_CONTAINS_BYTES: Final = 3
IGNORED_COLUMN: Final = "_"

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}\Z")
_KEYS: Final = (
    "name",
    "kind",
    "pattern",
    "fields",
    "keys",
    "metrics",
    "units",
    "eval",
    "contains",
    "columns",
    "separator",
    "starts",
    "closes",
)
_OF_OTHERS: Final = {  # keys that a kind has no use for
    "pattern": ("keys", "columns", "separator"),
    "json": ("pattern", "fields", "columns", "separator"),
    "key_value": ("pattern", "fields", "columns", "separator"),
    "csv": ("pattern", "fields"),
}

_COUNTS: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_DURATIONS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATES: Final = {**_COUNTS, **{f"{count}/s": scale for count, scale in _COUNTS.items()}, "/s": 1.0, "/min": 1 / 60.0, "/h": 1 / 3600.0}
_FLOPS: Final = {f"{prefix}{name}": scale for name in ("FLOPS", "FLOP/s") for prefix, scale in {"G": 1e-3, "T": 1.0, "P": 1e3}.items()}
_SHARES: Final = {"percent": 0.01, "%": 0.01}
_RESULT: Final = "result"


def units(field: str) -> Mapping[str, float]:
    """The units in which a figure may be printed, each with its factor to the figure's own."""
    if field.endswith("_per_second"):
        return _RATES
    if field.endswith("_seconds"):
        return _DURATIONS
    if field.endswith("_ratio"):
        return _SHARES
    if field == "tflops_per_gpu":
        return _FLOPS
    return {**_SHARES, **_COUNTS} if field == _RESULT else _COUNTS


def formats(sections: Sequence[Section]) -> tuple[FormatSpec, ...]:
    """The specifications of all private formats; ConfigError for the first thing that is wrong with them."""
    if len(sections) > MAX_FORMATS:
        raise sections[MAX_FORMATS].error("name", len(sections), f"at most {MAX_FORMATS} formats")
    found: dict[str, FormatSpec] = {}
    for section in sections:
        section.finish(_KEYS)
        name = section.text("name", required=True)
        if not _NAME.match(name):
            raise section.error("name", name, "letters, digits, _ and -, beginning with a letter, 32 at most")
        if name in found:
            raise section.error("name", name, "a name that no format before it has")
        found[name] = _format(section, name)
    return tuple(found.values())


def _format(section: Section, name: str) -> FormatSpec:
    kind = section.choice("kind", KINDS)
    for key in _OF_OTHERS[kind]:
        if section.has(key):
            raise section.error(key, section.raw(key), f"no such key with kind: {kind}")
    starts, closes = _mark(section, "starts"), _mark(section, "closes")
    if kind == "pattern":
        line = _line(section)
        places = _places(section, "fields", of_pattern=tuple(line.pattern.groupindex))
        return FormatSpec(name, kind, places, line=line, starts=starts, closes=closes)
    columns = section.texts("columns")
    places = _places(section, "keys", of_columns=columns)
    return FormatSpec(
        name,
        kind,
        places,
        contains=() if columns else _contains(section, kind, places),
        columns=columns,
        separator=_separator(section),
        starts=starts,
        closes=closes,
    )


# -- patterns


def _line(section: Section) -> LinePattern:
    line = _checked(section, "pattern", section.text("pattern", required=True), _given_contains(section))
    if not line.pattern.groupindex:
        raise section.error("pattern", line.pattern.pattern, r"at least one named group, such as (?P<loss>\S+)")
    return line


def _mark(section: Section, name: str) -> LinePattern | None:
    text = section.text(name)
    return _checked(section, name, text) if text else None


def _checked(section: Section, name: str, text: str, contains: str = "") -> LinePattern:
    try:
        return checked(text, contains)
    except PatternError as error:
        raise section.told(name, error.found, error.expected) from error


# -- which figure stands where


def _places(
    section: Section, names_key: str, *, of_pattern: Collection[str] | None = None, of_columns: Collection[str] = ()
) -> tuple[Place, ...]:
    """Where the figures stand: what is named in the mapping, and the groups and columns whose names are figures themselves."""
    named = section.mapping(names_key)
    results = section.texts("metrics")
    for key, field in named.items():
        _check_field(section, f"{names_key}.{key}", field)
        if of_pattern is not None and key not in of_pattern:
            raise section.told(f"{names_key}.{key}", "no group of this name", "a named group of the pattern: " + ", ".join(of_pattern))
        if of_columns and key not in of_columns:
            raise section.told(f"{names_key}.{key}", "no column of this name", "one of columns: " + ", ".join(of_columns))
    own = of_pattern if of_pattern is not None else [name for name in of_columns if name != IGNORED_COLUMN]
    for key in own:
        if key not in named and key not in results:
            where = "pattern" if of_pattern is not None else "columns"
            _check_field(section, where, key, otherwise=f", or a word for it in {names_key} or metrics")
    fields = {**{key: key for key in own if key not in results}, **named}
    if not 0 < len(fields) + len(results) <= MAX_PLACES:
        raise section.told(
            names_key, f"{len(fields) + len(results)} figures", f"a mapping of 1 to {MAX_PLACES} names as the log has them to figures"
        )
    is_evaluation = section.boolean("eval", default=False)
    scales = _Scales(section, {*fields.values()}, results)
    read = [scales.place(key, field, evaluation=is_evaluation) for key, field in fields.items()]
    return (*read, *(scales.result(key) for key in results))


def _check_field(section: Section, where: str, name: str, otherwise: str = "") -> None:
    if name not in FIELDS:
        raise section.told(where, repr(name), f"one of {', '.join(sorted(FIELDS))}{otherwise}")


class _Scales:
    """The units of one format's figures."""

    def __init__(self, section: Section, fields: Collection[str], results: Collection[str]) -> None:
        self._units = section.mapping("units")
        for name, unit in self._units.items():
            if name not in fields and name not in results:
                raise section.told(
                    f"units.{name}", "a figure that this format does not read", "one of " + ", ".join([*sorted(fields), *results])
                )
            known = units(name if name in fields else _RESULT)
            if unit not in known:
                raise section.error(f"units.{name}", unit, "one of " + ", ".join(known))

    def place(self, key: str, field: str, *, evaluation: bool) -> Place:
        unit = self._units.get(field, "")
        read = "eval_loss" if evaluation and field == "loss" else field
        return Place(key, read, scale=units(field)[unit] if unit else 1.0, unit=_glued(unit))

    def result(self, key: str) -> Place:
        unit = self._units.get(key, "")
        return Place(key, key, is_metric=True, scale=units(_RESULT)[unit] if unit else 1.0, unit=_glued(unit))


def _glued(unit: str) -> str:
    """As it may stand right behind the number."""
    return "%" if unit == "percent" else unit


# -- what is searched for


def _given_contains(section: Section) -> str:
    given = section.text("contains")
    if given and len(given.encode()) < MIN_CONTAINS_BYTES:
        raise section.error("contains", given, f"a text of {MIN_CONTAINS_BYTES} bytes or more that stands in each line of this format")
    return given


def _contains(section: Section, kind: str, places: Sequence[Place]) -> tuple[str, ...]:
    """What a line is known by, where that is not given: the keys of the step, or every key where none is the step's."""
    given = _given_contains(section)
    if given:
        return (given,)
    keys = [place.key for place in places if place.field == "step"] or [place.key for place in places]
    shown = [f'"{key.rpartition(".")[2]}"' if kind == "json" else key for key in keys]
    for key, text in zip(keys, shown, strict=True):
        if len(text.encode()) < MIN_CONTAINS_BYTES or not text.isascii():
            raise section.told(
                f"keys.{key}",
                f"a key that is too short or too special to be searched for ({text})",
                "in contains: a text that stands in each line of this format",
            )
    return tuple(shown)


def _separator(section: Section) -> str:
    text = section.text("separator") or ","
    separator = "\t" if text == "tab" else text
    if len(separator) != 1 or separator.isalnum() or separator in "\"'.+-_":
        raise section.error("separator", text, "one character that is no letter, digit, quote, point or sign, or the word tab")
    return separator

"""Samples as the lines of a page, in text format or OpenMetrics, byte for byte as prometheus_client writes them.

Most of a page is names and labels, which are the same at the next scrape, and most values are too: each line is kept until then, and its
beginning where the value is another. The library makes each line anew, which took three quarters of the time of a page. A batch that
is the same as at the scrape before is not even looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.utils import floatToGoString

from trainer_exporter.metrics.family import Batch, Collected, Family, Sample
from trainer_exporter.names import sendable

_Key = tuple[str, str, Sequence[str], tuple[tuple[str, str], ...]]
_Line = tuple[str, float, str]  # name and labels, the value, and the line of both
_Kept = Mapping[_Key, _Line]
_NONE: _Kept = {}


class _Drawn(NamedTuple):
    """A batch, its lines by family, and what each of them was made of."""

    batch: Batch
    texts: Sequence[tuple[Family, str]]
    kept: _Kept


class Lines:
    """Writes pages. May be used by several threads at once: what is kept is replaced as a whole."""

    def __init__(self) -> None:
        self._kept: _Kept = _NONE
        self._drawn: Mapping[str, _Drawn] = {}

    def page(self, collected: Iterable[Collected], *, openmetrics: bool) -> str:
        """The samples by family, in the order in which families first appear. OpenMetrics' last line is left to the caller."""
        before, kept = self._kept, dict[_Key, _Line]()
        drawn: dict[str, _Drawn] = {}
        families: dict[str, list[str]] = {}
        for item in collected:
            if isinstance(item, Batch):
                drawn[item.name] = one = _drawn(item, self._drawn.get(item.name))
                for family, text in one.texts:
                    _lines_of(family, families, openmetrics=openmetrics).append(text)
            else:
                _lines_of(item.family, families, openmetrics=openmetrics).append(_line(item, before, kept))
        self._kept, self._drawn = kept, drawn
        return "".join(line for lines in families.values() for line in lines)


def _lines_of(family: Family, families: dict[str, list[str]], *, openmetrics: bool) -> list[str]:
    lines = families.get(family.name)
    if lines is None:
        lines = families[family.name] = [_head(family, openmetrics=openmetrics)]
    return lines


def _drawn(batch: Batch, before: _Drawn | None) -> _Drawn:
    """The batch as text: as it was drawn before, or anew with those lines that are as they were."""
    if before is not None and before.batch is batch:
        return before
    old, kept = before.kept if before is not None else _NONE, dict[_Key, _Line]()
    texts: dict[Family, list[str]] = {}
    for sample in batch.samples:
        texts.setdefault(sample.family, []).append(_line(sample, old, kept))
    return _Drawn(batch, [(family, "".join(lines)) for family, lines in texts.items()], kept)


def _line(sample: Sample, before: _Kept, kept: dict[_Key, _Line]) -> str:
    family, labels, value, extra, suffix = sample
    key = (family.name, suffix, tuple(labels), tuple(extra.items()) if extra else ())
    line = before.get(key)
    if line is None or line[1] != value:
        start = _start(sample) if line is None else line[0]
        line = start, value, f"{start} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]
    kept[key] = line
    return line[2]


def _head(family: Family, *, openmetrics: bool) -> str:
    name = family.name.removesuffix("_total") if openmetrics and family.kind == "counter" else family.name
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"


def _start(sample: Sample) -> str:
    """Name and labels. Raises ValueError for a sample that has other labels than its family."""
    labels = dict(zip(sample.family.labels, sample.labels, strict=True))
    labels.update(sample.extra or {})
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return sample.family.name + sample.suffix + (f"{{{shown}}}" if shown else "")


def _escaped(value: str) -> str:
    return sendable(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

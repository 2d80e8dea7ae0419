"""Samples as the lines of a page, in text format or OpenMetrics, byte for byte as prometheus_client writes them.

Most of a page is names and labels, which are the same at the next scrape, and most values are too: each line is kept until then, and its
beginning where the value is another. The library makes each line anew, which took three quarters of the time of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.utils import floatToGoString

from trainer_exporter.metrics.family import Family, Sample

_Key = tuple[str, str, Sequence[str], tuple[tuple[str, str], ...]]

_Kept = tuple[str, float, str]  # name and labels, the value, and the line of both


class Lines:
    """Writes pages. May be used by several threads at once: what is kept is replaced as a whole."""

    def __init__(self) -> None:
        self._kept: Mapping[_Key, _Kept] = {}

    def page(self, samples: Iterable[Sample], *, openmetrics: bool) -> str:
        """The samples by family, in the order in which families first appear. OpenMetrics' last line is left to the caller."""
        before, kept = self._kept, dict[_Key, _Kept]()
        families: dict[str, list[str]] = {}
        for sample in samples:
            family, labels, value, extra, suffix = sample
            lines = families.get(family.name)
            if lines is None:
                lines = families[family.name] = [_head(family, openmetrics=openmetrics)]
            key = (family.name, suffix, tuple(labels), tuple(extra.items()) if extra else ())
            line = before.get(key)
            if line is None or line[1] != value:
                start = _start(sample) if line is None else line[0]
                line = start, value, f"{start} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]
            kept[key] = line
            lines.append(line[2])
        self._kept = kept
        return "".join(line for lines in families.values() for line in lines)


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
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

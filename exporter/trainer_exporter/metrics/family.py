"""What a metric family is before any client library sees it: a name, a kind, a help text, its labels.

Each part declares its families beside the code that fills them, as constants in a tuple ``FAMILIES``; the page turns them into the
exposition format. Names of counters carry their ``_total``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram", "summary"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family as it is promised; ``help`` says what is measured, in which unit, over which window, from what."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a family. ``labels`` are the values in the family's order of names.

    ``extra`` holds labels that vary from sample to sample (static labels of a run), ``suffix`` is "_bucket", "_sum" or "_count" for a
    histogram, and "" otherwise.
    """

    family: Family
    labels: Sequence[str]
    value: float
    extra: Mapping[str, str] | None = None
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that stay as they are for as long as this very object is given: who renders them may keep what it made of them.

    ``name`` stays the same from one batch to the next that takes its place.
    """

    name: str
    samples: tuple[Sample, ...]


Collected = Sample | Batch  # what a collector gives

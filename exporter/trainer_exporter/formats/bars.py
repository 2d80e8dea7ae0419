"""tqdm's progress bars: ``  4%|▎         | 1/28 [00:31<14:22, 31.96s/it]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trainer_exporter.numbers import duration

SIGN: Final = b"%|"
_BAR: Final = re.compile(
    r"^(?:(?P<title>[^|%]*?): *)? *\d{1,3}%\|[^|]*\| *(?P<done>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]+)<(?P<remaining>[\d:]+|\?)(?:, +[^\],]*(?P<unit>it/s|s/it)(?P<postfix>, )?)?"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One redraw of a bar."""

    done: int
    total: int
    elapsed_s: float | None
    remaining_s: float | None
    is_plain: bool  # without title, counting iterations, nothing behind: what the Trainer draws


def bar(text: str) -> Bar | None:
    """The bar that a line begins with, if any."""
    found = _BAR.match(text)
    if found is None:
        return None
    remaining = found["remaining"]
    return Bar(
        int(found["done"]),
        int(found["total"]),
        duration(found["elapsed"]),
        None if remaining == "?" else duration(remaining),
        is_plain=not found["title"] and bool(found["unit"]) and not found["postfix"],
    )

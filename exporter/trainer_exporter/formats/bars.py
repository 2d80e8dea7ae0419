"""tqdm's progress bars: ``  4%|▎         | 1/28 [00:31<14:22, 31.96s/it]``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trainer_exporter.numbers import duration

SIGN: Final = b"%|"
_BAR: Final = re.compile(
    r"^(?:(?P<title>[^|%]*?): *)? *\d{1,3}%\|[^|]*\| *(?P<done>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]+)<(?P<remaining>[\d:]+|\?)(?:, +[^\],]*(?P<unit>it/s|s/it)(?P<postfix>, )?)?"
)


class Bar(NamedTuple):
    """One redraw of a bar. Of most only the place is asked for, so its times are read when they are wanted."""

    done: int
    total: int
    elapsed: str
    remaining: str
    is_plain: bool  # without title, counting iterations, nothing behind: what the Trainer draws

    @property
    def elapsed_s(self) -> float | None:
        """Seconds since the bar was begun."""
        return duration(self.elapsed)

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go, as the bar estimates them; None before its second step."""
        return None if self.remaining == "?" else duration(self.remaining)


def bar(text: str) -> Bar | None:
    """The bar that a line begins with, if any."""
    found = _BAR.match(text)
    if found is None:
        return None
    title, done, total, elapsed, remaining, unit, postfix = found.groups()
    return Bar(int(done), int(total), elapsed, remaining, is_plain=not title and bool(unit) and not postfix)

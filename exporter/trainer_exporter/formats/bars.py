"""tqdm's progress bars: ``  4%|▎         | 1/28 [00:31<14:22, 31.96s/it]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from trainer_exporter.numbers import duration

SIGN: Final = b"%|"
_BAR: Final = re.compile(
    r"^(?:(?P<title>[^|%]*?): *)? *\d{1,3}%\|[^|]*\| *(?P<done>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]+)<(?P<remaining>[\d:]+|\?)(?:, +[^\],]*(?P<unit>it/s|s/it)(?P<postfix>, )?)?"
)

_PLAIN: Final = re.compile(r" *\d{1,3}%\|[^|]*\| *\d{1,15}/(\d{1,15}) \[[\d:]+<(?:[\d:]+|\?), +[^\],]*(?:it/s|s/it)\]$")


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


def news(pieces: Sequence[str]) -> Sequence[str]:
    """What was drawn on one line, without the plain bars that stand between others of the same length.

    Of neighbours of one total the first is kept, which follows what was printed before, and the last two, one of which has a new place.
    """
    totals = [found[1] if (found := _PLAIN.match(piece)) else "" for piece in pieces]
    last = len(pieces) - 2
    return [
        piece
        for at, piece in enumerate(pieces)
        if not (0 < at < last and totals[at] and totals[at - 1] == totals[at] == totals[at + 1] == totals[at + 2])
    ]


def bar(text: str) -> Bar | None:
    """The bar that a line begins with, if any."""
    found = _BAR.match(text)
    if found is None:
        return None
    title, done, total, elapsed, remaining, unit, postfix = found.groups()
    return Bar(int(done), int(total), elapsed, remaining, is_plain=not title and bool(unit) and not postfix)

"""tqdm's progress bars: ``  4%|▎         | 1/28 [00:31<14:22, 31.96s/it]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from trainer_exporter.numbers import duration

SIGN: Final = b"%|"
# The drawing itself, in blocks, #, or what an encoding has made of blocks. Text in it is another process's.
DRAWING: Final = r"\|[^|A-Za-z<>\[\]=,/\r\n]*\|"
COUNT: Final = r"(?:0|[1-9]\d{0,14})"  # padded with blanks; a zero before it is another process's
TIME: Final = r"\d+(?::\d\d){1,2}"
RATE: Final = r"(?:\d+(?:\.\d+)?[kMGT]?|\?)"
_BAR: Final = re.compile(
    rf"^(?:(?P<title>[^|%]*?): *)? *(?P<percent>\d{{1,3}})%{DRAWING} *(?P<done>{COUNT})/(?P<total>\d{{1,15}})"
    rf" \[(?P<elapsed>{TIME})<(?P<remaining>{TIME}|\?)(?:, +{RATE} ?(?:(?P<unit>it/s|s/it)|[A-Za-z]+/s|s/[A-Za-z]+))?"
    r"(?P<postfix>, (?:[^\[\]]|\[[^\[\]]*\])*)?\]"
)

_PLAIN: Final = re.compile(r" *\d{1,3}%\|[^|]*\| *\d{1,15}/(\d{1,15}) \[[\d:]+<(?:[\d:]+|\?), +[^\],]*(?:it/s|s/it)\]$")


_FEWEST: Final = 2  # bars on a line, of which one is overtaken
SAVE: Final = "Writing model shards:"  # version 5 of the Trainer shows a save by a bar of its own, and by nothing else


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


class Overtaken(NamedTuple):
    """A line on which one plain bar was redrawn, again and again, until something else was printed."""

    first: Bar
    last: Bar
    rest: str  # what was printed
    between: Sequence[str]  # the other redraws, which may be torn


def overtaken(text: str, total: int | None) -> Overtaken | None:
    """What is worth reading of a line on which a bar of this total stands in each place but the last; None of any other line.

    What stands between the first and the last bar tells less than they do.
    """
    *bars, rest = text.lstrip("\r").split("\r")
    is_alike = text.count(f"/{total} [") == text.count("%|") == len(bars) and text.count("{'") == 1
    if len(bars) < _FEWEST or not is_alike or "oss=" in text or "Step: " in text or SAVE in text:
        return None
    begin, end, rest = bar(bars[0].rstrip()), bar(bars[-1].rstrip()), rest.rstrip()
    if begin is None or end is None or not (begin.is_plain and end.is_plain and begin.total == end.total == total):
        return None
    return Overtaken(begin, end, rest, bars[1:-1]) if begin.done < end.done and rest.endswith("}") else None


def bar(text: str) -> Bar | None:
    """The bar that a line begins with, if any; None where it is torn, or two have become one."""
    found = _BAR.match(text)
    if found is None:
        return None
    title, percent, done, total, elapsed, remaining, unit, postfix = found.groups()
    if not is_share(int(percent), int(done), int(total)):
        return None
    return Bar(int(done), int(total), elapsed, remaining, is_plain=not title and bool(unit) and not postfix)


def is_share(percent: int, done: int, total: int) -> bool:
    """Whether a bar with this count has this percentage, less than one beside it. Else a digit is another process's."""
    return abs(percent * total - 100 * done) < total

"""Names and order of the files that a rotation leaves beside a log. Knows logrotate's and Python's ways of naming.

Only the full name of the log plus a suffix counts as rotated: train-20250101.log beside train.log may be another run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# train.log.1, train.log.1.gz, train.log-20250101, train.log.2025-01-01_10-00-00, train.log.old
_ROTATED: Final = re.compile(
    r"(?P<log>.+?)[.\-_](?P<suffix>\d[\d.\-_T:]*|old|bak|prev|backup)(?P<packed>\.(?:gz|bz2|xz|zst|lz4|Z|zip))?", re.DOTALL
)


@dataclass(frozen=True, slots=True, order=True)
class Rotated:
    """One rotated file's name, taken apart."""

    name: str
    suffix: str
    packed: bool

    @property
    def number(self) -> int | None:
        return int(self.suffix) if self.suffix.isdigit() and len(self.suffix) < 8 else None

    def may_precede(self, other: Rotated, *, by_time: bool) -> bool:
        """False for a higher number that only looks younger: where numbers shift, 2 is older than 1 whatever a copy's or a
        late write's time says, so a number that may count on must be the younger file of the two.
        """
        if self.number is None or other.number is None or other.number < self.number:
            return True
        return by_time or (self.suffix.startswith("0") and len(self.suffix) > 1)


def rotated_from(name: str) -> str | None:
    """The name of the log that this would be a rotated file of; None where it looks like none."""
    found = _ROTATED.fullmatch(name)
    return found["log"] if found else None


def rotated_of(log: str, names: Sequence[str]) -> list[Rotated]:
    """Those of the names that are rotated files of this log."""
    siblings = []
    for name in names:
        if len(name) > len(log) and name.startswith(log):
            found = _ROTATED.fullmatch("x" + name[len(log) :])
            if found and found["log"] == "x":
                siblings.append(Rotated(name, found["suffix"], bool(found["packed"])))
    return siblings


def newer_than(left: Rotated, others: Sequence[Rotated]) -> list[Rotated]:
    """Those that were rotated away after ``left``, oldest first, as far as names tell.

    Numbers shift (1 is the newest: logrotate, RotatingFileHandler) or count on. The caller passes only files written since
    ``left`` was last looked at, so the side of ``left`` on which there are any tells which of the two it is.
    """
    if left.number is None:
        dated = [each for each in others if each.number is None and each.suffix > left.suffix]
        return sorted(dated, key=lambda each: each.suffix)
    numbered = sorted((each.number, each) for each in others if each.number is not None)
    shifting = [each for number, each in numbered if number < left.number]
    return shifting[::-1] or [each for number, each in numbered if number > left.number]

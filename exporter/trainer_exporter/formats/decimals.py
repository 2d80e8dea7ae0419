"""Whether a number that ends a line is whole: what was torn there looks like a shorter number."""

from __future__ import annotations

import re
from typing import Final

_EXPONENT: Final = re.compile(r"[eE][-+]\d\d+$")
_PRINTED: Final = 8  # more decimals than this are a float as Python prints it


class Decimals:
    """How many decimals a program prints of each kind of value.

    A number that ends in 0 shows that they are fixed, because nothing else prints such a one. Until that is known, ``least`` decimals
    are demanded; of floats as Python prints them, more than half of the most that were seen.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._most: dict[str, int] = {}
        self._fixed: set[str] = set()

    def are_whole(self, kind: str, text: str) -> bool:
        """Whether the text may be a whole number of its kind. NaN and Inf are."""
        if text[-1:].isalpha():
            return True
        if "e" in text.lower():
            return _EXPONENT.search(text) is not None
        decimals = len(text.partition(".")[2])
        most = self._most[kind] = max(decimals, self._most.get(kind, 0))
        if decimals == most >= max(self._least, 2) and text.endswith("0"):
            self._fixed.add(kind)
        if kind in self._fixed:
            return decimals == most
        return decimals >= self._least and (most <= _PRINTED or decimals * 2 > most)

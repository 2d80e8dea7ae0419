"""Whether a line without a line end is whole, or the beginning of a longer one. Pure.

A file that was written with line ends between its lines only lacks the last one; a writer that was killed tears a number, and
``lr: 0.00`` is a value that nobody printed. So a line counts when it is closed, or when it looks like earlier ones to its last digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NUMBER: Final = re.compile(r"[-+]?(?:\.?\d[\d.,:]*(?:[eE][-+]?\d+)?|\b(?:nan|inf(?:inity)?)\b)", re.IGNORECASE)
_BLANK: Final = re.compile(r"\s+")
_CLOSING: Final = {"}": "{", "]": "[", ")": "(", "*": "", "!": ""}  # what a line ends in, and what opened it
_TWINS: Final = 2  # earlier lines that show how many decimals a number has


def is_whole(text: str, earlier: Iterable[str]) -> bool:
    """Whether the text may be trusted to its last character. ``earlier``: lines that were read in this file before."""
    text = text.rstrip()
    if _is_closed(text):
        return True
    shape = _shape(text)
    twins = [other for other in earlier if _shape(other) == shape]
    last = _last_number(text)
    if not last or not twins:  # behind a unit or a bar no digit is missing
        return bool(twins)
    return last[-1].isalpha() or _is_long_enough(last, [_last_number(twin) for twin in twins])


def _is_closed(text: str) -> bool:
    opening = _CLOSING.get(text[-1:])
    return opening == "" or (opening is not None and text.count(opening) <= text.count(text[-1]))


def _shape(text: str) -> str:
    return _BLANK.sub("", _NUMBER.sub("0", text))


def _last_number(text: str) -> str:
    """The number that the text ends in, or nothing."""
    tail = text.rstrip()
    start = max(tail.rfind(blank) for blank in " \t=|") + 1
    found = list(_NUMBER.finditer(tail, start))
    return found[-1][0] if found and found[-1].end() == len(tail) else ""


def _is_long_enough(last: str, others: list[str]) -> bool:
    """Whether a number has the decimals that this place always has; a whole number may lack digits unless it never changes."""
    if "." not in last:
        return last in others
    decimals = len(last) - last.rindex(".")
    return len(others) >= _TWINS and all("." in other and len(other) - other.rindex(".") == decimals for other in others)

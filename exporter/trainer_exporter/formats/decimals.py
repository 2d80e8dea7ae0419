"""Whether a number is one that the program prints: what was torn looks like a shorter one, what was glued from two like a longer one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from trainer_exporter.model import Record

_EXPONENT: Final = re.compile(r"[eE][-+]\d\d+$")
_PRINTED: Final = 8  # more decimals than this are a float as Python prints it
_SHORT: Final = 3  # digits that %.3g leaves, which is how tqdm prints numbers
_LONG: Final = 12  # digits that nearly every float has, as Python prints it
_MOST_DIGITS: Final = 17  # of a float as Python prints it
FAR_LINES: Final = 1000  # between two lines that tell nothing of each other
_ENOUGH: Final = 3  # numbers of a kind that show how it is printed
# What is printed with decimals or an exponent; inside a larger pattern.
FLOAT: Final = r"(?:-?(?:(?:0|[1-9]\d*)\.\d+(?![eE\d])|\d(?:\.\d+)?[eE][-+]\d\d\d?|[iI]nf)|-?[nN]a[nN])"
# Nearly all numbers that programs print, and none that is_printed refuses or number reads otherwise than float: first those of one digit
# before the point, which are the most. Inside a larger pattern, of bytes too.
_POINTED: Final = (
    r"[0-9]\.[0-9]{1,16}|[1-9](?:\.[0-9]{1,16})?e-[0-4][0-9]|[1-9][0-9]{1,2}\.[0-9]{1,14}|[1-9][0-9]{3,5}\.[0-9]{1,11}"
    r"|[1-9][0-9]{6,9}\.[0-9]{1,7}|0\.0?[0-9]{17}"
)
POINTED: Final = rf"-?(?:{_POINTED})"
PRINTED: Final = rf"-?(?:{_POINTED}|0|[1-9][0-9]{{0,15}})"
# Python prints a digit before the point and one behind it, and no zero before another digit.
_PLAIN: Final = re.compile(r"[-+]?(?:0|[1-9]\d*)(?:\.(\d+))?(?:[eE][-+]?\d{1,3})?$")


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


def is_printed(text: str) -> bool:
    """Whether Python, or printf, could have printed this number: NaN and Inf, no zero too many, no more digits than a float has."""
    if text[-1:].isalpha():
        return True
    found = _PLAIN.match(text)
    return found is not None and (_digits(text) <= _MOST_DIGITS or _is_exact(text, len(found[1] or "")))


def _is_exact(text: str, decimals: int) -> bool:
    """Whether printf writes just these digits: of a figure that explodes it writes all, and no two numbers that were glued look so."""
    return decimals <= _MOST_DIGITS and "e" not in text.lower() and f"{float(text):.{decimals}f}" == text.lstrip("+")


def _digits(text: str) -> int:
    """How many digits are significant."""
    mantissa = text.lower().partition("e")[0].lstrip("+-0.")
    return len(mantissa) - mantissa.count(".")


class Manner:
    """How a program prints each kind of value: with so many decimals, or in up to three digits.

    ``fixed``: the program is one that prints each value of a kind with the same number of decimals.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self._is_fixed = fixed
        self._decimals: dict[str, Counter[int]] = {}
        self._short: Counter[str] = Counter()

    def accepts(self, kind: str, text: str) -> bool:
        """Whether the text may be a whole number of its kind; the first few may, whatever they look like."""
        if not is_printed(text):
            return False
        if text[-1:].isalpha():
            return True
        decimals = len(text.lower().partition("e")[0].partition(".")[2])
        is_short = _digits(text) <= _SHORT
        seen = self._decimals.setdefault(kind, Counter())
        told = sum(seen.values())
        usual = max(seen, key=seen.__getitem__, default=0)
        short = self._short[kind]
        seen[decimals] += 1
        self._short[kind] += is_short
        if self._is_fixed:
            return told == 0 or decimals == usual or seen[decimals] > seen[usual]
        if usual > _LONG and _SHORT + 2 < _digits(text) <= _LONG:
            return False
        if told < _ENOUGH or is_short or decimals == usual:
            return True
        return short * 2 <= told and (usual > _PRINTED or decimals < usual)


class Constant:
    """A value that a program does not change, as its number of steps. Another one counts from the second line in a row that says it."""

    def __init__(self) -> None:
        self._value: str | None = None
        self._other: str | None = None

    def is_known(self, value: str) -> bool:
        """Whether the value may be believed."""
        if self._value is None or value in (self._value, self._other):
            self._value, self._other = value, None
            return True
        self._other = value
        return False


class InOrder:
    """The steps of a file that has one line after the other, each of so many steps more, and nothing else that tells a torn number."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._interval = 1.0
        self._doubted: Record | None = None

    def told(self, record: Record) -> list[Record]:
        """What may be said now. A record that nothing but its step contradicts waits for the next line, which shows whether it goes on
        from there.
        """
        step, doubted, self._doubted = record.fields["step"], self._doubted, None
        if doubted is not None and record.line - doubted.line <= FAR_LINES:
            before = doubted.fields["step"]
            if 0 <= step - before <= max(self._interval, _ENOUGH):
                self._last, self._interval = step, max(1, step - before)
                return [doubted, record]
        if self._last is None or 0 <= step - self._last <= self._interval:
            self._last = step
            return [record]
        self._doubted = record
        return []

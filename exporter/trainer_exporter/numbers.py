"""The one reader of numbers, durations and times of day that trainers print.

Trainers print ``nan``, ``1,024``, ``12.3K``, ``'4.829e-05'``, ``np.float64(0.5)``: ``float()`` alone loses just those lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Final

from trainer_exporter.model import Stamp

# A number inside a larger pattern; what it matches, number() reads.
NUMBER: Final = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?![A-Za-z]))"
)
# Before an exponent every program prints one digit and a point, and of what is not 0 no 0: not 1875 and 1e-05, nor 0.0098 and 5e-06. None
# prints less than a float of 32 bits can hold: 5e-7 and 6.
_GLUED: Final = re.compile(r"(?<![\d.])(?:\d\d+(?:\.\d*)?|0\.0*[1-9]\d*)[eE][-+]?\d|\d[eE]-(?:[5-9]\d|\d{3})")
_CALL: Final = re.compile(r"(?:[\w.]+)\(\s*([^(),]+?)\s*(?:,[^()]*)?\)")
_SUFFIXES: Final = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MAX_DIGITS: Final = 18  # Python refuses to read thousands of them, and nothing counts so far
_DAYS: Final = re.compile(r"(\d{1,6}) days?, *")
_SECONDS: Final = {f":{second:02d}": float(second) for second in range(100)}
_MAX_EXACT: Final = 15  # characters of a duration, whose seconds are exact in a float whatever is added first
_MAX_PART: Final = 24  # characters of the hours, minutes or seconds of a duration


def number(text: str) -> float | None:
    """The value of a printed number, NaN and Inf included; None when the text is none, or two numbers that were glued."""
    try:
        if "_" in text or (("e" in text or "E" in text) and _GLUED.search(text) is not None):
            return None
        return float(text)
    except ValueError:
        return _decorated(text)


def numbers(texts: Sequence[str]) -> list[float | None]:
    """As ``number`` for each of them."""
    if not texts or texts.count(texts[0]) == len(texts):
        return [number(text) for text in texts[:1]] * len(texts)
    joined = "".join(texts)
    if not ("_" in joined or "e" in joined or "E" in joined):
        try:
            return list(map(float, texts))
        except ValueError:
            pass
    return [number(text) for text in texts]


def integer(text: str) -> int | None:
    """A whole number, thousands separators allowed; None for anything else."""
    bare = text.strip().replace(",", "")
    return int(bare) if bare.isdecimal() and len(bare) <= _MAX_DIGITS else None


def duration(text: str) -> float | None:
    """Seconds of ``[N days, ][H:]MM:SS[.ff]``; None when the text is no duration."""
    parts = text.split(":")
    if len(parts) == 3 and len(text) <= _MAX_DIGITS:  # nearly all are of this kind
        hours, minutes, whole = parts
        if hours.isdecimal() and minutes.isdecimal() and whole.isdecimal():
            return float(int(hours) * 3600 + int(minutes) * 60 + int(whole))
    return _odd_duration(text)


def durations(texts: Sequence[str]) -> list[float | None]:
    """As ``duration`` for each of them; neighbours mostly share their minute."""
    if not texts or texts.count(texts[0]) == len(texts):
        return [duration(text) for text in texts[:1]] * len(texts)
    if max(map(len, texts)) > _MAX_EXACT:
        return [duration(text) for text in texts]
    minutes = [text[:-3] for text in texts]
    begins = {minute: duration(f"{minute}:00") for minute in {*minutes}}
    try:
        return [begins[minute] + _SECONDS[text[-3:]] for minute, text in zip(minutes, texts, strict=True)]  # type: ignore[operator]
    except (KeyError, TypeError):
        return [duration(text) for text in texts]


def _odd_duration(text: str) -> float | None:
    total = 0.0
    if "d" in text and (days := _DAYS.match(text)) is not None:
        total, text = 86400.0 * int(days[1]), text[days.end() :]
    parts = text.split(":")
    if not 2 <= len(parts) <= 3:
        return None
    seconds = 0.0
    for part in parts:
        if not (part.isdecimal() or part.replace(".", "", 1).isdecimal()) or len(part) > _MAX_PART:
            return None
        seconds = seconds * 60 + float(part)
    return total + seconds


def moment(time: str, zone: str = "") -> Stamp | None:
    """The moment of ``YYYY-MM-DD HH:MM:SS[.,]fff`` with an optional ``Z`` or ``+HH:MM``; None for an impossible date."""
    midnight = _midnight(time[:10])
    if midnight is None:
        return None
    fraction = float("0." + time[20:]) if len(time) > 20 else 0.0
    seconds = midnight + int(time[11:13]) * 3600 + int(time[14:16]) * 60 + int(time[17:19]) + fraction
    zone = zone.strip()
    if not zone:
        return Stamp(seconds, zoned=False)
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return Stamp(seconds, zoned=True)


@lru_cache(maxsize=64)
def _midnight(day: str) -> float | None:
    try:
        return datetime(int(day[:4]), int(day[5:7]), int(day[8:10]), tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _decorated(text: str) -> float | None:
    bare = text.strip().strip("'\"")
    call = _CALL.fullmatch(bare)
    if call:
        bare = call[1]
    scale = _SUFFIXES.get(bare[-1:], 1.0)
    if scale != 1.0:
        bare = bare[:-1]
    try:
        return float(bare.replace(",", "")) * scale if "_" not in bare else None
    except ValueError:
        return None

"""Which lines of a block deserve a look. Byte searches over the whole block, so that noise costs next to nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_RARE: Final = frozenset(b"%*#|{[(<>@^~$")  # a hint that begins so is looked for only where its first byte occurs


def end_of_line(data: bytes, position: int) -> int:
    """Where the line that holds ``position`` ends: at its newline, or at the end of the block."""
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end


def line_starts(data: bytes, position: int, words: Iterable[bytes]) -> set[int]:
    """Where the lines begin that hold one of the words, from ``position`` (the beginning of a line) on."""
    starts: set[int] = set()
    for word in words:
        if word[0] in _RARE and data.find(word[:1], position) < 0:
            continue
        at = data.find(word, position)
        while at >= 0:
            starts.add(data.rfind(b"\n", position, at) + 1 or position)
            end = data.find(b"\n", at)
            at = data.find(word, end) if end >= 0 else -1
    return starts

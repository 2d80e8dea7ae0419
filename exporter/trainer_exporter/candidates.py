"""Which lines of a block deserve a look. Byte searches over the whole block, so that noise costs next to nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

# Bytes of logs from rare to common, roughly. A word is looked for only where its rarest byte occurs at all, which costs next to nothing.
_FROM_RARE: Final = b"~`^@$<>!?;&*+#%{}|QXZJKYVWUHGBFMPNLDORCASTEIqzjxkvywbgpfhmucldsinroat[]()_/'\"=:,-. e0123456789"


@lru_cache(maxsize=256)
def _rarest(word: bytes) -> bytes:
    return min((word[at : at + 1] for at in range(len(word))), key=_FROM_RARE.find)


def end_of_line(data: bytes, position: int) -> int:
    """Where the line that holds ``position`` ends: at its newline, or at the end of the block."""
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end


def line_starts(data: bytes, position: int, words: Iterable[bytes]) -> set[int]:
    """Where the lines begin that hold one of the words, from ``position`` (the beginning of a line) on."""
    starts: set[int] = set()
    for word in words:
        rare = data.find(_rarest(word), position)
        if rare < 0:
            continue
        at = data.find(word, max(position, rare - len(word)))
        while at >= 0:
            starts.add(data.rfind(b"\n", position, at) + 1 or position)
            end = data.find(b"\n", at)
            at = data.find(word, end) if end >= 0 else -1
    return starts

"""Which lines of a block deserve a look. Byte searches over the whole block, so that noise costs next to nothing. Pure."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

# A word that stood here often stands again nearby, where Python's own search is the cheaper one.
_NEARBY_BYTES: Final = 2048
_MARKS: Final = (b"\x1b", b"\0", b"\b", b"]:")  # of colours, of what was typed over, and of another rank's prefix
_FEWEST: Final = 16  # lines that are worth being looked at as a block

Search = Callable[[bytes, int], int]


class PlainLines(NamedTuple):
    """Lines of a block without colours and without another rank's prefix, none of them over long."""

    texts: list[str]
    starts: list[int]  # in the block, by byte
    sizes: list[int]  # bytes, without their ends
    troubled: list[int]  # where lines begin that tell of trouble

    def until_trouble(self, begin: int, end: int) -> int:
        """The first line from ``begin`` to ``end`` that tells of trouble; else ``end``, or the end of the block."""
        end = min(end, len(self.texts))
        at = bisect_left(self.troubled, self.starts[begin])
        return bisect_left(self.starts, self.troubled[at], begin, end) if at < len(self.troubled) else end


def plain_lines(data: bytes, position: int, *, most: int, trouble: Iterable[bytes]) -> PlainLines | None:
    """The lines from ``position`` on; None where not all of them are plain, and shorter than ``most`` bytes.

    ``trouble``: words of which at least one stands in each line that tells of it.
    """
    if data.count(b"\n", position) < _FEWEST or any(data.find(mark, position) >= 0 for mark in _MARKS):
        return None
    lines = data[position:].split(b"\n")
    if not lines[-1]:
        lines.pop()
    sizes = [len(line) for line in lines]
    if max(sizes) >= most:
        return None
    starts = list(accumulate((size + 1 for size in sizes[:-1]), initial=position))
    texts = data[position:].decode("utf-8", "replace").split("\n")[: len(lines)]
    return PlainLines(texts, starts, sizes, sorted(line_starts(data, position, trouble)))


def end_of_line(data: bytes, position: int) -> int:
    """Where the line that holds ``position`` ends: at its newline, or at the end of the block."""
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end


def line_starts(data: bytes, position: int, words: Iterable[bytes]) -> set[int]:
    """Where the lines begin that hold one of the words, from ``position`` (the beginning of a line) on."""
    starts: set[int] = set()
    search = _search(data)
    for word in words:
        at = search(word, position)
        while at >= 0:
            starts.add(data.rfind(b"\n", position, at) + 1 or position)
            end = data.find(b"\n", at)
            if end < 0:
                break
            at = data.find(word, end, end + _NEARBY_BYTES)
            if at < 0:
                at = search(word, end)
    return starts


def _search(data: bytes) -> Search:
    """``data.find``, by the C library's strstr where it can: that compares 16 to 64 bytes at once (glibc on x86-64 and arm64), and took a
    fourteenth of the time for the words that are looked for here (CPython 3.11, glibc 2.36, AVX-512).

    A NUL ends its text; a log with a NUL in it is searched by Python. The NUL behind the last byte is CPython's own.
    """
    if _strstr is None or b"\0" in data:
        return data.find
    strstr, begin = _strstr, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def find(word: bytes, position: int) -> int:
        if b"\0" in word:  # which is not in this text
            return -1
        at = strstr(begin + position, word)
        return at - begin if at else -1

    return find


def _c_strstr() -> Callable[[int, bytes], int | None] | None:
    try:
        strstr = ctypes.PyDLL(None).strstr
    except (OSError, AttributeError):
        return None
    strstr.restype, strstr.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    return strstr


_strstr: Final = _c_strstr()

"""Which lines of a block deserve a look. Byte searches over the whole block, so that noise costs next to nothing. Pure."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple

# Why a line is looked at.
METRIC: Final = 1  # a hint of a format stands in it
TROUBLE: Final = 2  # a word of an incident stands in it

_DENSE_BYTES: Final = 2048  # between two lines with a hint in them
# A word that stood here may stand again nearby, line after line: there Python's own search is the cheaper one.
_NEARBY_BYTES: Final = 1024
_MARKS: Final = (b"\x1b", b"\0", b"\b", b"]:")  # of colours, of what was typed over, and of another rank's prefix
_FEWEST: Final = 16  # lines that are worth being looked at as a block

Search = Callable[[int], int]  # from a place in a block on: the next place of a word, -1 where there is none


Known = Mapping[int, re.Match[bytes]]  # lines with their ends, by their starts, in order
NOTHING_KNOWN: Final[Known] = MappingProxyType({})


class Interesting:
    """The lines of a block that deserve a look, from ``position`` on, in order: start, end and kinds of each.

    ``words``: of which one stands in each line that tells of trouble. ``wants_all``: whether each line is wanted just now. ``known``: lines
    that are known to hold a hint and no word, by their starts.
    """

    def __init__(
        self,
        data: bytes,
        position: int,
        hints: Sequence[bytes],
        *,
        words: Sequence[bytes],
        wants_all: Callable[[], bool],
        known: Known = NOTHING_KNOWN,
    ) -> None:
        self.data = data
        self.known = known
        self._position = position
        self._wants_all = wants_all
        self._beside: Sequence[bytes] = ()  # words that a hint has found, and that need no search
        if known:
            rest = _Rest(data, position, known)
            self._metric, self._trouble = known.keys() | rest.line_starts(hints), rest.line_starts(words)
        else:
            self._search(data, position, hints, words)
        self._starts = sorted(self._metric | self._trouble)
        self._troubled = sorted(self._trouble)
        self._at = 0  # of the starts, the next

    def _search(self, data: bytes, position: int, hints: Sequence[bytes], words: Sequence[bytes]) -> None:
        self._metric = line_starts(data, position, hints)
        self._beside = [word for word in words if any(hint in word for hint in hints)]
        if len(self._metric) * _DENSE_BYTES > len(data) - position:  # a search through the block is cheaper than one in each of its lines
            self._beside = ()
        self._trouble = line_starts(data, position, [word for word in words if word not in self._beside])

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return self

    def __next__(self) -> tuple[int, int, int]:
        data, at = self.data, self._at
        start = self._starts[at] if at < len(self._starts) else len(data)
        if self._position < start and self._wants_all():
            start, kinds = self._position, METRIC
        elif at == len(self._starts):
            raise StopIteration
        else:
            self._at += 1
            kinds = METRIC if start in self._metric or self._wants_all() else 0
        end = self._position = end_of_line(data, start)
        self._position += 1
        if start in self._trouble or (self._beside and any(data.find(word, start, end) >= 0 for word in self._beside)):
            kinds |= TROUBLE
        return start, end, kinds

    def calm(self, most: int) -> Sequence[int]:
        """Where the next lines begin, up to ``most`` and up to the first that tells of trouble; none while all lines are wanted."""
        at, end = self._at, min(self._at + most, len(self._starts))
        if at == end or self._wants_all():
            return ()
        if self._beside:
            self._trouble |= line_starts(self.data, self._position, self._beside)
            self._beside, self._troubled = (), sorted(self._trouble)
        trouble = bisect_left(self._troubled, self._starts[at])
        if trouble < len(self._troubled):
            end = bisect_left(self._starts, self._troubled[trouble], at, end)
        return self._starts[at:end]

    def skip(self, count: int) -> None:
        """So many of the lines have been read."""
        self._at += count
        self._position = end_of_line(self.data, self._starts[self._at - 1]) + 1


class _Rest:
    """A block without the lines that are known already."""

    def __init__(self, data: bytes, position: int, known: Known) -> None:
        begins = [position, *(one.end() for one in known.values())]
        gaps = [(begin, end) for begin, end in zip(begins, [*known, len(data)], strict=True) if begin < end]
        self._begins = [begin for begin, _ in gaps]
        self._places = [*accumulate((end - begin for begin, end in gaps[:-1]), initial=0)]
        self._data = b"".join([data[begin:end] for begin, end in gaps])

    def line_starts(self, words: Iterable[bytes]) -> set[int]:
        """Where lines begin in the block."""
        return {self._place(start) for start in line_starts(self._data, 0, words)}

    def _place(self, at: int) -> int:
        gap = bisect_right(self._places, at) - 1
        return self._begins[gap] + at - self._places[gap]


class PlainLines(NamedTuple):
    """Lines of a block without colours and without another rank's prefix, none of them over long. Places are bytes of the block."""

    data: bytes
    end: int  # of the last line that has its end
    troubled: list[int]  # where lines begin that tell of trouble

    def reach(self, begin: int, size: int) -> int:
        """Where the whole lines end that stand within ``size`` bytes from ``begin`` (or one, that is longer), before any trouble."""
        at = bisect_left(self.troubled, begin)
        limit = self.troubled[at] if at < len(self.troubled) else self.end
        return (self.data.rfind(b"\n", begin, min(begin + size, limit)) + 1) or max(begin, self.data.find(b"\n", begin, limit) + 1)

    def after(self, begin: int, lines: int) -> int:
        """Where the line begins that stands so many lines behind the one that begins at ``begin``."""
        for _ in range(lines):
            begin = self.data.find(b"\n", begin) + 1
        return begin


class Claimed(set[int]):
    """Where the lines of a block begin that somebody has read one by one; beside them are those that were read together."""

    def __init__(self) -> None:
        super().__init__()
        self._together: list[tuple[int, int]] = []
        self._lines = 0

    def update_between(self, start: int, end: int, lines: int) -> None:
        """So many neighbours, none of which is known."""
        self._together.append((start, end))
        self._lines += lines

    @property
    def lines(self) -> int:
        """How many there are."""
        return len(self) + self._lines

    def has(self, start: int) -> bool:
        """Whether the line that begins here is one of them."""
        return start in self or any(begin <= start < end for begin, end in reversed(self._together))


def plain_lines(data: bytes, position: int, *, most: int, trouble: Iterable[bytes]) -> PlainLines | None:
    """The lines from ``position`` on; None where not all of them are plain, and shorter than ``most`` bytes.

    ``trouble``: words of which at least one stands in each line that tells of it.
    """
    if data.count(b"\n", position) < _FEWEST or any(data.find(mark, position) >= 0 for mark in _MARKS):
        return None
    at = position
    while len(data) - at > most:
        at = data.rfind(b"\n", at, at + most) + 1
        if not at:
            return None
    return PlainLines(data, data.rfind(b"\n") + 1, sorted(line_starts(data, position, trouble)))


def end_of_line(data: bytes, position: int) -> int:
    """Where the line that holds ``position`` ends: at its newline, or at the end of the block."""
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end


def line_starts(data: bytes, position: int, words: Iterable[bytes]) -> set[int]:
    """Where the lines begin that hold one of the words, from ``position`` (the beginning of a line) on."""
    starts: set[int] = set()
    searched, add, find, rfind = _search(data), starts.add, data.find, data.rfind
    for word in words:
        search = searched(word)
        at, is_dense = search(position), True
        while at >= 0:
            add(rfind(b"\n", position, at) + 1 or position)
            end = find(b"\n", at)
            if end < 0:
                break
            at = find(word, end, end + _NEARBY_BYTES) if is_dense else -1
            if at < 0:
                at = search(end)
                is_dense = at - end < _NEARBY_BYTES
    return starts


def _search(data: bytes) -> Callable[[bytes], Search]:
    """``data.find`` of a word, by the C library's strstr where it can: that compares 16 to 64 bytes at once (glibc on x86-64 and arm64)
    and took a fourteenth of the time for the words that are looked for here (CPython 3.11, glibc 2.36, AVX-512).

    A NUL ends its text; a log with a NUL in it is searched by Python. The NUL behind the last byte is CPython's own.
    """
    if _strstr is None or b"\0" in data:
        return lambda word: partial(data.find, word)
    strstr, begin = _strstr, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def search(word: bytes) -> Search:
        if b"\0" in word:  # which is not in this text
            return lambda _: -1
        return lambda position: (strstr(begin + position, word) or begin - 1) - begin

    return search


def _c_strstr() -> Callable[[int, bytes], int | None] | None:
    try:
        strstr = ctypes.PyDLL(None).strstr
    except (OSError, AttributeError):
        return None
    strstr.restype, strstr.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    return strstr


_strstr: Final = _c_strstr()

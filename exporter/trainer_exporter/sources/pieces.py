"""Bytes as they were read -> complete pieces of lines. Pure: no file, no clock, no look at what a line says.

A piece ends at a newline or at a carriage return, because progress bars redraw for hours without a newline. Only newlines
count as lines: redraws share the number of the line in which they stand.
"""

from __future__ import annotations


class Splitter:
    """Holds a half piece back until its end comes; bounded in memory by ``limit`` and the size of what it is fed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of one piece, without its end
        self._held = b""
        self._dropping = False  # in the tail of an over-long piece, or in the rest of a line whose start was not read
        self._mute = False  # the end of what is dropped goes too: nothing of that line was kept
        self.line = 1  # number of the line in which the next piece starts
        self.cuts = 0  # over-long pieces so far

    @property
    def held(self) -> bytes:
        """The half piece that waits for its end."""
        return self._held

    def start_inside(self) -> None:
        """The first byte to come stands in the middle of a line: drop up to its end."""
        self._dropping = self._mute = True

    def hold(self, half: bytes) -> None:
        """Put a half piece before what will be fed: its writer goes on in this file."""
        self._held = half + self._held

    def feed(self, data: bytes, *, at_end: bool) -> bytes:
        """The complete pieces so far.

        Inside a file (``at_end`` False) the last newline is the end, so that a line is not torn at one of its redraws only
        because a block ends there; at the end of what was written every redraw that is complete comes out.
        """
        if self._dropping:
            data = self._past_dropped(data)
        end = self._end(data, at_end=at_end)
        if not end:
            data, self._held = self._held + data, b""
            end = self._end(data, at_end=at_end)
        whole = self._bounded(b"".join((self._held, memoryview(data)[:end])))  # copied once: a block is large
        self._held = self._bounded_tail(data[end:])
        self.line += whole.count(b"\n")
        return whole

    def flush(self) -> bytes:
        """The half piece, given out because nothing can follow it any more."""
        half, self._held = self._held, b""
        self._dropping = self._mute = False
        return half

    def _end(self, data: bytes, *, at_end: bool) -> int:
        newline = data.rfind(b"\n") + 1
        if newline and not at_end:
            return newline
        return max(newline, data.rfind(b"\r", newline) + 1)

    def _past_dropped(self, data: bytes) -> bytes:
        at = _next_end(data, 0)
        if at < 0:
            return b""
        if self._mute:
            at += 1
        self._dropping = self._mute = False
        return data[at:]

    def _bounded_tail(self, tail: bytes) -> bytes:
        if self._dropping or len(tail) <= self._limit:
            return tail
        start = tail.rfind(b"\r") + 1
        if len(tail) - start <= self._limit:
            return tail
        self._dropping = True
        self.cuts += 1
        return tail[: start + self._limit]

    def _bounded(self, whole: bytes) -> bytes:
        """The same pieces, each cut at the limit; where none is too long (nearly always) the same object."""
        parts: list[bytes] = []
        start = at = 0
        while len(whole) - at > self._limit:
            last = self._last_end(whole, at)
            if last >= 0:
                at = last + 1
                continue
            parts.append(whole[start : at + self._limit])
            start = _next_end(whole, at + self._limit)
            at = start + 1
            self.cuts += 1
        if not parts:
            return whole
        parts.append(whole[start:])
        return b"".join(parts)

    def _last_end(self, whole: bytes, at: int) -> int:
        """The last end within reach of one piece; from the right, so that short lines cost nothing."""
        window = at + self._limit + 1
        newline = whole.rfind(b"\n", at, window)
        return newline if newline >= 0 else whole.rfind(b"\r", at, window)


def _next_end(data: bytes, start: int) -> int:
    newline = data.find(b"\n", start)
    redraw = data.find(b"\r", start, newline if newline >= 0 else len(data))
    return redraw if redraw >= 0 else newline

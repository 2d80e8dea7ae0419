"""Lines of torchrun's ranks that others interrupt: the half that was written first is kept for its rest.

torchrun passes on what it finds, a half line too, without a line end. Other ranks go on behind it, and before the rest of the line it puts
the prefix once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainer_exporter.envelope import ranks_apart, unwrapped
from trainer_exporter.model import Line

_MAX_CHARACTERS: Final = 8192  # of a half
_MAX_LINES: Final = 200  # within which its rest comes


class Halves:
    """The half lines of one file. ``begins_a_line`` says of a text that a trainer's line begins so: it is no rest."""

    def __init__(self, begins_a_line: Callable[[str], bool], *, max_streams: int) -> None:
        self._begins_a_line = begins_a_line
        self._max_streams = max_streams
        self._begun: dict[str, Line] = {}

    def concern(self, line: Line) -> bool:
        """Whether this line may hold a half, or the rest of one."""
        return bool(self._begun) or "]:" in line.text

    def apart(self, line: Line) -> tuple[list[Line], Line]:
        """The halves that this line of the file begins with, and the line that ends in it, with its own first half."""
        if (begun := self._begun.pop(line.stream, None)) is not None and self._goes_on(begun, line):
            _, _, rest = line.whole.partition(f"[{line.stream.rpartition('/')[2]}]:")
            line = line._replace(text=begun.text + rest)
        *texts, last = ranks_apart(line.text, line.stream)
        if not texts:
            return [], line if last == line.text else line._replace(text=last)
        halves = [line._replace(text=texts[0]), *(unwrapped(text, line.number, stamp=line.stamp) for text in texts[1:])]
        for half in halves:
            if half.stream and len(half.text) <= _MAX_CHARACTERS and len(self._begun) < self._max_streams:
                self._begun[half.stream] = half
        return halves, unwrapped(last, line.number, stamp=line.stamp)

    def _goes_on(self, begun: Line, line: Line) -> bool:
        return line.number - begun.number <= _MAX_LINES and not self._begins_a_line(line.text)

"""The private formats of one file: they see a line before all others, beside the format that the file turns out to be of.

Each has a budget of processor time. A pattern that was found harmless is cheap; should one be slow all the same, it costs its own figures
in this file and not the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from trainer_exporter.formats.base import Format, Parser, Reading
from trainer_exporter.model import Line, Malformed

SLOW: Final = "slow_pattern"

_EARNED_S: Final = 0.001  # by each line
_HELD_S: Final = 0.5  # at most


class PrivateFormats:
    """Reads lines for as many private formats as there are."""

    def __init__(self, formats: Sequence[Format], *, max_streams: int, processor_s: Callable[[], float] = time.thread_time) -> None:
        self._formats = {one.name: one for one in formats}
        self._closed = {one.name for one in formats if one.opens is not None}  # until the file's first lines show it
        self._parsers: dict[tuple[str, str], Parser] = {}
        self._wanting: set[tuple[str, str]] = set()
        self._budgets = dict.fromkeys(self._formats, _HELD_S)
        self._max_parsers = max_streams * max(1, len(formats))
        self._processor_s = processor_s
        self.hints = tuple(dict.fromkeys(hint for one in formats for hint in one.hints))

    @property
    def wants_all(self) -> bool:
        """Whether each next line interests one of them, hint or not."""
        return bool(self._wanting)

    def open(self, one: Format) -> None:
        """The first lines of the file have shown that it is of this format."""
        self._closed.discard(one.name)

    def read(self, line: Line) -> tuple[Format, Reading] | None:
        """The first format that claims the line, and what it says; None when none does."""
        text = line.whole or line.text
        for one in tuple(self._formats.values()):
            key = (one.name, line.stream)
            if one.name in self._closed or not (key in self._wanting or one.opens is not None or one.sniff(text)):
                continue
            parser = self._parser(one, key)
            began = self._processor_s()
            reading = parser.parse(line)
            if not self._spend(one, self._processor_s() - began):
                return one, [*(reading or ()), self._switched_off(one, line)]
            if parser.wants_all:
                self._wanting.add(key)
            else:
                self._wanting.discard(key)
            if reading is not None:
                return one, reading
        return None

    def _parser(self, one: Format, key: tuple[str, str]) -> Parser:
        """The parser of this format and stream; of too many the one that was silent longest is let go."""
        parser = self._parsers.pop(key, None) or one.parser()
        while len(self._parsers) >= self._max_parsers:
            oldest = next(iter(self._parsers))
            del self._parsers[oldest]
            self._wanting.discard(oldest)
        self._parsers[key] = parser
        return parser

    def _spend(self, one: Format, spent_s: float) -> bool:
        """Whether the format's budget allows for what it has just spent."""
        self._budgets[one.name] = min(_HELD_S, self._budgets[one.name] + _EARNED_S) - spent_s
        return self._budgets[one.name] > 0

    def _switched_off(self, one: Format, line: Line) -> Malformed:
        del self._formats[one.name]
        self._parsers = {key: parser for key, parser in self._parsers.items() if key[0] != one.name}
        self._wanting = {key for key in self._wanting if key[0] != one.name}
        return Malformed(line.number, SLOW, one.name)

"""Formats that read one line after the other, to compare those with that read many at once."""

from __future__ import annotations

from dataclasses import replace

from trainer_exporter.formats import Format, Parser, Reading
from trainer_exporter.model import Line


class Alone:
    """A parser that reads line by line."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    @property
    def wants_all(self) -> bool:
        return self._parser.wants_all

    def parse(self, line: Line) -> Reading | None:
        return self._parser.parse(line)

    def flush(self) -> Reading:
        return self._parser.flush()


def alone(one: Format) -> Format:
    """The format, read line by line."""
    return replace(one, parser=lambda: Alone(one.parser()))

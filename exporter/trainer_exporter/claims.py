"""Whose a line is: the format of a file is found from its lines, and may change in mid-file.

Private formats are asked first, then the format that the file is of, then the other programs. A library beneath a program and lines
written by hand count where no program that we know has spoken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import Alike, AlikeParser, BlockParser, Format, Parser, Reading, Shape
from trainer_exporter.model import Incident, Line, Malformed, Record, Table
from trainer_exporter.private import PrivateFormats

Event = Record | Malformed | Incident
Said = Event | Table

TORN: Final = "truncated"  # a line that ends within a value


class Claims:
    """The lines of one file, as formats claim them; what they say goes into ``out``, in the order in which it is said."""

    def __init__(self, formats: Sequence[Format], *, max_streams: int, out: list[Said]) -> None:
        self._out = out
        self._programs = tuple(one for one in formats if not one.fallback and not one.beneath and not one.private)
        self._libraries = tuple(one for one in formats if one.beneath)
        self._fallback = tuple(one for one in formats if one.fallback)
        self.has_privates = any(one.private for one in formats)
        self._private = PrivateFormats([one for one in formats if one.private], max_streams=max_streams)
        self._max_streams = max_streams
        self._format: Format | None = None
        self._parsers: dict[str, Parser] = {}
        self._resting: dict[str, dict[str, Parser]] = {}  # of formats seen before the present one: their lines may come again
        self._measured: set[str] = set()  # formats that have told of a step or a loss, not just of a start
        self._wanting: set[str] = set()  # streams whose parser wants every line
        self._unclaimed: Line | None = None  # the last line with a hint in it that nobody claimed
        self._is_settled = False  # by a program's own lines, as those of the private formats are not
        self._is_only_announced = False  # all that was seen of the program are words that others borrow
        self._hints = self._hints_of(None)
        self._knows_shapes = False

    @property
    def format(self) -> Format | None:
        """The format found last; None while there is none."""
        return self._format

    @property
    def hints(self) -> tuple[bytes, ...]:
        """Byte strings of which one at least stands in each line that a format could claim now."""
        return self._hints

    @property
    def wants_all(self) -> bool:
        """Whether each next line interests some parser, hint or not."""
        return bool(self._wanting) or (self.has_privates and self._private.wants_all)

    def open(self, one: Format) -> None:
        """The first lines of the file have shown that it is of this format."""
        self._parsers = {}
        self._see(one)
        if one.private:
            self._private.open(one)

    def claim_block(self, text: str, number: int) -> int:
        """Let the present format read whole ordinary lines as far as it can, in one go; how many it has read."""
        parser = self._parsers.get("")
        if not self._is_sure or not isinstance(parser, BlockParser):
            return 0
        count, reading = parser.parse_block(text, number)
        self._out.extend(reading)
        return count

    @property
    def reads_alike(self) -> bool:
        """Whether ``claim_alike`` may read anything now."""
        return self._knows_shapes and self._is_sure

    def shape(self, line: Line) -> Shape | None:
        """That of a line which was just claimed, where lines like it can be claimed many at a time."""
        parser = self._parsers.get(line.stream)
        return parser.shape(line.text) if self.reads_alike and isinstance(parser, AlikeParser) else None

    def claim_alike(self, stream: str, lines: Alike) -> bool:
        """Let the present format read lines of one of its shapes; whether it has read them."""
        parser = self._parser_of(stream) if self._is_sure else None
        reading = parser.parse_alike(lines) if isinstance(parser, AlikeParser) else None
        self._out.extend(reading or ())
        return reading is not None

    @property
    def _is_sure(self) -> bool:
        """Whether the present format is asked first, and its answer counts."""
        return self._is_settled and not (self._is_only_announced or self.has_privates or self.wants_all)

    @property
    def reads_blocks(self) -> bool:
        """Whether ``claim_block`` may read anything now."""
        return self._is_settled and isinstance(self._parsers.get(""), BlockParser)

    def begins_a_line(self, text: str) -> bool:
        """Whether a program's line begins so."""
        return any(one.sniff(text) for one in (*self._programs, *self._fallback))

    def release(self) -> None:
        """Have said what parsers hold back in the hope of a later line."""
        for parser in self._parsers.values():
            self._emit(parser.flush())

    def refuse(self, line: Line) -> str:
        """Say of a torn line that it was one of ours, where it shows; what tells no value cannot tell a wrong one, and is heard.

        The file is over: the parser that saw the line has done its work.
        """
        self.release()
        reading = self._parser_of(line.stream).parse(line) if self._format is not None else None
        self._parsers.pop(line.stream, None)
        if reading and not any(_tells_a_value(said) for said in reading):
            self._out.extend(reading)
            return "parsed"
        asked = (*self._programs, *(self._fallback if self._format is None else ()))
        if reading is None and not any(one.sniff(line.text) for one in asked):
            return ""
        self._out.append(Malformed(line.number, TORN))
        return "malformed"

    def claim(self, line: Line) -> str:
        """Let the formats look at a line: private ones, the present one, then the others; what the one that claims it made of it."""
        if self.has_privates and (private := self._private.read(line)) is not None:
            return self._take_private(*private)
        known = self._format
        if known is not None and self._is_settled and (result := self._take(known, line)):
            if self._is_only_announced:
                self._unclaimed = line  # its bar may be that of the script that borrows the announcement
            return result
        for one in self._programs:
            if one is not known and one.sniff(line.text) and (result := self._take(one, line)):
                return result
        if result := self._claim_weakly(line):
            return result
        self._unclaimed = line
        return ""

    def _take_private(self, one: Format, reading: Reading) -> str:
        """What a private format has read; the file is of that format as long as no program that we know has spoken."""
        if self._format is None or not _settles(self._format):
            self.release()
            self._parsers = {}
            self._measured.add(one.name)  # whatever it has said
            self._see(one)
            self._wanting.clear()
        self._out.extend(reading)
        return _result(reading)

    def _claim_weakly(self, line: Line) -> str:
        """Of a file in which no program that we know has spoken: a library under an unknown one, or that one's own hand-written lines."""
        known = self._format
        is_announced = known is not None and _settles(known)
        if is_announced and not self._is_only_announced:
            return ""
        for one in self._libraries:
            if one is known or one.sniff(line.text):
                if known is not None and (known.fallback or (is_announced and self._has_spoken(known))):
                    return ""  # a program that speaks itself counts its steps in its own way
                if result := self._take(one, line, must_measure=is_announced):
                    return result
        for one in self._fallback:
            if is_announced and known is not None and (not one.sniff(line.text) or self._has_spoken(known)):
                return ""
            if result := self._take(one, line, must_measure=is_announced):
                return result
        return ""

    def _has_spoken(self, known: Format) -> bool:
        self.release()  # of what it holds back a part may be its first step
        return known.name in self._measured

    def _take(self, one: Format, line: Line, *, must_measure: bool = False) -> str:
        """Let one format read the line; the one that claims it is the file's from here on."""
        parser = self._parser_of(line.stream) if one is self._format else self._other_parser(one, line)
        reading = parser.parse(line)
        if reading is None:
            if not parser.wants_all:
                self._wanting.discard(line.stream)
            return ""
        if must_measure and not any(_measures(said) for said in reading):
            return ""
        if one is not self._format:
            self._turn_to(one, line.stream, parser)
        if parser.wants_all:
            self._wanting.add(line.stream)
        elif self._wanting:
            self._wanting.discard(line.stream)
        self._emit(reading)
        return _result(reading)

    def _turn_to(self, one: Format, stream: str, parser: Parser) -> None:
        self.release()
        if self._format is not None:
            self._resting[self._format.name] = self._parsers
        self._parsers = self._resting.pop(one.name, {}) | {stream: parser}
        self._see(one)
        self._wanting.clear()

    def _see(self, one: Format) -> None:
        """The file is of this format from here on."""
        self._format = one
        self._is_settled = _settles(one) and not one.private
        self._is_only_announced = one.borrowed and one.name not in self._measured
        self._hints = self._hints_of(one)
        self._knows_shapes = isinstance(one.parser(), AlikeParser)

    def _other_parser(self, one: Format, line: Line) -> Parser:
        """The parser of a format that is not the present one: as it was left when a library's lines came between its own, else a new one.

        A new one has seen the line before its first: the bar beside it, which is nobody's as long as no format is known.
        """
        resting = self._resting.get(one.name, {}).get(line.stream)
        if resting is not None:
            return resting
        parser = one.parser()
        if self._unclaimed is not None and self._unclaimed.stream == line.stream:
            parser.parse(self._unclaimed)
        return parser

    def _parser_of(self, stream: str) -> Parser:
        """The stream's parser; of too many streams the one that was silent longest is let go."""
        parser = self._parsers.pop(stream, None)
        if parser is None:
            assert self._format is not None
            parser = self._format.parser()
            if len(self._parsers) >= self._max_streams:
                oldest = next(iter(self._parsers))
                self._wanting.discard(oldest)
                self._emit(self._parsers.pop(oldest).flush())
        self._parsers[stream] = parser
        return parser

    def _emit(self, reading: Reading) -> None:
        """Give out what the present format has said."""
        self._out.extend(reading)
        if self._is_only_announced and self._format is not None and any(_measures(said) for said in reading):
            self._measured.add(self._format.name)
            self._see(self._format)

    def _hints_of(self, known: Format | None) -> tuple[bytes, ...]:
        asked = [*self._private.hints, *(hint for one in self._programs for hint in one.hints)]
        if known is None or not _settles(known) or self._is_only_announced:
            asked += [hint for one in (*self._fallback, *self._libraries) for hint in one.hints]
        asked += known.details if known else ()
        return tuple(hint for hint in dict.fromkeys(asked) if not any(other != hint and other in hint for other in asked))


def _result(reading: Reading) -> str:
    for said in reading:
        if isinstance(said, Malformed):
            return "malformed"
    return "parsed"


def _measures(said: Record | Malformed) -> bool:
    return isinstance(said, Record) and ("step" in said.fields or "loss" in said.fields)


def _tells_a_value(said: Record | Malformed) -> bool:
    return isinstance(said, Malformed) or bool(said.fields or said.metrics or said.facts or said.checkpoint)


def _settles(known: Format) -> bool:
    return not known.fallback and not known.beneath

"""What a log format is: how it is recognised, and the parser that reads its lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from trainer_exporter.model import Column, Line, Malformed, Record, Stamp, Table

Reading = Sequence[Record | Malformed]
BlockReading = Sequence[Record | Malformed | Table]

NOTHING: Final[Reading] = ()  # "mine, and nothing to say yet"

# The hints that formats share, so that one search serves all of them. The first stands in "loss" and in "Loss".
LOSS: Final = b"oss"
STARS: Final = b"***** "  # of banners such as "***** Running training *****"


class Parser(Protocol):
    """Reads the lines of one stream, in order. Has the state of that stream and knows nothing of files or runs."""

    @property
    def wants_all(self) -> bool:
        """Whether each next line interests it, hint or not: inside a block such as an argument dump."""

    def parse(self, line: Line) -> Reading | None:
        """What the line says; None when the line is not of this format."""

    def flush(self) -> Reading:
        """What was held back in the hope of a later line. Called whenever there is no further line for now."""


@runtime_checkable
class BlockParser(Parser, Protocol):
    """Reads whole blocks of ordinary lines in less time than one by one, and says of them the same."""

    def parse_block(self, text: str, first: int) -> tuple[int, BlockReading]:
        """How many lines of this text were read, from the first on, and what they say. ``first`` is the number of the first.

        It reads up to the first line that it would rather see alone. Each line has its end. In none of the lines is a colour or trouble;
        wrappers have not been taken off, nor have redraws been taken apart.
        """


class Shape(NamedTuple):
    """Lines of which one differs from the other in its numbers alone."""

    pattern: str  # of a whole line of ASCII without its wrappers; every group of it is asked for
    columns: Sequence[str]  # names of the groups, each another


class Alike(NamedTuple):
    """Lines of one shape, in order."""

    numbers: Sequence[int]
    columns: Mapping[str, Sequence[bytes]]  # what stands in each of them
    times: Sequence[float] = ()  # of their stamps; empty where they have none
    zoned: bool = False  # as in Stamp

    def lines(self) -> list[Line]:
        """What their wrappers tell of each of them."""
        stamps: Sequence[Stamp | None] = [Stamp(time, self.zoned) for time in self.times] or [None] * len(self.numbers)
        return [Line("", number, stamp) for number, stamp in zip(self.numbers, stamps, strict=True)]

    def table(self, columns: Mapping[str, Sequence[float]]) -> Table:
        """Records of these values, one of each line."""
        told = {name: Column(range(len(self.numbers)), values) for name, values in columns.items()}
        return Table(self.numbers, told, times=self.times, zoned=self.zoned)


@runtime_checkable
class AlikeParser(Parser, Protocol):
    """Reads many lines that differ in their numbers alone in less time than one by one, and says of them the same. Other lines stand
    between them, which are not its own.
    """

    def shape(self, text: str) -> Shape | None:
        """That of a line which was just read; None where the next one like it could say something that this one does not."""

    def parse_alike(self, lines: Alike) -> BlockReading | None:
        """What lines of a shape say; None, and nothing is changed, where one of them would rather be seen alone."""


@dataclass(frozen=True, slots=True)
class Format:
    """One trainer's way of logging. A module's constant FORMAT is found by walking this package.

    ``hints``: a line with none of these can never be the first that shows the format. Each costs a pass over every byte
    of every log, so they are few, shared where possible (LOSS) and long where not, and begin with two letters that are rare side by side.
    ``details``: more of them, looked for only while the format is known. Neither may hold a quote or a backslash: docker's JSON would
    escape it.

    ``opens``: for files whose lines hold no word that a hint could be. It is asked with the first lines of the file, again with each
    further one, and says whether the file is this format's; the lines are then read from the first on.
    """

    name: str
    summary: str
    hints: tuple[bytes, ...]
    sniff: Callable[[str], bool]  # "this line could only be mine"; cheap
    parser: Callable[[], Parser]
    details: tuple[bytes, ...] = ()
    opens: Callable[[Sequence[str]], bool] | None = None
    redraws: Callable[[Sequence[str]], Sequence[str]] | None = None  # of one line, those worth reading in a file of this format
    private: bool = False  # of the configuration: asked before all others, beside the format that the file turns out to be of
    fallback: bool = False  # claims only in a file where no other format has been seen
    beneath: bool = False  # a library under other programs: claims only as long as no such program has spoken, hand-written ones included
    borrowed: bool = False  # others print its announcement too: until it has told of a step or a loss, weaker formats' lines count

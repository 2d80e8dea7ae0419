"""Bytes of one followed file -> what they say, in line order.

It works on whole blocks: byte searches find the few lines that could matter, and only those are decoded. A file written
by a container runtime is read line by line instead, because its lines must be joined first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from trainer_exporter import envelope, incidents, torn
from trainer_exporter.candidates import METRIC, TROUBLE, Claimed, Interesting, end_of_line, plain_lines
from trainer_exporter.claims import Claims, Event, Said
from trainer_exporter.formats.base import Format
from trainer_exporter.halves import Halves
from trainer_exporter.likeness import Likenesses
from trainer_exporter.model import Chunk, Line, Stamp, Table

_WORDS: Final = incidents.words()
_RESULTS: Final = ("unmatched", "incident", "parsed", "malformed")  # of a line that had several the last counts

_NO_LABELS: Final = frozenset({b"{", b"[", b"(", b"<", b"\r", b"\x1b", b"'"})  # so begin most lines of trainers, and no label
_LOOK_BACK_BYTES: Final = 8192
_SHOWN_CHARACTERS: Final = 200
_SHOWN_FROM_LINES: Final = 32  # at the end of a block, among which an unclaimed one is sought
_HEAD_LINES: Final = 16  # of a file, by which a format without hints is recognised
_HEAD_BYTES: Final = 256  # of each of them
_FIRST_BYTES: Final = 8192  # that a format is given at once; more each time that it reads them all
_FIRST_STRIDE: Final = 16  # lines that are read at once where they stand between others
_LONGEST_STRIDE: Final = 4096  # of them
_MOST_BYTES: Final = 1 << 18  # more would not stay in a processor's own cache
_GROWTH: Final = 4
_MISSES: Final = 3  # in a row, after which the rest of a block is read line by line
_REMEMBERED: Final = 16  # lines read last, by which a line without a line end is judged


class Intake:
    """Reads one file from its first byte. Which format it is, is found from its content and may change in mid-file."""

    def __init__(self, formats: Sequence[Format], *, max_streams: int = 64, max_line_bytes: int = envelope.MAX_TEXT) -> None:
        self._formats = tuple(formats)
        self._opening = tuple((one, one.opens) for one in formats if one.opens is not None)
        self._max_streams = max_streams
        self._max_line_bytes = max_line_bytes
        self.restart()

    def restart(self) -> None:
        """Forget the file: the next chunk is the beginning of another."""
        self._out: list[Said] = []
        self._claims = Claims(self._formats, max_streams=self._max_streams, out=self._out)
        self._container: str | None = None  # None: no line seen yet
        self._half = b""  # of a container's record
        self._partial: dict[str, bytes] = {}  # of a line that a container's records hold, by its stream
        self._line = 1
        self._head: list[tuple[int, bytes]] | None = []  # the file's first lines by number; None: they have been judged
        self._labelled = False
        self._tail = b""
        self._last_unrecognised = ""
        self._likenesses = Likenesses()
        self._misses = 0  # in a row, of lines that looked alike
        self._stride = _FIRST_STRIDE
        self._earlier: deque[str] = deque(maxlen=_REMEMBERED)
        self._reach = _FIRST_BYTES
        self._halves = Halves(self._claims.begins_a_line, max_streams=self._max_streams)
        self._counts: Counter[str] = Counter()

    @property
    def format(self) -> str:
        """Name of the format found last, "" while there is none."""
        return self._claims.format.name if self._claims.format else ""

    @property
    def last_unrecognised(self) -> str:
        """The last line that nobody claimed, for a person to see."""
        return self._last_unrecognised

    @property
    def counts(self) -> Mapping[str, int]:
        """Lines by result: parsed, malformed, incident, unmatched."""
        return MappingProxyType(self._counts)

    def feed(self, chunk: Chunk) -> list[Event]:
        """What the lines of this chunk say. Only a container's unfinished line is kept for the next one."""
        return _one_by_one(self.feed_tables(chunk))

    def feed_tables(self, chunk: Chunk) -> list[Said]:
        """As ``feed``, with the ordinary records of neighbouring lines as tables where their format makes such."""
        if self._container is None and not chunk.data.isspace() and chunk.data:
            self._container = envelope.container(chunk.data.lstrip().split(b"\n", 1)[0])
        self._line = chunk.first_line
        if self._container:
            self._read_contained(chunk, self._container)
        else:
            end = max(chunk.data.rfind(b"\n"), chunk.data.rfind(b"\r")) + 1
            newlines = chunk.newlines if chunk.newlines >= 0 else chunk.data.count(b"\n")
            self._read_block(chunk.data[:end], chunk.first_line, newlines)
            self._read_torn(chunk.data[end:], chunk.first_line + newlines)
        return self._taken()

    def flush(self) -> list[Event]:
        """What is left when the file is certainly over."""
        if self._half and self._container:
            piece = envelope.contained(self._half, self._container)
            if piece is not None:
                self._partial[piece.stream] = self._partial.pop(piece.stream, b"") + piece.text + b"\r" * piece.is_closed
            self._half = b""
        for text in self._partial.values():
            self._read_torn(text, self._line)
        self._partial.clear()
        return _one_by_one(self._taken())

    def _read_torn(self, data: bytes, number: int) -> None:
        """Read the end of the file that no line end follows."""
        if data and not self._read_line(data, number, self._kinds(data), is_torn=not data.endswith(b"\r")):
            self._counts["unmatched"] += 1
            self._show(data)

    def _taken(self) -> list[Said]:
        self._claims.release()
        out = sorted(self._out, key=attrgetter("line"))  # a record may have waited for a later line
        self._out.clear()
        return out

    def _read_block(self, data: bytes, first_line: int, newlines: int) -> None:
        claimed = Claimed()
        self._misses = 0
        position = self._open(data, first_line, claimed)
        counted, number = 0, first_line
        while position < len(data):
            if self._claims.reads_blocks:
                number += data.count(b"\n", counted, position)
                position, number = self._read_alike(data, position, number, claimed)
                counted = position
            known = self._claims.format
            self._likenesses.belong_to(self.format)
            hints, alike = self._claims.hints, self._likenesses.found(data, position, self._claims.hints)
            found = Interesting(data, position, hints, words=_WORDS, wants_all=lambda: self._claims.wants_all, known=alike)
            for start, end, kinds in found:
                number += data.count(b"\n", counted, start)
                counted = start
                self._look_for_labels(data, start)
                if self._read_line(data[start:end], number, kinds):
                    claimed.add(start)
                position = end + 1
                if self._claims.format is not known:
                    break  # the rest of the block is searched with the hints of the format that was just found
                if kinds == METRIC:
                    self._learn_from(data[start:end], number, found)
                counted, number = self._read_like(found, counted, number, claimed)
            else:
                break
        if data:
            self._counts["unmatched"] += newlines + (not data.endswith(b"\n")) - claimed.lines
        self._tail = (self._tail + data[-_LOOK_BACK_BYTES:])[-_LOOK_BACK_BYTES:]
        self._show_last_of(data, claimed)

    def _read_alike(self, data: bytes, position: int, number: int, claimed: Claimed) -> tuple[int, int]:
        """Let the format read many lines at once, as long as they are of its kind; the first line that is left, by its place and number."""
        block = plain_lines(data, position, most=self._max_line_bytes, trouble=_WORDS)
        if block is None or self._labelled or self._halves.concern(Line("", number)):
            return position, number
        at, misses = position, 0
        while at < block.end and misses < _MISSES:
            end = block.reach(at, self._reach)
            read = self._claims.claim_block(data[at:end].decode("utf-8", "replace"), number) if end > at else 0
            if read:
                is_whole = read == data.count(b"\n", at, end)
                end = end if is_whole else block.after(at, read)
                claimed.update_between(at, end, read)
                self._note_read(data[at:end], read)
                at, number = end, number + read
                if is_whole:
                    self._reach = min(self._reach * _GROWTH, _MOST_BYTES)
                    continue
            self._reach, misses = _FIRST_BYTES, 0 if read else misses + 1
            end = end_of_line(data, at)
            self._look_for_labels(data, at)
            if self._read_line(data[at:end], number, self._kinds(data[at:end])):
                claimed.add(at)
            at, number = end + 1, number + 1
        return at, number

    def _read_like(self, found: Interesting, counted: int, number: int, claimed: Claimed) -> tuple[int, int]:
        """Let the format read at once those of the next lines that are like earlier ones; where the last line begins that was read, and its
        number. Before it was ``number``, which begins at ``counted``.
        """
        data = found.data
        if not self._likenesses.are_known or self._halves.concern(Line("", number)):
            return counted, number
        while self._misses < _MISSES and (ahead := found.calm(self._stride)) and (kind := self._likenesses.of(data, ahead[0])) is not None:
            rows = kind.rows(data, ahead, found.known)
            read = ahead[: len(rows)]
            numbers = _numbers(data, counted, number, read)
            lines = kind.alike(rows, numbers)
            if lines is None or not self._claims.claim_alike(kind.stream, lines):
                self._misses, self._stride = self._misses + 1, _FIRST_STRIDE
                break
            counted, number, self._misses = read[-1], numbers[-1], 0
            found.skip(len(read))
            self._likenesses.note(kind, len(read))
            claimed.update(read)
            self._counts["parsed"] += len(read)
            self._earlier.extend(kind.text(data, start) for start in read[-_REMEMBERED:])
            self._stride = min(2 * self._stride, _LONGEST_STRIDE)
        return counted, number

    def _learn_from(self, raw: bytes, number: int, found: Interesting) -> None:
        """Keep in mind what a line looks like that was just read, where many others follow that may be like it."""
        if not self._claims.reads_alike or len(found.calm(_FIRST_STRIDE)) < _FIRST_STRIDE or b"\r" in raw or not self._likenesses.is_due():
            return
        text = envelope.without_terminal(raw.decode("utf-8", "replace")).rstrip()
        line = envelope.unwrapped(text, number, labelled=self._labelled)
        self._likenesses.learn(raw, line, self._claims.shape(line), labelled=self._labelled)

    def _note_read(self, block: bytes, lines: int) -> None:
        self._counts["parsed"] += lines
        texts = (line.decode("utf-8", "replace") for line in block[:-1].rsplit(b"\n", _REMEMBERED)[-_REMEMBERED:])
        self._earlier.extend(shown for text in texts if "%|" not in (shown := text.rpartition("\r")[2].rstrip()))

    def _open(self, data: bytes, first_line: int, claimed: Claimed) -> int:
        """Offer the file's first lines to the formats that are recognised by nothing else; where in the block the rest begins."""
        if self._head is None or self._claims.format is not None:
            self._head = None
            return 0
        before = len(self._head)
        starts: list[int] = []
        start, number = 0, first_line
        while start < len(data) and len(self._head) < _HEAD_LINES:
            end = end_of_line(data, start)
            self._head.append((number, data[start : min(end, start + _HEAD_BYTES)]))
            starts.append(start)
            start, number = end + 1, number + 1
            texts = [envelope.without_terminal(raw.decode("utf-8", "replace")).strip() for _, raw in self._head]
            for one, opens in self._opening:
                if opens(texts):
                    self._take_head(one, before, starts, claimed)
                    return start
        if len(self._head) >= _HEAD_LINES:
            self._head = None
        return 0

    def _take_head(self, one: Format, before: int, starts: Sequence[int], claimed: Claimed) -> None:
        """Read the file's first lines as of this format; those ``before`` came with earlier blocks and were counted with them."""
        head, self._head = self._head or [], None
        self._claims.open(one)
        for at, (number, raw) in enumerate(head):
            kinds = METRIC if at < before else METRIC | self._kinds(raw)
            if not self._read_line(raw, number, kinds):
                continue
            if at < before:
                self._counts["unmatched"] -= 1
            else:
                claimed.add(starts[at - before])

    def _show_last_of(self, data: bytes, claimed: Claimed) -> None:
        end = len(data)
        for _ in range(_SHOWN_FROM_LINES):
            start = data.rfind(b"\n", 0, max(0, end - 1)) + 1
            if end <= 0 or (not claimed.has(start) and self._show(data[start:end])):
                return
            end = start

    def _look_for_labels(self, data: bytes, start: int) -> None:
        """Find out, at a line that could begin with a task's label, whether the lines before it do so too."""
        if self._labelled or data[start : start + 1] in _NO_LABELS or not envelope.may_be_labelled(data[start : start + 80]):
            return
        before = data[max(0, start - _LOOK_BACK_BYTES) : end_of_line(data, start)]
        if start < _LOOK_BACK_BYTES:
            before = self._tail + before
        self._labelled = envelope.has_labels(before.split(b"\n"))
        if self._labelled:
            self._likenesses.forget()

    def _read_contained(self, chunk: Chunk, kind: str) -> None:
        lines = (self._half + chunk.data).split(b"\n")
        self._half = lines.pop()[: self._max_line_bytes]  # a bar's redraw has cut the runtime's own line
        self._line = chunk.first_line + len(lines)
        for number, raw in enumerate(lines, chunk.first_line):
            stamp, text = None, raw
            piece = envelope.contained(raw, kind)
            if piece is not None:
                stamp, text = piece.stamp, self._joined(piece)
            if not (text and self._read_line(text, number, self._kinds(text), stamp)):
                self._counts["unmatched"] += 1
                self._show(text)

    def _joined(self, piece: envelope.Wrapped) -> bytes:
        """What can be read now: the whole line, or of an unfinished one what a progress bar has already redrawn."""
        text = self._partial.pop(piece.stream, b"") + piece.text
        if piece.complete:
            return text
        ready, _, rest = text.rpartition(b"\r")
        self._partial[piece.stream] = rest[: self._max_line_bytes]
        return ready

    def _kinds(self, text: bytes) -> int:
        wanted = self._claims.wants_all or any(hint in text for hint in self._claims.hints)
        return (METRIC if wanted else 0) | (TROUBLE if any(word in text for word in _WORDS) else 0)

    def _show(self, raw: bytes) -> bool:
        text = envelope.without_terminal(raw[-4096:].decode("utf-8", "replace")).strip("\n")
        shown = [piece for piece in envelope.redraws(text) if "%|" not in piece]
        if shown:
            self._last_unrecognised = shown[-1].strip()[:_SHOWN_CHARACTERS]
        return bool(shown)

    def _read_line(self, raw: bytes, number: int, kinds: int, stamp: Stamp | None = None, *, is_torn: bool = False) -> bool:
        """Read one line of the file with all its redraws; True when somebody claimed it."""
        if len(raw) >= self._max_line_bytes:  # what is over long is cut; a line of many redraws is none
            raw = b"\r".join(self._bounded(piece) for piece in raw.split(b"\r"))
        text = envelope.without_terminal(raw.decode("utf-8", "replace"))
        pieces = self._redraws(text, kinds) if "\r" in text else (text.rstrip(),)
        result = 0
        first: Line | None = None
        for piece in pieces:
            line = envelope.unwrapped(piece, number, labelled=self._labelled, stamp=stamp)
            if first is not None and first.stream and not line.stream:  # a redraw is its line's, and has the prefix no more
                line = line._replace(stream=first.stream, rank=first.rank)
            first = first or line
            halves: Sequence[Line] = ()
            if self._halves.concern(line):
                halves, line = self._halves.apart(line)
            for half in halves:  # without a prefix nobody knows its rest
                is_whole = not half.stream and torn.is_whole(half.text, self._earlier)
                result = max(result, self._read(half, kinds if is_whole else kinds & TROUBLE))
            if is_torn and piece is pieces[-1] and kinds & METRIC and not torn.is_whole(line.text, self._earlier):
                result = max(result, _RESULTS.index(self._claims.refuse(line) or "unmatched"))
                kinds &= ~METRIC
            result = max(result, self._read(line, kinds))
        if result:
            self._counts[_RESULTS[result]] += 1
        return result > 0

    def _redraws(self, text: str, kinds: int) -> Sequence[str]:
        """What stood on the terminal's line; of a bar that was drawn again and again, where the format reads no more, what it asks for."""
        known = self._claims.format
        pieces = envelope.redraws(text)
        if known is None or known.redraws is None or kinds != METRIC or self._claims.has_privates:
            return pieces
        return known.redraws(pieces)

    def _bounded(self, piece: bytes) -> bytes:
        """A piece without what is beyond the limit, and without the word that the limit cuts; the follower may have cut there before."""
        return piece if len(piece) < self._max_line_bytes else piece[: self._max_line_bytes].rpartition(b" ")[0]

    def _read(self, line: Line, kinds: int) -> int:
        """Place in _RESULTS of what became of a line."""
        result = 0
        if kinds & METRIC and (claimed := self._claims.claim(line)):
            result = _RESULTS.index(claimed)
            if claimed == "parsed" and "%|" not in line.text:
                self._earlier.append(line.text)
        if kinds & TROUBLE and (trouble := incidents.incident(line)):
            is_of_training = self._claims.format is not None or trouble.kind in incidents.OF_THE_JOB
            self._out.append(trouble if is_of_training else replace(trouble, fatal=False))
            result = max(result, 1)
        return result


def _numbers(data: bytes, counted: int, number: int, starts: Sequence[int]) -> list[int]:
    """Of the lines that begin there; the line that begins at ``counted`` has this number."""
    numbers = []
    for start in starts:
        number += data.count(b"\n", counted, start)
        counted = start
        numbers.append(number)
    return numbers


def _one_by_one(said: Sequence[Said]) -> list[Event]:
    """The same, with the records of the tables in their place."""
    out: list[Event] = []
    for event in said:
        out.extend(event.records() if isinstance(event, Table) else (event,))
    return out

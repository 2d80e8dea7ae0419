"""tqdm's bars that carry values: ``Epoch 0:  51%|█████     | 512/1000 [00:45<00:43, 11.30it/s, v_num=3, train_loss=0.512]``.

Odd: such a bar is redrawn when its count moves and again when its values do. The first redraw of a count still has the values of
the one before, so the last redraw of a count is the right one. The plain bar of the Trainer, which carries none, is read in ``bars``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainer_exporter.formats.bars import COUNT, DRAWING, RATE, TIME, is_share
from trainer_exporter.formats.several import Several
from trainer_exporter.model import Record
from trainer_exporter.numbers import duration, number

_HEAD_CHARACTERS: Final = 300
_BAR_CHARACTERS: Final = 4096
_REMEMBERED: Final = 16  # postfixes
_DOUBTED: Final = 12  # counts
_PLACE: Final = frozenset({"step", "epoch", "target_steps", "epochs", "elapsed_seconds", "remaining_seconds"})
_PERCENT: Final = re.compile(r"(\d{1,3})%$")
_BAR: Final = re.compile(
    rf"{DRAWING} *(?P<done>{COUNT})/(?P<total>\d{{1,15}}|\?) \[(?P<elapsed>{TIME})<(?P<remaining>{TIME}|\?)"
    rf"(?:, *{RATE} ?(?:it/s|s/it|[a-z]+/s|s/[a-z]+))?"
    r"(?:, (?P<postfix>(?:[^\[\]]|\[[^\[\]]*\])*))?(?P<close>\])?"
)
# Of another bar, or half a number; "0.0000" and "nan.0" are none.
_GLUED: Final = re.compile(r"it/s|s/it|[|<%]|\d,\d|[=:] *[-+]?(?:0\d|\.\d)|\d\.\d*\.|\d\.\d*[A-DF-Za-df-z]|\d[A-Za-z]*[=:].*=")
_PAIR: Final = re.compile(r"(?P<key>[^=:]+)(?:=|: )(?P<value>\S*)$")
# Lightning pads what it prints to five characters: ``nan.0``, ``inf.0``, ``-inf.``.
_PADDED: Final = re.compile(r"([+-]?(?:nan|inf))\.0*$")


@dataclass(frozen=True, slots=True)
class TitledBar:
    """One redraw of a bar with what stands around it."""

    title: str
    done: int
    total: int | None  # None: of unknown length
    elapsed_s: float | None
    remaining_s: float | None
    postfix: str  # as printed
    pairs: Mapping[str, str]  # of the postfix; without the last one where the line is torn
    rest: str  # what was printed behind the bar on the same line
    is_closed: bool = True  # else the line is torn


def titled_bar(text: str) -> TitledBar | None:
    """The bar that a line begins with, if any."""
    at = text.find("|", 0, _HEAD_CHARACTERS)
    found = _BAR.match(text[:_BAR_CHARACTERS], at) if at >= 0 else None
    if found is None:
        return None
    done, total = int(found["done"]), None if found["total"] == "?" else int(found["total"])
    percent = _PERCENT.search(text[:at])
    if total is not None and not (percent and is_share(int(percent[1]), done, total)):
        return None
    postfix = found["postfix"] or ""
    return TitledBar(
        text[: percent.start() if percent else at].strip(" :"),
        done,
        total,
        duration(found["elapsed"]),
        None if found["remaining"] == "?" else duration(found["remaining"]),
        postfix,
        pairs_behind(postfix, is_closed=found["close"] is not None),
        text[found.end() :].strip(),
        found["close"] is not None,
    )


def pairs_behind(postfix: str, *, is_closed: bool = True) -> dict[str, str]:
    """What stands behind a bar, by name; nothing where another process has written into it."""
    pieces = postfix.split(", ")
    if not is_closed:
        pieces.pop()
    found = [pair for piece in pieces if (pair := _PAIR.match(piece.strip())) is not None]
    pairs = {pair["key"]: pair["value"] for pair in found}
    return {} if len(pairs) < len(found) or any(map(_GLUED.search, pieces)) else pairs


def value(text: str) -> float | None:
    """The value of a number in a bar; None when it is none."""
    padded = _PADDED.match(text)
    return number(padded[1] if padded else text)


@dataclass(frozen=True, slots=True)
class _Held:
    record: Record
    count: tuple[int, int]
    postfix: str
    may_be_old: bool  # drawn once, with the values of the count before
    is_unsure: bool  # drawn once, after a torn one
    is_closed: bool


class LastRedraw:
    """Holds the record of a count back until the count moves on or nothing more comes.

    A count that goes back is another rank's, which draws into the same stream, or that of a trainer that begins anew. For a while the
    count and the values are then told apart from each other: a redraw may be the first of its count, with the values of another.
    """

    def __init__(self) -> None:
        self._held: _Held | None = None
        self.told: tuple[int, int] | None = None  # epoch and count of the record last given out
        self.postfix = ""  # as drawn with it
        self.is_unsure = False  # a redraw has been torn since: of which count it was is not known
        self._drawn: tuple[int, int] | None = None  # the count of the last redraw
        self._began: dict[str, tuple[int, int]] = {}  # the count that a postfix was first drawn with, of the last ones
        self._several: Several[tuple[int, int]] = Several(_DOUBTED)

    @property
    def is_shared(self) -> bool:
        """Whether other ranks draw into this stream, as far as one can tell."""
        return bool(self._several)

    def make_way(self, count: tuple[int, int]) -> list[Record]:
        """What was held, if a redraw of this count is not one of the same."""
        if self._drawn is not None and count < self._drawn and count[1] > 0:
            self._several.gone_back(self.told)
        self._drawn = count
        if self._held is None or self._held.count == count:
            return []
        return self.given()

    def begin(self) -> None:
        """A trainer has begun anew: its counts go back."""
        self._drawn = None
        self._several.begin()

    def torn(self) -> None:
        """A redraw could not be read. It may have been the last one of what is held, which then has the values of the count before."""
        if self._held is not None and self._held.may_be_old:
            self._held = None
        self.is_unsure = True

    def skip(self, count: tuple[int, int]) -> None:
        """The values of this count are lost."""
        self.told, self.is_unsure = count, False

    def hold(self, record: Record, count: tuple[int, int], drawn: TitledBar) -> None:
        """Take a redraw of a count that has not been told."""
        postfix = drawn.postfix
        is_anothers = self._began.setdefault(postfix, count) != count
        if len(self._began) > _REMEMBERED:
            del self._began[next(iter(self._began))]
        if is_anothers and self._held is not None and not self._held.may_be_old:
            return
        is_unsure = self._held is None and self.is_unsure
        may_be_old = is_unsure or (is_anothers and self.is_shared) or (self._held is None and postfix == self.postfix)
        self._held = _Held(record, count, postfix, may_be_old, is_unsure, drawn.is_closed)

    def given(self) -> list[Record]:
        """What was held."""
        held, self._held = self._held, None
        if held is None:
            return []
        if held.is_unsure:
            self.postfix, self.is_unsure = held.postfix, False
            return []
        if self.is_shared:
            return self._apart(held)
        self._tell(held)
        return [held.record]

    def _apart(self, held: _Held) -> list[Record]:
        """The count, if it is ahead, and the values, if they are news."""
        self._several.follow()
        place = {name: read for name, read in held.record.fields.items() if name in _PLACE}
        values = {} if held.may_be_old else {name: read for name, read in held.record.fields.items() if name not in _PLACE}
        is_ahead = self._several.reach(held.count)
        if values:
            self._tell(held)
        return [held.record._replace(fields=fields) for fields in ([place] if is_ahead else []) + ([values] if values else [])]

    def _tell(self, held: _Held) -> None:
        self.told, self.postfix, self.is_unsure = held.count, held.postfix, not held.is_closed

    def flushed(self) -> list[Record]:
        """What was held, unless its values may be those of the count before: the file has been cut between two redraws."""
        return [] if self._held is not None and self._held.may_be_old else self.given()

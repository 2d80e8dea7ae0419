"""Patterns that users write: what stands in every match, whether matching could run away, and how long a line may be for it. Pure.

Python's ``re`` tries all ways to read a text, cannot be interrupted, and stops every thread meanwhile. So a pattern is judged by its tree
before it is used. Inside a repeat each choice must be decided by the next character: else the ways to read a line double with each of them.
Outside of one they multiply, which a bound on the line's length keeps small.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, cast

if sys.version_info >= (3, 11):
    from re import _constants as op
    from re import _parser as tree
else:
    import sre_constants as op
    import sre_parse as tree

from trainer_exporter.model import LinePattern

LONGEST: Final = 4096  # characters of a line, whatever the pattern
_SHORTEST: Final = 200  # a pattern that must be kept to less than this is refused
_STEPS: Final = 1e8  # of the matcher on one hostile line: half a second where each is a group's, hundredths where a character's
_FEW: Final = 64  # a repeat of at most so many is a factor, one of more is a gap
_MAX_CHARACTERS: Final = 2000
_MIN_LITERAL_BYTES: Final = 3

_REPEATS: Final = frozenset(getattr(op, name) for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") if hasattr(op, name))
_ATOMIC: Final = getattr(op, "ATOMIC_GROUP", None)  # with the possessive repeat from Python 3.11 on
_ASSERTIONS: Final = (op.ASSERT, op.ASSERT_NOT)
_REFERENCES: Final = (op.GROUPREF, op.GROUPREF_EXISTS)
_SAMPLE: Final = frozenset(map(chr, range(1, 127))) - {"\n"} | set("é中٣→\u00a0")  # one of each kind stands for the rest of Unicode

Node = tuple[Any, Any]
Nodes = Sequence[Node]
Characters = frozenset[str]
_NONE: Final[Characters] = frozenset()


class PatternError(ValueError):
    """A pattern that cannot be used: what was found in it, and what to write instead."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(f"found {found}, expected {expected}")


def checked(text: str, contains: str = "") -> LinePattern:
    """The pattern, when it is harmless; ``contains`` where the user says what stands in every line. PatternError otherwise."""
    pattern = _compiled(text)
    nodes = _nodes(tree.parse(text, pattern.flags & ~re.UNICODE))
    judge = _Judge(nodes, text, ignores_case=bool(pattern.flags & re.IGNORECASE) or _scoped_case(nodes))
    judge.refuse_runaways()
    return LinePattern(pattern, contains or judge.literal(), judge.longest())


def _compiled(text: str) -> re.Pattern[str]:
    if len(text) > _MAX_CHARACTERS:
        raise PatternError(f"a pattern of {len(text)} characters", f"one of at most {_MAX_CHARACTERS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise PatternError(f"a broken pattern ({error.msg}{where})", "a regular expression of Python's re") from error
    except (OverflowError, RecursionError, Warning) as error:
        raise PatternError(f"a broken pattern ({error})", "a regular expression of Python's re") from error


class _Judge:
    """One parsed pattern. A set of characters is what of a sample it holds; it may come out too large, never too small."""

    def __init__(self, nodes: Nodes, text: str, *, ignores_case: bool) -> None:
        self._nodes = nodes
        self._ignores_case = ignores_case
        self._sample = _SAMPLE | set(text)

    # -- what stands in every match

    def literal(self) -> str:
        """The longest text that stands in every match; PatternError where none is long enough to be searched for."""
        runs = [""]
        self._collect(self._nodes, runs)
        usable = [run for run in runs if len(run.encode()) >= _MIN_LITERAL_BYTES and len(run.strip()) > 1]
        if not usable:
            raise PatternError(
                f"no fixed text of {_MIN_LITERAL_BYTES} bytes in the pattern",
                "a pattern with one (such as 'loss: '), or in contains: a text that stands in each of its lines",
            )
        return max(usable, key=len)

    def _collect(self, nodes: Nodes, runs: list[str]) -> None:
        for kind, value in nodes:
            if kind is op.LITERAL and not (self._ignores_case and chr(value).lower() != chr(value).upper()):
                runs[-1] += chr(value)
            elif kind is op.SUBPATTERN or kind is _ATOMIC:
                self._collect(_inside(kind, value), runs)
            elif kind is not op.AT and kind not in _ASSERTIONS:
                runs.append("")
                if kind in _REPEATS and value[0] > 0:
                    self._collect(_nodes(value[2]), runs)
                    runs.append("")

    # -- the ways to read a text that double with each repeat

    def refuse_runaways(self) -> None:
        """PatternError for a repeat with a choice in it that the next character does not decide."""
        self._refuse(self._nodes, follow=_NONE, in_loop=False)

    def _refuse(self, nodes: Nodes, *, follow: Characters, in_loop: bool) -> None:
        for at, (kind, value) in enumerate(nodes):
            rest = nodes[at + 1 :]
            then = self._first(rest, follow)
            if kind in _REFERENCES:
                raise PatternError("a reference to a group", "a pattern without one")
            if kind in _REPEATS:
                least, most, body = value[0], value[1], _nodes(value[2])
                if in_loop and least != most:
                    self._refuse_both(self._unclear(body, rest, then), "one repeat inside another")
                if (most > 1 or (in_loop and least != most)) and _can_all_be_empty(body):
                    raise PatternError(
                        "a repeat of something that may be nothing", r"a repeat of at least one character: (?:\w+ )* instead of (?:\w* ?)*"
                    )
                begins = self._first(body, _NONE) if most > 1 else _NONE
                inside = begins | (then if in_loop or most == 1 else _NONE)
                self._refuse(body, follow=inside, in_loop=in_loop or most > 1)
            elif kind is op.BRANCH:
                for one, other in combinations(value[1], 2) if in_loop else ():
                    both = self._first(_nodes(one), then) & self._first(_nodes(other), then)
                    self._refuse_both(both, "alternatives inside a repeat")
                if in_loop and sum(_can_all_be_empty(_nodes(one)) for one in value[1]) > 1:
                    raise PatternError("alternatives inside a repeat of which several may be nothing", "one of them at most")
                for one in value[1]:
                    self._refuse(_nodes(one), follow=then, in_loop=in_loop)
            else:
                self._refuse(_inside(kind, value), follow=then, in_loop=in_loop)

    def _refuse_both(self, both: Characters, what: str) -> None:
        if both:
            example = min(both, key=lambda one: (not one.isalnum(), one))
            raise PatternError(
                f"{what} that can both take {example!r}: such a pattern may run for ever",
                r"that the next character decides: (?:\w+=\S+ )+ instead of (?:\w+=\S+ ?)+, [^|]* instead of (?:.*)*",
            )

    def _unclear(self, body: Nodes, rest: Nodes, then: Characters) -> Characters:
        """Characters at which a repeat of ``body`` may go on as well as end."""
        both = self._first(body, _NONE) & then
        if both and len(body) == 1 and (own := self._characters(*body[0])) is not None and not own.issuperset(_leading(rest)):
            return _NONE  # the text that follows holds a character that this repeat cannot pass: there is one place for it
        return both

    # -- the ways to read a text that multiply

    def longest(self) -> int:
        """Characters of the longest line on which the worst case stays bearable; PatternError where that is too short to be of use."""
        low, high = 1, LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._steps(middle) <= _STEPS else (low, middle - 1)
        if low < _SHORTEST:
            raise PatternError(
                f"gaps such as .* whose ways to be filled multiply: too slow for lines of more than {low} characters",
                r"what follows each figure right behind it, (\S+) .*lr instead of (\S+).*lr, and [^|]* up to a separator instead of .*",
            )
        return low

    def _steps(self, length: int) -> float:
        """Steps of the matcher on the worst line of this length, as powers of it."""
        shape = _Shape()
        self._measure(self._nodes, _Follow(), shape)
        is_anchored = bool(self._nodes) and self._nodes[0] == (op.AT, op.AT_BEGINNING)
        levels = ([] if is_anchored else [_leading(self._nodes)]) + shape.gaps
        before_last = _choices(levels[:-1] if shape.gaps else levels, length) * (length if shape.gaps or shape.scans else 16)
        after_last = _choices(levels, length) * (length if shape.scans_after else 16)
        return shape.factor * max(before_last, after_last)

    def _measure(self, nodes: Nodes, follow: _Follow, shape: _Shape) -> None:
        for at, (kind, value) in enumerate(nodes):
            rest = nodes[at + 1 :]
            then = _Follow(self._first(rest, follow.first), _leading(rest), can_fail=True) if rest else follow
            if kind in _REPEATS:
                self._measure_repeat(value, self._unclear(_nodes(value[2]), rest, then.first), then, shape)
            elif kind is op.BRANCH:
                begins = [self._first(_nodes(one), then.first) for one in value[1]]
                shape.factor *= len(begins) if any(one & other for one, other in combinations(begins, 2)) else 1
                shapes = [_Shape() for _ in value[1]]
                for one, own in zip(value[1], shapes, strict=True):
                    self._measure(_nodes(one), then, own)
                shape.join(shapes)
            else:
                self._measure(_inside(kind, value), then, shape)

    def _measure_repeat(self, value: Any, unclear: Characters, then: _Follow, shape: _Shape) -> None:
        least, most, body = value[0], value[1], _nodes(value[2])
        if most > _FEW:
            shape.add_gap(then.text) if unclear else shape.add_scan(can_fail=then.can_fail)
        elif least != most and (unclear or _can_all_be_empty(body)):
            shape.factor *= most - least + 1
        if most == 1:
            self._measure(body, then, shape)
        elif any(kind in _REPEATS for kind, _ in _all(body)):
            shape.add_scan(can_fail=then.can_fail or least > 0)

    # -- sets

    def _first(self, nodes: Nodes, then: Characters) -> Characters:
        """What a match of these can begin with; ``then`` is what follows when they match nothing."""
        found = _NONE
        for kind, value in nodes:
            found |= self._first_of(kind, value)
            if not _can_be_empty(kind, value):
                return found
        return found | then

    def _first_of(self, kind: Any, value: Any) -> Characters:
        own = self._characters(kind, value)
        if own is not None:
            return own
        if kind in _REPEATS:
            return self._first(_nodes(value[2]), _NONE)
        if kind is op.BRANCH:
            return _NONE.union(*(self._first(_nodes(one), _NONE) for one in value[1]))
        return _NONE if kind in _ASSERTIONS else self._first(_inside(kind, value), _NONE)

    def _characters(self, kind: Any, value: Any) -> Characters | None:
        """The characters that a node of one character matches; None for other nodes."""
        if kind is op.LITERAL:
            found = frozenset({chr(value)})
        elif kind is op.NOT_LITERAL:
            found = self._sample - {chr(value)}
        elif kind is op.ANY:
            found = self._sample
        elif kind is op.IN:
            found = frozenset(one for one in self._sample if _is_in(value, ord(one)))
        else:
            return None
        return found | {one.swapcase() for one in found} if self._ignores_case else found


@dataclass(frozen=True, slots=True)
class _Follow:
    """What comes after a part of a pattern: how it can begin, its fixed text, and whether there is anything."""

    first: Characters = _NONE
    text: str = ""
    can_fail: bool = False


class _Shape:
    """Where a pattern leaves a choice: the texts that follow its gaps, the repeats that end clearly, the small choices as one factor."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self.scans = False
        self.scans_after = False  # the last gap
        self.factor = 1.0

    def add_gap(self, text: str) -> None:
        self.gaps.append(text)
        self.scans_after = False

    def add_scan(self, *, can_fail: bool) -> None:
        self.scans = self.scans or can_fail
        self.scans_after = self.scans_after or can_fail

    def join(self, others: Sequence[_Shape]) -> None:
        """Go on with alternatives: the worst of each of them."""
        self.gaps += max(others, key=lambda one: len(one.gaps)).gaps
        self.factor *= max(one.factor for one in others)
        self.scans = self.scans or any(one.scans for one in others)
        self.scans_after = self.scans_after or any(one.scans_after for one in others)


def _choices(texts: Sequence[str], length: int) -> float:
    """In how many ways so many places can be found in one line, each before its text: the line is shared between the texts."""
    if not texts:
        return 1.0
    share = length / len(texts) * (1.0 if len(set(texts)) == len(texts) and all(texts) else math.e)
    return math.prod(max(1.0, share / max(1, len(text))) for text in texts)


def _nodes(parsed: Any) -> Nodes:
    return cast("Nodes", parsed.data)


def _inside(kind: Any, value: Any) -> Nodes:
    """The nodes of a group or of an assertion; none for what has none."""
    if kind is op.SUBPATTERN:
        return _nodes(value[3])
    if kind in _ASSERTIONS:
        return _nodes(value[1])
    return _nodes(value) if kind is _ATOMIC else ()


def _all(nodes: Nodes) -> Iterator[Node]:
    for kind, value in nodes:
        yield kind, value
        if kind in _REPEATS:
            yield from _all(_nodes(value[2]))
        elif kind is op.BRANCH:
            for one in value[1]:
                yield from _all(_nodes(one))
        else:
            yield from _all(_inside(kind, value))


def _scoped_case(nodes: Nodes) -> bool:
    return any(kind is op.SUBPATTERN and value[1] & re.IGNORECASE for kind, value in _all(nodes))


def _can_be_empty(kind: Any, value: Any) -> bool:
    if kind in _REPEATS:
        return value[0] == 0 or _can_all_be_empty(_nodes(value[2]))
    if kind is op.BRANCH:
        return any(_can_all_be_empty(_nodes(one)) for one in value[1])
    if kind is op.SUBPATTERN or kind is _ATOMIC:
        return _can_all_be_empty(_inside(kind, value))
    return kind is op.AT or kind in _ASSERTIONS or kind in _REFERENCES


def _can_all_be_empty(nodes: Nodes) -> bool:
    return all(_can_be_empty(kind, value) for kind, value in nodes)


def _leading(nodes: Nodes) -> str:
    """The fixed text that these begin with."""
    text = ""
    for kind, value in nodes:
        if kind is op.LITERAL:
            text += chr(value)
        elif kind is op.SUBPATTERN:
            inner = _nodes(value[3])
            text += _leading(inner)
            if any(each is not op.LITERAL for each, _ in inner):
                return text
        else:
            return text
    return text


def _is_in(members: Nodes, code: int) -> bool:
    """Whether a class such as ``[^\\d.]`` holds a character."""
    is_negated = members[0][0] is op.NEGATE
    return any(_is_member(kind, value, code) for kind, value in members) != is_negated


def _is_member(kind: Any, value: Any, code: int) -> bool:
    if kind is op.LITERAL:
        return bool(value == code)
    if kind is op.RANGE:
        return bool(value[0] <= code <= value[1])
    if kind is op.CATEGORY:
        return re.match(_CATEGORIES[value], chr(code)) is not None
    return False


_CATEGORIES: Final[dict[Any, str]] = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}

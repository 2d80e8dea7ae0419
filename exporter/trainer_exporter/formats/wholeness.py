"""Whether a line has what its like have, and a figure its header: what lacks them has been torn by another process."""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import Final

_NUMBER: Final = re.compile(r"\s*(?:[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|[-+]?\b(?:nan|inf|infinity|n/a)\b)\s*", re.IGNORECASE)
_FIRST: Final = 3  # lines that are believed, as nothing is known
_MOST: Final = 256  # wordings that are remembered


class Always:
    """What a program prints in every line of a kind. A line without it has been torn, unless the line before lacked it too."""

    def __init__(self) -> None:
        self.is_usual = False  # the program is known to print it
        self._was_missed = False

    def is_whole(self, *, has_it: bool) -> bool:
        """Whether a line may be believed that has it, or has not."""
        is_torn = not has_it and self.is_usual and not self._was_missed
        self.is_usual, self._was_missed = has_it or is_torn, not has_it
        return not is_torn


class Figures:
    """The figures behind a header, each of which stands there once. One that comes again is of the next header, which was torn."""

    def __init__(self) -> None:
        self.have_header = True
        self._seen: set[str] = set()

    def begin(self) -> None:
        """A header came."""
        self.have_header = True
        self._seen = set()

    def lose(self) -> None:
        """What came was a part of a header."""
        self.have_header = False
        self._seen = set()

    def repeat(self, key: str) -> bool:
        """Whether a figure comes again; then the header is lost until the next one."""
        is_again = key in self._seen
        if is_again:
            self.lose()
        self._seen.add(key)
        return is_again


class Forms:
    """What stands between the numbers in the lines of a kind. A line with a wording that none before had, or that has one more often,
    is of two writers, unless it comes again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}  # wordings, and how often they stand in a line at most
        self._refused: deque[str] = deque(maxlen=_MOST)
        self._lines = 0

    def is_whole(self, text: str) -> bool:
        """Whether a line may be believed that reads so, from behind its head. Its last word may be cut."""
        *words, _ = _NUMBER.split(text)
        self._lines += 1
        counts = Counter(words)
        news = {word for word, count in counts.items() if count > self._known.get(word, 0)}
        is_believed = not news or self._lines <= _FIRST or all(word in self._refused for word in news)
        if is_believed and len(self._known) < _MOST:
            self._known |= {word: counts[word] for word in news}
        elif not is_believed:
            self._refused += news
        return is_believed

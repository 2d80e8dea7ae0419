"""Whether a line has what its like have, and a figure its header: what lacks them has been torn by another process."""

from __future__ import annotations


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

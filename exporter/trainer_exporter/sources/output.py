"""What a follower gives out: chunks of complete pieces and changes, in the order in which they happened."""

from __future__ import annotations

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.files import Opened


class Output:
    """Collects what one poll gives; keeps the totals."""

    def __init__(self, clock: Clock, health: Health) -> None:
        self._clock = clock
        self._health = health
        self._items: list[Change | Chunk] = []
        self.lines = 0  # newlines given out
        self.read_bytes = 0

    def take(self) -> tuple[Change | Chunk, ...]:
        """All since the last time."""
        items, self._items = tuple(self._items), []
        return items

    def change(self, change: Change) -> None:
        self._items.append(change)

    def block(self, opened: Opened, data: bytes, *, at_end: bool, live: bool) -> None:
        """Bytes as they were read of a file; what is complete goes out, cut lines are counted."""
        self.read_bytes += len(data)
        splitter = opened.splitter
        first_line, cuts = splitter.line, splitter.cuts
        whole = splitter.feed(data, at_end=at_end)
        self._chunk(whole, first_line, splitter.line - first_line, live=live)
        if splitter.cuts > cuts:
            self._health.drop("long_line", splitter.cuts - cuts)

    def half(self, opened: Opened) -> None:
        """The half piece at the end of a file that is over."""
        first_line = opened.splitter.line
        self._chunk(opened.splitter.flush(), first_line, 0, live=True)

    def _chunk(self, data: bytes, first_line: int, newlines: int, *, live: bool) -> None:
        if data:
            self.lines += newlines
            self._items.append(Chunk(data, first_line, self._clock.wall(), live, newlines))

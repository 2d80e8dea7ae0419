"""Bars of several ranks in one stream, which nothing tells apart but that they go back and forth."""

from __future__ import annotations

from typing import Generic, TypeVar

_Place = TypeVar("_Place", int, tuple[int, int])


class Several(Generic[_Place]):
    """Whether several ranks draw. One that goes back shows it, and for a while after that only the highest place of all is known.

    A trainer that begins anew goes back too, but does not do it again: ``patience`` is how much it has to say until it is believed.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._left = 0
        self._highest: _Place | None = None

    def __bool__(self) -> bool:
        return self._left > 0

    def begin(self) -> None:
        """One trainer has begun."""
        self._left, self._highest = 0, None

    def gone_back(self, highest: _Place | None) -> None:
        """A place came that is behind the one before; ``highest`` is the one reached when all was well."""
        if not self:
            self._highest = highest
        self._left = self._patience

    def follow(self) -> None:
        """Something was said, and nothing has gone back."""
        self._left = max(0, self._left - 1)

    def reach(self, place: _Place) -> bool:
        """Whether a place is ahead of all that were reached."""
        is_ahead = self._highest is None or place > self._highest
        self._highest = place if is_ahead else self._highest
        return is_ahead

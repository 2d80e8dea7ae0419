"""The incidents of a run: how many there were of each kind, and when the last one was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trainer_exporter.model import Incident
from trainer_exporter.runs.timeline import Moment

MAX_UNPLACED = 100
REPEATS_S = 60.0

_Place = tuple[int, float | None]  # attempt and step


class Troubles:
    """Of one run, from all of its sources. ``kinds`` are shown from 0 on."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self._walls: dict[str, float] = {}
        self._unplaced: list[tuple[str, Incident]] = []
        self._told: dict[str, tuple[_Place, float | None]] = {}  # by kind: where and when it was told last

    @property
    def counts(self) -> Mapping[str, int]:
        """By kind; a copy."""
        return dict(self._counts)

    @property
    def walls(self) -> Mapping[str, float]:
        """By kind, when the last one happened; a copy."""
        return dict(self._walls)

    def fold(self, incident: Incident, moment: Moment, *, source: str, place: _Place) -> None:
        """Take in one that was told at a place of the run. Where its moment is not known, it waits for ``placed``."""
        if self._is_news(incident, moment, place):
            self._counts[incident.kind] += 1
        if moment.wall is None:
            self._unplaced = [*self._unplaced[-MAX_UNPLACED:], (source, incident)]
        else:
            self.place(incident, moment.wall)

    def place(self, incident: Incident, wall: float) -> None:
        """It happened at that moment."""
        self._walls[incident.kind] = max(wall, self._walls.get(incident.kind, 0.0))

    def unplaced(self, source: str) -> Sequence[Incident]:
        """Those of a source whose moment is not known; they are forgotten here."""
        waiting = [incident for where, incident in self._unplaced if where == source]
        self._unplaced = [(where, incident) for where, incident in self._unplaced if where != source]
        return waiting

    def _is_news(self, incident: Incident, moment: Moment, place: _Place) -> bool:
        """Every rank that notices tells of the same event, often twice: they count once until a step follows or a minute has passed."""
        before, wall = self._told.get(incident.kind, (None, None))
        self._told[incident.kind] = place, moment.wall
        if before != place:
            return True
        return moment.wall is not None and wall is not None and moment.wall - wall >= REPEATS_S

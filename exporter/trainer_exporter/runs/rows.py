"""Many ordinary records of one source in one go, as columns: what a backlog or a burst is made of.

Each figure of a run that such records change depends on one field, or on the step and one field. So their order matters within a field
alone, and a field is taken in as a whole. What is not ordinary is folded one by one; either way the run is the same afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from operator import lt, sub
from typing import Final, NamedTuple

from trainer_exporter.model import Incident, Record, Table
from trainer_exporter.runs.timeline import Moment, Moments

Placed = tuple[Record | Incident, Moment]
PlacedTable = tuple[Table, Moments]

WORK: Final = ("global_batch_size", "sequence_length")  # of a step; some trainers begin with little of it and add to it by plan
FEWEST: Final = 8  # records for which columns are worth their making


class Column(NamedTuple):
    """The values of one field, and the steps at which they stood."""

    steps: Sequence[float]
    values: Sequence[float]


class Rows(NamedTuple):
    """Records that say nothing but finite values of rising steps, all placed in time in the same way."""

    steps: Sequence[float]
    columns: dict[str, Column]
    walls: Sequence[float]  # published times, as far as they are known; one of each is enough
    ticks: Sequence[float | None]
    last: Record
    moment: Moment  # of the last

    @property
    def is_live(self) -> bool:
        return self.moment.live

    @property
    def rank(self) -> int:
        """How far these records are to be trusted, beside those of other sources."""
        return rank(self.last, is_exact=self.last.step_exact)


def rank(record: Record, *, is_exact: bool) -> int:
    """How far a record is to be trusted, beside those of other sources; ``is_exact``: so are the steps of its source."""
    return 0 if record.late else 1 + int(is_exact) + int("step" in record.fields) + 2 * int(record.precise)


def parts(events: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    """The events cut where one follows that is not ordinary, or not of the same kind; in order, and none is left out."""
    begin = 0
    before: Record | None = None
    where: Moment | None = None
    for at, (event, moment) in enumerate(events):
        if not isinstance(event, Record) or not is_ordinary(event):
            before = None
        elif before is None or where is None or not (_goes_on(before, event) and _is_alike(where, moment)):
            before, where = event, moment
        else:
            before = event
            continue
        if at > begin:
            yield events[begin:at]
        begin = at
    if events:
        yield events[begin:]


def is_ordinary(record: Record) -> bool:
    """Whether it says nothing but values of a step."""
    fields = record.fields
    return "step" in fields and not (
        record.metrics
        or record.phase
        or record.checkpoint
        or record.facts
        or record.hidden_nonfinite
        or record.late
        or record.starts
        or record.closes
        or "eval_loss" in fields
    )


def _goes_on(before: Record, record: Record) -> bool:
    is_alike = record.step_exact == before.step_exact and record.precise == before.precise
    told, known = record.fields, before.fields
    return is_alike and told["step"] > known["step"] and all(told.get(name) == known.get(name) for name in WORK)


def _is_alike(where: Moment, moment: Moment) -> bool:
    return moment.live == where.live and moment.clock == where.clock and (moment.wall == where.wall or not moment.live)


def rows(events: Sequence[Placed]) -> Rows | None:
    """The columns of one part; None where a value is not finite, or where so few are not worth it."""
    if len(events) < FEWEST:
        return None
    records = [event for event, _ in events if isinstance(event, Record)]
    found = _columns(records)
    steps = found.pop("step").values
    if len(records) < len(events) or not all(math.isfinite(sum(column.values)) for column in found.values()):
        return None
    moments = [moment for _, moment in events]
    walls = [moment.wall for moment in moments if moment.wall is not None]
    return Rows(steps, found, walls, [moment.tick for moment in moments], records[-1], moments[-1])


def rows_of(table: Table, moments: Moments) -> Rows | None:
    """The columns of a table; None where not all of them are finite, steps do not rise, or the work of a step changes."""
    steps = table.columns["step"].values
    columns = {
        name: Column(steps if len(places) == len(steps) else steps[places.start :: places.step], values)
        for name, (places, values) in table.columns.items()
        if name != "step"
    }
    are_alike = all(
        len(columns[name].values) == len(steps) == columns[name].values.count(columns[name].values[0]) for name in WORK if name in columns
    )
    if not (are_alike and all(map(lt, steps, steps[1:])) and all(math.isfinite(sum(column.values)) for column in columns.values())):
        return None
    last = {name: values[-1] for name, (places, values) in table.columns.items() if len(steps) - 1 in places}
    wall = moments.last.wall
    record = Record(table.lines[-1], last, precise=table.precise)
    walls = moments.walls or ([] if wall is None else [wall])
    return Rows(steps, columns, walls, moments.ticks, record, moments.last)


def told_before(part: Sequence[Placed], step: float) -> int:
    """How many records at the beginning of a part are not beyond a step."""
    known = takewhile(lambda one: isinstance(one[0], Record) and one[0].fields.get("step", math.inf) <= step, part)
    return sum(1 for _ in known)


def _columns(records: Sequence[Record]) -> dict[str, Column]:
    keys = records[0].fields.keys()
    if all(record.fields.keys() == keys for record in records):
        steps = [record.fields["step"] for record in records]
        return {name: Column(steps, [record.fields[name] for record in records]) for name in keys}
    found: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        step = record.fields["step"]
        for name, value in record.fields.items():
            column = found.get(name)
            if column is None:
                column = found[name] = [], []
            column[0].append(step)
            column[1].append(value)
    return {name: Column(*column) for name, column in found.items()}


def gaps(before: float | None, times: Sequence[float | None]) -> list[float]:
    """What lies between neighbours, where both are known and time has gone on."""
    known = [before, *times]
    if None not in known:
        return [pause for pause in map(sub, known[1:], known) if pause > 0]
    return [now - last for last, now in pairwise(known) if last is not None and now is not None and now > last]

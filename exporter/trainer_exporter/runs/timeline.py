"""When a line happened. A log's stamps often have no zone, its past was never seen arriving, and its future does not exist.

Live lines happened when they were read. For the past, a stamp with a zone is taken as it is; one without is shifted so that the last stamp
of the file lies at the file's modification time, rounded to 15 minutes (the step of the world's time zones). That holds where the last line
carries one: a console whose few stamps are followed by hours of lines without is read in the machine's own zone instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trainer_exporter.model import Record, Stamp, Table

ZONE_STEP_S = 900.0
AHEAD_S = 60.0  # clocks of nodes and file servers differ by so much


class Moment(NamedTuple):
    """When something happened, as well as it can be known.

    ``wall`` is the published time (None: unknown). ``tick`` serves for differences between records of one source and one ``clock``.
    """

    wall: float | None
    live: bool
    tick: float | None = None
    clock: Literal["stamp", "elapsed", "arrival", ""] = ""


class Moments(NamedTuple):
    """Of the records of a table: all of them were placed in the same way."""

    ticks: Sequence[float | None]
    last: Moment
    walls: Sequence[float] = ()  # of each, where it is not that of the last

    def each(self) -> list[Moment]:
        """One by one."""
        walls: Sequence[float | None] = self.walls or [self.last.wall] * len(self.ticks)
        return [self.last._replace(wall=wall, tick=tick) for wall, tick in zip(walls, self.ticks, strict=True)]


def machine_offset(seconds: float) -> float:
    """Seconds to add to a zoneless stamp that was written in this machine's time zone."""
    return time.mktime(time.gmtime(seconds)) - math.floor(seconds)


def zone_offset(stamp: Stamp | None, mtime: float, *, is_latest: bool = True, local: Callable[[float], float] = machine_offset) -> float:
    """Seconds to add to a zoneless stamp so that it is Unix time.

    ``is_latest``: the stamp was written at about ``mtime``; else some time before it, and ``local`` tells the zone unless that puts it
    behind ``mtime``.
    """
    if stamp is None or stamp.zoned:
        return 0.0
    own = local(stamp.seconds)
    if not is_latest and stamp.seconds + own <= mtime + AHEAD_S:
        return own
    return round((mtime - stamp.seconds) / ZONE_STEP_S) * ZONE_STEP_S


class Timeline:
    """Moments of the lines of one file. ``last_stamp`` and ``mtime`` are those of the file when it was opened."""

    def __init__(self, *, last_stamp: Stamp | None, mtime: float, is_latest: bool = True) -> None:
        self._offset = zone_offset(last_stamp, mtime, is_latest=is_latest)

    def moment(self, stamp: Stamp | None, *, read_wall: float, live: bool) -> Moment:
        """When a line with this stamp happened; never later than it was read."""
        if live:
            if stamp is None:
                return Moment(read_wall, live, tick=read_wall, clock="arrival")
            return Moment(read_wall, live, tick=stamp.seconds, clock="stamp")
        if stamp is None:
            return Moment(None, live)
        wall = stamp.seconds if stamp.zoned else stamp.seconds + self._offset
        return Moment(min(wall, read_wall), live, tick=stamp.seconds, clock="stamp")

    def of_record(self, record: Record, *, read_wall: float, live: bool) -> Moment:
        """As ``moment``; a record that prints the time elapsed since its start has a clock even without a stamp."""
        elapsed = record.fields.get("elapsed_seconds")
        if record.stamp is None and elapsed is not None:
            return Moment(read_wall if live else None, live, elapsed, "elapsed")
        return self.moment(record.stamp, read_wall=read_wall, live=live)

    def of_table(self, table: Table, *, read_wall: float, live: bool) -> Moments:
        """As ``of_record`` for each of its records."""
        if table.times:
            return self._of_stamped(table, read_wall=read_wall, live=live)
        elapsed = table.columns.get("elapsed_seconds")
        if elapsed is None:
            moment = self.moment(None, read_wall=read_wall, live=live)
            return Moments([moment.tick] * len(table.lines), moment)
        return Moments(elapsed.values, Moment(read_wall if live else None, live, elapsed.values[-1], "elapsed"))

    def _of_stamped(self, table: Table, *, read_wall: float, live: bool) -> Moments:
        times = table.times
        last = self.moment(Stamp(times[-1], table.zoned), read_wall=read_wall, live=live)
        if live:
            return Moments(times, last)
        offset = 0.0 if table.zoned else self._offset
        return Moments(times, last, [min(time + offset, read_wall) for time in times])

"""When lines happened: zones are found by lining up, the past is not news, nothing lies in the future."""

from __future__ import annotations

import pytest

from trainer_exporter.model import Record, Stamp
from trainer_exporter.runs.timeline import Timeline, zone_offset

NOON = 1_700_000_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("written_late_s", "offset_h"),
    [(0.0, 0.0), (0.0, 8.0), (4.0, -5.0), (300.0, 5.75), (2.0, -3.5)],
    ids=["utc", "shanghai", "new_york", "kathmandu_flushed_late", "newfoundland"],
)
def test_the_zone_of_a_log_is_found_at_its_last_stamp(written_late_s: float, offset_h: float) -> None:
    local = Stamp(NOON + offset_h * HOUR - written_late_s, zoned=False)

    timeline = Timeline(last_stamp=local, mtime=NOON)

    earlier = Stamp(local.seconds - 60.0, zoned=False)
    moment = timeline.moment(earlier, read_wall=NOON + 5, live=False)
    assert moment.wall == pytest.approx(NOON - written_late_s - 60.0)


@pytest.mark.parametrize(
    ("machine_h", "written_h", "offset_h"),
    [(0.0, 0.0, 0.0), (8.0, 8.0, 8.0), (-5.0, 0.0, 0.0)],
    ids=["utc", "shanghai", "utc_container_on_a_machine_in_new_york"],
)
def test_hours_of_lines_without_stamps_do_not_shift_the_last_one(machine_h: float, written_h: float, offset_h: float) -> None:
    started = NOON - 2 * HOUR
    stamp = Stamp(started + written_h * HOUR, zoned=False)

    found = zone_offset(stamp, NOON, is_latest=False, local=lambda _: -machine_h * HOUR)

    if machine_h == written_h:
        assert found == -offset_h * HOUR
    else:
        assert stamp.seconds + found <= NOON  # it cannot be known, but it did not happen in the future


def test_a_stamp_with_a_zone_needs_no_lining_up() -> None:
    stamp = Stamp(NOON - 7 * HOUR, zoned=True)

    assert zone_offset(stamp, NOON) == 0.0
    assert Timeline(last_stamp=stamp, mtime=NOON).moment(stamp, read_wall=NOON, live=False).wall == NOON - 7 * HOUR


def test_a_live_line_happened_when_it_was_read_and_keeps_its_own_clock_for_differences() -> None:
    timeline = Timeline(last_stamp=None, mtime=0.0)

    moment = timeline.moment(Stamp(123.0, zoned=False), read_wall=NOON, live=True)

    assert (moment.wall, moment.tick, moment.clock) == (NOON, 123.0, "stamp")


def test_nothing_lies_in_the_future() -> None:
    ahead = Stamp(NOON + 90.0, zoned=True)

    assert Timeline(last_stamp=ahead, mtime=NOON).moment(ahead, read_wall=NOON, live=False).wall == NOON


def test_a_past_without_stamps_has_no_time_but_its_elapsed_time_is_a_clock() -> None:
    record = Record(line=1, fields={"step": 10, "elapsed_seconds": 130.0})

    moment = Timeline(last_stamp=None, mtime=NOON).of_record(record, read_wall=NOON, live=False)

    assert (moment.wall, moment.tick, moment.clock) == (None, 130.0, "elapsed")

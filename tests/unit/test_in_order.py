"""A step that does not follow waits for the line behind it, and not for ever."""

from __future__ import annotations

from trainer_exporter.formats.decimals import FAR_LINES, InOrder
from trainer_exporter.model import Record


def at(line: int, step: int) -> Record:
    return Record(line, {"step": step})


def test_a_step_that_the_next_line_confirms_is_told_with_it() -> None:
    order = InOrder()

    told = [order.told(record) for record in (at(1, 1), at(2, 500), at(3, 501))]

    assert told == [[at(1, 1)], [], [at(2, 500), at(3, 501)]]


def test_a_step_whose_next_line_is_far_is_forgotten() -> None:
    order = InOrder()
    order.told(at(1, 1))
    order.told(at(2, 500))

    told = order.told(at(3 + FAR_LINES, 501))

    assert at(2, 500) not in told

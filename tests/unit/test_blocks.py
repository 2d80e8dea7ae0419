"""A block of a format's ordinary lines is read in one go, and says what its lines say one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.claims import Event
from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Incident, Record

FORMATS = registry()
ORDINARY = '{"current_steps": %d, "total_steps": 9000, "loss": %s, "lr": 5e-05, "epoch": 0.1, "percentage": 0.2, "elapsed_time": "%s"}'
ODD = (
    '{"current_steps": 40, "total_steps": 9000, "eval_loss": 1.5, "epoch": 0.1, "elapsed_time": "0:00:10"}',
    '{"current_steps": 9000, "total_steps": 9000, "epoch": 3.0, "percentage": 100.0, "elapsed_time": "0:00:10"}',
    '{"current_steps": 41, "total_steps": 9000, "loss": 1.5, "lr": 5e-05, "epoch": 0.1, "percentage": 0.2, "elapsed_time": null}',
    '{"current_steps": 42, "total_steps": 9000, "loss": "1.5", "lr": 5e-05, "epoch": 0.1, "percentage": 0.2, "elapsed_time": "0:00:10"}',
    '{"current_steps": 43, "total_steps": 9000, "loss": true, "lr": 5e-05, "epoch": 0.1, "percentage": 0.2, "elapsed_time": "0:00:10"}',
    '{"current_steps": 44, "total_steps": 9000, "loss": 0.0, "grad_norm": NaN, "lr": 5e-05, "epoch": 0.1}',
    '{"current_steps": 45, "loss": 1.0}, {"current_steps": 46, "loss": 1.0}',
    '{"current_steps": 47, "total_steps": 9000, "loss": 1.',
    '{"total_steps": 9000, "step": 48, "loss": 1.5}',
    '{"loss": 1.5}',
    "[1, 2]",
    "17",
    "",
    "  noise of a loader",
    "Traceback (most recent call last):",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "[rank1]: a line with a prefix: loss",
    "\x1b[32mgreen\x1b[0m loss",
)
LOSSES = st.sampled_from(("1.5", "0.25", "NaN", "Infinity", "0.0"))
TIMES = st.sampled_from(("0:00:10", "1 day, 2:03:04", "2500:00:00", "12:13", "?", "1:2:3.5"))
LINES = st.one_of(*[st.tuples(st.integers(0, 999), LOSSES, TIMES).map(lambda said: ORDINARY % said)] * 12, st.sampled_from(ODD))


def events(chunks: Sequence[str]) -> tuple[list[Event], Intake]:
    intake, said, line = Intake(FORMATS), [], 1
    for chunk in chunks:
        said += intake.feed(Chunk(chunk.encode(), line, 0.0, live=False))
        line += chunk.count("\n")
    return said, intake


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(LINES, max_size=120))
def test_a_file_says_the_same_in_one_block_as_line_by_line(lines: list[str]) -> None:
    one_by_one, slow = events([f"{line}\n" for line in lines])

    at_once, quick = events(["".join(f"{line}\n" for line in lines)])

    assert repr(sorted(at_once, key=lambda event: event.line)) == repr(one_by_one)
    assert (quick.counts, quick.last_unrecognised, quick.format) == (slow.counts, slow.last_unrecognised, slow.format)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 48, 199])
def test_trouble_between_a_trainers_lines_is_heard_where_it_stands(place: int) -> None:
    lines = [ORDINARY % (step, "1.5", "0:00:10") for step in range(200)]
    lines.insert(place, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")

    said, _ = events(["".join(f"{line}\n" for line in lines)])

    assert [event.line for event in said if isinstance(event, Incident)] == [place + 1]
    assert len([event for event in said if isinstance(event, Record)]) == 200

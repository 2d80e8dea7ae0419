"""A block of a format's ordinary lines is read in one go, and says what its lines say one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.claims import Event
from trainer_exporter.formats import Format, registry
from trainer_exporter.formats.base import BlockParser
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Incident, Record
from unit.line_by_line import alone

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


BAR = "%3d%%|%s| %d/%d [00:%02d<2:00:00,  1.01it/s]"
RECORD = "{'loss': %s, 'grad_norm': 0.5, 'learning_rate': 4.9e-05, 'epoch': %s}"
ODD_PIECES = (
    "{'eval_loss': '1.2', 'eval_runtime': '3.0', 'epoch': '0.5'}",
    "{'train_runtime': 12.0, 'train_loss': 1.5, 'epoch': 3.0}",
    "{'loss': 1.5, 'epoch': 0.25, 'global_step/max_steps': '5/9'}",
    "{'loss': None}",
    "{'loss': 1.",
    " 50%|#####     | 5/10 [00:01<00:01,  5.0it/s]",
    " 50%|#####     | 5/10 [00:01<00:01,  5.0it/s, loss=1.5]",
    "Writing model shards: 100%|##########| 1/1 [00:01<00:00,  1.0it/s]",
    "***** Running training *****",
    "  Num examples = 1,000",
    "  1%|          | 40/9000 [00:4",
    "Traceback (most recent call last):",
    "warning: something else",
    " ",
)


@st.composite
def consoles(draw: st.DrawFn) -> list[str]:
    """Lines of a Trainer's console: bars that are redrawn, what is printed between them, and what else may stand there."""
    lines, step, total = [], 0, draw(st.sampled_from((9000, 9000, 10)))
    for _ in range(draw(st.integers(0, 80))):
        pieces = []
        for _ in range(draw(st.sampled_from((0, 1, 2, 3, 5)))):
            step = max(0, min(total, step + draw(st.sampled_from((1, 1, 1, 2, 10, 0, -30)))))
            pieces.append(BAR % (step * 100 // total, " " * 10, step, total, step % 60))
            pieces += [draw(st.sampled_from(ODD_PIECES))] * (draw(st.integers(0, 30)) == 0)
        if draw(st.integers(0, 5)):
            pieces.append(
                RECORD % (draw(st.sampled_from(("1.5", "'1.5'", "nan", "0.0"))), draw(st.sampled_from((f"{step / 90:.2f}", "'0.1'"))))
            )
        else:
            pieces.append(draw(st.sampled_from(ODD_PIECES)))
        lines.append(draw(st.sampled_from(("\r", "\r", ""))) + draw(st.sampled_from(("\r", " " * 8 + "\r"))).join(pieces))
    return lines


FORMATS = registry()
LINE_BY_LINE = tuple(alone(one) for one in FORMATS)


def events(lines: Sequence[str], *, size: int, formats: Sequence[Format] = FORMATS) -> tuple[list[Event], Intake]:
    """What these lines say, so many at a time."""
    intake, said = Intake(formats), list[Event]()
    for at in range(0, len(lines), size):
        block = "".join(f"{line}\n" for line in lines[at : at + size])
        said += intake.feed(Chunk(block.encode(), at + 1, 0.0, live=False))
    return said, intake


@settings(max_examples=100, deadline=None)
@given(lines=st.one_of(st.lists(LINES, max_size=120), consoles()), size=st.integers(16, 120))
def test_lines_say_the_same_whether_their_format_reads_blocks_or_not(lines: list[str], size: int) -> None:
    one_by_one, slow = events(lines, size=size, formats=LINE_BY_LINE)

    at_once, quick = events(lines, size=size)

    assert repr(at_once) == repr(one_by_one)
    assert (quick.counts, quick.last_unrecognised, quick.format) == (slow.counts, slow.last_unrecognised, slow.format)


@pytest.mark.parametrize("name", ["hf_trainer", "llama_factory"])
def test_these_formats_read_blocks(name: str) -> None:
    (one,) = [one for one in FORMATS if one.name == name]

    assert isinstance(one.parser(), BlockParser)
    assert not isinstance(alone(one).parser(), BlockParser)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 48, 199])
def test_trouble_between_a_trainers_lines_is_heard_where_it_stands(place: int) -> None:
    lines = [ORDINARY % (step, "1.5", "0:00:10") for step in range(200)]
    lines.insert(place, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")

    said, _ = events(lines, size=len(lines))

    assert [event.line for event in said if isinstance(event, Incident)] == [place + 1]
    assert len([event for event in said if isinstance(event, Record)]) == 200

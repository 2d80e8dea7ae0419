"""What is taken off a line before any format sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter import envelope
from trainer_exporter.envelope import contained, container, has_labels, redraws, unwrapped, without_terminal
from trainer_exporter.model import Line, Stamp
from trainer_exporter.numbers import moment

NOON = moment("2026-03-01 12:00:00")


def test_colours_cursor_moves_and_nul_bytes_are_taken_out_even_of_a_number() -> None:
    text = "\x1b[36mloss: 1.\x1b[0m2\x005\x1b[A \x1b]0;title\x07end"

    assert without_terminal(text) == "loss: 1.25 end"


def test_redraws_of_a_bar_are_pieces_and_blank_ones_are_none() -> None:
    text = "\r  1%| 1/9\r          \r  2%| 2/9   \r"

    assert redraws(text) == ["  1%| 1/9", "  2%| 2/9"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("loss: 1.5", Line("loss: 1.5", 7), id="nothing to take off"),
        pytest.param("[default3]:loss: 1", Line("loss: 1", 7, stream="default3"), id="torchrun"),
        pytest.param("[rank3]: Traceback", Line("Traceback", 7, rank=3, stream="rank3"), id="torch excepthook"),
        pytest.param("(Worker pid=812, ip=10.0.0.2) step", Line("step", 7, stream="812"), id="ray"),
        pytest.param("[2026-03-01 12:00:00] Step 5", Line("Step 5", 7, NOON), id="leading time"),
        pytest.param(" [2026-03-01 12:00:00.5] iteration", Line("iteration", 7, moment("2026-03-01 12:00:00.5")), id="megatron"),
        pytest.param("2026-03-01 12:00:00,000 - a.b - INFO - x", Line("x", 7, NOON), id="python logging"),
        pytest.param("2026-03-01 12:00:00.000 | INFO     | m:f:3 - x", Line("x", 7, NOON), id="loguru"),
        pytest.param("03/01/2026 12:00:00 - INFO - my.trainer - x", Line("x", 7, NOON), id="american date"),
        pytest.param("INFO:train:x", Line("x", 7), id="python logging's default"),
        pytest.param("I0301 12:00:00.482913 139842 f.py:230] x", Line("x", 7), id="glog has no year"),
        pytest.param("[INFO|trainer.py:2519] 2026-03-01 12:00:00,000 >> x", Line("x", 7, NOON), id="hugging face"),
        pytest.param(
            "[INFO|2026-03-01 12:00:00] llamafactory.train.x:143 >> x",
            Line("llamafactory.train.x:143 >> x", 7, NOON),
            id="llama-factory keeps the logger",
        ),
        pytest.param(
            "[2026-03-01 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 5] step=1",
            Line("step=1", 7, NOON, rank=5),
            id="deepspeed",
        ),
        pytest.param("[default1]:[titan] 2026-03-01 12:00:00,000 - root - INFO - x", Line("x", 7, NOON, stream="default1"), id="nested"),
        pytest.param("2026-03-01T12:00:00+01:00 x", Line("x", 7, moment("2026-03-01 11:00:00", "Z")), id="zoned"),
        pytest.param("[after training is done] datetime: 1", Line("[after training is done] datetime: 1", 7), id="a bracket that is text"),
        pytest.param("  0%|          | 0/9", Line("  0%|          | 0/9", 7), id="leading blanks stay"),
        pytest.param("12: labelled?", Line("12: labelled?", 7), id="a number with a colon is text"),
    ],
)
def test_a_wrapper_is_taken_off_and_what_it_tells_is_kept(text: str, line: Line) -> None:
    assert unwrapped(text, 7) == line


def test_labels_are_taken_off_where_the_file_has_them() -> None:
    assert unwrapped(" 3: loss: 1", 7, labelled=True) == Line("loss: 1", 7, rank=3, stream="3")
    assert unwrapped("gpu-17: loss: 1", 7, labelled=True) == Line("loss: 1", 7, stream="gpu-17")
    assert unwrapped("loss: 1", 7, labelled=True) == Line("loss: 1", 7)


@pytest.mark.parametrize(
    ("lines", "labelled"),
    [
        pytest.param([f"{rank}: x" for rank in (3, 1, 0, 2) * 5], True, id="ranks in any order"),
        pytest.param([f"{rank}: x" for rank in (0, 1) * 8] + ["plain"] * 4, True, id="16 of 20"),
        pytest.param([f"{rank}: x" for rank in (0, 1) * 7] + ["plain"] * 6, False, id="14 of 20"),
        pytest.param([f"{layer:6d}: Pipe" for layer in range(20)], False, id="a rising list is a list"),
        pytest.param(["worker-0: x", "worker-1: x"] * 10, True, id="hosts"),
        pytest.param(["loss: 1.5", "step: 3"] * 10, False, id="words"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_labels_are_believed_when_most_lines_have_them(lines: list[str], labelled: bool) -> None:
    assert has_labels([line.encode() for line in lines]) is labelled


def test_a_containers_record_is_taken_apart() -> None:
    cri = b"2026-03-01T13:00:00.000000000+01:00 stderr P half a line"
    docker = rb'{"log":"it\u0027s \u001b[1mbold\n","stream":"stdout","time":"2026-03-01T12:00:00Z"}'

    noon = Stamp(NOON.seconds, zoned=True) if NOON else None
    assert contained(cri, "cri") == envelope.Wrapped(b"half a line", "stderr", complete=False, stamp=noon)
    assert contained(docker, "docker") == envelope.Wrapped(b"it's \x1b[1mbold", "stdout", complete=True, stamp=noon, is_closed=True)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b'{"log":"x\\n","stream":"stdout","time":"2026-03-01T12:00:00Z"}', "docker"),
        (b"2026-03-01T12:00:00.1Z stdout F x", "cri"),
        (b'{"loss": 1}', ""),
        (b"2026-03-01T12:00:00.1Z some text", ""),
    ],
)
def test_a_container_is_known_by_its_first_line(first: bytes, kind: str) -> None:
    assert container(first) == kind


@pytest.mark.parametrize("line", [b"", b"{", b'{"log": 3}', b"[1]", b'{"log":"x"', b"\xff\xfe"])
def test_a_broken_record_is_none(line: bytes) -> None:
    assert contained(line, "docker") is None
    assert contained(line, "cri") is None


@given(st.text(max_size=200))
def test_no_text_makes_unwrapping_fail(text: str) -> None:
    line = unwrapped(without_terminal(text), 1)

    assert len(line.text) <= len(text)


@pytest.mark.parametrize("wrapper", ["[rank{}]: ", "[Rank {}] "])
def test_a_rank_of_thousands_of_digits_is_none(wrapper: str) -> None:
    text = wrapper.format("9" * 5000) + "loss: 1"

    assert unwrapped(text, 7) == Line(text, 7)

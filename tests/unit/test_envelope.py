"""What is taken off a line before any format sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter import envelope
from trainer_exporter.envelope import contained, container, has_labels, ranks_apart, redraws, unwrapped, without_terminal
from trainer_exporter.model import Line, Stamp
from trainer_exporter.numbers import moment

NOON = moment("2026-03-01 12:00:00")
UTC = moment("2026-03-01 12:00:00", "Z")


def inside(text: str, *, labelled: bool = False) -> Line:
    """What is told of line 7, but for the line as it was."""
    return unwrapped(text, 7, labelled=labelled)._replace(whole="")


def test_colours_cursor_moves_and_nul_bytes_are_taken_out_even_of_a_number() -> None:
    text = "\x1b[36mloss: 1.\x1b[0m2\x005\x1b[A \x1b]0;title\x07end"

    assert without_terminal(text) == "loss: 1.25 end"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("loss: 1.25\b\b0", "loss: 1.0", id="digits are typed over"),
        pytest.param("50% \b\b\b\b\b\b60%", "50% \r60%", id="back to the beginning is a redraw"),
        pytest.param("[rank0]: 1/9\b\b\b2/9\b\b\b3/9", "[rank0]: 3/9", id="a counter behind a prefix"),
        pytest.param("loss: 1.5\b\b\b", "loss: 1.5", id="a cursor that goes back and types nothing"),
        pytest.param("1/9\b\b\b\r2/9", "1/9\r2/9", id="keras 2 goes back twice"),
        pytest.param("old\b\b\b   \b\b\bnew", "old\r   \rnew", id="wiped with blanks"),
        pytest.param("a l\blo\bos\bss\bs", "a loss", id="overstruck"),
        pytest.param("\b\bloss: 1.5", "\rloss: 1.5", id="nothing to go back over"),
        pytest.param("a\b\x1b[1m1\x1b[0m.5", "a\r1.5", id="with colours"),
    ],
)
def test_what_backspaces_go_over_is_typed_anew(text: str, shown: str) -> None:
    assert without_terminal(text) == shown


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
        pytest.param("03/01/2026 12:00:00 - INFO - a.b - [RANK 3] x", Line("x", 7, NOON, rank=3), id="accelerate's logger"),
        pytest.param(
            "[2026-03-01 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 5] step=1",
            Line("step=1", 7, NOON, rank=5),
            id="deepspeed",
        ),
        pytest.param("[default1]:[titan] 2026-03-01 12:00:00,000 - root - INFO - x", Line("x", 7, NOON, stream="default1"), id="nested"),
        pytest.param("2026-03-01T12:00:00+01:00 x", Line("x", 7, moment("2026-03-01 11:00:00", "Z")), id="zoned"),
        pytest.param("2026-03-01 12:00:00,000 - INFO - x", Line("x", 7, NOON), id="level first"),
        pytest.param("2026-03-01 12:00:00,000 [INFO] x", Line("x", 7, NOON), id="level in brackets"),
        pytest.param("2026-03-01 12:00:00 INFO     x", Line("x", 7, NOON), id="padded level"),
        pytest.param("[2026-03-01 12:00:00,000][loop.train][INFO] - x", Line("x", 7, NOON), id="hydra"),
        pytest.param("[2026-03-01 12:00:00,000][train_inner][INFO] - x", Line("[train_inner][INFO] - x", 7, NOON), id="fairseq keeps it"),
        pytest.param("[12:00:00] INFO     x=1      loop.py:17", Line("x=1", 7), id="rich"),
        pytest.param("           INFO     x=1      loop.py:17", Line("x=1", 7), id="rich within the same second"),
        pytest.param("2026-03-01 12:00:00,0: rank3[47][MainThread]: INFO: composer.a: x", Line("x", 7, NOON, rank=3), id="composer"),
        pytest.param("(Policy[rank=3] pid=812) x", Line("x", 7, rank=3, stream="812"), id="ray's actor with a rank"),
        pytest.param("(raylet, ip=10.0.0.2) x", Line("x", 7), id="ray's own"),
        pytest.param("(autoscaler +1m2s) x", Line("x", 7), id="ray's autoscaler"),
        pytest.param(
            "(Policy pid=812) step 5 [repeated 7x across cluster] (Ray deduplicates logs by default.)",
            Line("step 5", 7, stream="812"),
            id="ray's repeats",
        ),
        pytest.param("[1,3]<stdout>:x", Line("x", 7, rank=3, stream="3"), id="mpirun"),
        pytest.param("[pod/llama-0/trainer] x", Line("x", 7), id="kubectl"),
        pytest.param("Mar  1 12:00:00 gpu-17 train.sh[812]: x", Line("x", 7, stream="812"), id="syslog has no year"),
        pytest.param("<14>Mar  1 12:00:00 gpu-17 train.sh[812]: x", Line("x", 7, stream="812"), id="rfc 3164"),
        pytest.param("<14>1 2026-03-01T12:00:00Z gpu-17 a 812 - - x", Line("x", 7, UTC, stream="812"), id="rfc 5424"),
        pytest.param('<14>1 2026-03-01T12:00:00Z g a - - [b c="d"] x', Line("x", 7, UTC), id="rfc 5424 with data"),
        pytest.param("2026-03-01T13:00:00+0100 gpu-17 python[812]: x", Line("x", 7, UTC, stream="812"), id="journal"),
        pytest.param("Mar 01 12:00:00 g kernel: [ 12345.678901] NVRM: x", Line("NVRM: x", 7), id="kernel by syslog"),
        pytest.param("[12345.678901] NVRM: x", Line("NVRM: x", 7), id="dmesg"),
        pytest.param("[Sun Mar  1 12:00:00 2026] NVRM: x", Line("NVRM: x", 7, NOON), id="dmesg -T"),
        pytest.param("6,1234,98765432,-;NVRM: x", Line("NVRM: x", 7), id="kmsg"),
        pytest.param("[default3]:    optim/x=1", Line("    optim/x=1", 7, stream="default3"), id="blanks behind torchrun's prefix"),
        pytest.param("2026-03-01T12:00:00Z | - Time", Line("| - Time", 7, UTC), id="a bar behind a zone is text"),
        pytest.param("Mar 1 loss: 1.5", Line("Mar 1 loss: 1.5", 7), id="a month that is text"),
        pytest.param("[after training is done] datetime: 1", Line("[after training is done] datetime: 1", 7), id="a bracket that is text"),
        pytest.param("  0%|          | 0/9", Line("  0%|          | 0/9", 7), id="leading blanks stay"),
        pytest.param("12: labelled?", Line("12: labelled?", 7), id="a number with a colon is text"),
    ],
)
def test_a_wrapper_is_taken_off_and_what_it_tells_is_kept(text: str, line: Line) -> None:
    assert inside(text) == line


def test_labels_are_taken_off_where_the_file_has_them() -> None:
    assert inside(" 3: loss: 1", labelled=True) == Line("loss: 1", 7, rank=3, stream="3")
    assert inside("gpu-17: loss: 1", labelled=True) == Line("loss: 1", 7, stream="gpu-17")
    assert inside("P1  3: loss: 1", labelled=True) == Line("loss: 1", 7, stream="P1.3")
    assert inside("trainer-1  | loss: 1", labelled=True) == Line("loss: 1", 7, stream="trainer-1")
    assert inside("loss: 1", labelled=True) == Line("loss: 1", 7)


@pytest.mark.parametrize(
    ("lines", "labelled"),
    [
        pytest.param([f"{rank}: x" for rank in (3, 1, 0, 2) * 5], True, id="ranks in any order"),
        pytest.param([f"{rank}: x" for rank in (0, 1) * 8] + ["plain"] * 4, True, id="16 of 20"),
        pytest.param([f"{rank}: x" for rank in (0, 1) * 7] + ["plain"] * 6, False, id="14 of 20"),
        pytest.param([f"{layer:6d}: Pipe" for layer in range(20)], False, id="a rising list is a list"),
        pytest.param(["worker-0: x", "worker-1: x"] * 10, True, id="hosts"),
        pytest.param(["P0 0: x", "P1  0: x"] * 10, True, id="a heterogeneous job"),
        pytest.param(["10.0.0.1: x", "10.0.0.2: x"] * 10, True, id="addresses"),
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


def test_a_record_of_the_journal_is_taken_apart() -> None:
    text = b'{"__REALTIME_TIMESTAMP":"1772366400000000","_PID":"812","MESSAGE":"loss: 1"}'
    raw = b'{"__REALTIME_TIMESTAMP":"1772366400000000","_PID":"812","MESSAGE":[27,91,49,109,120]}'

    assert contained(text, "journal") == envelope.Wrapped(b"loss: 1", "812", complete=True, stamp=UTC, is_closed=True)
    assert contained(raw, "journal") == envelope.Wrapped(b"\x1b[1mx", "812", complete=True, stamp=UTC, is_closed=True)


@pytest.mark.parametrize(
    ("text", "stream", "pieces"),
    [
        pytest.param("loss: 1", "default3", ["loss: 1"], id="nothing"),
        pytest.param("loss: 1.[default3]:25", "default3", ["loss: 1.25"], id="the rest of the same line"),
        pytest.param("loss: 1.[default1]:loss: 2", "default3", ["loss: 1.", "[default1]:loss: 2"], id="another rank"),
        pytest.param("a[default1]:b[default1]:c", "0/default3", ["a", "[default1]:bc"], id="both"),
        pytest.param("[rank3]: Traceback", "default3", ["[rank3]: Traceback"], id="a prefix inside a prefix"),
        pytest.param("50%|#|[rank1]: Traceback", "", ["50%|#|", "[rank1]: Traceback"], id="behind a bar"),
        pytest.param("loss[layer3]: 1", "default3", ["loss[layer3]: 1"], id="a name with an index"),
        pytest.param("a[trainer1]:b", "trainer0", ["a", "[trainer1]:b"], id="a role of one's own"),
    ],
)
def test_ranks_in_one_line_are_taken_apart(text: str, stream: str, pieces: list[str]) -> None:
    assert ranks_apart(text, stream) == pieces


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b'{"log":"x\\n","stream":"stdout","time":"2026-03-01T12:00:00Z"}', "docker"),
        (b"2026-03-01T12:00:00.1Z stdout F x", "cri"),
        (b'{"__REALTIME_TIMESTAMP":"1","MESSAGE":"x"}', "journal"),
        (b'{"loss": 1}', ""),
        (b"2026-03-01T12:00:00.1Z some text", ""),
    ],
)
def test_a_container_is_known_by_its_first_line(first: bytes, kind: str) -> None:
    assert container(first) == kind


@pytest.mark.parametrize(
    "line", [b"", b"{", b'{"log": 3}', b"[1]", b'{"log":"x"', b"\xff\xfe", b"[" * 5000, b'{"MESSAGE": [-1, "a", 256]}']
)
def test_a_broken_record_is_none(line: bytes) -> None:
    assert contained(line, "docker") is None
    assert contained(line, "cri") is None
    assert not (contained(line, "journal") or envelope.Wrapped(b"", "", complete=True, stamp=None)).text


@given(st.text(max_size=200))
def test_no_text_makes_unwrapping_fail(text: str) -> None:
    line = unwrapped(without_terminal(text), 1)

    assert len(line.text) <= len(text)


@pytest.mark.parametrize("wrapper", ["[rank{}]: ", "[Rank {}] ", "[RANK {}] "])
def test_a_rank_of_thousands_of_digits_is_none(wrapper: str) -> None:
    text = wrapper.format("9" * 5000) + "loss: 1"

    assert inside(text) == Line(text, 7)

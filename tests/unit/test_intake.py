"""A file's bytes become events: which format claims a line, what is counted, what no input can break."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.candidates import line_starts
from trainer_exporter.formats import registry
from trainer_exporter.intake import Event, Intake
from trainer_exporter.model import Chunk, Incident, Malformed, Record, Stamp

PLAIN = b"step 10 | loss: 2.5 | lr: 1e-4\n"
MEGATRON = (
    b" iteration       20/     100 | consumed samples:          640 | elapsed time per iteration (ms): 500.0 |"
    b" learning rate: 1.000E-04 | global batch size:    32 | lm loss: 2.250000E+00 | loss scale: 1.0 |\n"
)
JSON = b'{"current_steps": 30, "total_steps": 60, "loss": 2.0, "lr": 0.0001, "epoch": 0.5}\n'
DICT = b"{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.4}\n"
ENGINE = b"[2026-03-01 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=5, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]\n"
CHAT = b"***** Running training *****\n***** Evaluating perplexity, Epoch 0/1 *****\nppl: 20.5, loss: 3.0204\n"
OOM = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.10 GiB total capacity)\n"
NOISE = b"2026-03-01 12:00:00 worker 3 loaded shard 17 from cache\n"


def intake() -> Intake:
    return Intake(registry())


def events(data: bytes, reader: Intake | None = None, *, first_line: int = 1) -> list[Event]:
    reader = reader or intake()
    return [*reader.feed(Chunk(data, first_line, 0.0, live=False)), *reader.flush()]


def losses(found: list[Event]) -> list[tuple[int, float]]:
    return [(event.line, event.fields["loss"]) for event in found if isinstance(event, Record) and "loss" in event.fields]


def test_lines_between_noise_keep_their_numbers() -> None:
    data = NOISE * 3 + JSON + NOISE * 2 + JSON

    assert losses(events(data, first_line=101)) == [(104, 2.0), (107, 2.0)]


def test_numbers_go_on_with_the_next_chunk() -> None:
    reader = intake()

    first = reader.feed(Chunk(NOISE + JSON, 1, 0.0, live=True))
    second = reader.feed(Chunk(NOISE + JSON, 3, 0.0, live=True))

    assert losses([*first, *second]) == [(2, 2.0), (4, 2.0)]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(NOISE, "", id="noise"),
        pytest.param(PLAIN, "plain", id="hand-written"),
        pytest.param(MEGATRON, "megatron", id="megatron"),
        pytest.param(JSON, "llama_factory", id="llama-factory"),
        pytest.param(DICT, "hf_trainer", id="hugging face"),
        pytest.param(PLAIN + MEGATRON, "megatron", id="a known one takes over from the fallback"),
        pytest.param(MEGATRON + PLAIN, "megatron", id="the fallback never takes over"),
        pytest.param(ENGINE, "deepspeed", id="a library beneath a silent program"),
        pytest.param(ENGINE + PLAIN + ENGINE, "plain", id="a hand-written program takes over from a library"),
        pytest.param(ENGINE + DICT + ENGINE, "hf_trainer", id="a known program takes over from a library"),
        pytest.param(CHAT, "deepspeed_chat", id="a program that borrows another's announcement"),
        pytest.param(MEGATRON + NOISE + DICT, "hf_trainer", id="two programs in one file"),
    ],
)
def test_the_format_is_found_from_the_content(data: bytes, name: str) -> None:
    reader = intake()

    events(data, reader)

    assert reader.format == name


def test_two_programs_in_one_file_are_both_read() -> None:
    data = MEGATRON + DICT + NOISE + MEGATRON + JSON

    assert losses(events(data)) == [(1, 2.25), (2, 1.5), (4, 2.25), (5, 2.0)]


def test_a_format_whose_lines_come_again_knows_what_it_had_seen() -> None:
    without_loss = MEGATRON.replace(b"lm loss: 2.250000E+00 | ", b"").replace(b" |\n", b" | number of skipped iterations:   0 |\n")

    *_, last = events(MEGATRON + DICT + without_loss)

    assert isinstance(last, Record)
    assert last.hidden_nonfinite == {"loss"}  # a loss that had been shown before is left out only when it is NaN


def test_the_fallback_stays_out_once_a_format_is_known() -> None:
    assert losses(events(MEGATRON + PLAIN)) == [(1, 2.25)]


@pytest.mark.parametrize("program", [PLAIN, DICT, MEGATRON], ids=["hand-written", "hugging face", "megatron"])
def test_a_library_is_silent_once_the_program_above_it_has_spoken(program: bytes) -> None:
    before, *after = events(ENGINE + program + ENGINE + program + ENGINE)

    assert isinstance(before, Record)
    assert before.fields["step"] == 5
    assert [event.line for event in after] == [2, 4]


def test_an_announcement_that_a_script_borrowed_leaves_the_steps_to_the_library() -> None:
    announced = b"***** Running training *****\n  Num examples = 640\n  Total optimization steps = 40\n"

    found = events(announced + ENGINE + NOISE + ENGINE.replace(b"step=5", b"step=10"))

    assert [event.fields["step"] for event in found if isinstance(event, Record) and "step" in event.fields] == [5, 10]


def test_a_trainer_that_holds_its_line_back_has_spoken() -> None:
    found = events(b"***** Running training *****\n" + DICT + ENGINE + DICT + ENGINE)

    assert [event.line for event in found if isinstance(event, Record) and "loss" in event.fields] == [2, 4]
    assert not [event for event in found if isinstance(event, Record) and "step" in event.fields]


def test_trouble_is_told_with_its_line_beside_the_records() -> None:
    found = events(NOISE + JSON + OOM + NOISE)

    assert [(type(event), event.line) for event in found] == [(Record, 2), (Incident, 3)]


@pytest.mark.parametrize(
    ("data", "fatal"),
    [
        pytest.param(OOM, False, id="a program that may be no trainer"),
        pytest.param(JSON + OOM, True, id="a trainer"),
        pytest.param(b"slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-03-01T12:00:00 ***\n", True, id="the scheduler's word"),
    ],
)
def test_trouble_ends_a_run_where_a_trainer_has_spoken(data: bytes, fatal: bool) -> None:
    *_, last = events(NOISE + data)

    assert isinstance(last, Incident)
    assert last.fatal is fatal


def test_trouble_glued_behind_half_a_record_loses_neither() -> None:
    glued = MEGATRON.rstrip(b"\n") + b"slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-03-01T12:00:00 DUE TO TIME LIMIT ***\n"

    found = events(glued)

    assert losses(found) == [(1, 2.25)]
    assert [event.kind for event in found if isinstance(event, Incident)] == ["time_limit"]


def test_lines_are_counted_by_result() -> None:
    reader = intake()

    events(NOISE * 5 + JSON * 2 + b'{"current_steps": 40, "loss\n' + OOM, reader)

    assert dict(reader.counts) == {"parsed": 2, "malformed": 1, "incident": 1, "unmatched": 5}


def test_the_last_line_that_nobody_claimed_is_shown_short() -> None:
    reader = intake()

    events(NOISE + b"something of its own: " + b"x" * 500 + b"\n\n" + JSON, reader)

    assert reader.last_unrecognised.startswith("something of its own: xxx")
    assert len(reader.last_unrecognised) == 200


def test_neither_claimed_lines_nor_bars_are_shown_as_unrecognised() -> None:
    reader = intake()

    events(JSON + b"\r  5%|#         | 1/20 [00:01<00:19]\r 10%|#         | 2/20 [00:02<00:18]\n" + JSON, reader)

    assert reader.last_unrecognised == ""


def test_after_a_restart_nothing_is_known_of_the_old_file() -> None:
    reader = intake()
    events(MEGATRON, reader)

    reader.restart()

    assert reader.format == ""
    assert not reader.counts
    assert losses(events(PLAIN, reader)) == [(1, 2.5)]


COLUMNS = b"5 9.5\n10 8.25\n15 7.125\n20 6.0625\n25 5.5\n"


@pytest.mark.parametrize("cut", range(0, len(COLUMNS), 3))
def test_a_file_of_bare_numbers_is_known_by_its_first_lines_and_read_from_the_first(cut: int) -> None:
    end = COLUMNS.rfind(b"\n", 0, cut) + 1
    reader = intake()

    found = reader.feed(Chunk(COLUMNS[:end], 1, 0.0, live=True)) if end else []
    found += reader.feed(Chunk(COLUMNS[end:], 1 + COLUMNS.count(b"\n", 0, end), 0.0, live=True))

    assert losses(found) == [(1, 9.5), (2, 8.25), (3, 7.125), (4, 6.0625), (5, 5.5)]
    assert reader.counts == {"parsed": 5, "unmatched": 0}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"5 9.5\n10 8.25\n15 7.125\n", id="too few"),
        pytest.param(b"5 9.5\n10 8.25\n11 7.125\n20 6.0625\n25 5.5\n", id="not at regular steps"),
        pytest.param(b"5 9.5\n10 8.25\ndone\n15 7.125\n20 6.0625\n25 5.5\n", id="other lines between"),
        pytest.param(NOISE * 20 + COLUMNS, id="deep in another file"),
        pytest.param(PLAIN + COLUMNS, id="behind a line of a trainer"),
    ],
)
def test_numbers_that_may_mean_anything_are_left_alone(data: bytes) -> None:
    found = events(data)

    assert [loss for _, loss in losses(found)] in ([], [2.5])


def test_a_file_of_bare_numbers_ends_with_the_first_line_of_another_shape() -> None:
    found = events(COLUMNS + b"total 12\n30 1.5\n" + JSON)

    assert losses(found) == [(1, 9.5), (2, 8.25), (3, 7.125), (4, 6.0625), (5, 5.5), (8, 2.0)]


def test_ranks_that_share_a_file_do_not_share_their_state() -> None:
    step_of_rank_0 = b"[default0]:step 10 loss: 2.5\n"
    rate_of_rank_1 = b"[default1]:lr: 1e-4\n"

    found = events(step_of_rank_0 + rate_of_rank_1)

    assert [event.fields for event in found if isinstance(event, Record)] == [{"step": 10, "loss": 2.5}]


def test_a_line_that_another_rank_interrupts_is_put_together() -> None:
    half, rest = "[default0]:step 10 val_", "[default0]:loss: 2.5"
    other = "[default1]:step 10 loss: 1.5"

    found = events(f"{half}{other}\n{rest}\n".encode())

    assert [(event.line, event.fields) for event in found if isinstance(event, Record)] == [
        (1, {"step": 10, "loss": 1.5}),
        (2, {"step": 10, "eval_loss": 2.5}),
    ]


def test_a_value_that_another_rank_interrupts_is_not_read() -> None:
    found = events(b"step 10 loss: 2.[rank1]: Traceback (most recent call last):\nstep 20 loss: 2.25\n")

    assert losses(found) == [(2, 2.25)]
    assert [(event.kind, event.rank) for event in found if isinstance(event, Incident)] == [("traceback", 1)]


def test_a_whole_line_after_a_half_one_is_read_by_itself() -> None:
    found = events(b"[default0]:step 10 loss: 2.[default1]:step 10 loss: 1.5\n[default0]:step 20 loss: 2.25\n")

    assert losses(found) == [(1, 1.5), (2, 2.25)]


def test_the_redraws_of_a_labelled_line_are_of_its_stream() -> None:
    announced = b"[default0]:***** Running training *****\n[default0]:  Total optimization steps = 90\n"
    bars = b"".join(b"\r 11%%|#   | %d/90 [00:09<01:21,  1.00s/it]" % step for step in (9, 10))

    found = events(announced + b"[default0]:" + bars + b"\r{'loss': 1.5, 'grad_norm': 0.5, 'epoch': 0.1}\n")

    assert [event.fields["step"] for event in found if isinstance(event, Record) and "loss" in event.fields] == [10]


def test_more_streams_than_the_bound_are_still_read() -> None:
    data = b"".join(b"[default%d]:step %d loss: 1.5\n" % (rank, step) for step in (1, 2) for rank in range(40))

    found = losses(events(data, Intake(registry(), max_streams=8)))

    assert len(found) == 80


def test_a_line_over_the_limit_is_cut_and_the_next_one_read() -> None:
    data = b"x" * 1_000_000 + b" loss\n" + JSON + b"{'loss': " + b"1" * 1_000_000 + b"\n" + JSON

    assert losses(events(data)) == [(2, 2.0), (4, 2.0)]


def test_a_long_line_made_of_redraws_is_read_to_its_end() -> None:
    redraws = b"".join(b"\r%3d%%|#         | %d/5000 [00:01<00:19,  1.00it/s]" % (step // 50, step) for step in range(4001))

    found = events(b"***** Running training *****\n  Total optimization steps = 5000\n" + redraws + b"\n")

    assert [event.fields.get("step") for event in found if isinstance(event, Record)][-1] == 4000


def test_a_last_line_without_newline_is_read() -> None:
    assert losses(events(NOISE + JSON.rstrip(b"\n"))) == [(2, 2.0)]


def test_a_last_line_that_looks_like_those_before_it_is_read_to_its_last_digit() -> None:
    lines = b"".join(b"step=%d loss=2.50 lr=0.00%d\n" % (step, step) for step in (1, 2, 3))

    *_, last = events(lines.rstrip(b"\n"))

    assert isinstance(last, Record)
    assert last.fields == {"step": 3, "loss": 2.5, "learning_rate": 0.003}


def test_a_torn_last_line_is_counted_and_tells_nothing() -> None:
    reader = intake()

    found = events(b"step=1 loss=2.50 lr=0.001\nstep=2 loss=2.50 lr=0.0", reader)

    assert [type(event) for event in found] == [Record, Malformed]
    assert reader.counts == {"parsed": 1, "malformed": 1, "unmatched": 0}


@pytest.mark.parametrize("end", [b"\r\n", b"\n\n", b"\r\r\n"], ids=["crlf", "blank lines", "redrawn"])
def test_line_ends_of_other_kinds_change_nothing(end: bytes) -> None:
    found = losses(events(JSON.rstrip(b"\n") + end + JSON.rstrip(b"\n") + end))

    assert [loss for _, loss in found] == [2.0, 2.0]


def test_nul_bytes_and_broken_utf8_do_not_hide_a_value() -> None:
    found = events(b"\x00\x00\xff\xfe\n" + b'\x00{"current_steps": 30, "total_steps": 60, "loss": Na\x00N, "lr": 0.1, "epoch": 1}\n')

    assert [math.isnan(loss) for _, loss in losses(found)] == [True]


def test_a_partial_record_of_a_container_is_joined_over_chunks() -> None:
    reader = intake()
    half, rest = JSON[:30], JSON[30:]

    first = reader.feed(Chunk(b"2026-03-01T12:00:00Z stdout P " + half + b"\n", 1, 0.0, live=True))
    second = reader.feed(Chunk(b"2026-03-01T12:00:01Z stdout F " + rest, 2, 0.0, live=True))

    assert losses(first) == []
    assert losses(second) == [(2, 2.0)]


def test_the_last_record_of_a_container_needs_no_line_end() -> None:
    assert losses(events(b"2026-03-01T12:00:00Z stdout F " + JSON.rstrip(b"\n"))) == [(1, 2.0)]


def test_the_records_of_the_journal_are_read_with_their_time() -> None:
    record = b'{"__CURSOR":"s=1","MESSAGE":"step 10 loss: 2.5","__REALTIME_TIMESTAMP":"1772366400000000","_PID":"812"}\n'

    (found,) = events(record)

    assert isinstance(found, Record)
    assert found.fields == {"step": 10, "loss": 2.5}
    assert found.stamp == Stamp(1772366400.0, zoned=True)


def test_a_record_of_a_container_that_a_redraw_cuts_is_put_together() -> None:
    reader = intake()
    record = b"2026-03-01T12:00:00Z stdout F \r" + JSON

    first = reader.feed(Chunk(record[:32], 5, 0.0, live=True))
    second = reader.feed(Chunk(record[32:], 5, 0.0, live=True))

    assert losses(first) == []
    assert losses(second) == [(5, 2.0)]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.sampled_from([PLAIN, MEGATRON, JSON, DICT, OOM]), st.binary(max_size=200))
def test_no_bytes_break_it(before: bytes, line: bytes, after: bytes) -> None:
    found = events(before + line + after)

    assert all(event.line >= 1 for event in found)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([PLAIN, MEGATRON, JSON, DICT, OOM]), st.data())
def test_of_a_half_line_nothing_is_made_up(line: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(line) - 1))
    whole = {key: value for event in events(line) if isinstance(event, Record) for key, value in event.fields.items()}

    half = events(line[:cut] + b"\n")

    for event in half:
        assert isinstance(event, (Malformed, Incident)) or event.fields.keys() <= whole.keys()


@given(st.binary(max_size=300), st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_search_finds_exactly_the_lines_that_hold_a_word(data: bytes, words: list[bytes]) -> None:
    words = [word for word in words if b"\n" not in word] or [b"a"]
    lines = data.split(b"\n")
    starts = [sum(len(line) + 1 for line in lines[:index]) for index in range(len(lines))]

    expected = {start for start, line in zip(starts, lines, strict=True) if any(word in line for word in words)}

    assert line_starts(data, 0, words) == expected

"""Private formats at work: what a line gives, whose it is, and what happens to a format that takes too long."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter import config, replay
from trainer_exporter.catalogue import catalogue
from trainer_exporter.clock import ManualClock
from trainer_exporter.feeds import Assignment, Feeds, Tools
from trainer_exporter.formats.base import NOTHING, Format, Reading
from trainer_exporter.health import Health
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Line
from trainer_exporter.private import PrivateFormats
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.sources.follow import Limits

HERON: Mapping[str, object] = {"name": "heron", "pattern": r"it (?P<step>\d+) \| ce (?P<loss>\S+) \|"}


def formats(*specs: Mapping[str, object]) -> tuple[Format, ...]:
    return catalogue(config.parse(yaml.safe_dump({"formats": [dict(spec) for spec in specs]}), file="config.yml"))


def read(text: str, *specs: Mapping[str, object]) -> list[dict[str, object]]:
    """What the lines of a file say, less the line numbers."""
    return read_with(text, formats(*specs))


def read_with(text: str, known: Sequence[Format]) -> list[dict[str, object]]:
    items = replay.items([Chunk(text.encode(), 1, 0.0, live=False)], Intake(known))
    return [{name: value for name, value in item.items() if name not in {"line", "stamp", "stamp_zoned"}} for item in items]


def pattern(text: str, **more: object) -> Mapping[str, object]:
    return {"name": "heron", "pattern": text, **more}


SAID: dict[str, tuple[str, Mapping[str, object], Mapping[str, object]]] = {
    "plain": ("it 5 | ce 2.5 |", HERON, {"step": 5, "loss": 2.5}),
    "nonfinite": ("it 5 | ce nan |", HERON, {"step": 5, "loss": "NaN"}),
    "thousands": ("it 5 | ce 1,024.5 |", HERON, {"step": 5, "loss": 1024.5}),
    "behind_wrappers": ("[rank3]: [2026-01-02 10:00:00] it 5 | ce 2.5 |", HERON, {"step": 5, "loss": 2.5}),
    "with_its_wrappers": (
        "2026-01-02 10:00:00,123 - INFO - it 5",
        pattern(r"^\d{4}-\S+ \S+ - INFO - it (?P<step>\d+)"),
        {"step": 5},
    ),
    "colours": ("it \x1b[32m5\x1b[0m | ce 2.5 |", HERON, {"step": 5, "loss": 2.5}),
    "no_figure": ("it 5 | ce none |", HERON, {"step": 5}),
    "no_number": ("it 5 | ce oops |", HERON, {"malformed": "number"}),
    "no_whole_step": ("it 5.5 loss", pattern(r"it (?P<step>\S+) loss"), {"malformed": "number"}),
    "milliseconds": (
        "it 5 took 125 ms",
        pattern(r"it (?P<step>\d+) took (?P<t>\S+)", fields={"t": "step_duration_seconds"}, units={"step_duration_seconds": "ms"}),
        {"step": 5, "step_duration_seconds": 0.125},
    ),
    "unit_glued": (
        "it 5 took 250ms",
        pattern(r"it (?P<step>\d+) took (?P<t>\S+)", fields={"t": "step_duration_seconds"}, units={"step_duration_seconds": "ms"}),
        {"step": 5, "step_duration_seconds": 0.25},
    ),
    "hours_and_minutes": ("eta 1:02:03", pattern(r"eta (?P<remaining_seconds>\S+)"), {"remaining_seconds": 3723}),
    "minutes": (
        "eta 2.5 minutes",
        pattern(r"eta (?P<remaining_seconds>\S+) minutes", units={"remaining_seconds": "min"}),
        {"remaining_seconds": 150},
    ),
    "thousands_of_tokens": (
        "speed 12.5 it",
        pattern(r"speed (?P<tokens_per_second>\S+)", units={"tokens_per_second": "K"}),
        {"tokens_per_second": 12500},
    ),
    "its_own_suffix_wins": (
        "speed 1.5M it",
        pattern(r"speed (?P<tokens_per_second>\S+)", units={"tokens_per_second": "K"}),
        {"tokens_per_second": 1500000},
    ),
    "samples_per_minute": (
        "speed 90 it",
        pattern(r"speed (?P<samples_per_second>\S+)", units={"samples_per_second": "/min"}),
        {"samples_per_second": 1.5},
    ),
    "petaflops": ("flops 0.5", pattern(r"flops (?P<tflops_per_gpu>\S+)", units={"tflops_per_gpu": "PFLOPS"}), {"tflops_per_gpu": 500}),
    "percent": ("mfu: 37.5%", pattern(r"mfu: (?P<mfu_ratio>\S+)", units={"mfu_ratio": "percent"}), {"mfu_ratio": 0.375}),
    "evaluation": (
        "valid 5: ce 2.25 acc 62.5%",
        pattern(r"valid (?P<step>\d+): ce (?P<loss>\S+) acc (?P<acc>\S+)", eval=True, metrics=["acc"], units={"acc": "%"}),
        {"step": 5, "eval_loss": 2.25, "metrics": {"acc": 0.625}},
    ),
    "closing_word": ("all done, 5 steps", {**HERON, "closes": "^all done,"}, {"closes": True}),
    "start": ("run begins", {**HERON, "starts": "run begins"}, {"starts": True, "phase": "starting"}),
    "json": ('{"it": 5, "ce": 2.5}', {"name": "heron", "kind": "json", "keys": {"it": "step", "ce": "loss"}}, {"step": 5, "loss": 2.5}),
    "json_behind_words": (
        'metrics: {"it": 5, "train": {"ce": NaN}, "more": [1]}',
        {"name": "heron", "kind": "json", "keys": {"it": "step", "train.ce": "loss", "more": "epoch"}},
        {"step": 5, "loss": "NaN"},
    ),
    "json_key_with_points": (
        '{"it": 5, "train.ce": "2.5"}',
        {"name": "heron", "kind": "json", "keys": {"it": "step", "train.ce": "loss"}},
        {"step": 5, "loss": 2.5},
    ),
    "key_value": (
        "iter=5 crossent=2.5, speed=1.5K/s",
        {
            "name": "heron",
            "kind": "key_value",
            "keys": {"iter": "step", "crossent": "loss", "speed": "tokens_per_second"},
            "units": {"tokens_per_second": "K/s"},
        },
        {"step": 5, "loss": 2.5, "tokens_per_second": 1500},
    ),
    "key_value_with_colons": (
        "iter: 5 | crossent: 2.5 | best_crossent: 1.0",
        {"name": "heron", "kind": "key_value", "keys": {"iter": "step", "crossent": "loss"}},
        {"step": 5, "loss": 2.5},
    ),
}


@pytest.mark.parametrize(("line", "spec", "said"), SAID.values(), ids=SAID.keys())
def test_a_line_gives_its_figures_in_their_own_units(line: str, spec: Mapping[str, object], said: Mapping[str, object]) -> None:
    assert read(line + "\n", spec) == [{"format": "heron", **said}]


LEFT_ALONE = {
    "another_line": ("iteration done | ce 2.5 |", HERON),
    "json_without_its_step": ('{"ce": 2.5}', {"name": "heron", "kind": "json", "keys": {"it": "step", "ce": "loss"}, "contains": '"ce"'}),
    "broken_json": ('{"it": 5, "ce": ', {"name": "heron", "kind": "json", "keys": {"it": "step"}}),
    "without_what_each_line_contains": (
        "iter=5 crossent=2.5",
        {"name": "heron", "kind": "key_value", "keys": {"iter": "step"}, "contains": "train:", "closes": "crossent$"},
    ),
    "key_inside_a_word": ("audit=5", {"name": "heron", "kind": "key_value", "keys": {"dit": "step"}}),
    "a_line_longer_than_the_pattern_bears": ("x" * 5000 + " it 5 | ce 2.5 |", HERON),
}


@pytest.mark.parametrize(("line", "spec"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_a_line_of_another_shape_is_left_alone(line: str, spec: Mapping[str, object]) -> None:
    assert read(line + "\n", spec) == []


TABLE = {"name": "rook", "kind": "csv", "keys": {"number": "step", "ce": "loss"}}


def test_a_table_is_read_under_its_header_and_a_new_header_orders_anew() -> None:
    said = read('number,ce\n1,2.5\n"2",\nhello\n3,4,5\nce,number\n1.5,3\n', TABLE)

    assert [(item["step"], item.get("loss")) for item in said] == [(1, 2.5), (2, None), (3, 1.5)]


def test_a_table_without_a_header_is_known_by_its_first_rows() -> None:
    spec = {"name": "crow", "kind": "csv", "columns": ["step", "_", "loss"], "separator": "tab"}

    said = read("# run 7\n1\tx\t2.5\n2\ty\t2.25\n3\tz\tnan\n", spec)

    assert [(item["step"], item["loss"]) for item in said] == [(1, 2.5), (2, 2.25), (3, "NaN")]


def test_a_private_format_is_asked_before_the_one_that_the_file_is_of() -> None:
    trainer = "{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.4}\n"

    said = read(trainer + "it 5 | ce 2.5 |\n" + trainer, HERON)
    overridden = read(trainer, pattern(r"\{'loss': (?P<loss>\S+), 'grad_norm'"))

    assert [item["format"] for item in said] == ["hf_trainer", "heron", "hf_trainer"]
    assert [(item["format"], "epoch" in item) for item in overridden] == [("heron", False)]


def test_lines_that_look_hand_written_are_nobodys_in_a_file_of_a_private_format() -> None:
    said = read("it 5 | ce 2.5 |\nstep 6 | loss: 2.0\n", HERON)

    assert [item["step"] for item in said] == [5]


def test_a_container_s_records_are_read_with_quotes_in_what_is_searched_for() -> None:
    inner = '{"it": 5, "ce": 2.5}\n'
    record = json.dumps({"log": inner, "stream": "stdout", "time": "2026-01-02T10:00:00.5Z"}, separators=(",", ":"))

    assert [item["loss"] for item in read(record + "\n", {"name": "heron", "kind": "json", "keys": {"it": "step", "ce": "loss"}})] == [2.5]


EVERY_KIND = [
    HERON,
    {"name": "kestrel", "kind": "json", "keys": {"it": "step", "train.ce": "loss"}},
    {"name": "jay", "kind": "key_value", "keys": {"iter": "step", "crossent": "loss"}},
    TABLE,
    {"name": "crow", "kind": "csv", "columns": ["step", "loss"]},
]
EVERY = formats(*EVERY_KIND)
PIECES = st.sampled_from(
    ["it 5 | ce ", "2.5 |", "\n", "\r", '{"it": ', "}", "nan", "[" * 500, "9" * 400, "iter=", "number,ce", "crossent: ", ",", '"', "1e999"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=40).map("".join))
def test_no_text_breaks_a_private_format(text: str) -> None:
    for item in read_with(text, EVERY):
        loss = item.get("loss", 0.0)
        assert isinstance(loss, (int, float, str))


class Slow:
    """A parser that spends processor time on each line."""

    wants_all = False

    def __init__(self, spend_s: float) -> None:
        self._spend_s = spend_s

    def parse(self, line: Line) -> Reading | None:
        until = time.thread_time() + self._spend_s
        while time.thread_time() < until:
            pass
        return NOTHING

    def flush(self) -> Reading:
        return NOTHING


def slow(spend_s: float) -> Format:
    return Format("heron", "", hints=(b"ce ",), sniff=lambda text: "ce " in text, parser=lambda: Slow(spend_s), private=True)


class Ticks:
    """Processor time that passes by a fixed amount between two looks."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def read_until_claimed_no_more(private: PrivateFormats, *, at_most: int) -> int:
    return next((number for number in range(1, at_most) if private.read(Line("ce 2.5", number)) is None), at_most)


@pytest.mark.parametrize(("each_s", "lines"), [(0.003, 250), (0.1, 6), (1.0, 1)])
def test_a_format_is_switched_off_when_its_budget_is_spent(each_s: float, lines: int) -> None:
    private = PrivateFormats([slow(0.0)], max_streams=8, processor_s=Ticks(each_s))

    first_left_alone = read_until_claimed_no_more(private, at_most=1000)

    assert abs(first_left_alone - (lines + 1)) <= 1
    assert not private.wants_all


def test_a_format_that_earns_what_it_spends_stays_on() -> None:
    private = PrivateFormats([slow(0.0)], max_streams=8, processor_s=Ticks(0.0009))

    assert read_until_claimed_no_more(private, at_most=5000) == 5000


def feeds(root: Path, known: Sequence[Format], health: Health) -> tuple[Feeds, Store]:
    clock = ManualClock(wall=root.stat().st_mtime)
    store = Store(StoreSettings(), clock=clock, health=health)
    return Feeds(Tools(store, known, clock, health, Limits())), store


def figures(store: Store) -> Mapping[str, float]:
    store.publish()
    return store.snapshot()[0].gauges


def test_a_slow_format_is_counted_and_said_once_and_the_file_is_read_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").write_text("ce 2.5\n" * 3 + "step 5 | loss: 2.5\n")
    health = Health()
    followed, _ = feeds(tmp_path, (slow(0.6), *formats()), health)

    followed.assign([Assignment(str(tmp_path / "log"), "run", present_at_start=True, labels={}, facts={})])
    followed.poll()

    assert health.snapshot().errors == {("format", "slow_pattern"): 1}
    assert "format heron is switched off" in health.snapshot().latest["format", "slow_pattern"]
    assert len(caplog.messages) == 1


def test_formats_that_change_read_the_files_again(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("it 5 | ce 2.5 |\nit 6 | ce 2.25 |\n")
    followed, store = feeds(tmp_path, formats(), Health())
    followed.assign([Assignment(str(tmp_path / "log"), "run", present_at_start=True, labels={}, facts={})])
    followed.poll()
    store.publish()
    assert store.snapshot() == ()

    followed.use(formats(HERON))
    followed.poll()

    assert figures(store)["loss"] == 2.25
    assert figures(store)["step"] == 6


def test_a_pin_that_changes_reads_the_run_again_and_counts_no_step_twice(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("it 5 | ce 2.5 |\nit 6 | ce nan |\n")
    other = {"name": "wren", "pattern": r"it (?P<step>\d+) \| ce (?P<eval_loss>\S+) \|"}
    followed, store = feeds(tmp_path, formats(HERON, other), Health())
    assignment = Assignment(str(tmp_path / "log"), "run", present_at_start=True, labels={}, facts={})
    followed.assign([assignment])
    followed.poll()
    assert math.isnan(figures(store)["loss"])

    followed.assign([replace(assignment, format="wren")])
    followed.poll()

    assert "loss" not in figures(store)
    assert math.isnan(figures(store)["eval_loss"])
    assert store.snapshot()[0].attempts == 1

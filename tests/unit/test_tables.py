"""Consoles of the Trainer and LLaMA-Factory's log as tables: they say what their lines say one by one, to a run too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.claims import Event, Said
from trainer_exporter.formats import Format, registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Incident, Record, Table
from trainer_exporter.runs.rows import Placed, PlacedTable
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Timeline
from unit.line_by_line import alone

NOON = 1_741_950_000.0
FIXTURES = Path(__file__).parents[1] / "formats" / "fixtures"
LOGS = [path for name in ("hf_trainer", "llama_factory") for path in sorted((FIXTURES / name).glob("*/input.*"))]
BAR = "%3d%%|%s| %d/%d [%s<%s,  1.01it/s]"
JSON = '{"current_steps": %d, "total_steps": 90000, "loss": %s, "lr": %s, "epoch": %s, "percentage": 0.2, "elapsed_time": "%s"}'
STRANGERS = (
    "a loader's noise with loss in it",
    "{'eval_loss': '1.2', 'eval_runtime': '3.0', 'epoch': '0.5'}",
    " 50%|#####     | 5/10 [00:01<00:01,  5.0it/s]",
    "Traceback (most recent call last):",
    '{"current_steps": 40, "total_steps": 90000, "eval_loss": 1.5, "epoch": 0.1, "elapsed_time": "0:00:10"}',
    '{"current_steps": 47, "total_steps": 90000, "loss": 1.',
    "",
)


Log = Callable[..., Iterator[str]]
FORMATS = registry()
LINE_BY_LINE = tuple(alone(one) for one in FORMATS)


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def console(chance: random.Random, count: int, *, odds: float) -> Iterator[str]:
    """Lines of one console, which differ in their numbers alone but for a share ``odds`` of oddities."""
    quote, repeats, total, step = chance.choice("' "), chance.random() < 0.5, chance.choice((9000, 9000, 300)), 0
    keys = chance.choice((("grad_norm", "learning_rate", "epoch"), ("learning_rate", "epoch"), ("entropy", "learning_rate", "epoch")))
    for _ in range(count):
        places = [step] if repeats and step else []
        for _ in range(chance.choice((2, 3, 3, 5))):
            step = max(0, min(total, step + (1 if chance.random() >= odds else chance.choice((0, -30, 2, 100)))))
            places.append(step)
        bars = [
            BAR % (place * 100 // total, chance.choice(("#" * 10, "█▌        ")), place, total, clock(place), "2:00:00") for place in places
        ]
        if chance.random() < odds:
            at = chance.randrange(len(bars))
            bars[at] = chance.choice((bars[at][: chance.randrange(40)], bars[at].replace(f"/{total}", "/77"), chance.choice(STRANGERS)))
        epoch = f"{step / 900:.4g}" if quote == "'" else f"{step / 900:.2f}"
        values = {"loss": f"{chance.uniform(1, 2):.4g}", **{key: f"{chance.uniform(0, 2):.3g}" for key in keys}, "epoch": epoch}
        if chance.random() < odds:
            values[chance.choice(list(values))] = chance.choice(("nan", "inf", "0.0", "None", "1.50000000001", "12345"))
        printed = ", ".join(f"'{key}': {quote.strip()}{value}{quote.strip()}" for key, value in values.items())
        yield "\r" + "\r".join(bars) + chance.choice(("\r", " " * 8 + "\r")) + f"{{{printed}}}"
        if chance.random() < odds:
            yield chance.choice(STRANGERS)


def json_log(chance: random.Random, count: int, *, odds: float) -> Iterator[str]:
    """As ``console``, of trainer_log.jsonl."""
    step = 0
    for _ in range(count):
        step += 10 if chance.random() >= odds else chance.choice((0, -500, 30))
        loss = f"{chance.uniform(1, 2):.4f}" if chance.random() >= odds else chance.choice(("NaN", "null", '"1.5"', "0.0", "1", "true"))
        line = JSON % (step, loss, chance.choice(("5e-05", "4.9123e-05")), round(step / 900, 4), clock(max(step, 0)))
        yield line if chance.random() >= odds else chance.choice((line[:-1] + ', "grad_norm": NaN}', line[:-9], line + line, *STRANGERS))


def read(lines: Sequence[str], sizes: Sequence[int], formats: Sequence[Format] = FORMATS) -> tuple[list[Said], Intake]:
    """What these lines say, given in pieces of so many bytes, each to the end of its last line."""
    intake, said, data, at, number, turn = Intake(formats), list[Said](), "".join(f"{line}\n" for line in lines).encode(), 0, 1, 0
    while at < len(data):
        end = data.find(b"\n", at + sizes[turn % len(sizes)]) + 1 or len(data)
        said += intake.feed_tables(Chunk(data[at:end], number, 0.0, live=False))
        number += data.count(b"\n", at, end)
        at, turn = end, turn + 1
    return said + list[Said](intake.flush()), intake


def events(said: Sequence[Said]) -> list[Event]:
    return [event for one in said for event in (one.records() if isinstance(one, Table) else (one,))]


def run_of(said: Sequence[Said], *, live: bool) -> RunState:
    """The run that these events make."""
    state, timeline = (
        RunState("heron", StateSettings(incident_kinds=("traceback",)), daemon_start=NOON),
        Timeline(last_stamp=None, mtime=NOON),
    )
    placed: list[Placed | PlacedTable] = []
    for one in said:
        if isinstance(one, Table):
            placed.append((one, timeline.of_table(one, read_wall=NOON, live=live)))
        elif isinstance(one, Record):
            placed.append((one, timeline.of_record(one, read_wall=NOON, live=live)))
        elif isinstance(one, Incident):
            placed.append((one, timeline.moment(one.stamp, read_wall=NOON, live=live)))
    state.fold_all(placed, source="log")
    return state


@pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parts[-3]}-{path.parent.name}")
def test_a_log_says_the_same_wherever_its_blocks_end(log: Path) -> None:
    lines = log.read_bytes().decode("utf-8", "replace").split("\n")

    for sizes in ((1 << 20,), (1_500,), (4_001, 1), (20_011, 333)):
        one_by_one, slow = read(lines, sizes, LINE_BY_LINE)
        at_once, quick = read(lines, sizes)

        assert repr(events(at_once)) == repr(one_by_one)
        assert (quick.counts, quick.last_unrecognised, quick.format) == (slow.counts, slow.last_unrecognised, slow.format)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    kind=st.sampled_from((console, json_log)),
    odds=st.sampled_from((0.0, 0.01, 0.05)),
    sizes=st.lists(st.integers(2_000, 60_000), min_size=1, max_size=3),
    live=st.booleans(),
)
def test_many_lines_say_what_they_say_one_by_one(seed: int, kind: Log, odds: float, sizes: list[int], live: bool) -> None:
    lines = list(kind(random.Random(seed), 150, odds=odds))

    one_by_one, slow = read(lines, sizes, LINE_BY_LINE)
    at_once, quick = read(lines, sizes)

    assert repr(events(at_once)) == repr(one_by_one)
    assert (quick.counts, quick.last_unrecognised) == (slow.counts, slow.last_unrecognised)
    for now in (NOON, NOON + 1e5):
        assert repr(run_of(at_once, live=live).snapshot(now)) == repr(run_of(one_by_one, live=live).snapshot(now))


@pytest.mark.parametrize("kind", [console, json_log])
def test_nearly_all_of_an_ordinary_log_are_tables(kind: Log) -> None:
    lines = list(kind(random.Random(3), 2000, odds=0.0))

    said, _ = read(lines, (1 << 20,))

    known = {line for one in said if isinstance(one, Table) for line in one.lines}
    assert len(known) > 1950


def test_a_table_is_given_up_where_a_number_is_none() -> None:
    lines = list(json_log(random.Random(3), 200, odds=0.0))
    lines[100] = JSON % (1010, "NaN", "5e-05", 0.5, "00:16:50")

    said, _ = read(lines, (1 << 20,))

    assert [event.line for event in events(said)] == list(range(1, 201))
    assert run_of(said, live=False).snapshot(NOON).nonfinite_total["loss"] == 1

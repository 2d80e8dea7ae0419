"""Lines that are alike are read many at a time, and say what they say one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_exporter.claims import Event, Said
from trainer_exporter.formats import Format, registry
from trainer_exporter.formats.base import Alike, AlikeParser, BlockReading, Parser, Shape
from trainer_exporter.formats.megatron import Megatron
from trainer_exporter.formats.verl import Verl
from trainer_exporter.intake import Intake
from trainer_exporter.likeness import Likenesses
from trainer_exporter.model import Chunk, Line, Record, Stamp, Table
from trainer_exporter.runs.rows import Placed, PlacedTable
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Timeline
from trainer_exporter.sources.pieces import Splitter
from unit.line_by_line import alone

NOON = 1_741_950_000.0  # of the day of these logs, by some clock
FIXTURES = Path(__file__).parents[1] / "formats" / "fixtures"
LOGS = [path for name in ("megatron", "verl", "hf_trainer", "nemo") for path in sorted((FIXTURES / name).glob("*/input.*"))]


READ = Counter[str]()  # lines that a format read at once


class WatchedMegatron(Megatron):
    """Its lines are counted."""

    def parse_alike(self, lines: Alike) -> BlockReading | None:
        said = super().parse_alike(lines)
        READ["megatron"] += len(lines.numbers) if said else 0
        return said


class WatchedVerl(Verl):
    """Its lines are counted."""

    def parse_alike(self, lines: Alike) -> BlockReading | None:
        said = super().parse_alike(lines)
        READ["verl"] += len(lines.numbers) if said else 0
        return said


WATCHED: dict[str, Callable[[], Parser]] = {"megatron": WatchedMegatron, "verl": WatchedVerl}
FORMATS = tuple(replace(one, parser=WATCHED.get(one.name, one.parser)) for one in registry())
LINE_BY_LINE = tuple(alone(one) for one in FORMATS)


def events(data: bytes, sizes: Iterator[int], *, formats: Sequence[Format]) -> tuple[list[Event], Intake]:
    """What these bytes say, cut into reads of such sizes as a follower would cut them."""
    intake, splitter, said, at = Intake(formats), Splitter(1 << 16), list[Event](), 0
    while at < len(data):
        end = min(len(data), at + next(sizes))
        first = splitter.line
        said += intake.feed(Chunk(splitter.feed(data[at:end], at_end=end == len(data)), first, 0.0, live=False))
        at = end
    first = splitter.line
    said += [*intake.feed(Chunk(splitter.flush(), first, 0.0, live=False)), *intake.flush()]
    return said, intake


def sizes(seed: int, most: int) -> Iterator[int]:
    chance = random.Random(seed)
    while True:
        yield chance.randint(1, most)


def shown(event: Event) -> str:
    return repr(event._replace(metrics=dict(event.metrics)) if isinstance(event, Record) else event)


def same(data: bytes, *, seed: int = 0, most: int = 1 << 20) -> None:
    """Fails where reading at once says anything else than reading line by line, or at other places."""
    one_by_one, slow = events(data, sizes(seed, most), formats=LINE_BY_LINE)
    at_once, quick = events(data, sizes(seed, most), formats=FORMATS)

    assert [*map(shown, at_once)] == [*map(shown, one_by_one)]
    assert (quick.counts, quick.last_unrecognised, quick.format) == (slow.counts, slow.last_unrecognised, slow.format)


@pytest.mark.parametrize("most", [997, 20_011, 1 << 20])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_a_real_log_says_the_same_wherever_a_read_ends(path: Path, most: int) -> None:
    data = path.read_bytes()

    same(data, seed=len(data), most=most)


ITERATION = (
    "iteration %8d/ 500000 | consumed samples: %12d | elapsed time per iteration (ms): %s | learning rate: %s | global batch size:   512 |"
    " lm loss: %s | loss scale: %s | grad norm: %s | number of skipped iterations: %3d | number of nan iterations:   0 |"
)
STEP = "step:%d - global_seqlen/mean:%s - actor/entropy:0.5 - actor/pg_loss:%s - actor/grad_norm:%s - actor/lr:%s - perf/throughput:%s"
WRAPPERS = (
    "",
    " [2025-03-14 09:{0:02d}:{1:02d}.482913] ",
    "[2025-03-14 09:{0:02d}:{1:02d}] ",
    "2025-03-14T09:{0:02d}:{1:02d}Z ",
    "[default7]:",
    "[default7]: [2025-13-14 09:{0:02d}:{1:02d}] ",
    "7: ",
    "node{0}: ",
    "\x1b[36m(TaskRunner pid=4711)\x1b[0m ",
    "(TaskRunner pid={0}) ",
)
NOISE = (
    "sampled text 715131 jumps over 835 lazy dogs",
    "gloss of the floss: no loss",
    "[rank3]: half a line with lossstep:3",
    "WARNING: lost a packet | loss 5",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "saving checkpoint at iteration      40 to /ckpt in torch format",
    "  successfully saved checkpoint from iteration      40 to /ckpt",
    "validation loss at iteration 40 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 |",
    "------------------------ arguments ------------------------",
    "  world_size ...................................... 8",
    "-------------------- end of arguments ---------------------",
    "Training Progress:  10%|#         | 3/30 [00:10<01:00,  2.0s/it]",
    "Total training steps: 30",
    "0: iteration 12/ 20 | lm loss: 1.0 |",
    "",
)
ODD: tuple[str, ...] = (
    "nan",
    "NaN",
    "inf",
    "0.000000E+00",
    "-1.0",
    "1,024.0",
    "12.5E+01",
    "1.5E-52",
    "0.00",
    "",
    "1.5 | lm loss: 2.5",
    "7",
    "1e-07",
    "0.000",
)
ODD += ("np.float64(0.25)", "0.12345678901234567", "123456.123456789012345", "007.5", "1.5 iteration 3/ 9 |", "\x1b[0m1.5", "1.5\r2.5")


USUAL = {"megatron": ("4064.8", "1.5E-04", "2.5E+00", "1.0", "0.512"), "verl": ("612.5", "0.25", "1.5", "1e-06", "99.5")}


def line_of(name: str, step: int, values: Sequence[str]) -> str:
    if name == "verl":
        return STEP % (step, *values)
    duration, *others = values
    return ITERATION % (step, step * 512, duration, *others, 0)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_one_odd_value_among_lines_that_are_alike_is_read_as_it_is_alone(name: str, place: int, odd: str) -> None:
    lines = [line_of(name, step, USUAL[name]) for step in range(1, 61)]
    lines[40] = line_of(name, 41, [*USUAL[name][:place], odd, *USUAL[name][place + 1 :]])

    same("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize("odd", [*NOISE, "[2025-13-14 09:00:00] ", "[2025-03-14 09:00:00,5] ", "[2025-03-14 09:00:00+01:00] ", " "])
@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_a_line_among_others_that_is_worn_otherwise_is_read_as_it_is_alone(name: str, odd: str) -> None:
    worn = [f"[2025-03-14 09:{step:02d}:00] " for step in range(60)]
    worn[40] = odd
    lines = [before + line_of(name, step, USUAL[name]) for step, before in enumerate(worn, 1)]

    same("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize("most", [1 << 20, 9001])
@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_two_kinds_of_lines_by_turns_are_told_apart(name: str, most: int) -> None:
    lines = [line_of(name, step, USUAL[name]) for step in range(1, 401)]
    for at in range(0, 400, 3):
        lines[at] = (
            f"[default7]:{lines[at]}" if at % 2 else lines[at].replace(" - actor/grad_norm:1.5", "").replace(" loss scale: 1.0 |", "")
        )

    same("".join(f"{line}\n" for line in lines).encode(), most=most)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Lines of a training, most of which are alike, with noise between them."""
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    odd, noise, wrapper = draw(st.sampled_from((0.0, 0.002, 0.05))), draw(st.sampled_from((0.0, 0.3, 0.9))), draw(st.sampled_from(WRAPPERS))
    is_verl, step, lines = draw(st.booleans()), 0, list[str]()

    def value(usual: str) -> str:
        return chance.choice(ODD) if chance.random() < odd else usual

    for _ in range(draw(st.integers(0, 300))):
        if chance.random() < noise:
            lines.append(chance.choice(NOISE[:4] if chance.random() < 0.9 else NOISE))
            continue
        step = max(0, step + chance.choice((1,) * 50 + (10, 0, -20)))
        loss, norm, rate = value(f"{chance.uniform(1, 3):.6f}"), value(f"{chance.uniform(0, 2):.3f}"), value("1.5E-04")
        if is_verl:
            said = STEP % (step, value("612.5"), loss, norm, value("1e-06"), value("981.371"))
            said += " - timing_s/save_checkpoint:2.5" if chance.random() < odd else ""
        else:
            said = ITERATION % (
                step,
                step * 512,
                value("4064.8"),
                rate,
                value(f"{chance.uniform(1, 3):.6E}"),
                value("1.0"),
                norm,
                odd > 0.01,
            )
        worn = wrapper if chance.random() >= odd else chance.choice(WRAPPERS)
        lines.append(worn.format(chance.randrange(60), chance.randrange(60)) + said + chance.choice(("",) * 40 + (" ", "\r")))
    return "".join(f"{line}\n" for line in lines).encode()


@settings(max_examples=150, deadline=None)
@given(data=logs(), seed=st.integers(0, 99), most=st.sampled_from((1 << 20, 9001, 30_000)))
def test_lines_say_the_same_whether_they_are_read_at_once_or_not(data: bytes, seed: int, most: int) -> None:
    same(data, seed=seed, most=most)


@pytest.mark.parametrize("wrapper", [one for one in WRAPPERS if "-13-" not in one and "{0}" not in one])
@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_most_lines_of_a_backlog_are_read_at_once(name: str, wrapper: str) -> None:
    lines = []
    for step in range(1, 201):
        said = (
            STEP % (step, 612.5, 0.25, 1.5, "1e-06", 99.5)
            if name == "verl"
            else ITERATION % (step, step, 4064.8, "1.5E-04", "2.5E+00", "1.0", 0.5, 0)
        )
        worn = wrapper.format(step // 60, step % 60)
        lines += [worn + said, f"{worn}noise of a loader"]
    READ.clear()

    said_of_all, intake = events("".join(f"{line}\n" for line in lines).encode(), sizes(0, 1 << 20), formats=FORMATS)

    assert len([one for one in said_of_all if isinstance(one, Record)]) >= 180  # the first lines do not show yet that tasks label them
    assert intake.format == name
    assert READ[name] >= 150


def run_of(events: Sequence[Said], *, live: bool, mtime: float) -> str:
    """What a run says that hears of these."""
    state, timeline = RunState("heron", StateSettings(), daemon_start=NOON), Timeline(last_stamp=Stamp(NOON, zoned=False), mtime=mtime)
    heard: list[Placed | PlacedTable] = []
    for event in events:
        if isinstance(event, Table):
            heard.append((event, timeline.of_table(event, read_wall=NOON, live=live)))
        elif isinstance(event, Record):
            heard.append((event, timeline.of_record(event, read_wall=NOON, live=live)))
    state.fold_all(heard, source="console", format_name="x")
    return repr(state.snapshot(NOON + 60))


@pytest.mark.parametrize("live", [False, True], ids=["past", "live"])
@pytest.mark.parametrize("wrapper", [one for one in WRAPPERS if "-13-" not in one])
@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_a_run_is_the_same_whether_its_lines_were_read_at_once_or_not(name: str, wrapper: str, live: bool) -> None:
    ordinary = [line_of(name, step, USUAL[name]).replace(" - actor/entropy:0.5", "") for step in range(1, 301)]
    lines = [wrapper.format(at // 60, at % 60) + line for at, line in enumerate(ordinary)]
    chunk = Chunk("".join(f"{line}\n" for line in lines).encode(), 1, NOON, live=live)

    at_once, one_by_one = Intake(FORMATS).feed_tables(chunk), Intake(LINE_BY_LINE).feed_tables(chunk)

    assert any(isinstance(event, Table) for event in at_once)
    assert run_of(at_once, live=live, mtime=NOON + 3600) == run_of(one_by_one, live=live, mtime=NOON + 3600)


@pytest.mark.parametrize("name", ["megatron", "verl"])
def test_these_formats_read_lines_that_are_alike(name: str) -> None:
    (one,) = [one for one in FORMATS if one.name == name]

    assert isinstance(one.parser(), AlikeParser)
    assert not isinstance(alone(one).parser(), AlikeParser)


@pytest.mark.parametrize(
    "text",
    [
        ITERATION % (1, 512, "4064.8", "1.5E-04", "2.5E+00", "-1.0", "0.5", 0),
        ITERATION % (1, 512, "4064.8", "1.5E-04", "nan", "1.0", "0.5", 0),
        "iteration 1/ 9 | consumed samples: 512 |",
        "validation loss at iteration 40 | lm loss value: 2.000000E+00 |",
    ],
    ids=["engine owns the scale", "not finite", "no loss", "a result"],
)
def test_a_line_whose_like_may_say_something_else_has_no_shape(text: str) -> None:
    assert Megatron().shape(text) is None


def test_the_shape_of_a_line_is_that_of_its_keys() -> None:
    shape = Verl().shape(STEP % (1, 612.5, 0.25, 1.5, "1e-06", 99.5))

    assert shape == Shape(shape.pattern if shape else "", ("step", "actor/entropy", "actor/pg_loss", "actor/grad_norm", "actor/lr"))


def test_of_many_kinds_of_lines_those_learnt_last_are_kept_in_mind() -> None:
    kinds = Likenesses()

    for number in range(6):
        text = f"kind {number} says 1"
        kinds.learn(text.encode(), Line(text, number, whole=text), Shape(rf"kind {number} says ([0-9]+)", ("said",)), labelled=False)

    known = [number for number in range(6) if kinds.of(f"kind {number} says 7\n".encode(), 0) is not None]
    assert known == [2, 3, 4, 5]

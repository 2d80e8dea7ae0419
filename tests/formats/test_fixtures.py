"""Every fixture of every format: NAME/CASE/{input.log, golden.jsonl, about.txt}. A new folder is found by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer_exporter import envelope, replay
from trainer_exporter.formats import registry
from trainer_exporter.formats.base import Format
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Line, Record

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/input.log"))
NAMES = [one.name for one in registry()]
COMPULSORY = {"plain", "nonfinite", "restart"}
# What depends on what stood beside a line when it was read, and is marked as inexact where it does.
OF_THE_BAR = {"step", "target_steps", "elapsed_seconds", "remaining_seconds", "step_exact", "phase"}


def case_id(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def said(path: Path) -> list[dict[str, Any]]:
    return list(replay.lines(path / "input.log"))


def in_chunks(data: bytes, ends: Sequence[int]) -> list[dict[str, Any]]:
    """What is said when the file is found to have grown up to each of the ends in turn."""
    chunks, number, start = [], 1, 0
    for end in (*ends, len(data)):
        if end > start:
            chunks.append(Chunk(data[start:end], number, 0.0, live=True))
            number += data.count(b"\n", start, end)
            start = end
    return list(replay.items(chunks, Intake(registry())))


def line_ends(data: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(data) if byte == 0x0A]


def values(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured values, line by line, without what a bar told."""
    measured = [{key: value for key, value in item.items() if key not in OF_THE_BAR} for item in items]
    return [item for item in measured if item.keys() - {"line", "format", "stamp", "stamp_zoned", "starts"}]


def one_of(hints: Sequence[bytes], line: bytes) -> bool:
    return any(hint in line for hint in hints)


def is_claim(one: Format, text: str) -> bool:
    """Whether a format calls a line its own, and not just an announcement that others print too."""
    if not one.sniff(text):
        return False
    reading = one.parser().parse(Line(text, 1)) or ()
    return not (one.borrowed and reading and all(isinstance(each, Record) and each.starts for each in reading))


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_a_fixture_reads_as_its_golden_says(path: Path, request: pytest.FixtureRequest) -> None:
    golden = path / "golden.jsonl"

    found = [json.dumps(item, ensure_ascii=False) for item in said(path)]
    if request.config.getoption("--update-golden", default=False):
        golden.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")

    assert found == golden.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_a_fixture_is_claimed_by_its_own_format_alone(path: Path) -> None:
    own = path.parent.name
    texts = [line.decode("utf-8", "replace") for line in (path / "input.log").read_bytes().split(b"\n")]
    pieces = [envelope.unwrapped(piece, 0).text for text in texts for piece in envelope.redraws(text)]

    programs = [one for one in registry() if not one.fallback and (not one.beneath or one.name == own)]
    claiming = {one.name for one in programs if any(is_claim(one, piece) for piece in pieces)}

    assert claiming <= {own}
    assert {item["format"] for item in values(said(path)) if "format" in item} <= {own}


def test_a_line_that_shows_a_format_holds_one_of_its_hints() -> None:
    raw = {line for path in CASES for line in (path / "input.log").read_bytes().split(b"\n")}
    pieces = {piece for line in raw for piece in envelope.redraws(envelope.without_terminal(line.decode("utf-8", "replace")))}
    lines = {piece.encode(): envelope.unwrapped(piece, 1).text for piece in pieces}
    beneath = [detail for one in registry() if one.beneath for detail in one.details]  # a library may have spoken before its program

    sought = {one: (*one.hints, *beneath) for one in registry()}
    unseen = [(one.name, line) for one in sought for line, text in lines.items() if not one_of(sought[one], line) and one.sniff(text)]

    assert unseen == []


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_values_do_not_depend_on_where_the_file_was_cut(path: Path) -> None:
    data = (path / "input.log").read_bytes()
    ends = line_ends(data)

    whole = values(in_chunks(data, []))

    assert values(in_chunks(data, ends)) == whole
    assert values(in_chunks(data, ends[::3])) == whole
    assert values(in_chunks(data, ends[1::7])) == whole


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_an_exact_step_is_the_same_wherever_the_file_was_cut(path: Path) -> None:
    data = (path / "input.log").read_bytes()
    steps = steps_by_line(said(path))

    cut = in_chunks(data, line_ends(data)[::2])

    exact = {item["line"]: item["step"] for item in cut if "loss" in item and "step" in item and "step_exact" not in item}
    assert exact == {line: step for line, step in steps.items() if line in exact}


FOLLOWED = [path for path in CASES if path.parent.name == "hf_trainer" and "buffered" not in path.name]


@pytest.mark.parametrize("path", FOLLOWED, ids=case_id)
def test_a_log_followed_redraw_by_redraw_gives_the_steps_of_the_whole_file(path: Path) -> None:
    data = (path / "input.log").read_bytes()
    whole = steps_by_line(said(path))

    followed = steps_by_line(in_chunks(data, [at + 1 for at, byte in enumerate(data) if byte in b"\r\n"]))

    # The first two lines teach how far lines are apart; the bar before them may be a redraw old, or not drawn yet.
    learned = sorted(whole)[2:]
    assert {line: followed[line] for line in learned} == {line: whole[line] for line in learned}
    assert all(0 <= whole[line] - followed[line] <= 2 for line in sorted(whole)[:2] if line in followed)


def steps_by_line(items: Sequence[dict[str, Any]]) -> dict[int, int]:
    return {item["line"]: item["step"] for item in items if "loss" in item and "step" in item}


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_the_compulsory_cases(name: str) -> None:
    assert {path.name for path in CASES if path.parent.name == name} >= COMPULSORY


@pytest.mark.parametrize("name", NAMES)
def test_every_format_reads_a_value_that_is_not_finite(name: str) -> None:
    items = said(FIXTURES / name / "nonfinite")

    assert any(item.get("loss") == "NaN" or item.get("hidden_nonfinite") for item in items)


@pytest.mark.parametrize("path", CASES, ids=case_id)
def test_every_fixture_says_where_it_comes_from(path: Path) -> None:
    about = (path / "about.txt").read_text(encoding="utf-8")

    assert about.startswith("program:")

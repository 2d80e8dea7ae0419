"""Two processes that write into one stream, without a prefix, cut into each other's lines at any byte.

What comes of it may lose a field; it must not say a value that nobody printed. Where the spliced line looks to the digit as a line of the
program does, nobody can tell: such values are let pass here, and only such.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Record

FIXTURES = Path(__file__).parent / "fixtures"
LABELLED = {"cri", "docker", "srun_labels"}  # there each process has a prefix, or a record of its own
MOST_CHARACTERS = 2_500  # of a fixture: its first lines show all of its shapes
PRINTED = ("loss", "eval_loss", "grad_norm", "learning_rate", "step", "epoch")  # others are derived from several
NOISE = (
    "W0301 12:00:00.482 4711 torch/distributed/run.py:766] *****************************************\n",
    "gpu-17:4711:4820 [3] NCCL INFO Channel 03/08 : 0[7000] -> 1[f000] via P2P/CUMEM\n",
    "WARNING:root:tokenizer has 32000 entries, 17 of 4096 unknown\n",
    "[2026-03-01 12:00:00,123] [INFO] [real_accelerator.py:158:get_accelerator] Setting ds_accelerator to cuda (auto detect)\n",
    "Time to load utils op: 0.20 seconds\n",
    "12 workers are up, 4 of 16 to come\n",
)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def cases() -> list[Path]:
    return sorted(path for path in FIXTURES.glob("*/*/input.log") if path.parent.name not in LABELLED)


def text_of(path: Path) -> str:
    """The first lines of a fixture."""
    text = path.read_text(encoding="utf-8")[:MOST_CHARACTERS]
    return text[: text.rfind("\n") + 1]


def records(data: bytes) -> list[Record]:
    """What a file says."""
    intake = Intake(registry())
    said = [*intake.feed(Chunk(data, 1, 0.0, live=False)), *intake.flush()]
    return [one for one in said if isinstance(one, Record)]


def pieces(data: bytes, rng: random.Random, most: int | None) -> Iterator[bytes]:
    """Whole lines, one in ten cut; or pieces of up to so many bytes."""
    at = 0
    while at < len(data):
        line = data.find(b"\n", at) + 1 - at
        length = line if most is None and line > 0 and rng.random() < 0.9 else rng.randint(1, most or 120)
        yield data[at : at + length]
        at += length


def interleaved(one: bytes, other: bytes, rng: random.Random, most: int | None) -> bytes:
    """The pieces of both, in turn."""
    writers = [pieces(one, rng, most), pieces(other, rng, most)]
    out: list[bytes] = []
    while writers:
        for writer in list(writers):
            piece = next(writer, None)
            if piece is None:
                writers.remove(writer)
            else:
                out.append(piece)
    return b"".join(out)


def form(line: str) -> str:
    """A line without its digits; a bar without its drawing."""
    return re.sub(r"\s+", " ", NUMBER.sub("0", re.sub(r"\|[^|A-Za-z]*\|", "|", line))).strip()


def forms(*texts: str) -> set[str]:
    """Of all lines, and of all redraws on them."""
    return {form(piece) for text in texts for piece in re.split(r"[\r\n]", text)}


def strange(stream: bytes, *texts: str) -> list[str]:
    """What nobody printed, and nobody's reading said alone, where the line could not be one of the program's to the digit."""
    printed = numbers(*texts)
    known = {(name, value) for text in texts for record in records(text.encode()) for name, value in record.fields.items()}
    lines, shapes = stream.decode("utf-8", "replace").split("\n"), forms(*texts)
    return [
        f"{name} {value} of {lines[record.line - 1][-200:]!r}"
        for record in records(stream)
        for name, value in record.fields.items()
        if name in PRINTED and not math.isnan(value) and value not in printed and (name, value) not in known
        if not (name == "step" and not record.step_exact)
        if not forms(lines[record.line - 1]) & shapes
    ]


def numbers(*texts: str) -> set[float]:
    """Every number that stands in a text."""
    return {float(found) for text in texts for found in NUMBER.findall(text.replace(",", ""))}


@pytest.mark.parametrize("most", [None, 40], ids=["lines", "40 bytes"])
def test_warnings_that_cut_into_lines_make_no_value(most: int | None) -> None:
    found = []
    for path in cases():
        text, rng = text_of(path), random.Random(f"{path.parent.parent.name}/{path.parent.name}/{most}")
        warnings = "".join(rng.choice(NOISE) for _ in range(max(3, text.count("\n") // 2)))

        stream = interleaved(text.encode(), warnings.encode(), rng, most)

        found += [f"{path.parent.parent.name}/{path.parent.name}: {one}" for one in strange(stream, text)]
    assert found == []


def perturbed(text: str, rng: random.Random) -> str:
    """The text with other decimals, as another rank would print it."""
    return re.sub(
        r"(?<![\d.:])\d+\.\d+(?![\d:.])", lambda found: re.sub(r"(?<=\.)\d+", lambda one: _digits(len(one[0]), rng), found[0]), text
    )


def _digits(count: int, rng: random.Random) -> str:
    return "".join(rng.choice("123456789") for _ in range(count))


def test_two_ranks_that_cut_into_each_other_make_no_value_that_could_be_told_from_theirs() -> None:
    most = None  # with pieces of 200 bytes, one record in several hundred still has such a value
    found = []
    for path in cases():
        text, rng = text_of(path), random.Random(f"{path.parent.parent.name}/{path.parent.name}/ranks/{most}")
        other = perturbed(text, rng)

        stream = interleaved(text.encode(), other.encode(), rng, most)

        found += [f"{path.parent.parent.name}/{path.parent.name}: {one}" for one in strange(stream, text, other)]
    assert found == []

"""Which redraws of a bar are read: of one bar those that can tell something that the others do not."""

from __future__ import annotations

import pytest

from trainer_exporter.claims import Event
from trainer_exporter.formats import registry
from trainer_exporter.formats.bars import news
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Record


def plain(done: int, total: int = 90) -> str:
    return f" {100 * done // total:2d}%|###   | {done}/{total} [00:{done:02d}<01:00,  1.01it/s]"


RECORD = "{'loss': 1.5, 'grad_norm': 0.7, 'learning_rate': 5e-05, 'epoch': 0.5}"
TITLED = "Epoch 1:  13%|#   | 12/90 [00:12<01:00,  1.01it/s]"
WITH_LOSS = " 13%|#   | 12/90 [00:12<01:00,  1.01it/s, loss=1.5]"


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        pytest.param([plain(n) for n in range(9)], [plain(0), plain(7), plain(8)], id="the first and the last two of one bar"),
        pytest.param([RECORD, *(plain(n) for n in range(9))], [RECORD, plain(0), plain(7), plain(8)], id="the first behind a record"),
        pytest.param([plain(1), plain(2), RECORD, plain(3)], [plain(1), plain(2), RECORD, plain(3)], id="few are left alone"),
        pytest.param([plain(n, 20 + n) for n in range(9)], [plain(n, 20 + n) for n in range(9)], id="bars of many lengths"),
        pytest.param([TITLED] * 6, [TITLED] * 6, id="a bar with a title"),
        pytest.param([WITH_LOSS] * 6, [WITH_LOSS] * 6, id="a bar that tells a loss"),
    ],
)
def test_of_one_bar_on_a_line_the_first_and_the_last_are_read(pieces: list[str], kept: list[str]) -> None:
    assert news(pieces) == kept


def events(bars: list[str]) -> list[Event]:
    reader = Intake(registry())
    lines = "".join(f"\r{bar}" for bar in (plain(0), plain(1))) + f"\r{RECORD}\n" + "".join(f"\r{bar}" for bar in bars) + f"\r{RECORD}\n"
    return [*reader.feed(Chunk(lines.encode(), 1, 0.0, live=True)), *reader.flush()]


def test_a_line_of_many_redraws_says_what_its_first_and_last_say() -> None:
    every = [plain(n) for n in range(1, 60)]

    assert events(every) == events([plain(1), plain(58), plain(59)])
    assert 59 in [event.fields.get("step") for event in events(every) if isinstance(event, Record)]

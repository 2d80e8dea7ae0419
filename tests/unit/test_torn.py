"""A last line without a line end: whole, or torn."""

from __future__ import annotations

import pytest

from trainer_exporter.torn import is_whole

EARLIER = [
    "step=10 loss=2.750 lr=0.001 seen=100",
    "step=20 loss=2.500 lr=0.001",
    "step=30 loss=2.250 lr=0.002",
    "iter 5: loss 2.5000, time 81.20ms",
    "iter        6: loss nan, time 80.00ms",
    "step 1 | loss 2.5 | epoch 1",
    "step 2 | loss 2.5 | epoch 1",
    "a: 0.25 b: 0.125",
    "a: 0.25 b: 0.5",
    "once: 1 value: 0.5",
]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"loss": 1.5}', id="an object"),
        pytest.param("{'loss': 1.5, 'b': {'c': 1}}", id="nested"),
        pytest.param(" 50%|#####     | 1/2 [00:01<00:01,  1.00it/s]", id="a bar"),
        pytest.param("Do not forget to say so =)", id="a smile"),
        pytest.param("***** Running training *****", id="a banner"),
        pytest.param("step=40 loss=2.125 lr=0.003", id="as many decimals as always"),
        pytest.param("step=40 loss=2.125 lr=0.003  ", id="blanks"),
        pytest.param("step=40 loss=nan lr=nan", id="not a number has no digits"),
        pytest.param("iter     1000: loss 1.2500, time 9.20ms", id="a unit behind the number"),
        pytest.param("step 30 | loss 0.5 | epoch 1", id="a whole number that never changes"),
    ],
)
def test_a_line_that_is_closed_or_as_long_as_earlier_ones_is_whole(text: str) -> None:
    assert is_whole(text, EARLIER)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("step=40 loss=2.125 lr=0.", id="no decimals"),
        pytest.param("step=40 loss=2.125 lr=0.00", id="a decimal less"),
        pytest.param("step=40 loss=2.125", id="a field less"),
        pytest.param("step=40 loss=2.125 lr=", id="a value less"),
        pytest.param("iter 1000: loss 1.2500, time 9.20m", id="half a unit"),
        pytest.param("step 30 | loss 0.5 | epoch 12", id="a whole number that may go on"),
        pytest.param("a: 0.5 b: 0.75", id="decimals that are not fixed"),
        pytest.param("once: 2 value: 0.7", id="seen once only"),
        pytest.param("Step 5 | Loss: 2.356 →", id="an arrow to nothing"),
        pytest.param("Saving to out/step-5", id="half a path"),
        pytest.param("{'loss': 1.5, 'b': {'c': 1}", id="an object inside another"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_line_that_may_go_on_is_torn(text: str) -> None:
    assert not is_whole(text, EARLIER)


def test_without_earlier_lines_only_closed_ones_are_believed() -> None:
    assert is_whole("{'loss': 1.5}", [])
    assert not is_whole("step=40 loss=2.125 lr=0.003", [])

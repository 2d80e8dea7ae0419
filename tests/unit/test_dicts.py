"""Dictionaries as trainers print them are read whole or not at all."""

from __future__ import annotations

import pytest

from trainer_exporter.formats.dicts import pairs

WHOLE = {
    "numbers": ("{'loss': 1.8421, 'grad_norm': nan, 'epoch': 0.34}", {"loss": "1.8421", "grad_norm": "nan", "epoch": "0.34"}),
    "strings": ("{'loss': '1.842', 'num_tokens': 46592, 'epoch': '0.3442'}", {"loss": "1.842", "num_tokens": "46592", "epoch": "0.3442"}),
    "numpy's": ("{'loss': np.float64(0.5), 'epoch': 1.0}", {"loss": "np.float64(0.5)", "epoch": "1.0"}),
    "times of day": ("{'loss': 0.5, 'elapsed_time': '01:20'}", {"loss": "0.5", "elapsed_time": "01:20"}),
    "a list in it": ("{'loss': 0.5, 'betas': [0.9, 0.95], 'epoch': 1.0}", {"loss": "0.5", "epoch": "1.0"}),
    "digits as version 5 prints them": (
        "{'loss': '0.001978', 'a': '10.82', 'b': '203.5', 'c': '3.84e+04', 'd': '5.455e-05', 'e': '9999', 'f': 46592}",
        {"loss": "0.001978", "a": "10.82", "b": "203.5", "c": "3.84e+04", "d": "5.455e-05", "e": "9999", "f": "46592"},
    ),
    "a colon in a key": ("{'loss': 0.5, 'rewards/a:b': 1.0}", {"loss": "0.5", "rewards/a:b": "1.0"}),
    "without braces": ("'loss': 0.5, 'epoch': 1.0", {"loss": "0.5", "epoch": "1.0"}),
}
# Two ranks write into one stream, and each is interrupted wherever it is.
GLUED = {
    "a number goes on with another's": "{'loss': '6.502727', 'epoch355', 'grad_no': '1.514'}",
    "a value has a piece of another line": "{'loss': 226249852156, 'learning_rate': 0.006.9398, 27, 'epoch': 0.46}",
    "a warning in its middle": "{'loss': 2.2389, 'grad_no/utils/checkpoint.py:429: UserWarning: rm': 1.07, 'epoch': 0.83}",
    "a line begins in another": "{'loss': 2.38, 'grad_{'loss': 1.2, 'grad_norm': 0.5, 'epoch': 0.1}",
    "a key twice": "{'loss': 2.38, 'grad_norm': 0.5, 'loss': 2.4, 'epoch': 0.1}",
    "a number without its beginning": "{'loss': '3.214', 'grad_norm': '.483', 'epoch': '0.08571'}",
    "a number of more digits than it is printed with": "{'loss': '6.502727', 'epoch': '0.46'}",
    "a long one": "{'loss': '1.5', 'grad_norm': '15659', 'epoch': '0.46'}",
    "an exponent behind two numbers": "{'loss': '1.5', 'learning_rate': '2985e-05', 'epoch': '0.46'}",
    "a number of two": "{'loss': 3.214, 'grad_norm': 00.483, 'epoch': 0.08571}",
}


@pytest.mark.parametrize(("text", "told"), WHOLE.values(), ids=WHOLE.keys())
def test_a_whole_dictionary_tells_its_values_as_printed(text: str, told: dict[str, str]) -> None:
    assert pairs(text) == told


@pytest.mark.parametrize("text", GLUED.values(), ids=GLUED.keys())
def test_a_dictionary_that_another_process_wrote_into_tells_nothing(text: str) -> None:
    assert pairs(text) == {}

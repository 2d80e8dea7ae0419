"""Patterns that users write: which are refused, what is searched for instead of them, and how long a line may be."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer_exporter.patterns import LONGEST, PatternError, checked

HARMLESS = {
    "words_between_separators": (r"it (?P<step>\d+)/(\d+) \| ce (?P<loss>\S+) \| (\S+) ms", " | ce "),
    "optional_parts": (r"loss (\d+(?:\.\d+)?(?:e[+-]?\d+)?)", "loss "),
    "a_repeat_with_a_clear_end": (r"(?:\[\w+\] )*step (\d+)", "step "),
    "a_repeat_of_pairs": (r"^(?:\w+=\S+ ){3}loss=(\S+)", "loss="),
    "a_gap_before_a_long_text": (r"step (\d+) .*? loss: (\S+)", " loss: "),
    "case_does_not_matter": (r"(?i)loss=(\S+) \[===\]", " [===]"),
    "one_of_several_words": (r"(?:loss|perplexity) at step (\d+)", " at step "),
    "text_of_another_script": (r"损失 (\S+)", "损失 "),
}


@pytest.mark.parametrize(("text", "contains"), HARMLESS.values(), ids=HARMLESS.keys())
def test_a_harmless_pattern_is_searched_for_by_its_longest_text(text: str, contains: str) -> None:
    found = checked(text)

    assert found.contains == contains
    assert found.longest > 1000


REFUSED = {
    "repeat_in_repeat": (r"(a+)+loss", "one repeat inside another that can both take 'a'"),
    "optional_separator": (r"(?:\w+\s?)*loss:", "one repeat inside another"),
    "pairs_without_separator": (r"(?:\w+=\S+ ?)+loss", "one repeat inside another"),
    "alternatives_that_overlap": (r"(?:a|b|ab)*loss", "alternatives inside a repeat that can both take 'a'"),
    "alternatives_of_classes": (r"(?:\dx|\w)+loss", "alternatives inside a repeat"),
    "repeat_of_nothing": (r"(?:\s*)*loss", "a repeat of something that may be nothing"),
    "option_of_nothing": (r"loss: (?:a{2}(?:\s*|x)?)+", "a repeat of something that may be nothing"),
    "alternatives_of_nothing": (r"loss: (?:a(?:\s*|x*))+", "alternatives inside a repeat"),
    "counted_repeat": (r"(?:a?){30}loss", "a repeat of something that may be nothing"),
    "nested_deep": (r"x(?:(?:\d+,)+\d+)*loss", "one repeat inside another"),
    "gaps_that_multiply": (r"(.*)(.*)(.*)(.*)loss", "gaps such as .*"),
    "figures_without_end": (r"step (\d+).*loss (\S+).*lr (\S+).*tok/s (\S+) gn", "gaps such as .*"),
    "reference": (r"(loss)\1", "a reference to a group"),
    "no_text": (r"(\d+) (\S+)", "no fixed text of 3 bytes"),
    "text_in_one_alternative": (r"(?:loss|lr)", "no fixed text"),
    "blanks_only": (r"(\d+)    (\d+)", "no fixed text"),
    "unclosed": (r"loss ([0-9", "unterminated character set at character 7"),
    "unknown_escape": (r"loss \y", r"bad escape \\y at character 6"),
    "too_long": ("loss" * 1000, "a pattern of 4000 characters"),
}


@pytest.mark.parametrize(("text", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_a_pattern_that_cannot_be_used_is_refused_with_a_way_out(text: str, found: str) -> None:
    with pytest.raises(PatternError) as caught:
        checked(text)

    assert found.replace("\\\\", "\\") in caught.value.found
    assert caught.value.expected


def test_what_the_user_says_stands_in_the_lines_serves_where_the_pattern_has_no_text() -> None:
    assert checked(r"(\d+) (\S+)", contains=" nats").contains == " nats"


def test_a_pattern_with_more_gaps_is_let_loose_on_shorter_lines() -> None:
    one, three = checked(r"step (\d+) .*loss (\S+)"), checked(r"step (\d+) .*loss (\S+) .*lr (\S+) .*tok/s (\S+)")

    assert one.longest == LONGEST
    assert 300 < three.longest < 1000


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails when the block takes longer; a pattern that runs away is interrupted, which only works in the main thread."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
    began = time.thread_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.thread_time() - began < seconds


HOSTILE = ("a", "ab", "a1 ", " ", "1", "a=b ", "step 1 loss 1 lr 1 ", "a" * 50 + "b")
ATOMS = st.sampled_from(["a", "b", "(?:ab)", ".", r"\w", r"\s", r"\d", "[ab]", "[^a]", "1", " ", r"\S", "=", r"\b", "(?=a)"])
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{1,3}", "{2}", "{1,80}"])


def composed(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(parts, min_size=1, max_size=4).map("".join)
    group = st.tuples(sequence, REPEATS).map(lambda made: f"(?:{made[0]}){made[1]}")
    either = st.tuples(sequence, sequence, REPEATS).map(lambda made: f"(?:{made[0]}|{made[1]}){made[2]}")
    return group | either


SIMPLE = st.tuples(ATOMS, REPEATS).map("".join)
PATTERNS = st.lists(st.recursive(SIMPLE, composed, max_leaves=6), min_size=1, max_size=4).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(PATTERNS, st.sampled_from(["", "$", "X", "loss"]))
def test_no_pattern_that_is_let_through_runs_away_on_a_line_of_its_length(text: str, end: str) -> None:
    try:
        found = checked(text + end, contains="given")
    except PatternError:
        return

    for seed in HOSTILE:
        line = (seed * (found.longest // len(seed) + 1))[: found.longest - 1] + "Z"
        with at_most(seconds=2.0):
            found.pattern.search(line)

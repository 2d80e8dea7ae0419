"""Numbers, durations and times of day as trainers print them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter.model import Stamp
from trainer_exporter.numbers import duration, durations, integer, moment, number, numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-05),
        ("2.941200E-04", 2.9412e-04),
        ("1,024", 1024.0),
        ("1,234,567.5", 1234567.5),
        ("12.3K", 12300.0),
        ("1.5M", 1.5e6),
        ("'4.829e-05'", 4.829e-05),
        ('"0.5"', 0.5),
        ("np.float64(0.8125)", 0.8125),
        ("np.int64(4)", 4.0),
        ("tensor(0.5)", 0.5),
        ("tensor(0.5, device='cuda:0')", 0.5),
        (" 512 ", 512.0),
        ("-inf", -math.inf),
        ("Infinity", math.inf),
        ("INF", math.inf),
    ],
)
def test_a_printed_number_is_read(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN", "-nan", "'nan'", "np.float64(nan)", "tensor(nan, device='cuda:0')"])
def test_nan_is_a_number_in_every_spelling(text: str) -> None:
    read = number(text)

    assert read is not None
    assert math.isnan(read)


@pytest.mark.parametrize("text", ["", "None", "True", "mean", "1_000", "1.2.3", "{step:05d}", "K", "0x10", "tensor([1, 2])"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize("text", ["1875e-05", "10.8e-06", "5e-76", "1e-100", "tensor(187488e-06)", "0.00986850473885731e-06"])
def test_two_numbers_that_were_glued_are_none(text: str) -> None:
    assert number(text) is None


@given(st.text(max_size=40))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    for reader in (number, integer, duration):
        read = reader(text)
        assert read is None or isinstance(read, (int, float))


@pytest.mark.parametrize(("text", "value"), [("2,436", 2436), (" 12 ", 12), ("1.5", None), ("", None), ("-3", None)])
def test_a_whole_number_may_have_separators(text: str, value: int | None) -> None:
    assert integer(text) == value


def test_a_row_of_thousands_of_digits_is_no_whole_number() -> None:
    assert integer("9" * 5000) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("02:10", 130.0),
        ("1:06:40", 4000.0),
        ("1:28:41.88", 5321.88),
        ("1 day, 0:02:31", 86551.0),
        ("9 days, 2:31:12", 786672.0),
        ("?", None),
        ("12", None),
        ("1:2:3:4", None),
        ("aa:bb", None),
        ("9" * 5000 + " days, 2:31:12", None),
        ("9" * 5000 + ":00", None),
    ],
)
def test_a_duration_is_seconds(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["1:02", "12:13"],
        ["0:00:10", "2500:00:00"],
        ["1:02", "0:00:10"],
        ["1:2:3.5", "0:00:10"],
        ["1::2", "0:00:10"],
        ["1:02:03:04", "1:02"],
        ["999999999999999999:00", "1:02"],
        ["1 day, 2:03:04", "?"],
        ["?", "?"],
    ],
    ids=lambda texts: ";".join(texts) or "none",
)
def test_many_durations_are_those_of_each(texts: list[str]) -> None:
    assert durations(texts) == [duration(text) for text in texts]


@pytest.mark.parametrize(
    "texts",
    [[], ["1.5", "2"], ["1e-05", "1875e-05"], ["1_0", "2"], ["None", "2"], ["12.3K", "2"], ["inf", "-1"], ["x", "x"]],
    ids=lambda texts: ";".join(texts) or "none",
)
def test_many_numbers_are_those_of_each(texts: list[str]) -> None:
    assert numbers(texts) == [number(text) for text in texts]


@pytest.mark.parametrize(
    ("time", "zone", "stamp"),
    [
        ("1970-01-02 00:00:01", "", Stamp(86401.0, zoned=False)),
        ("1970-01-01T00:00:00.5", "Z", Stamp(0.5, zoned=True)),
        ("1970-01-01 02:00:00,250", "+02:00", Stamp(0.25, zoned=True)),
        ("1970-01-01 00:00:00", "-0130", Stamp(5400.0, zoned=True)),
        ("2025-02-30 00:00:00", "", None),
    ],
)
def test_a_time_of_day_is_a_stamp(time: str, zone: str, stamp: Stamp | None) -> None:
    assert moment(time, zone) == stamp

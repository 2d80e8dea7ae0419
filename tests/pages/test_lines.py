"""Our lines are those of prometheus_client, for every kind of family and every value."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import exposition

from trainer_exporter.health import Health
from trainer_exporter.metrics.family import Batch, Collected, Family, Sample
from trainer_exporter.metrics.lines import Lines
from trainer_exporter.metrics.page import Page, _Collected, metrics

TEXT = "text/plain; version=0.0.4"
OPEN = "application/openmetrics-text; version=1.0.0"
INFO = Family("a_info", "gauge", 'Help with "quotes", a \\ and\na second line.', ("run", "format"))
TOTAL = Family("a_total", "counter", "Counts.", ("run",))
BARE = Family("bare", "gauge", "No labels.")
SECONDS = Family("a_seconds", "histogram", "Buckets.", ("run",))
GAPS = Family("gaps", "summary", "Quantiles.", ("run",))
SAMPLES = [
    Sample(INFO, ('q\\w"e\nn, {x}=é', "hf"), 1, extra={"team": "nlp", "a": "first", "Z": ""}),
    Sample(TOTAL, ["one"], 3),
    Sample(INFO, ("b", ""), True),
    *(
        Sample(BARE, (), value)
        for value in (0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e6, 123456789.25, 1.7e9, 1e21, 1e-7, -1e7, 2**60)
    ),
    Sample(SECONDS, ("r",), 2, extra={"le": "0.5"}, suffix="_bucket"),
    Sample(SECONDS, ("r",), 4, extra={"le": "+Inf"}, suffix="_bucket"),
    Sample(SECONDS, ("r",), 4, suffix="_count"),
    Sample(SECONDS, ("r",), 3.25, suffix="_sum"),
    Sample(GAPS, ("r",), 0.25, extra={"quantile": "0.95"}),
    Sample(TOTAL, ("two",), 4.0),
]


@pytest.mark.parametrize("accept", [TEXT, OPEN, f"{OPEN};escaping=allow-utf-8"])
def test_a_page_is_what_the_library_makes_of_it_the_second_time_too(accept: str) -> None:
    encode, content_type = exposition.choose_encoder(accept)
    expected = encode(_Collected(metrics(SAMPLES))).decode().removesuffix("# EOF\n")
    lines = Lines()

    first, second = (lines.page(SAMPLES, openmetrics="openmetrics" in content_type) for _ in range(2))

    assert first == expected
    assert second == expected


def test_a_batch_reads_as_its_samples_would_and_is_written_anew_when_another_takes_its_place() -> None:
    lines = Lines()
    first, second = (Batch("one", (Sample(TOTAL, ("one",), value), Sample(BARE, (), 7))) for value in (1, 2))
    beside = Sample(TOTAL, ("two",), 1)

    pages = [lines.page(items, openmetrics=False) for items in ([first, beside], [first, beside], [second, beside], [beside])]

    told = [[line for line in page.splitlines() if not line.startswith("#")] for page in pages]
    assert told == [
        ['a_total{run="one"} 1.0', 'a_total{run="two"} 1.0', "bare 7.0"],
        ['a_total{run="one"} 1.0', 'a_total{run="two"} 1.0', "bare 7.0"],
        ['a_total{run="one"} 2.0', 'a_total{run="two"} 1.0', "bare 7.0"],
        ['a_total{run="two"} 1.0'],
    ]
    assert len(lines._drawn) == 0  # of what is gone nothing is kept


def test_a_page_of_batches_is_the_librarys_and_counts_their_series() -> None:
    health = Health()
    items: list[Collected] = [Batch("all", tuple(SAMPLES)), Sample(TOTAL, ("three",), 5)]
    page = Page([("these", lambda: items)], health=health)

    plain, dotted = (page.render(accept).body.decode() for accept in (TEXT, f"{OPEN};escaping=dots"))

    assert 'a_total{run="three"} 5.0' in plain
    assert 'a__total{run="three"} 5.0' in dotted
    assert f"trainer_exporter_series {len(SAMPLES) + 3}.0" in plain


def test_values_change_and_what_is_gone_is_forgotten() -> None:
    lines = Lines()
    lines.page([Sample(TOTAL, ("one",), 1), Sample(TOTAL, ("two",), 1)], openmetrics=False)

    page = lines.page([Sample(TOTAL, ("one",), 2)], openmetrics=False)

    assert page.splitlines()[2:] == ['a_total{run="one"} 2.0']
    assert [line for _, _, line in lines._kept.values()] == ['a_total{run="one"} 2.0\n']


def test_a_scraper_that_wants_other_names_gets_them() -> None:
    page = Page([("test", lambda: [Sample(TOTAL, ("one",), 1)])], health=Health())

    rendered = page.render(f"{OPEN};escaping=dots")

    assert b'a__total{run="one"} 1.0' in rendered.body
    assert "escaping=dots" in rendered.content_type


def test_a_sample_with_other_labels_than_its_family_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Lines().page([Sample(TOTAL, (), 1)], openmetrics=False)


class Queue:
    """A lock that says when the second has come to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._come = 0
        self.has_two = threading.Event()

    def __enter__(self) -> None:
        self._come += 1
        if self._come == 2:
            self.has_two.set()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_who_asks_while_a_page_is_made_gets_that_page_and_who_asks_later_a_new_one() -> None:
    begun, queue, made = threading.Event(), Queue(), list[int]()

    def collect() -> list[Sample]:
        made.append(1)
        begun.set()
        assert queue.has_two.wait(60)
        return [Sample(TOTAL, ("one",), len(made))]

    page = Page([("test", collect)], health=Health())
    page._rendering = queue
    with ThreadPoolExecutor(2) as scrapers:
        first = scrapers.submit(page.render, TEXT)
        assert begun.wait(60)
        second = scrapers.submit(page.render, TEXT)

    assert first.result() is second.result()
    assert b'a_total{run="one"} 2.0' in page.render(TEXT).body

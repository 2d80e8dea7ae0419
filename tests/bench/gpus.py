"""What reading eight cards costs, and what a scrape feels of one that hangs: ``python tests/bench/gpus.py [SECONDS]``.

On the driver of our own (tests/gpu/fake.py), so the CPU figure holds its work too: it reads its script at every call, and writes every
call down. On a busy machine the times of a scrape are mostly those of waiting for a processor: a page of one word, asked for at the same
moments, shows how much; the CPU that a page costs does not depend on it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "gpu")]

import fake  # noqa: E402 - found by the line above
from real import INTERVAL_S, Exporter, cost, samples, until  # noqa: E402 - idem
from scenario import FOLDER, Scenario  # noqa: E402 - idem

SICK = 3
PAGES = 300  # for the cost of one; the kernel counts CPU in steps of 10 ms


def _is_read(exporter: Exporter, gpu: int) -> bool:
    return samples(exporter.page()).get(("gpu_collect_success", fake.uuid(gpu), ())) == 1


@dataclass
class _Scrapes:
    """How long the pages took, and the page of one word right after each."""

    took: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    oldest: float = 0.0  # reading of a healthy card, in seconds
    missed: set[int] = field(default_factory=lambda: {0})  # healthy cards at once


def _timed(exporter: Exporter, path: str) -> tuple[str, float]:
    began = time.monotonic()
    page = exporter.page(path)
    return page, time.monotonic() - began


def _scrapes(exporter: Exporter, seconds: float) -> _Scrapes:
    found = _Scrapes()
    healthy = [fake.uuid(gpu) for gpu in range(8) if gpu != SICK]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page, took = _timed(exporter, "/metrics")
        found.took.append(took)
        found.empty.append(_timed(exporter, "/-/healthy")[1])
        shown = samples(page)
        found.oldest = max(found.oldest, *(time.time() - shown["gpu_last_collect_timestamp_seconds", uuid, ()] for uuid in healthy))
        found.missed.add(sum(shown["gpu_collect_success", uuid, ()] == 0 for uuid in healthy))
        time.sleep(0.05)
    return found


def _cost_of_a_page(exporter: Exporter) -> float:
    """CPU seconds of the daemon for one page, less what it does without any."""
    pid = exporter.process.pid
    began, before = time.monotonic(), cost(pid)[0]
    for _ in range(PAGES):
        exporter.page()
    took, used = time.monotonic() - began, cost(pid)[0] - before
    before = cost(pid)[0]
    time.sleep(10.0)
    return (used - (cost(pid)[0] - before) / 10.0 * took) / PAGES


def _calls(driver: fake.FakeDriver, seconds: float) -> float:
    """Driver calls a card and sweep."""
    before = len(driver.trace())
    time.sleep(seconds)
    calls = Counter(call for _, word, call, slot in driver.trace()[before:] if word == "begin" and slot >= 0)
    sweeps = calls["util"] / 8
    return sum(calls.values()) / 8 / sweeps


def _spread(took: list[float]) -> str:
    ordered = sorted(took)
    median, p99 = (1000 * ordered[int(share * len(took))] for share in (0.5, 0.99))
    return f"median {median:.1f} ms, p99 {p99:.1f} ms, longest {1000 * ordered[-1]:.1f} ms of {len(took)}"


def main(seconds: float) -> None:
    scenario = Scenario(FOLDER / "a100x8.nvml")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        driver = fake.FakeDriver(fake.build(folder), folder, lines=scenario.lines)
        os.environ.update(driver.env())
        exporter = Exporter(folder)
        try:
            until(lambda: all(_is_read(exporter, gpu) for gpu in range(8)), "all cards answer")
            calls = _calls(driver, 10 * INTERVAL_S)
            before, _ = cost(exporter.child())
            calm = _scrapes(exporter, seconds)
            after, resident = cost(exporter.child())
            a_page = _cost_of_a_page(exporter)
            driver.set(SICK, hang=60)
            until(lambda: not _is_read(exporter, SICK), "the card that hangs is missed")
            sick = _scrapes(exporter, min(seconds, 45.0))
        finally:
            driver.heal()
            exporter.stop()
    for line in (
        f"{calls:.1f} calls a card and sweep; {1000 * (after - before) / (seconds / INTERVAL_S):.1f} ms of CPU a sweep of 8 cards",
        f"reader: {resident} KiB resident",
        f"/metrics while all answer: {_spread(calm.took)}",
        f"/metrics while one hangs: {_spread(sick.took)}",
        f"a page of one word at the same moments: {_spread(calm.empty)}; {_spread(sick.empty)}",
        f"a page costs {1000 * a_page:.1f} ms of CPU",
        f"healthy cards missed: {max(sick.missed)}; their oldest reading: {sick.oldest:.1f} s, read every {INTERVAL_S:g} s",
    ):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(float(next(iter(sys.argv[1:]), 30)))

"""What reading eight cards costs, and what a scrape feels of one that hangs: ``python tests/bench/gpus.py [SECONDS]``.

On the driver of our own (tests/gpu/fake.py), so the CPU figure holds its work too: it reads its script at every call, and writes every
call down.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "gpu")]

import fake  # noqa: E402 - found by the line above
from real import INTERVAL_S, Exporter, cost, samples, until  # noqa: E402 - idem
from scenario import FOLDER, Scenario  # noqa: E402 - idem

SICK = 3


def _is_read(exporter: Exporter, gpu: int) -> bool:
    return samples(exporter.page()).get(("gpu_collect_success", fake.uuid(gpu), ())) == 1


def _scrapes(exporter: Exporter, seconds: float) -> tuple[list[float], float, set[int]]:
    """How long each took, the age of the oldest reading of a healthy card, and how many of them were missed at once."""
    took, oldest, missed = [], 0.0, {0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        page = exporter.page()
        took.append(time.monotonic() - began)
        shown = samples(page)
        healthy = [fake.uuid(gpu) for gpu in range(8) if gpu != SICK]
        oldest = max(oldest, *(time.time() - shown["gpu_last_collect_timestamp_seconds", uuid, ()] for uuid in healthy))
        missed.add(sum(shown["gpu_collect_success", uuid, ()] == 0 for uuid in healthy))
        time.sleep(0.05)
    return took, oldest, missed


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
            calm, _, _ = _scrapes(exporter, seconds)
            after, resident = cost(exporter.child())
            driver.set(SICK, hang=60)
            until(lambda: not _is_read(exporter, SICK), "the card that hangs is missed")
            daemon, _ = cost(exporter.process.pid)
            took, oldest, missed = _scrapes(exporter, min(seconds, 45.0))
            a_scrape = (cost(exporter.process.pid)[0] - daemon) / len(took)
        finally:
            driver.heal()
            exporter.stop()
    for line in (
        f"{calls:.1f} calls a card and sweep; {1000 * (after - before) / (seconds / INTERVAL_S):.1f} ms of CPU a sweep of 8 cards",
        f"reader: {resident} KiB resident",
        f"/metrics while all answer: {_spread(calm)}",
        f"/metrics while one hangs: {_spread(took)}",
        f"CPU of the daemon a scrape, all its other work included: {1000 * a_scrape:.1f} ms",
        f"healthy cards missed: {max(missed)}; their oldest reading: {oldest:.1f} s, read every {INTERVAL_S:g} s",
    ):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(float(next(iter(sys.argv[1:]), 30)))

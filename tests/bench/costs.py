"""What the daemon costs and how fast it answers: its start beside a gigabyte of log, its idling, its page under every load.

Latencies are those of a client that keeps its connection, as Prometheus does. On a busy machine they are mostly those of waiting for a
processor: start the bench with ``chrt -r 1`` to keep others out.
"""

from __future__ import annotations

import http.client
import itertools
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]

import ingest  # noqa: E402 - idem
from figures import Figure, cpu_s, held, quantile, resident_mb  # noqa: E402 - idem

import fake  # noqa: E402 - found by the line above
from daemon import Daemon  # noqa: E402 - idem
from scenario import FOLDER, Scenario  # noqa: E402 - idem
from stack import eventually  # noqa: E402 - idem

PAGES = 400
BURST_S = 8.0
BURST_BYTES_PER_S = 100e6
IDLE_S = 30.0
TURN_S = 0.05  # of the burst's writer
P99_MS = 20.0
CAUGHT_UP_S = 900.0


@contextmanager
def driver() -> Iterator[fake.FakeDriver]:
    """Eight cards of the driver of our own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:  # who waits in the driver writes down when it comes back
        folder = Path(made)
        scenario = Scenario(FOLDER / "a100x8.nvml")
        found = fake.FakeDriver(fake.build(folder), folder, lines=scenario.lines)
        try:
            yield found
        finally:
            found.heal()


def runs(folder: Path, number: int) -> Path:
    """A configuration of so many runs, each with a log of 200 steps."""
    for run in range(number):
        log = folder / f"run-{run}" / "train.log"
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"{line}\n" for line in itertools.islice(ingest.CASES["megatron"].lines(ingest.seeded()), 2000)))
    config = folder / "config.yml"
    config.write_text(
        f"sources: [{{path: '{folder}/run-*/train.log', owner: here}}, {{path: '{folder}/burst/train.log', owner: here}}]\n"
        f"limits: {{files: 1024}}\nruns: {{maximum: 1024}}\nprocesses: {{discover: false}}\n"
    )
    return config


# -- start


def backlog(path: Path, megabytes: int) -> None:
    """A Megatron log with a tenth of metric lines, its steps rising to the end; its noise repeats itself, which nobody reads."""
    lines = ingest.CASES["megatron"].lines(ingest.seeded())
    noise = ["".join(f"{line}\n" for line in itertools.islice(lines, 1, 10)) for _ in range(200)]
    head, tail = next(lines).split("iteration", 1)[0], next(iter(noise))
    figures = next(line for line in lines if "iteration" in line).split("|", 2)[2]
    with path.open("w") as log:
        for step in itertools.count(1):
            log.write(f"{head}iteration {step:8d}/ 9000000 | consumed samples: {step * 1024:12d} |{figures}\n{noise[step % 200] or tail}")
            if step % 1000 == 0 and log.tell() >= megabytes * 1_000_000:
                return


def startup(megabytes: int) -> Iterator[Figure]:
    """From the start of the process to the first page, and to the last byte of the backlog."""
    case = f"{megabytes / 1000:g} GB"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        log = folder / "train.log"
        backlog(log, megabytes)
        daemon = Daemon("--no-gpu", log, log=folder / "daemon.log")
        began = time.monotonic()
        took: list[float] = []
        lags: list[float] = []
        with _starting(daemon) as client:
            first = _first_page(client, began)
            while "ready" not in _ask(client, "/-/ready")[0][:5]:
                page, seconds = _ask(client, "/metrics")
                took.append(seconds)
                lags += [float(found) for found in re.findall(r"^trainer_exporter_read_lag_bytes (\S+)", page, re.MULTILINE)]
                time.sleep(0.1)
                assert time.monotonic() - began < CAUGHT_UP_S, "the backlog has not been read"
            caught_up, used = time.monotonic() - began, cpu_s(daemon.process.pid)
    falls = sum(later < earlier for earlier, later in itertools.pairwise(lags))
    yield held("startup", case, "first page", first, "s", most=1.0)
    yield held("startup", case, "caught up", caught_up, "s")
    yield held("startup", case, "CPU until then", used, "s")
    yield held("startup", case, "looks at which the progress shown had gone on", float(falls), "", least=min(2, megabytes // 100))
    if took:
        yield held("startup", case, "page p99 meanwhile", 1000 * quantile(took, 0.99), "ms", most=P99_MS)


@contextmanager
def _starting(daemon: Daemon) -> Iterator[http.client.HTTPConnection]:
    """A connection to a daemon that is only just serving: it need not have read anything yet."""
    daemon.launch()
    try:
        yield http.client.HTTPConnection(daemon.host, daemon.port, timeout=60)
    finally:
        daemon.kill()


def _first_page(client: http.client.HTTPConnection, began: float) -> float:
    page, _ = _ask(client, "/metrics")
    assert "trainer_exporter_build_info" in page
    return time.monotonic() - began


def _ask(client: http.client.HTTPConnection, path: str) -> tuple[str, float]:
    began = time.monotonic()
    client.request("GET", path)
    body = client.getresponse().read()
    return body.decode(), time.monotonic() - began


# -- idle


def idle(files: int) -> Iterator[Figure]:
    """Eight cards and so many logs in which nothing happens."""
    with driver() as cards, tempfile.TemporaryDirectory() as made:
        config = runs(Path(made), files)
        with Daemon(f"--config.file={config}", log=Path(made) / "daemon.log", env=cards.env()) as daemon:
            _all_read(daemon)
            time.sleep(5)
            before, began = cpu_s(daemon.process.pid), time.monotonic()
            time.sleep(IDLE_S)
            share = (cpu_s(daemon.process.pid) - before) / (time.monotonic() - began)
            rss, pss = resident_mb(daemon.process.pid)
    is_goal = files == 8
    yield held("idle", f"8 GPUs, {files} files", "CPU", 100 * share, "% of a core", most=1.0 if is_goal else None)
    yield held("idle", f"8 GPUs, {files} files", "RSS, reader of the GPUs included", rss, "MB", most=60.0 if is_goal else None)
    yield held("idle", f"8 GPUs, {files} files", "the same, shared pages counted once", pss, "MB")


def _all_read(daemon: Daemon) -> None:
    eventually(lambda: daemon.get("/metrics").count("gpu_collect_success{") == 8, within_s=60, what="all cards answer", every_s=0.2)


# -- the page


def pages(number: int) -> Iterator[Figure]:
    """The page of so many runs: alone, for two scrapers, beside a burst, and while a card hangs."""
    case = f"{number} runs"
    with driver() as cards, tempfile.TemporaryDirectory() as made:
        config = runs(Path(made), number)
        with Daemon(f"--config.file={config}", log=Path(made) / "daemon.log", env=cards.env()) as daemon:
            _all_read(daemon)
            page = daemon.get("/metrics")
            yield held("page", case, "size", len(page) / 1000, "kB")
            yield held("page", case, "samples", float(sum(not line.startswith("#") for line in page.splitlines())), "")
            yield from _latency(case, "alone", scrapes(daemon))
            yield from _latency(case, "two scrapers", both(daemon))
            yield from _latency(case, "a burst of 100 MB/s", beside(daemon, Path(made) / "burst"))
            cards.set(3, hang=fake.FOREVER)
            time.sleep(6)  # until the reader has called it
            yield from _latency(case, "NVML hangs", scrapes(daemon))


def _latency(case: str, load: str, took: list[float]) -> Iterator[Figure]:
    yield held("page", f"{case}, {load}", "p50", 1000 * quantile(took, 0.5), "ms")
    yield held("page", f"{case}, {load}", "p99", 1000 * quantile(took, 0.99), "ms", most=P99_MS)


def scrapes(daemon: Daemon, *, until: Callable[[], bool] | None = None) -> list[float]:
    """Seconds of each of some hundred scrapes, a tenth of a second's half apart."""
    client = http.client.HTTPConnection(daemon.host, daemon.port, timeout=60)
    took: list[float] = []
    while len(took) < PAGES if until is None else not until():
        took.append(_ask(client, "/metrics")[1])
        time.sleep(0.01)
    client.close()
    return took


def both(daemon: Daemon) -> list[float]:
    """What one scraper waits while another one asks as often."""
    over = threading.Event()
    other = threading.Thread(target=scrapes, args=(daemon,), kwargs={"until": over.is_set})
    other.start()
    took = scrapes(daemon)
    over.set()
    other.join()
    return took


def beside(daemon: Daemon, folder: Path) -> list[float]:
    """What a scraper waits while a log of the usual mixture grows by 100 MB a second."""
    folder.mkdir()
    block = "".join(f"{line}\n" for line in itertools.islice(ingest.CASES["noise"].lines(ingest.seeded()), 50_000)).encode()
    over = threading.Event()

    def write() -> None:
        with (folder / "train.log").open("wb", buffering=0) as log:
            began, written = time.monotonic(), 0
            while (now := time.monotonic() - began) < BURST_S:
                while written < now * BURST_BYTES_PER_S:
                    written += log.write(block)
                time.sleep(TURN_S)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    took = scrapes(daemon, until=over.is_set)
    writer.join()
    return took

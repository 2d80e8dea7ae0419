"""From a line in a log to the page at the receiver, measured: ``python tests/delays/measure.py [--tries 6] [--judges 2]``.

Trainers break in each way that pages, at moments spread over a scrape interval; the daemon, Prometheus, the rules, Alertmanager and its
routes are the real ones, at the shipped intervals. Several Prometheus watch the daemon, as each scrapes and evaluates at phases of its own.
Some trainers get over an error and must not page. It prints a table and fails where a promise is broken; four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from daemon import Daemon  # noqa: E402 - found by the line above
from stack import (  # noqa: E402 - idem
    Prometheus,
    Receiver,
    alertmanager,
    alertmanager_config,
    eventually,
    prometheus,
    prometheus_config,
    receiver,
)

SCRAPE_S = 15.0
PAGE_S = 60.0
UNSEEN_S = 60.0  # where nobody is seen to write the log: its trainer may get over an error (design, decision 16)
STALL_FLOOR_S, STALL_GAPS = 90.0, 6.0
KINDS: Mapping[str, str] = {
    "nan": "TrainingLossNotFinite",
    "oom": "TrainingCrashed",
    "error": "TrainingCrashed",
    "killed": "TrainingCrashed",
    "unseen": "TrainingCrashed",
    "stall": "TrainingStalled",
    "caught": "",  # an error that the trainer gets over
    "healthy": "",
}
WHAT: Mapping[str, str] = {
    "nan": "loss is NaN from now on",
    "oom": "out of memory, and its process ends",
    "error": "another error, and its process ends",
    "killed": "its process is killed",
    "unseen": "out of memory, of a process that is not seen",
    "stall": "no step any more, its process stays",
    "caught": "out of memory, and goes on after 20 s",
    "healthy": "nothing",
}
USUAL_GAP = 'trainer_progress_gap_seconds{quantile="0.95"}'
PATIENCE_S = 120.0  # beyond what is promised, to see how late a late page is


@dataclass
class Run:
    """One trainer's process, and when it broke."""

    kind: str
    name: str
    process: subprocess.Popen[str]
    broke_wall: float = 0.0

    def break_it(self) -> None:
        """Tell it, and note when the line was written; a killed one writes none."""
        if self.kind == "killed":
            self.broke_wall = time.time()
            self.process.kill()
        elif self.kind != "healthy":
            self.process.send_signal(signal.SIGUSR1)


@dataclass(frozen=True)
class Judge:
    """A Prometheus with an Alertmanager and a pager of its own."""

    server: Prometheus
    pager: Receiver

    def pages(self) -> dict[str, tuple[float, str]]:
        """Run -> when its first page came, and of which alerts; a second page of a run is an AssertionError."""
        found: dict[str, tuple[float, str]] = {}
        for page in self.pager.pages():
            run = page.body["commonLabels"].get("run", "")
            assert run not in found, f"{run}: two pages"
            found[run] = (page.wall, "+".join(page.alertnames))
        return found

    def gaps(self) -> dict[str, float]:
        return {series["metric"]["run"]: float(series["value"][1]) for series in self.server.query(USUAL_GAP)}


@dataclass(frozen=True)
class Delay:
    """What came of one fault at one judge; no seconds where no page came."""

    run: Run
    promise_s: float
    seconds: float | None
    alert: str

    @property
    def is_kept(self) -> bool:
        expected = KINDS[self.run.kind]
        if not expected:
            return self.seconds is None
        return self.seconds is not None and self.seconds <= self.promise_s and self.alert == expected


def started(root: Path, tries: int) -> list[Run]:
    """All trainers, each with a run of its own."""
    runs = []
    for kind in KINDS:
        for number in range(tries):
            name = f"{kind}-{number}"
            command = [sys.executable, str(HERE / "trainer.py"), str(root / name / "train.log"), kind]
            runs.append(Run(kind, name, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    return runs


@contextlib.contextmanager
def judges(root: Path, target: str, count: int) -> Iterator[list[Judge]]:
    """``count`` Prometheus, told apart by a label, which gives each phases of its own."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            pager = stack.enter_context(receiver())
            alerts = stack.enter_context(alertmanager(root / f"alertmanager-{number}", alertmanager_config(pager.url)))
            config = yaml.safe_load(prometheus_config([target], alertmanager_url=alerts.url))
            config["global"].setdefault("external_labels", {})["replica"] = str(number)
            found.append(Judge(stack.enter_context(prometheus(root / f"prometheus-{number}", yaml.safe_dump(config))), pager))
        yield found


def measured(root: Path, *, tries: int, count: int) -> list[Delay]:
    """Break every run once, and wait for its page."""
    runs = started(root / "runs", tries)
    try:
        with Daemon(root / "runs", "--no-gpu", log=root / "daemon.log") as daemon, judges(root, f"127.0.0.1:{daemon.port}", count) as all_:
            for judge in all_:
                eventually(
                    lambda judge=judge: len(judge.gaps()) == len(runs), within_s=180, what="the usual gaps of all runs", seen=all_[0].gaps
                )
            break_all(runs, tries)
            return judged(runs, all_)
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()


def break_all(runs: Sequence[Run], tries: int) -> None:
    """One after the other, so that the tries of a kind are spread over a scrape interval, in another order for each kind."""
    step_s = SCRAPE_S / tries
    begin = time.monotonic()
    for place in range(tries):
        for number, kind in enumerate(KINDS):
            (run,) = (each for each in runs if each.name == f"{kind}-{(place + number) % tries}")
            due = begin + place * step_s + number * step_s / len(KINDS)
            time.sleep(max(0.0, due - time.monotonic()))
            run.break_it()
    for run in runs:
        if run.kind not in {"killed", "healthy"}:
            assert run.process.stdout is not None
            run.broke_wall = float(run.process.stdout.readline())


def judged(runs: Sequence[Run], all_: Sequence[Judge]) -> list[Delay]:
    """Wait until every page has come, or is late beyond patience."""
    gaps = [judge.gaps() for judge in all_]
    promises = [{run.name: promised_s(run.kind, known.get(run.name, 0.0)) for run in runs} for known in gaps]
    must = {run.name for run in runs if KINDS[run.kind]}
    until = time.time() + max(max(each.values()) for each in promises) + PATIENCE_S
    while time.time() < until and not all(must <= judge.pages().keys() for judge in all_):
        time.sleep(1)
    time.sleep(SCRAPE_S * 2)  # a false page may follow
    return [delay(run, judge, promise[run.name]) for judge, promise in zip(all_, promises, strict=True) for run in runs]


def promised_s(kind: str, gap_s: float) -> float:
    """What the design promises from the line to the page."""
    waited_s = {"stall": max(STALL_FLOOR_S, STALL_GAPS * gap_s), "unseen": UNSEEN_S}.get(kind, 0.0)
    return waited_s + PAGE_S


def delay(run: Run, judge: Judge, promise_s: float) -> Delay:
    """From the line that this run wrote to the page that this judge's pager got."""
    wall, alert = judge.pages().get(run.name, (None, ""))
    return Delay(run, promise_s, None if wall is None else wall - run.broke_wall, alert)


def table(delays: Sequence[Delay]) -> Iterator[str]:
    """A row a kind, in Markdown."""
    yield "| what happens | pages | of | promised | shortest | median | longest |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        own = [each for each in delays if each.run.kind == kind]
        came = [each.seconds for each in own if each.seconds is not None]
        promise = f"{max(each.promise_s for each in own):.0f} s" if KINDS[kind] else "no page"
        figures = [f"{figure(came):.0f} s" for figure in (min, statistics.median, max)] if came else ["-"] * 3
        yield f"| {WHAT[kind]} | {len(came)} | {len(own)} | {promise} | {' | '.join(figures)} |"


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tries", type=int, default=6, help="faults of each kind")
    parser.add_argument("--judges", type=int, default=2, help="Prometheus that watch")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trainer-exporter-delays-") as folder:
        delays = measured(Path(folder), tries=asked.tries, count=asked.judges)
    sys.stdout.write("\n".join(table(delays)) + "\n")
    broken = [each for each in delays if not each.is_kept]
    for each in broken:
        told = "no page" if each.seconds is None else f"{each.alert} after {each.seconds:.1f} s"
        sys.stderr.write(f"{each.run.name}: {told}, promised within {each.promise_s:.0f} s: {KINDS[each.run.kind] or 'no page'}\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

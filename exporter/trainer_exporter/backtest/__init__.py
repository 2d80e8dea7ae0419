"""Recorded logs -> virtual time -> the shipped rules -> what would have paged, when.

The log is told to the real run state as if it were live, the real collectors are scraped on a virtual clock, and Prometheus's own promtool
evaluates the rule files over those series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_exporter.backtest import promtool
from trainer_exporter.backtest.gpus import GpuSeries
from trainer_exporter.backtest.logs import Told, read, silent
from trainer_exporter.backtest.playing import INSTANCE, Play
from trainer_exporter.backtest.rulebook import Rulebook, rule_files
from trainer_exporter.backtest.timeline import annotated, firings
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.backtest.virtual_time import VirtualTime

__all__ = ["AFTER_S", "Firing", "Job", "Log", "Result", "backtest", "backtests", "read", "rule_files"]

AFTER_S: Final = 60.0  # enough for an incident to be judged, too short for a stall


@dataclass(frozen=True, slots=True)
class Job:
    """A log, and how it is to be told. ``after_s`` is waited after its last line; ``gpus`` is what its GPUs showed meanwhile."""

    log: Log
    after_s: float = AFTER_S
    step_s: float | None = None
    gpus: GpuSeries | None = None


def backtest(
    log: Log,
    *,
    rules: Sequence[Path],
    after_s: float = AFTER_S,
    step_s: float | None = None,
    gpus: GpuSeries | None = None,
) -> Result:
    """What the rules would have said while this log was written, and for ``after_s`` after its last line."""
    return backtests([Job(log, after_s, step_s, gpus)], rules=rules)[0]


def backtests(jobs: Sequence[Job], *, rules: Sequence[Path], explained: bool = False, told: Told = silent) -> list[Result]:
    """The same for several logs whose runs bear different names, as one Prometheus would see them: all begin at once.

    That takes hardly longer than the longest of them alone. ``explained``: with the alerts' annotations, which takes as long again.
    """
    book = Rulebook(rules)
    plays = [_play(job, f"{INSTANCE}-{number}" if number else INSTANCE, told) for number, job in enumerate(jobs)]
    tapes = [play.tape for play in plays]
    kept = book.about({name for tape in tapes for name in tape.metrics})

    def waiting(seconds: float) -> None:
        told(f"judging {max(tape.scrapes for tape in tapes)} scrapes of {len(jobs)} logs, {seconds:.0f} s", 0.0)

    said = promtool.evaluate(tapes, kept, waiting=waiting)
    found = [firings(play.own(said), play.marks, base=play.base, rules=kept) for play in plays]
    if explained and any(found):
        pages = promtool.pages(tapes, kept, {(each.alert, each.at_s) for fired in found for each in fired}, waiting=waiting)
        found = [annotated(fired, pages) for fired in found]
    return [_result(play, fired, book) for play, fired in zip(plays, found, strict=True)]


def _play(job: Job, instance: str, told: Told) -> Play:
    clock = VirtualTime(job.log.events, step_s=job.step_s)
    times = [clock.at(event) for event in job.log.events]
    stamp = clock.first_stamp
    base = stamp.seconds if stamp is not None else job.log.ended_wall - clock.now
    gpus = None if job.gpus is None else job.gpus.placed(base, clock.now, zoned=stamp is None or stamp.zoned)
    play = Play(job.log, times, base=base, clock=clock.kind, instance=instance, gpus=gpus)
    play.to_the_end(after_s=job.after_s, told=told)
    return play


def _result(play: Play, fired: Sequence[Firing], book: Rulebook) -> Result:
    judged = set(book.about(play.tape.metrics).alerts())
    return Result(
        fired,
        play.clock,
        play.times[-1] if play.times else 0.0,
        times=play.times,
        marks=play.marks,
        phase=play.phase,
        attempts=play.attempts,
        seen=frozenset(play.tape.metrics),
        asked=frozenset(book.metrics()),
        unjudged=[name for name in book.alerts() if name not in judged],
    )

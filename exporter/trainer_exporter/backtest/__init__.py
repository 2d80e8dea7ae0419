"""Recorded logs -> virtual time -> the shipped rules -> what would have paged, when.

The log is told to the real run state as if it were live, the real collectors are scraped on a virtual clock, and Prometheus's own promtool
evaluates the rule files over those series.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainer_exporter.backtest import promtool
from trainer_exporter.backtest.gpus import GpuSeries
from trainer_exporter.backtest.logs import Told, read, silent
from trainer_exporter.backtest.playing import Play
from trainer_exporter.backtest.rulebook import Rulebook, rule_files
from trainer_exporter.backtest.timeline import annotated, firings
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.backtest.virtual_time import VirtualTime

__all__ = ["AFTER_S", "Firing", "Log", "Result", "backtest", "read", "rule_files"]

AFTER_S: Final = 60.0  # enough for an incident to be judged, too short for a stall


def backtest(
    log: Log,
    *,
    rules: Sequence[Path],
    after_s: float = AFTER_S,
    step_s: float | None = None,
    gpus: GpuSeries | None = None,
    explained: bool = False,
    told: Told = silent,
) -> Result:
    """What the rules would have said while this log was written, and for ``after_s`` after its last line.

    ``gpus``: what their GPUs showed meanwhile. ``explained``: with the alerts' annotations, which takes as long again.
    """
    book = Rulebook(rules)
    clock = VirtualTime(log.events, step_s=step_s)
    times = [clock.at(event) for event in log.events]
    stamp = clock.first_stamp
    base = stamp.seconds if stamp is not None else log.ended_wall - clock.now
    if gpus is not None:
        gpus = gpus.placed(base, clock.now, zoned=stamp is None or stamp.zoned)
    play = Play(log, times, gpus=gpus, told=told)
    play.to_the_end(after_s=after_s)
    kept = book.about(play.tape.metrics)

    def waiting(seconds: float) -> None:
        told(f"judging {play.tape.scrapes} scrapes of {log.path}, {seconds:.0f} s", 0.0)

    found = firings(promtool.evaluate(play.tape, kept, waiting=waiting), play.marks, base=base, rules=kept)
    if explained and found:
        found = annotated(found, promtool.pages(play.tape, kept, {(each.alert, each.at_s) for each in found}, waiting=waiting))
    return Result(
        found,
        clock.kind,
        clock.now,
        times=times,
        marks=play.marks,
        phase=play.phase,
        attempts=play.attempts,
        seen=frozenset(play.tape.metrics),
        asked=frozenset(book.metrics()),
        unjudged=[name for name in book.alerts() if name not in kept.alerts()],
    )

"""When evidence is due: a run has made no step for longer than is normal for it. A reason to look, no verdict; the rules judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.model import Phase, RunSnapshot

FACTOR: Final = 6.0  # times the 95th percentile of the pauses so far; as the rules have it (design, decision 2)
CAP_S: Final = 3600.0  # and for first steps, evaluations and saves
HISTORY_S: Final = 86_400.0  # so old, and no process known: a log of long ago
AGAIN_S: Final = 60.0
DUMPS_S: Final = 7200.0  # PyTorch writes its dumps when its own timeout is over: 10 minutes, 30, or more

Mark = tuple[int, float]  # attempts, wall time of the last step: another one means that the run has advanced


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall that evidence was collected of."""

    run: str
    mark: Mark
    begun_wall: float  # when it was first looked at
    looked_mono: float
    is_given_up: bool = False


def mark_of(run: RunSnapshot) -> Mark | None:
    """What tells two stalls of a run apart; None where it has not begun."""
    return None if run.progress_wall is None else (run.attempts, run.progress_wall)


def limit(run: RunSnapshot, least_s: float) -> float:
    """Seconds without a step that are normal for this run as it is now."""
    longest = run.progress_gaps.get(1.0)
    cap = CAP_S if longest is None else max(CAP_S, 2 * longest)
    usual = run.progress_gaps.get(0.95)
    if usual is None or run.phase is not Phase.TRAINING:
        return cap
    return min(max(least_s, FACTOR * usual), cap)


class Stalls:
    """Which runs are due, and what became of those that were. One thread at a time."""

    def __init__(self, clock: Clock, *, least_s: float, cool_down_s: float) -> None:
        self._clock = clock
        self._least_s = least_s
        self._cool_down_s = cool_down_s
        self._stalls: dict[str, Stall] = {}

    def due(self, runs: Sequence[RunSnapshot]) -> Sequence[RunSnapshot]:
        """Runs that have just stalled: once a stall, and not again within the cool-down."""
        self._forget(runs)
        return [run for run in runs if self._is_stalled(run) and self._is_new(run)]

    def begin(self, run: RunSnapshot) -> Stall | None:
        """Take note that evidence of this run's stall is being collected; None where it has made its step after all."""
        mark = mark_of(run)
        if mark is None:
            return None
        stall = Stall(run.run, mark, self._clock.wall(), self._clock.mono())
        self._stalls[run.run] = stall
        return stall

    def waiting(self, runs: Sequence[RunSnapshot]) -> Sequence[Stall]:
        """Stalls that go on, for which it is time to look for dumps once more."""
        marks = {run.run: mark_of(run) for run in runs if run.phase is not Phase.ENDED}
        now_wall, now = self._clock.wall(), self._clock.mono()
        found = [
            stall
            for stall in self._stalls.values()
            if not stall.is_given_up
            and marks.get(stall.run) == stall.mark
            and now - stall.looked_mono >= AGAIN_S
            and now_wall - stall.begun_wall <= DUMPS_S
        ]
        self._stalls.update({stall.run: replace(stall, looked_mono=now) for stall in found})
        return found

    def give_up(self, run: str) -> None:
        """Look for no more dumps of this stall: reading them did not come to an end."""
        self._stalls[run] = replace(self._stalls[run], is_given_up=True)

    def _forget(self, runs: Iterable[RunSnapshot]) -> None:
        known = {run.run for run in runs}
        self._stalls = {name: stall for name, stall in self._stalls.items() if name in known}

    def _is_stalled(self, run: RunSnapshot) -> bool:
        if run.progress_wall is None or run.phase in (Phase.ENDED, Phase.FAILED) or run.writer_alive is False:
            return False
        age = self._clock.wall() - run.progress_wall
        return age > limit(run, self._least_s) and (run.writer_alive is True or age < HISTORY_S)

    def _is_new(self, run: RunSnapshot) -> bool:
        last = self._stalls.get(run.run)
        if last is None:
            return True
        return last.mark != mark_of(run) and self._clock.wall() - last.begun_wall >= self._cool_down_s

"""All runs of this node: the only place with a lock. Writers fold in; readers take the frozen snapshots that were published last.

Bounded in number (a file in which no trainer has spoken goes first, then the least recently touched run that has ended) and in age (ended
and failed runs leave after their grace).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.model import Checkpoint, Phase, RunSnapshot, Workload
from trainer_exporter.runs.rows import Placed, PlacedTable
from trainer_exporter.runs.state import RunState, StateSettings

REFRESH_S = 5.0  # figures that change with time alone (latches, phases) are derived anew at least so often


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Bounds of the store. A grace counts from the end of the run or the start of the daemon, whichever is later."""

    max_runs: int = 256
    ended_grace_s: float = 3600.0
    failed_grace_s: float = 24 * 3600.0
    state: StateSettings = field(default_factory=StateSettings)


class Store:
    """The states of all runs, by name."""

    def __init__(self, settings: StoreSettings, *, clock: Clock, health: Health) -> None:
        self._settings = settings
        self._clock = clock
        self._health = health
        self._lock = threading.Lock()
        self._start = clock.wall()
        self._states: dict[str, RunState] = {}
        self._left: set[str] = set()  # runs none of whose files is there any more
        self._dirty: set[str] = set()
        self._frozen: dict[str, RunSnapshot] = {}
        self._frozen_mono: dict[str, float] = {}  # by run, the one that was frozen longest ago first
        self._published_mono = clock.mono()  # when the last of them were derived anew
        self._published: tuple[RunSnapshot, ...] = ()

    def fold(self, run: str, events: Sequence[Placed | PlacedTable], *, source: str, format_name: str) -> bool:
        """Take in what one source says of a run; False where the run was not known, so that somebody has to describe it."""
        with self._lock:
            was_known = run in self._states
            state = self._state(run, create=True)
            if state is not None:
                state.fold_all(events, source=source, format_name=format_name)
            return was_known

    def fold_checkpoints(self, run: str, news: Sequence[Checkpoint]) -> None:
        """Take in what the directory of checkpoints of a known run says."""
        with self._lock:
            state = self._state(run, create=False)
            if state is not None:
                for item in news:
                    state.fold_checkpoint(item)

    def caught_up(self, run: str, source: str, *, mtime: float, lines: int) -> None:
        """The past of one source has been folded."""
        with self._lock:
            state = self._state(run, create=False)
            if state is not None:
                state.caught_up(source, mtime=mtime, lines=lines)

    def describe(self, run: str, *, labels: Mapping[str, str] | None = None, facts: Mapping[str, str] | None = None) -> None:
        """Static labels and identity of a run."""
        with self._lock:
            self._left.discard(run)
            state = self._state(run, create=True)
            if state is not None:
                state.describe(labels=labels, facts=facts)

    def note_writer(self, run: str, alive: bool | None, *, new_process: bool = False) -> None:
        """Whether a process writes this run's log, and whether it is another one than before."""
        with self._lock:
            state = self._state(run, create=False)
            if state is None:
                return
            state.note_writer(alive)
            if new_process:
                state.new_process(self._clock.wall())

    def note_space(self, run: str, *, avail_bytes: int, size_bytes: int) -> None:
        """Space of the file system that a known run saves to."""
        with self._lock:
            state = self._state(run, create=False)
            if state is not None:
                state.note_space(avail_bytes=avail_bytes, size_bytes=size_bytes)

    def note_workload(self, run: str, workload: Workload) -> None:
        """What is known of a known run's computation beyond its log."""
        with self._lock:
            state = self._state(run, create=False)
            if state is not None:
                state.note_workload(workload)

    def facts(self, run: str) -> Mapping[str, str]:
        """What is known of a run's identity (output_dir, job_id, ...); empty for an unknown run."""
        with self._lock:
            state = self._states.get(run)
            return state.facts if state is not None else {}

    def forget(self, run: str) -> None:
        """Drop a run whose files turned out to belong to another one."""
        with self._lock:
            self._remove(run)

    def leave(self, run: str) -> None:
        """None of its files is there any more: when its time is over nothing of it is kept."""
        with self._lock:
            self._left |= {run} & self._states.keys()

    def publish(self) -> None:
        """Make what was folded visible to readers, and let go of runs whose time is over."""
        now = self._clock.wall()
        with self._lock:
            mono = self._clock.mono()
            due = self._due(mono)
            if not self._dirty and not due:
                return
            for name in (*(self._dirty & self._states.keys()), *due):
                self._freeze(name, now)
                self._frozen_mono.pop(name, None)
                if name in self._states:
                    self._frozen_mono[name] = mono
            self._dirty.clear()
            self._published = tuple(self._frozen[name] for name in sorted(self._frozen))

    def _due(self, mono: float) -> list[str]:
        """Runs whose figures have grown old, and of the others so many that these never are many: a page waits while they are derived."""
        few = int((mono - self._published_mono) / REFRESH_S * len(self._frozen_mono))
        if few:
            self._published_mono = mono
        old = (name for name, moment in self._frozen_mono.items() if mono - moment >= REFRESH_S)
        return [name for name in dict.fromkeys((*islice(self._frozen_mono, few), *old)) if name not in self._dirty]

    def snapshot(self) -> tuple[RunSnapshot, ...]:
        """The runs as last published, by name; never waits."""
        return self._published

    def _freeze(self, name: str, now: float) -> None:
        state = self._states[name]
        if not state.has_record:
            return
        snapshot = state.snapshot(now)
        if self._is_over(snapshot.phase, state, now):
            self._frozen.pop(name, None)
            if name in self._left:  # else the state stays: the run may go on
                self._remove(name)
        else:
            self._frozen[name] = snapshot

    def _is_over(self, phase: Phase, state: RunState, now: float) -> bool:
        grace = {Phase.ENDED: self._settings.ended_grace_s, Phase.FAILED: self._settings.failed_grace_s}.get(phase)
        return grace is not None and now - max(state.touched_wall, self._start) > grace

    def _state(self, run: str, *, create: bool) -> RunState | None:
        state = self._states.get(run)
        if state is None:
            if not create or not self._has_room():
                return None
            state = self._states[run] = RunState(run, self._settings.state, daemon_start=self._start)
        self._dirty.add(run)
        return state

    def _has_room(self) -> bool:
        if len(self._states) < self._settings.max_runs:
            return True
        silent = next((name for name, state in self._states.items() if not state.has_record), None)
        if silent is not None:  # the log of some service: nothing is lost
            self._remove(silent)
            return True
        now = self._clock.wall()
        over = [s for s in self._states.values() if s.phase(now) in {Phase.ENDED, Phase.FAILED}]
        self._health.drop("runs")
        if not over:
            return False
        self._remove(min(over, key=lambda s: s.touched_wall).run)
        return True

    def _remove(self, run: str) -> None:
        self._states.pop(run, None)
        self._frozen.pop(run, None)
        self._left.discard(run)
        self._frozen_mono.pop(run, None)
        self._dirty.add(run)

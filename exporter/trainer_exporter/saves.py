"""The watchers of all runs' checkpoint directories. Part of the composition; has a thread of its own, since their file systems may hang."""

from __future__ import annotations

from collections.abc import Mapping

from trainer_exporter.checkpoints import CheckpointWatcher
from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.runs.store import Store

SPACE_S = 15.0  # a file system fills in minutes, and a statvfs on a network is a round trip


class SaveWatch:
    """One watcher for each (run, directory)."""

    def __init__(self, store: Store, *, clock: Clock, health: Health) -> None:
        self._store = store
        self._clock = clock
        self._health = health
        self._watchers: dict[tuple[str, str], CheckpointWatcher] = {}
        self._space_mono: dict[tuple[str, str], float] = {}
        self._attempts: dict[str, int] = {}

    def look(self, directories: Mapping[str, tuple[str, ...]]) -> None:
        """Fold what has happened in the directories of these runs (run -> directories)."""
        restarted = self._restarted()
        wanted = {(run, directory) for run, places in directories.items() for directory in places}
        self._watchers = {key: watcher for key, watcher in self._watchers.items() if key in wanted}
        self._space_mono = {key: looked for key, looked in self._space_mono.items() if key in wanted}
        for run, directory in sorted(wanted):
            if (run, directory) not in self._watchers:
                self._watchers[run, directory] = CheckpointWatcher(directory, clock=self._clock, health=self._health)
            with self._health.guard("saves"):
                self._look(run, self._watchers[run, directory], restarted=run in restarted)

    def _restarted(self) -> set[str]:
        """Runs that began another attempt since the last look: what the old one was saving will never be complete."""
        attempts = {run.run: run.attempts for run in self._store.snapshot()}
        before, self._attempts = self._attempts, attempts
        return {run for run, number in attempts.items() if number > before.get(run, number)}

    def _look(self, run: str, watcher: CheckpointWatcher, *, restarted: bool) -> None:
        news = (*(watcher.restart() if restarted else ()), *watcher.poll())
        if news:
            self._store.fold_checkpoints(run, news)
        now = self._clock.mono()
        key = run, watcher.directory
        if now - self._space_mono.get(key, -SPACE_S) < SPACE_S:
            return
        self._space_mono[key] = now
        space = watcher.filesystem()
        if space is not None:
            self._store.note_space(run, avail_bytes=space.avail_bytes, size_bytes=space.size_bytes)

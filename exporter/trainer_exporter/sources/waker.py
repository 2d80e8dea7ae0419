"""Waits for the next look, and is woken early when a file appears, moves or goes. Never decides anything.

On NFS, Lustre and GPFS events do not come, so the stat of each file every second stays the truth. Events of growth are not
asked for: one for each write of a busy trainer would cost more than reading its lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Protocol

from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import ObservedWatch

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health

_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
]


class Observing(Protocol):
    """What is used of watchdog's observer; anything of it may fail with OSError (limits of inotify, file system)."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def schedule(
        self,
        event_handler: FileSystemEventHandler,
        path: str,
        *,
        recursive: bool = False,
        event_filter: list[type[FileSystemEvent]] | None = None,
    ) -> ObservedWatch: ...

    def unschedule(self, watch: ObservedWatch) -> None: ...


class Waker(FileSystemEventHandler):
    """One waiting thread, woken by ``wake`` or by an event in a watched directory."""

    def __init__(
        self,
        clock: Clock,
        health: Health,
        *,
        observer: Callable[[], Observing] = Observer,
        most_directories: int = 256,
        quiet_s: float = 0.25,
    ) -> None:
        self._clock = clock
        self._health = health
        self._make_observer = observer
        self._most = most_directories
        self._quiet_s = quiet_s  # between two wakes by events: a checkpoint of a thousand files is one reason to look
        self.arrivals = 0  # events ever: each may be a new file
        self._event = threading.Event()
        self._last_mono = -quiet_s
        self._observer: Observing | None = None
        self._failed = False  # polling alone goes on
        self._watches: dict[str, ObservedWatch] = {}
        self._refused: set[str] = set()

    @property
    def watched(self) -> int:
        """Directories whose events would wake us."""
        return len(self._watches)

    def wait(self, timeout_s: float) -> bool:
        """Until woken (True) or until the time is over (False)."""
        woken = self._event.wait(timeout_s)
        self._event.clear()
        return woken

    def wake(self) -> None:
        """End the wait, now or the next; safe from any thread."""
        self._event.set()

    def dispatch(self, event: FileSystemEvent) -> None:
        """Called by watchdog's thread."""
        self.arrivals += 1
        now = self._clock.mono()
        if now - self._last_mono >= self._quiet_s:
            self._last_mono = now
            self._event.set()

    def watch(self, directories: Collection[str]) -> None:
        """Watch these and no others; beyond the bound, and where it fails, polling alone finds what is new."""
        if self._failed:
            return
        for gone in self._watches.keys() - set(directories):
            self._unschedule(gone)
        self._refused &= set(directories)
        for directory in directories:
            if directory not in self._watches and directory not in self._refused:
                self._schedule(directory)

    def close(self) -> None:
        """Stop watching; waits a moment for watchdog's threads."""
        observer, self._observer = self._observer, None
        self._watches.clear()
        if observer is not None:
            observer.stop()
            observer.join(2.0)

    def _schedule(self, directory: str) -> None:
        if len(self._watches) >= self._most:
            self._refused.add(directory)
            self._health.drop("watches")
            return
        observer = self._started()
        if observer is None:
            return
        try:
            self._watches[directory] = observer.schedule(self, directory, recursive=False, event_filter=_EVENTS)
        except FileNotFoundError:
            return  # gone again; asked for anew as long as it is wanted
        except OSError as error:
            self._refused.add(directory)
            self._health.count("waker", "watch", detail=f"{directory}: {error}")

    def _unschedule(self, directory: str) -> None:
        watch = self._watches.pop(directory)
        try:
            if self._observer is not None:
                self._observer.unschedule(watch)
        except (OSError, KeyError) as error:  # the directory went, and its watch with it
            self._health.count("waker", "unwatch", detail=f"{directory}: {error}")

    def _started(self) -> Observing | None:
        if self._observer is None:
            try:
                observer = self._make_observer()
                observer.start()
            except (OSError, RuntimeError) as error:
                self._failed = True
                self._health.count("waker", "start", detail=str(error))
                return None
            self._observer = observer
        return self._observer

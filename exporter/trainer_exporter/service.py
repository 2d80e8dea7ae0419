"""The daemon as a process: signals, limits of the operating system, words to systemd."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
from collections.abc import Callable

from trainer_exporter.app import App
from trainer_exporter.config import Config
from trainer_exporter.notify import Notifier

MOST_FILES = 65_536
SWITCH_S = 0.0005  # a page waits so long, several times, for the thread that reads a burst; Python would let it wait for ten times as long


def run(config: Config, *, reload: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP takes over a changed configuration."""
    app = App(config, reload=reload)
    received = _Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    _allow_many_files()
    _wait_less()
    notifier = Notifier()
    app.start()
    notifier.ready()
    try:
        while (number := received.next(timeout_s=notifier.watchdog_s)) in (None, signal.SIGHUP):
            if number is not None:
                app.reload()
            elif app.is_alive:
                notifier.alive()
    finally:
        notifier.stopping()
        app.stop()


class _Signals:
    """Signals in the order in which they came.

    The operating system may hand a signal to any thread, and Python runs its handler in the main one only when that wakes by itself; a byte
    in a pipe wakes it at once. Nothing is done in a handler: it may interrupt the work that an earlier signal has asked for.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._waiting = b""
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def next(self, *, timeout_s: float | None) -> int | None:
        """The number of the next signal; None when none came in time."""
        if not self._waiting and select.select([self._reader], [], [], timeout_s)[0]:
            self._waiting = os.read(self._reader, 64)
        first, self._waiting = self._waiting[:1], self._waiting[1:]
        return first[0] if first else None


def _allow_many_files() -> None:
    """Thousands of logs may be open at once; the soft limit is a convention of select(), which nothing here uses."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES), hard))


def _wait_less() -> None:
    """Two things that pages waited for.

    Every so many pages Python looked through all that it had loaded for rings that nobody needs, for 20 ms; modules and patterns
    are none, and are not looked at any more.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()

"""The daemon as a process: signals, limits of the operating system, words to systemd."""

from __future__ import annotations

import queue
import resource
import signal
from collections.abc import Callable

from trainer_exporter.app import App
from trainer_exporter.config import Config
from trainer_exporter.notify import Notifier

MOST_FILES = 65_536


def run(config: Config, *, reload: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP takes over a changed configuration."""
    app = App(config, reload=reload)
    # A handler only notes the signal: it may interrupt the work that an earlier one has asked for.
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: asked.put(received))
    _allow_many_files()
    notifier = Notifier()
    app.start()
    notifier.ready()
    try:
        _wait_for_the_end(app, asked, notifier)
    finally:
        notifier.stopping()
        app.stop()


def _wait_for_the_end(app: App, asked: queue.SimpleQueue[int], notifier: Notifier) -> None:
    while True:
        try:
            received = asked.get(timeout=notifier.watchdog_s)
        except queue.Empty:
            if app.is_alive:
                notifier.alive()
            continue
        if received != signal.SIGHUP:
            return
        app.reload()


def _allow_many_files() -> None:
    """Thousands of logs may be open at once; the soft limit is a convention of select(), which nothing here uses."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES), hard))

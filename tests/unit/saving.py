"""A run's output directory, its watcher and a hand on the clock, for the tests of saves as they look from outside."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from trainer_exporter.checkpoints import CheckpointLimits, CheckpointWatcher
from trainer_exporter.clock import ManualClock
from trainer_exporter.health import Health
from trainer_exporter.model import Checkpoint, CheckpointEvent

STARTED, FINISHED, FAILED = CheckpointEvent.STARTED, CheckpointEvent.FINISHED, CheckpointEvent.FAILED
TRACKER = "latest_checkpointed_iteration.txt"


class Story:
    """A run's output directory, its watcher, and a hand on the clock. The clock is a minute ahead: file times may be set ahead too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(time.time() + 60)
        self.health = Health()
        self.watcher = self.fresh_watcher()

    def fresh_watcher(self, limits: CheckpointLimits | None = None) -> CheckpointWatcher:
        limits = limits or CheckpointLimits()
        return CheckpointWatcher(str(self.root), clock=self.clock, health=self.health, limits=limits)

    def write(self, name: str, content: bytes | str = b"weights", *, later: float | None = None) -> Path:
        """``later``: seconds from now that the file says it was written."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if later is not None:
            os.utime(path, (time.time() + later,) * 2)
        return path

    def poll(self, *, after: float = 1.0) -> list[tuple[CheckpointEvent, int | None]]:
        return [(news.event, news.step) for news in self.news(after=after)]

    def news(self, *, after: float = 1.0) -> tuple[Checkpoint, ...]:
        self.clock.advance(after)
        return self.watcher.poll()

    def reasons(self, *, after: float = 1.0) -> list[tuple[int | None, str]]:
        return [(news.step, news.reason) for news in self.news(after=after) if news.event is FAILED]


def state(step: int) -> str:
    return json.dumps({"global_step": step, "log_history": [{"loss": 2.25, "step": step}]}, indent=2)


def torch_file() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", b"0" * 4096)
    return data.getvalue()


def refuse(number: int) -> Callable[[object], None]:
    """A listing that fails as a file server in trouble makes it fail."""

    def listing(path: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    return listing

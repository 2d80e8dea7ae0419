"""A follower and the hands that move its file, for the tests of one path that is followed; only time stands still."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from trainer_exporter.clock import ManualClock
from trainer_exporter.health import Health
from trainer_exporter.model import Change, Chunk
from trainer_exporter.sources.files import SystemFiles
from trainer_exporter.sources.follow import Follower, Limits, Polled


class Scene:
    """A follower, what it gave out so far, and the hands that move its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.health = Health()
        self.files = FaultyFiles()
        self.chunks: list[Chunk] = []
        self.changes: list[Change] = []
        self.follower: Follower | None = None

    def follow(self, *, present: bool = False, **limits: float) -> None:
        self.follower = Follower(
            str(self.path),
            self.clock,
            self.health,
            present_at_start=present,
            limits=Limits(**limits),  # type: ignore[arg-type]
            files=self.files,
        )

    def poll(self) -> Polled:
        """Poll until the follower says that there is no more."""
        assert self.follower is not None
        while True:
            polled = self.follower.poll()
            for item in polled.items:
                (self.chunks if isinstance(item, Chunk) else self.changes).append(item)  # type: ignore[attr-defined]
            if not polled.more:
                return polled

    def new(self) -> bytes:
        """What one look gives."""
        before = len(self.chunks)
        self.poll()
        return b"".join(chunk.data for chunk in self.chunks[before:])

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as out:
            out.write(data)

    def rename_away(self, suffix: str = ".1") -> Path:
        return self.path.rename(self.path.with_name(self.path.name + suffix))

    def text(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)


class FaultyFiles(SystemFiles):
    """The real files, but for the call that a test wants to fail."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.open_now: set[int] = set()
        self.fail_after_opens: int | None = None
        self.after_next_pread: Callable[[], None] | None = None

    def stat(self, path: str) -> os.stat_result:  # type: ignore[override]
        self._maybe_fail("stat")
        return os.stat(path)  # noqa: PTH116 - the call that is watched

    def open(self, path: str) -> int:  # type: ignore[override]
        self._maybe_fail("open")
        if self.fail_after_opens is not None:
            if self.fail_after_opens == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.fail_after_opens -= 1
        fd = SystemFiles.open(path)
        self.open_now.add(fd)
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        self._maybe_fail("pread")
        data = os.pread(fd, size, offset)
        event, self.after_next_pread = self.after_next_pread, None
        if event is not None:
            event()
        return data

    def close(self, fd: int) -> None:  # type: ignore[override]
        self.open_now.discard(fd)
        os.close(fd)

    def _maybe_fail(self, call: str) -> None:
        if call in self.failing:
            raise OSError(self.failing[call], os.strerror(self.failing[call]))

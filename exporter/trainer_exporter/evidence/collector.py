"""Starts the process that collects, and waits for its lines with a deadline; its caller has a thread of its own for that.

A process that hangs in the kernel cannot be killed: it is left, and as long as it is there no other one is started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trainer_exporter.evidence.request import Answer, Request
from trainer_exporter.health import Health

SITE: Final = "evidence"
SECONDS: Final = 180.0  # two answers of RAS, sixteen stacks, and the dumps of a large job
ANSWER_BYTES: Final = 1 << 20
TICK_S: Final = 0.2
WORDS: Final = (sys.executable, "-m", "trainer_exporter.evidence.child")


class Collector:
    """One collection at a time."""

    def __init__(self, health: Health, *, words: Sequence[str] = WORDS, seconds: float = SECONDS) -> None:
        self._health = health
        self._words = tuple(words)
        self._seconds = seconds
        self._left_behind: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    @property
    def is_stuck(self) -> bool:
        """Whether an earlier process still hangs where it cannot be killed."""
        if self._left_behind is not None and self._left_behind.poll() is not None:
            self._left_behind = None
        return self._left_behind is not None

    def collect(self, request: Request, take: Callable[[Answer], None]) -> bool:
        """Collect, and hand over the answers as they come; False where it was not finished.

        What a process that died or hangs had said before counts.
        """
        if self.is_stuck:
            self._health.count(SITE, "stuck")
            return False
        process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        try:
            for line in self._lines(process, request.encode()):
                self._hand_over(line, take)
        finally:
            is_done = self._finish(process)
        return is_done

    def stop(self) -> None:
        """End the collection in progress, and begin no other; its caller returns from ``collect`` within a second or so."""
        self._stopping.set()

    def _lines(self, process: subprocess.Popen[bytes], words: bytes) -> Iterator[bytes]:
        """Until it closes its end or the time is over. Waiting for the end of a pipe alone could last for ever."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(words)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        deadline = time.monotonic() + self._seconds
        rest = b""
        while not self._stopping.is_set():
            if time.monotonic() > deadline:
                self._health.count(SITE, "timeout")
                return
            if not select.select([process.stdout], [], [], TICK_S)[0]:
                continue
            piece = os.read(process.stdout.fileno(), ANSWER_BYTES)
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if not piece or len(rest) > ANSWER_BYTES:
                return

    def _hand_over(self, line: bytes, take: Callable[[Answer], None]) -> None:
        answer = Answer.decode(line)
        for word in answer.words:
            self._health.count(SITE, word)
        if answer.more:
            self._health.drop("hang_suspects", answer.more)
        take(answer)

    def _finish(self, process: subprocess.Popen[bytes]) -> bool:
        """It has closed its end and is about to go, or has to; whether it went by itself and well."""
        for patience_s in (1.0, 5.0):
            try:
                returncode = process.wait(timeout=0.0 if self._stopping.is_set() else patience_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                continue
            if returncode > 0:
                self._health.count(SITE, "died")
            return returncode == 0
        self._left_behind = process
        return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started; py-spy too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)

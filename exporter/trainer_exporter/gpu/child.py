"""The process that talks to the driver: ``python -m trainer_exporter.gpu.child INTERVAL_SECONDS``.

Tells what it sees as one JSON object a line on its standard output (``board`` reads them). It ends when its standard input
closes or at SIGTERM, and then finishes the driver call in flight first: killing a monitor in mid-call has locked up A100s. So nothing here
asks the kernel for a deadly signal when the parent dies; its closed end of the pipe is word enough.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Any, Final

from trainer_exporter.errors import GpuError
from trainer_exporter.gpu import nvml

BEAT_S: Final = 2.0
SESSION: Final = "session"
EVENT_WAIT_MS: Final = 500  # also how long an end may wait for the thread of events
LONGEST_CALL_S: Final = 60.0  # a dead GSP holds a call for 6 or 45 s; what takes longer never returns
HOPELESS_S: Final = 60.0  # so long no card answers, then a fresh process tries a fresh session
# Asks for a fresh process. After a driver reload only that maps the new library; EX_TEMPFAIL of sysexits.
EXIT_RENEW: Final = 75
ABSENT: Final = frozenset({nvml.LIBRARY_NOT_FOUND, nvml.DRIVER_NOT_LOADED})
SESSION_GONE: Final = frozenset({nvml.UNINITIALIZED, nvml.INVALID_ARGUMENT, nvml.DRIVER_NOT_LOADED, nvml.UNKNOWN})


class Voice:
    """The line to the daemon. A closed line ends this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, kind: str, **content: Any) -> None:
        data = json.dumps({"kind": kind, **content}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except BrokenPipeError:
                end()


def end() -> None:
    """Let the main thread begin the end."""
    os.kill(os.getpid(), signal.SIGTERM)


class Session:
    """One NVML session with its workers, one a card, and a thread that waits for Xid events."""

    def __init__(self, voice: Voice, interval_s: float) -> None:
        self._voice = voice
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._answers: dict[str, int] = {}  # UUID -> error code of the last look, 0 when it succeeded
        self.exit_code = 0

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Open the driver, poll until told to stop, close it. For a thread of its own: each of the three can hang."""
        driver = nvml.Driver()
        try:
            driver.open()
            cards = driver.cards()
        except GpuError as error:
            self._give_up(error)
            return
        self._voice.say("cards", cards=[card.identity() for card in cards])
        threads = self._start(cards)
        self._watch(cards)
        for thread in threads:
            thread.join()
        driver.close()

    def _give_up(self, error: GpuError) -> None:
        state = "absent" if error.code in ABSENT else "failed"
        self._voice.say("driver", state=state, detail=str(error))
        end()

    def _start(self, cards: list[nvml.Card]) -> list[threading.Thread]:
        # The set stands before the first reading: whoever has seen a reading may rely on events being heard.
        events = _events(cards)
        threads = [threading.Thread(target=self._work, args=(card,), name=card.uuid, daemon=True) for card in cards]
        if cards:
            threads.append(threading.Thread(target=self._listen, args=(cards, events), name="events", daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _watch(self, cards: list[nvml.Card]) -> None:
        """Wait for the stop; ask for a fresh process when this session is of no more use."""
        hopeless_since: float | None = None
        while not self._stop.wait(min(self._interval_s, 1.0) if cards else self._interval_s):
            answers = list(self._answers.values())
            dark = len(answers) == len(cards) and all(answers)
            now = time.monotonic()
            hopeless_since = (hopeless_since or now) if dark else None
            gone = dark and bool(cards) and SESSION_GONE.issuperset(answers)
            if gone or (hopeless_since is not None and now - hopeless_since > HOPELESS_S):
                self.exit_code = EXIT_RENEW
                end()
                return

    def _work(self, card: nvml.Card) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._look(card)
            due = max(due + self._interval_s, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _look(self, card: nvml.Card) -> None:
        """One look at a card, told as a reading or as a failure; abandoned between two calls at a stop."""
        began = time.monotonic()
        values: dict[str, Any] = {}
        try:
            for name, value in card.look():
                if value is not None:
                    values[name] = value
                if self._stop.is_set():
                    return
            if not values.keys() - {"processes"}:
                raise GpuError("look", nvml.INVALID_ARGUMENT, "no call knows this handle")
        except GpuError as error:
            self._answers[card.uuid] = error.code
            word = "lost" if error.code == nvml.GPU_IS_LOST else "driver"
            self._voice.say("failed", uuid=card.uuid, error=word, detail=str(error))
            return
        self._answers[card.uuid] = 0
        self._voice.say("reading", uuid=card.uuid, took=round(time.monotonic() - began, 4), values=values)

    def _listen(self, cards: list[nvml.Card], events: nvml.XidEvents | None) -> None:
        while not self._stop.is_set():
            events = events or _events(cards)
            began = time.monotonic()
            try:
                event = events.wait(EVENT_WAIT_MS) if events else None
            except GpuError:  # a card was lost: the set must be built anew for the others
                events, event = None, None
            if event is not None:
                self._voice.say("xid", uuid=event[0], xid=event[1])
            else:  # a set without cards answers at once
                self._stop.wait(max(0.0, began + EVENT_WAIT_MS / 1000 - time.monotonic()))


def _events(cards: list[nvml.Card]) -> nvml.XidEvents | None:
    try:
        return nvml.XidEvents(cards)
    except GpuError:
        return None


def _beat(voice: Voice) -> None:
    while True:
        voice.say("beat")
        time.sleep(BEAT_S)


def _await_parent() -> None:
    while os.read(0, 4096):
        pass
    end()


def _private_output() -> int:
    """Keep standard output for our lines: whatever a driver library prints goes where errors go."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


class Bugs:
    """A thread that ends by a bug of ours costs what it did: its card goes stale, the daemon counts. Only the session's costs all."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def report(self, details: threading.ExceptHookArgs) -> None:
        trace: TracebackType | None = details.exc_traceback
        sys.__excepthook__(details.exc_type, details.exc_value or details.exc_type(), trace)
        self._voice.say("bug", error=details.exc_type.__name__)
        if details.thread is not None and details.thread.name == SESSION:
            end()


def main(interval_s: float) -> int:
    """Poll until told to stop; the exit code says whether a fresh process is wanted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the daemon will close our input
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    voice = Voice(_private_output())
    threading.excepthook = Bugs(voice).report
    session = Session(voice, interval_s)
    worker = threading.Thread(target=session.run, name=SESSION, daemon=True)
    for thread in (
        threading.Thread(target=_await_parent, name="parent", daemon=True),
        threading.Thread(target=_beat, args=(voice,), name="beat", daemon=True),
        worker,
    ):
        thread.start()
    signal.sigwait({signal.SIGTERM})
    session.stop()
    worker.join(LONGEST_CALL_S)
    return session.exit_code


if __name__ == "__main__":
    # At once, without Python's own tear-down, which would wait for threads that may never come back.
    os._exit(main(float(sys.argv[1])))

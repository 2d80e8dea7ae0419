"""The process that talks to the driver: ``python -m trainer_exporter.gpu.child INTERVAL_SECONDS [GPUS_FOLDER [throughput]]``.

Tells what it sees as one JSON object a line on its standard output (``board`` reads them). It ends when its standard input
closes or at SIGTERM, and then finishes the driver call in flight first: killing a monitor in mid-call has locked up A100s. So nothing here
asks the kernel for a deadly signal when the parent dies; its closed end of the pipe is word enough. SIGUSR1 makes it let go of all GPUs for
a while, for a reset or for a new driver; a driver that tells of an unbinding has it do the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from trainer_exporter.errors import GpuError
from trainer_exporter.gpu import kernel, nvml
from trainer_exporter.gpu.card import Card, cards_of

BEAT_S: Final = 2.0
SESSION: Final = "session"
EVENT_WAIT_MS: Final = 500  # also how long an end may wait for the thread of events
LONGEST_CALL_S: Final = 60.0  # a dead GSP holds a call for 6 or 45 s; what takes longer never returns
HOPELESS_S: Final = 60.0  # so long no card answers, then a fresh process tries a fresh session
SICK_S: Final = 300.0  # so long a card fails, then too: after its reset only a fresh session sees it
HELD_UP_S: Final = 1.0  # a look takes a tenth of that
# Asks for a fresh process. After a driver reload only that maps the new library; EX_TEMPFAIL of sysexits.
EXIT_RENEW: Final = 75
EXIT_RELEASE: Final = 76  # idem, after a while in which nobody holds the GPUs
ABSENT: Final = frozenset({nvml.LIBRARY_NOT_FOUND, nvml.DRIVER_NOT_LOADED})
SESSION_GONE: Final = frozenset({nvml.UNINITIALIZED, nvml.INVALID_ARGUMENT, nvml.DRIVER_NOT_LOADED, nvml.UNKNOWN})
WORDS: Final = {nvml.GPU_IS_LOST: "lost", nvml.RESET_REQUIRED: "reset_required"}


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
    """One NVML session with its workers, one a card, and a thread that waits for events.

    ``gpus`` is the folder in which the kernel lists its GPUs; the session is renewed when the list changes.
    """

    def __init__(self, voice: Voice, interval_s: float, *, gpus: str = "", throughput: bool = False) -> None:
        self._voice = voice
        self._interval_s = interval_s
        self._gpus = gpus
        self._throughput = throughput
        self._stop = threading.Event()
        self._answers: dict[str, int] = {}  # UUID -> error code of the last look, 0 when it succeeded
        self._sick_since: dict[str, float] = {}
        self._busy_since: dict[str, float] = {}  # thread that is with the driver -> since when
        self._hold = threading.Event()  # set: begin no look
        self._wants: str = ""  # why a fresh session is wanted
        self.exit_code = 0

    def stop(self) -> None:
        self._stop.set()

    def release(self) -> None:
        """Let go of all GPUs for a while."""
        self._renew("released", EXIT_RELEASE)

    def run(self) -> None:
        """Open the driver, poll until told to stop, close it. For a thread of its own: each of the three can hang."""
        driver = nvml.Driver()
        listed = kernel.gpus(self._gpus)
        try:
            driver.open()
            cards = cards_of(driver, throughput=self._throughput)
            self._voice.say("cards", cards=[each.identity() for one in cards for each in (one, *one.instances)])
        except GpuError as error:
            self._give_up(error)
            return
        if driver.unanswered:
            self._sick_since[""] = time.monotonic()
        threads = self._start(driver, cards)
        self._watch(cards, listed)
        for thread in threads:
            thread.join()
        driver.close()

    def _give_up(self, error: GpuError) -> None:
        state = "absent" if error.code in ABSENT else "failed"
        self._voice.say("driver", state=state, detail=str(error))
        end()

    def _start(self, driver: nvml.Driver, cards: list[Card]) -> list[threading.Thread]:
        # The set stands before the first reading: whoever has seen a reading may rely on events being heard.
        events, unbinding = _events(cards), nvml.Unbinding()
        threads = [threading.Thread(target=self._work, args=(card,), name=card.uuid, daemon=True) for card in cards]
        threads.append(threading.Thread(target=self._listen, args=(cards, events, unbinding), name="events", daemon=True))
        threads.append(threading.Thread(target=self._count, args=(driver,), name="count", daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _watch(self, cards: list[Card], listed: frozenset[str]) -> None:
        """Wait for the stop; ask for a fresh process when the NVML session is of no more use."""
        hopeless_since: float | None = None
        while not self._stop.wait(min(self._interval_s, 1.0)):
            answers = list(self._answers.values())
            dark = bool(cards) and len(answers) == len(cards) and all(answers)
            now = time.monotonic()
            hopeless_since = (hopeless_since or now) if dark else None
            if dark and SESSION_GONE.issuperset(answers):
                self._renew("session gone")
            elif hopeless_since is not None and now - hopeless_since > HOPELESS_S:
                self._renew("no card answers")
            elif not self._is_held_up(now):  # a call that hangs cannot be left behind, nor may it cost the others their rows
                self._renew_if_wanted(now, listed)

    def _renew_if_wanted(self, now: float, listed: frozenset[str]) -> None:
        if kernel.gpus(self._gpus) != listed:
            self._wants = "the kernel lists other GPUs"
        elif any(now - since > SICK_S for since in list(self._sick_since.values())):
            self._wants = "a card that does not recover"
        if self._wants and self._are_all_back():
            self._renew(self._wants)

    def _is_held_up(self, now: float) -> bool:
        return any(now - since > HELD_UP_S for since in list(self._busy_since.values()))

    def _are_all_back(self) -> bool:
        """Whether all calls in progress returned while no new one was begun. A hang that has just begun shows here."""
        self._hold.set()
        until = time.monotonic() + HELD_UP_S
        while self._busy_since and time.monotonic() < until:
            self._stop.wait(0.01)
        back = not self._busy_since
        if not back:
            self._hold.clear()
        return back

    def _renew(self, why: str, code: int = EXIT_RENEW) -> None:
        self.exit_code = code
        self._voice.say("renew", why=why)
        self._stop.set()
        end()

    def _work(self, card: Card) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._busy_since[card.uuid] = time.monotonic()
            if not self._hold.is_set():
                self._look(card)
            del self._busy_since[card.uuid]
            due = max(due + self._interval_s, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _look(self, card: Card) -> None:
        """One look at a card and then at its parts; a card that fails takes its parts along."""
        try:
            self._read(card)
            for part in card.instances:
                self._read(part)
            if card.has_changed_layout():
                self._wants = "other MIG instances"
        except GpuError as error:
            self._answers[card.uuid] = error.code
            self._sick_since.setdefault(card.uuid, time.monotonic())
            card.forget()
            for each in (card, *card.instances):
                self._voice.say("failed", uuid=each.uuid, error=WORDS.get(error.code, "driver"), detail=str(error))
            return
        self._answers[card.uuid] = 0
        self._sick_since.pop(card.uuid, None)

    def _read(self, card: Card) -> None:
        """Tell one reading; abandoned between two calls at a stop. Raises GpuError."""
        began = time.monotonic()
        values: dict[str, Any] = {}
        for name, value in card.look():
            if value is not None:
                values[name] = value
            if self._stop.is_set():
                return
        if not values.keys() - {"processes"}:
            raise GpuError("look", nvml.INVALID_ARGUMENT, "no call knows this handle")
        self._voice.say("reading", uuid=card.uuid, took=round(time.monotonic() - began, 4), values=values)

    def _listen(self, cards: list[Card], events: nvml.XidEvents | None, unbinding: nvml.Unbinding) -> None:
        while not self._stop.is_set():
            events = events or _events(cards)
            began = time.monotonic()
            try:
                event = events.wait(EVENT_WAIT_MS) if events else None
            except GpuError:  # a card was lost: the set must be built anew for the others
                events, event = None, None
            if event is not None:
                self._voice.say("xid", **event)
                continue
            if unbinding.is_asked():
                self.release()
            # a set without cards answers at once
            self._stop.wait(max(0.0, began + EVENT_WAIT_MS / 1000 - time.monotonic()))

    def _count(self, driver: nvml.Driver) -> None:
        """Notice that the driver lists another number of cards than were enumerated, where no folder of the kernel tells."""
        while not self._stop.is_set():
            self._busy_since["count"] = time.monotonic()
            try:
                now: int | None = driver.count() if not self._hold.is_set() else None
            except GpuError:
                now = None
            del self._busy_since["count"]
            if now is not None and now != driver.listed:
                self._wants = "the driver lists other cards"
            self._stop.wait(self._interval_s)


def _events(cards: Sequence[Card]) -> nvml.XidEvents | None:
    try:
        return nvml.XidEvents({card.uuid: card.device for card in cards}) if cards else None
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


def main(interval_s: float, gpus: str = "", *, throughput: bool = False) -> int:
    """Poll until told to stop; the exit code says whether a fresh process is wanted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the daemon will close our input
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    voice = Voice(_private_output())
    threading.excepthook = Bugs(voice).report
    session = Session(voice, interval_s, gpus=gpus, throughput=throughput)
    worker = threading.Thread(target=session.run, name=SESSION, daemon=True)
    for thread in (
        threading.Thread(target=_await_parent, name="parent", daemon=True),
        threading.Thread(target=_beat, args=(voice,), name="beat", daemon=True),
        worker,
    ):
        thread.start()
    if signal.sigwait({signal.SIGTERM, signal.SIGUSR1}) == signal.SIGUSR1:
        session.release()
    session.stop()
    worker.join(LONGEST_CALL_S)
    return session.exit_code


if __name__ == "__main__":
    # At once, without Python's own tear-down, which would wait for threads that may never come back.
    os._exit(main(float(sys.argv[1]), *sys.argv[2:3], throughput=sys.argv[3:] == ["throughput"]))

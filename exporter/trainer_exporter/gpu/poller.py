"""The daemon's side of the GPUs: keeps one child alive, reads what it says, answers at once with what is known.

Nothing here calls the driver. A child is replaced only when it has died or fallen silent (design decision 8).
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

from trainer_exporter.clock import Clock
from trainer_exporter.gpu import kernel
from trainer_exporter.gpu.board import Board
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuSnapshot

log = logging.getLogger(__name__)

SITE: Final = "gpu"
# Under the 15 s of the usual scrape, so that no two scrapes see the same reading, and no shorter: a look costs some twenty driver calls
# a card, and what matters at a finer grain (energy, Xid) is counted by the driver.
INTERVAL_S: Final = 10.0
DEADLINE_S: Final = 10.0  # a driver whose GSP answers late needs 6 s a call; one such call a look is no reason to drop the card
EXIT_RENEW: Final = 75  # the child's word for "start me anew"; see gpu/child.py
EXIT_RELEASE: Final = 76  # idem, for "start me anew when the GPUs have been free for a while"
KERNEL_LOG: Final = "/dev/kmsg"
_GPUS: Final = "driver/nvidia/gpus"
KERNEL_GPUS: Final = f"/proc/{_GPUS}"
KERNEL_S: Final = 1.0  # pace of the looks at the kernel's log
LONGEST_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what, in seconds."""

    silence_s: float = 30.0  # without a heartbeat; it comes every 2 s, and a busy node may starve us for some
    grace_s: float = 5.0  # for a child that was asked to end
    first_pause_s: float = 1.0  # before a new child; doubles up to the longest
    longest_pause_s: float = 60.0
    absent_pause_s: float = 300.0  # before looking again for a driver where there was none
    release_s: float = 60.0  # in which nobody holds the GPUs, so that they can be reset or get another driver
    steady_s: float = 120.0  # a child that lived so long starts the pauses anew


@dataclass(frozen=True, slots=True)
class KernelPlaces:
    """Where the kernel tells of its GPUs; "" for a place that is not to be looked at."""

    log: str = KERNEL_LOG
    gpus: str = KERNEL_GPUS


def kernel_gpus(procfs: str) -> str:
    """The kernel's folder of GPUs below a /proc that may be mounted elsewhere."""
    return f"{procfs}/{_GPUS}"


class Process(Protocol):
    """What we need of subprocess.Popen."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


Launch = Callable[[], Process]


def launcher(interval_s: float, *, env: Mapping[str, str] | None = None, gpus: str = KERNEL_GPUS, throughput: bool = False) -> Launch:
    """Starts the child that polls: a fresh program, never a fork, for NVML must not be carried over one.

    ``gpus`` is the kernel's folder of them; ``throughput`` has the PCIe traffic read, which blocks for 40 ms a card and look.
    """
    words = (sys.executable, "-m", "trainer_exporter.gpu.child", str(interval_s), gpus, *(("throughput",) if throughput else ()))

    def launch() -> Process:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)

    return launch


class Poller:
    """Readings of all cards, kept current by a thread and a child process.

    ``interval_s`` is the child's pace and ``deadline_s`` how late a look may be before it counts as failed: no reading older than the two
    together is served. ``devices_expected`` is the configured number of cards; without one the most seen since the start counts.
    """

    def __init__(
        self,
        clock: Clock,
        health: Health,
        *,
        interval_s: float = INTERVAL_S,
        deadline_s: float = DEADLINE_S,
        devices_expected: int | None = None,
        patience: Patience | None = None,
        places: KernelPlaces | None = None,
        launch: Launch | None = None,
    ) -> None:
        self._clock = clock
        self._health = health
        self._patience = patience or Patience()
        self._places = places or KernelPlaces()
        self._launch = launch or launcher(interval_s, gpus=self._places.gpus)
        self._board = Board(clock, oldest_s=interval_s + deadline_s, expected=devices_expected)
        self._stopping = threading.Event()
        self._wake_r, self._wake_w = os.pipe()
        self._thread = threading.Thread(target=self._run, name="gpu-poller", daemon=True)
        self._kernel = threading.Thread(target=self._watch_kernel, name="gpu-kernel", daemon=True)
        self._log_is_missing = False  # only worth a line where there are cards
        self._has_let_go = False
        self._left: list[Process] = []  # children that SIGKILL did not end
        self._driver = ""
        self._launches = 0

    def start(self) -> None:
        self._kernel.start()
        self._thread.start()

    def stop(self) -> None:
        """Ask the child to end, wait a little, and return; a child in a driver call that hangs is left to finish it."""
        self._stopping.set()
        os.write(self._wake_w, b"x")
        for thread in (self._thread, self._kernel):
            if thread.ident is not None:
                thread.join()
        os.close(self._wake_w)
        os.close(self._wake_r)

    def snapshot(self) -> GpuSnapshot:
        """All cards as they are known now. Never waits for the driver nor for the child."""
        return self._board.snapshot()

    def _run(self) -> None:
        pause_s = self._patience.first_pause_s
        while not self._stopping.is_set():
            began = self._clock.mono()
            with self._health.guard(SITE):
                if self._may_launch():
                    self._live()
            if self._clock.mono() - began > self._patience.steady_s:
                pause_s = self._patience.first_pause_s
            self._stopping.wait(self._pause(pause_s))
            pause_s = min(2 * pause_s, self._patience.longest_pause_s)

    def _pause(self, usual_s: float) -> float:
        if self._has_let_go:
            return self._patience.release_s
        return self._patience.absent_pause_s if self._driver == "absent" else usual_s

    def _watch_kernel(self) -> None:
        """Fold what the kernel says into the board. A thread of its own: a child may be hanging in the driver that the kernel tells of."""
        told = kernel.KernelLog(self._places.log)
        self._log_is_missing = bool(self._places.log) and not told.is_readable
        while True:
            with self._health.guard(SITE):
                self._board.kernel_lists(len(kernel.gpus(self._places.gpus)))
                self._hear_kernel(told.lines())
            if self._stopping.wait(KERNEL_S):
                break
        told.close()

    def _hear_kernel(self, lines: Sequence[str]) -> None:
        for line in lines:
            found = kernel.xid(line)
            if found is not None and not self._board.hear_kernel(found):
                self._report("xid_of_unknown_card", line[-200:])

    def _may_launch(self) -> bool:
        """One successor may run beside a child that cannot be killed, not a queue of them."""
        self._left = [process for process in self._left if process.poll() is None]
        return len(self._left) < 2

    def _live(self) -> None:
        """The life of one child, from its start to its end."""
        try:
            process = self._launch()
        except OSError as error:
            if self._health.count(SITE, "child_start", detail=str(error)):
                log.error("cannot start the process that reads the GPUs: %s", error)
            return
        self._board.child_started(restarts=self._launches)
        self._launches += 1
        try:
            self._follow(process)
        finally:
            self._board.child_ended()
            self._dismiss(process)

    def _follow(self, process: Process) -> None:
        """Read the child until it ends, falls silent, or we are to stop."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        rest = b""
        heard = self._clock.mono()
        while not self._stopping.is_set():
            ready, _, _ = select.select([output, self._wake_r], [], [], self._patience.silence_s / 4)
            if output in ready:
                data = os.read(output, 1 << 16)
                if not data:
                    return
                heard = self._clock.mono()
                rest = self._fold(rest + data)
            elif self._clock.mono() - heard > self._patience.silence_s:
                self._report("child_silent", f"no word from the process that reads the GPUs (pid {process.pid})")
                return

    def _fold(self, data: bytes) -> bytes:
        """Fold the complete lines into the board; what is left of the last one."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                self._board.fold(message)
                self._note(message)
            except (KeyError, TypeError, ValueError) as error:
                self._report("child_message", f"the process that reads the GPUs said {line[:100]!r}: {error!r}")
        return rest if len(rest) < LONGEST_LINE else b""

    def _note(self, message: Mapping[str, Any]) -> None:
        """What the log and the counters should know of a message."""
        kind = message["kind"]
        if kind == "cards":
            self._driver = ""
            log.info("NVML lists %d GPUs", sum(not card.get("parent_uuid") for card in message["cards"]))
            if self._log_is_missing and message["cards"]:
                self._log_is_missing = False
                log.info("%s cannot be read: Xid errors come from NVML alone", self._places.log)
        elif kind == "renew":
            log.info("the process that reads the GPUs makes room for a new one: %s", message["why"])
        elif kind == "driver" and message["state"] != self._driver:
            self._driver = message["state"]
            log.log(logging.INFO if self._driver == "absent" else logging.ERROR, "no GPU readings: %s", message["detail"])
        elif kind == "failed":
            self._report(f"card_{message['error']}", f"{message['uuid']}: {message['detail']}")
        elif kind == "bug":
            self._report(str(message["error"]), "bug in the process that reads the GPUs, its traceback is on stderr")

    def _dismiss(self, process: Process) -> None:
        """See a child off. Only one that was not asked to stop may be killed, and one that cannot be is left and reported."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        code = _exit_code(process, self._patience.grace_s)
        self._has_let_go = code == EXIT_RELEASE
        if self._stopping.is_set():
            if code is None:
                log.warning("pid %d is left to finish a driver call that does not return", process.pid)
        elif code is None:
            self._kill(process)
        elif not self._driver and code not in {EXIT_RENEW, EXIT_RELEASE}:
            self._report("child_died", f"the process that reads the GPUs ended with {code}; it will be started again")

    def _kill(self, process: Process) -> None:
        process.kill()
        if _exit_code(process, self._patience.grace_s) is None:
            self._left.append(process)
            self._report("child_unkillable", f"pid {process.pid} hangs in the driver and cannot be killed; the node needs a look")

    def _report(self, reason: str, message: str) -> None:
        if self._health.count(SITE, reason, detail=message):
            log.error("%s", message)


def _exit_code(process: Process, timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None

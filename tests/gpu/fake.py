"""A driver for tests: our own libnvidia-ml.so.1, built once, and the script that tells it what to answer from now on.

Any program started with ``FakeDriver.env()`` finds it through the real pynvml. Keys of a card are those of ``scenario.ROWS``, and: reasons
(bit mask), nvlinks, nvlink_state.LINK, nvlink_each_{receive,recovery} (of every link, for cards without totals), processes
("PID:BYTES,..."), uuid, name, serial, absent (1: no longer listed), event_types, gpm (1), mig (number of instances); and error (NVML code),
hang (seconds, or FOREVER), crash (1), which ``call`` can limit to one driver call. The folder ``gpus`` and the file ``kmsg`` stand for what
the kernel tells.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
FOREVER = "forever"

NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999


def build(folder: Path) -> Path:
    """The folder with the library in it, for LD_LIBRARY_PATH."""
    library = folder / LIBRARY
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}", "-o", library, SOURCE, "-lpthread"]
    subprocess.run(command, check=True)
    return folder


def uuid(gpu: int) -> str:
    """The UUID that the library gives to the card of a slot."""
    return f"GPU-{gpu:08x}-fa4e-4000-8000-{gpu:012x}"


def mig_uuid(gpu: int, part: int) -> str:
    """The same of a MIG instance."""
    return f"MIG-{gpu:08x}-fa4e-4000-8000-{part + 1:012x}"


class FakeDriver:
    """The driver as one test sees it. ``library`` is the folder that ``build`` filled, ``folder`` is for the script and the trace.

    ``lines`` is what it answers at first, such as a scenario's.
    """

    def __init__(self, library: Path, folder: Path, *, gpus: int = 8, lines: Mapping[str, str] | None = None) -> None:
        self._library = library
        self._script = folder / "driver.script"
        self._trace = folder / "driver.trace"
        self._lines: dict[str, str] = {"count": str(gpus), **(lines or {})}
        self._events = 0
        self.kmsg = folder / "kmsg"
        self.kmsg.touch()
        self.gpus = folder / "gpus"
        self.gpus.mkdir(exist_ok=True)
        self._write()

    def env(self) -> dict[str, str]:
        """The environment in which a program finds this driver."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._library),
            "FAKE_NVML_SCRIPT": str(self._script),
            "FAKE_NVML_TRACE": str(self._trace),
        }

    def set(self, gpu: int | str | None = None, **values: object) -> None:
        """Say what a card (None: every card; "0m1": a MIG instance) answers from the next call on; a value of None takes the key back."""
        for key, value in values.items():
            self._put(f"{'*' if gpu is None else gpu}.{key}", value)
        self._write()

    def say_all(self, lines: Mapping[str, object]) -> None:
        """Many lines of the script at once, such as {"3.util": 97}."""
        for key, value in lines.items():
            self._put(key, value)
        self._write()

    def call(self, call: str, gpu: int | str | None = None, **values: object) -> None:
        """As ``set``, for one call alone: ``call("power", gpu=3, error=NOT_SUPPORTED)``; names of calls stand in fake_nvml.c."""
        self.set(gpu, **{f"{call}.{key}": value for key, value in values.items()})

    def driver(self, key: str, value: object) -> None:
        """Say something of the driver itself: count, init.error, wait.error, driver_version."""
        self._put(key, value)
        self._write()

    def xid(self, gpu: int, xid: int, *, instance: int | None = None) -> None:
        """Let the driver tell of an Xid error now, on MIG of a GPU instance."""
        self._events += 1
        self.driver(f"event.{self._events}", f"{gpu} {xid}" + ("" if instance is None else f" {instance} 0"))

    def say(self, text: str) -> None:
        """Let the kernel log a line now, as /dev/kmsg has it."""
        with self.kmsg.open("a", encoding="utf-8") as log:
            log.write(f"4,{self._events},5140900,-;{text}\n")

    def list_in_kernel(self, *gpus: int) -> None:
        """Let the kernel list these cards and no others."""
        names = {f"0000:{0x10 + gpu:02x}:00.0" for gpu in gpus}
        for gone in {entry.name for entry in self.gpus.iterdir()} - names:
            (self.gpus / gone).rmdir()
        for name in names:
            (self.gpus / name).mkdir(exist_ok=True)

    def heal(self) -> None:
        """Take back every hang, crash and error, so that whoever waits for the driver goes on."""
        self._lines = {key: value for key, value in self._lines.items() if key.split(".")[-1] not in {"hang", "crash", "error"}}
        self._write()

    def trace(self) -> list[tuple[int, str, str, int]]:
        """The driver calls so far: PID, "begin" or "end", call, slot."""
        if not self._trace.exists():
            return []
        rows = [line.split() for line in self._trace.read_text().splitlines()]
        return [(int(pid), word, call, int(slot)) for pid, word, call, slot in rows]

    def _put(self, key: str, value: object) -> None:
        if value is None:
            self._lines.pop(key, None)
        else:
            self._lines[key] = str(value)

    def _write(self) -> None:
        fresh = self._script.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self._lines.items()))
        fresh.replace(self._script)


if __name__ == "__main__":  # for a try by hand: builds the library into the folder given
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")

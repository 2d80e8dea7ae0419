"""A driver for tests: our own libnvidia-ml.so.1, built once, and the script that tells it what to answer from now on.

Any program started with ``FakeDriver.env()`` finds it through the real pynvml. Keys of a card: util, memutil (percent), used, reserved,
total (bytes), power_mw, power_limit_mw, energy_mj, temperature, memory_temperature, slowdown (Celsius), sm_mhz, memory_mhz, reasons (bit
mask), ecc_{corrected,uncorrected}_{volatile,aggregate}, processes ("PID:BYTES,..."), uuid, name, serial, absent (1: no longer listed),
event_types; and error (NVML code), hang (seconds, or FOREVER), crash (1), which ``call`` can limit to one driver call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
FOREVER = "forever"

NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
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


class FakeDriver:
    """The driver as one test sees it. ``library`` is the folder that ``build`` filled, ``folder`` is for the script and the trace."""

    def __init__(self, library: Path, folder: Path, *, gpus: int = 8) -> None:
        self._library = library
        self._script = folder / "driver.script"
        self._trace = folder / "driver.trace"
        self._lines: dict[str, str] = {"count": str(gpus)}
        self._events = 0
        self._write()

    def env(self) -> dict[str, str]:
        """The environment in which a program finds this driver."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._library),
            "FAKE_NVML_SCRIPT": str(self._script),
            "FAKE_NVML_TRACE": str(self._trace),
        }

    def set(self, gpu: int | None = None, **values: object) -> None:
        """Say what a card (None: every card) answers from the next call on; a value of None takes the key back."""
        for key, value in values.items():
            self._put(f"{'*' if gpu is None else gpu}.{key}", value)
        self._write()

    def call(self, call: str, gpu: int | None = None, **values: object) -> None:
        """As ``set``, for one call alone: ``call("power", gpu=3, error=NOT_SUPPORTED)``; names of calls stand in fake_nvml.c."""
        self.set(gpu, **{f"{call}.{key}": value for key, value in values.items()})

    def driver(self, key: str, value: object) -> None:
        """Say something of the driver itself: count, init.error, wait.error, driver_version."""
        self._put(key, value)
        self._write()

    def xid(self, gpu: int, xid: int) -> None:
        """Let an Xid error happen now."""
        self._events += 1
        self.driver(f"event.{self._events}", f"{gpu} {xid}")

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

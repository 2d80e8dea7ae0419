"""A check on a machine with a real GPU, of a minute or two: ``python tests/gpu/real.py [--seconds 60] [--keep SCENARIO]``.

Starts the exporter as a user does, holds its page against what pynvml answers here at the same time, measures what a sweep costs, and
keeps the cards' answers, with UUIDs, serials and processes left out, in the form of tests/gpu/scenarios. Exit code 1 when something
differs. It is no test of pytest's, which runs it on the driver of our own only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml

from scenario import ROWS, Row

INTERVAL_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")
# What moves from one second to the next on a busy card: held to its sign alone.
MOVING = re.compile(r"util|used|power_mw|energy|temperature|_mhz|gpm_|_kb|ecc_|nvlink_|replays|pcie_(generation|width)$")
UNSURE = frozenset({"slowdown"})  # a threshold of 0 is none

Say = Callable[[Any], Any]


def _field(number: int) -> Say:
    def say(card: Any) -> Any:
        value = pynvml.nvmlDeviceGetFieldValues(card, [number])[0]
        if value.nvmlReturn != 0:
            raise pynvml.NVMLError(value.nvmlReturn)
        return getattr(value.value, {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}[value.valueType])

    return say


def _memory(part: str) -> Say:
    return lambda card: getattr(pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2), part)


def _ecc(error: int, counter: int) -> Say:
    return lambda card: pynvml.nvmlDeviceGetTotalEccErrors(card, error, counter)


def _rows(place: int) -> Say:
    return lambda card: pynvml.nvmlDeviceGetRemappedRows(card)[place]


def _pages(cause: int) -> Say:
    return lambda card: len(pynvml.nvmlDeviceGetRetiredPages(card, cause))


# By the keys of ROWS, but for GPM, which needs two moments.
SAY: Mapping[str, Say] = {
    "util": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "memutil": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).memory,
    "total": _memory("total"),
    "used": _memory("used"),
    "reserved": _memory("reserved"),
    "power_mw": pynvml.nvmlDeviceGetPowerUsage,
    "power_limit_mw": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "temperature": lambda card: pynvml.nvmlDeviceGetTemperature(card, 0),
    "memory_temperature": _field(82),
    "slowdown": lambda card: pynvml.nvmlDeviceGetTemperatureThreshold(card, 1),
    "sm_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, 1),
    "memory_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, 2),
    "ecc_corrected_volatile": _ecc(0, 0),
    "ecc_corrected_aggregate": _ecc(0, 1),
    "ecc_uncorrected_volatile": _ecc(1, 0),
    "ecc_uncorrected_aggregate": _ecc(1, 1),
    "remapped_corrected": _rows(0),
    "remapped_uncorrected": _rows(1),
    "remap_pending": _rows(2),
    "remap_failure": _rows(3),
    "retired_corrected": _pages(0),
    "retired_uncorrected": _pages(1),
    "nvlink_crc_flit": _field(38),
    "nvlink_crc_data": _field(45),
    "nvlink_replay": _field(52),
    "nvlink_recovery": _field(59),
    "nvlink_ecc": _field(160),
    "pcie_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie_generation_max": pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "pcie_width_max": pynvml.nvmlDeviceGetMaxPcieLinkWidth,
    "pcie_replays": _field(94),
}


class Exporter:
    """The daemon on a free port, with the process that reads the GPUs."""

    def __init__(self, folder: Path) -> None:
        config = folder / "config.yml"
        config.write_text(f"gpu: {{interval: {INTERVAL_S:g}s}}\nprocesses: {{discover: false}}\n", encoding="utf-8")
        command = [sys.executable, "-m", "trainer_exporter", "serve", f"--config.file={config}", "--web.listen-address=127.0.0.1:0"]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._port = until(self._find_port, "the exporter serves")

    def page(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def child(self) -> int:
        """PID of the process that reads the GPUs."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return int("".join(task.read_text(encoding="utf-8") for task in tasks).split()[0])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def _find_port(self) -> int:
        found = re.search(r"serving on port (\d+)", self._log.read_text(encoding="utf-8"))
        return int(found[1]) if found else 0


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"not within a minute: {what}")


def samples(page: str) -> dict[tuple[str, str, tuple[str, ...]], float]:
    """Values by metric, UUID and what further labels say, in order of their names."""
    found = {}
    for name, labels, value in re.findall(r"^(gpu_\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
        said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        further = tuple(said[label] for label in ("kind", "counter", "reason") if label in said)
        found[name, said["uuid"], further] = float(value)
    return found


def _answers(card: Any) -> Iterator[tuple[Row, Any]]:
    """What NVML itself says now, None where it cannot."""
    for row in ROWS:
        say = SAY.get(row.key)
        try:
            value = say(card) if say else None
        except pynvml.NVMLError:
            value = None
        yield row, None if value in (*row.absent, *((0,) if row.key in UNSURE else ())) else value


def _differences(shown: Mapping[tuple[str, str, tuple[str, ...]], float], uuid: str, card: Any) -> Iterator[str]:
    for row, value in _answers(card):
        if row.key not in SAY:
            continue
        there = shown.get((row.metric, uuid, row.labels))
        if (there is None) != (value is None):
            yield f"{uuid} {row.metric} {row.labels}: page {there}, NVML {value}"
        elif there is not None and not MOVING.search(row.key) and abs(there - value * row.factor) > 1e-6 * abs(there):
            yield f"{uuid} {row.metric} {row.labels}: page {there}, NVML {value * row.factor}"


def _kept(cards: list[Any], shown: Mapping[tuple[str, str, tuple[str, ...]], float]) -> Iterator[str]:
    yield f"# Recorded with tests/gpu/real.py on {len(cards)} GPU(s); UUIDs, serials and processes left out."
    yield f"count {len(cards)}"
    yield f"driver_version {pynvml.nvmlSystemGetDriverVersion()}"
    for slot, card in enumerate(cards):
        uuid = pynvml.nvmlDeviceGetUUID(card)
        yield f"{slot}.name {pynvml.nvmlDeviceGetName(card)}"
        for row, value in _answers(card):
            ratio = shown.get((row.metric, uuid, row.labels)) if row.key.startswith("gpm_") else None
            if value is not None:
                yield f"{slot}.{row.key} {value}"
            elif ratio is not None:
                yield f"{slot}.{row.key} {100 * ratio:.2f}"
            elif row.call and row.call not in {"gpm", "throughput", "retired"}:
                yield f"{slot}.{row.call}.error 3"
        yield f"{slot}.gpm {int(('gpu_sm_active_ratio', uuid, ()) in shown)}"
        yield f"{slot}.reasons {_reasons(card)}"
        yield from (f"{slot}.{line}" for line in _links(card))


def _reasons(card: Any) -> str:
    return hex(pynvml.nvmlDeviceGetCurrentClocksEventReasons(card))


def _links(card: Any) -> Iterator[str]:
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(pynvml.nvmlDeviceGetNvLinkState(card, link))
        except pynvml.NVMLError:
            break
    yield f"nvlinks {len(states)}"
    yield from (f"nvlink_state.{link} 0" for link, state in enumerate(states) if not state)


def cost(pid: int) -> tuple[float, int]:
    """CPU seconds so far and resident KiB of a process."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return (int(words[11]) + int(words[12])) / TICKS, pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _measure(exporter: Exporter, seconds: float) -> str:
    """CPU and memory of the reader, and how long scrapes take meanwhile."""
    child, took = exporter.child(), []
    before, end = cost(child)[0], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        exporter.page()
        took.append(time.monotonic() - began)
        time.sleep(0.1)
    after, resident = cost(child)
    p99 = sorted(took)[int(0.99 * len(took))]
    sweep_ms = 1000 * (after - before) / (seconds / INTERVAL_S)
    return f"reader: {sweep_ms:.1f} ms of CPU a sweep, {resident} KiB resident; /metrics: p99 {1000 * p99:.1f} ms of {len(took)} scrapes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    parser.add_argument("--keep", type=Path, help="file for the cards' answers")
    options = parser.parse_args()
    pynvml.nvmlInit()
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(card) for card in cards]
    with tempfile.TemporaryDirectory() as folder:
        exporter = Exporter(Path(folder))
        try:
            until(lambda: all(samples(exporter.page()).get(("gpu_collect_success", uuid, ())) == 1 for uuid in uuids), "all cards answer")
            time.sleep(2 * INTERVAL_S)  # activity counters need two looks
            shown = samples(exporter.page())
            wrong = [line for card, uuid in zip(cards, uuids, strict=True) for line in _differences(shown, uuid, card)]
            report = _measure(exporter, options.seconds)
        finally:
            code = exporter.stop()
    print(*{pynvml.nvmlDeviceGetName(card) for card in cards}, f"driver {pynvml.nvmlSystemGetDriverVersion()}", sep=", ")  # noqa: T201 - a script's word
    print(f"{len(cards)} cards, {len(shown)} series; {report}; exit code {code}", *wrong, sep="\n")  # noqa: T201 - idem
    if options.keep:
        options.keep.write_text("\n".join(_kept(cards, shown)) + "\n", encoding="utf-8")
    return int(bool(wrong) or code != 0)


if __name__ == "__main__":
    sys.exit(main())

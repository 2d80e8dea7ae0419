"""Run a command and keep what it printed, byte for byte, beside when each piece arrived.

``train.log`` holds the bytes, ``train.log.times`` one line a read: offset of its first byte, seconds since the start. A
file that the command appends to itself (a trainer's own JSON log) is kept in the same way under its own name, polled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.05


class Track:
    """One stream of bytes and its arrivals."""

    def __init__(self, directory: Path, name: str, *, now: Callable[[], float]) -> None:
        self._now = now
        self._log = (directory / name).open("wb")
        self._times = (directory / f"{name}.times").open("wb")
        self._offset = 0

    def add(self, data: bytes) -> None:
        """Keep the bytes of one read."""
        if data:
            self._times.write(f"{self._offset} {self._now():.3f}\n".encode())
            self._log.write(data)
            self._offset += len(data)

    def close(self) -> None:
        self._log.close()
        self._times.close()


def keep_pipe(pipe: BinaryIO, track: Track) -> None:
    """Read until the writers are gone."""
    while data := os.read(pipe.fileno(), 1 << 16):
        track.add(data)


def keep_file(path: Path, track: Track, done: threading.Event) -> None:
    """Follow a file of the command's own until the command has ended."""
    offset = 0
    while True:
        over = done.is_set()  # asked before the last look, so that nothing written before the end is missed
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            track.add(data)
            offset += len(data)
        if over:
            return
        time.sleep(POLL_S)


def recorded(command: Sequence[str], directory: Path, *, name: str = "train.log", also: Path | None = None) -> int:
    """Run the command to its end and return its exit status; the recording is complete then."""
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    tracks = [Track(directory, name, now=lambda: time.monotonic() - began)]
    done = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        workers = [threading.Thread(target=keep_pipe, args=(process.stdout, tracks[0]))]
        if also is not None:
            tracks.append(Track(directory, also.name, now=lambda: time.monotonic() - began))
            workers.append(threading.Thread(target=keep_file, args=(also, tracks[1], done)))
        for worker in workers:
            worker.start()
        status = process.wait()
        done.set()
        for worker in workers:
            worker.join()
    for track in tracks:
        track.close()
    return status


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="train.log")
    parser.add_argument("--also", type=Path, help="a file that the command writes by itself")
    parser.add_argument("command", nargs="+", help="after --")
    chosen = parser.parse_args(argv)
    return recorded(chosen.command, chosen.directory, name=chosen.name, also=chosen.also)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

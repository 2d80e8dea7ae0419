"""Plays a recorded run into a directory as its trainer wrote it: the same bytes in the same order and rhythm, only faster.

A recording holds, for each file of the run, ``FILE`` and ``FILE.times`` (offset and seconds of every write). The player is a
process of its own, so that the exporter finds a living writer, and so that it can be made to hang like one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Piece:
    """One write of the trainer."""

    at_s: float  # since the first write of the recording
    file: str
    data: bytes


def pieces(recording: Path) -> list[Piece]:
    """All writes of all files of a recording in the order of their time."""
    found = [piece for times in sorted(recording.glob("*.times")) for piece in _pieces_of(times)]
    began_s = min(piece.at_s for piece in found)
    shifted = (Piece(piece.at_s - began_s, piece.file, piece.data) for piece in found)
    return sorted(shifted, key=lambda piece: piece.at_s)  # stable: writes of one moment keep their order


def _pieces_of(times: Path) -> Iterator[Piece]:
    file = times.with_suffix("")
    data = file.read_bytes()
    marks = [(int(offset), float(at)) for offset, at in (line.split() for line in times.read_text().splitlines())]
    ends = [offset for offset, _ in marks[1:]] + [len(data)]
    for (offset, at_s), end in zip(marks, ends, strict=True):
        yield Piece(at_s, file.name, data[offset:end])


@dataclass(frozen=True, slots=True)
class Tempo:
    """How much faster than recorded: ``speed`` until ``until_s`` of the recording, from there as it was."""

    speed: float
    until_s: float

    def due_s(self, at_s: float) -> float:
        """Seconds after the start of the play at which a recorded moment comes."""
        return min(at_s, self.until_s) / self.speed + max(0.0, at_s - self.until_s)


def play(recording: Path, target: Path, tempo: Tempo) -> None:
    """Write the recording into ``target``, which takes as long as the tempo says."""
    target.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    script = pieces(recording)
    files = {name: (target / name).open("ab", buffering=0) for name in {piece.file for piece in script}}
    for piece in script:
        time.sleep(max(0.0, began + tempo.due_s(piece.at_s) - time.monotonic()))
        files[piece.file].write(piece.data)
    for file in files.values():
        file.close()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--until", type=float, default=float("inf"), help="second of the recording at which the haste ends")
    chosen = parser.parse_args(argv)
    play(chosen.recording, chosen.target, Tempo(chosen.speed, chosen.until))


if __name__ == "__main__":
    main(sys.argv[1:])

"""What is asked of the process that collects, and what it answers: a JSON object each, a line for every source that it has looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

RAS: Final = "ras"
FLIGHT_RECORDER: Final = "flight_recorder"
STACKS: Final = "stacks"
MOST_SUSPECTS: Final = 32
MOST_NOTES: Final = 24
NOTE_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Trainer:
    """A process of the run on this node."""

    pid: int
    rank: int | None = None
    inner_pid: int = 0  # as its own PID namespace has it; 0: not known


@dataclass(frozen=True, slots=True)
class Request:
    """One collection."""

    directory: str
    folder: str
    maximum_bytes: int
    trainers: Sequence[Trainer] = ()
    ras: tuple[str, int] | None = None
    ras_pause_s: float = 10.0  # between two looks: in a hang nothing goes on between them
    stacks: int = 0  # of how many processes at most
    dumps: Sequence[str] = ()  # patterns of paths
    newer_than: float = 0.0  # wall time: what is older tells of another hang
    known: str = ""  # the mark of the dumps that have been read already
    world_size: int = 0
    is_alone: bool = True  # no other run trains on this node, so what names no process is this one's

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        values = json.loads(data)
        values["trainers"] = tuple(Trainer(**each) for each in values["trainers"])
        values["ras"] = tuple(values["ras"]) if values["ras"] else None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one source said. ``words`` count what went wrong, each a fixed word."""

    source: str
    suspects: Mapping[int, str] = field(default_factory=dict)  # rank -> why
    notes: Sequence[str] = ()
    words: Sequence[str] = ()
    mark: str = ""  # of the dumps that were read
    more: int = 0  # suspects beyond the limit

    def encode(self) -> bytes:
        ranks = sorted(self.suspects)
        values = {
            **asdict(self),
            "suspects": [[rank, self.suspects[rank]] for rank in ranks[:MOST_SUSPECTS]],
            "notes": [_plain(note) for note in self.notes[:MOST_NOTES]],
            "words": list(self.words)[:1000],
            "more": max(0, len(ranks) - MOST_SUSPECTS),
        }
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Answer:
        values: dict[str, Any] = json.loads(line)
        values["suspects"] = {int(rank): str(why) for rank, why in values["suspects"]}
        return cls(**values)


def _plain(note: str) -> str:
    return "".join(letter if letter.isprintable() else "_" for letter in note[:NOTE_LENGTH])

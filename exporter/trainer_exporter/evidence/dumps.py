"""What PyTorch's flight recorder has written when a collective timed out: a pickle of plain containers, a file a rank.

A pickle can name any function of Python and have it called. Here no name is looked up at all: a dump that needs one is refused. What is
left of a file is what was asked for, checked value by value. Format: FlightRecorderDetail.hpp of PyTorch, versions 2.0 to 2.10.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_exporter.evidence.judge import Group, Place

MOST_ENTRIES: Final = 200_000
MOST_GROUPS: Final = 4096
MOST_RANKS: Final = 1 << 17
NAME_LENGTH: Final = 80
# Whatever a broken pickle makes the reader do besides refusing it.
BROKEN: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
_RANK = re.compile(r"(\d{1,7})(?:\.(?:pickle|pkl|json|bin))?\Z")
_NUMBER = re.compile(r"\d{1,7}")


class UnreadableDumpError(Exception):
    """Why a dump cannot be used: ``hostile`` (it names code), or ``broken``."""

    def __init__(self, word: str, detail: str) -> None:
        self.word = word
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class GroupDump:
    """One process group as one rank sees it."""

    place: Place
    description: str = ""
    members: frozenset[int] = frozenset()  # empty: the recorder was not told
    operations: Mapping[int, str] = field(default_factory=dict)  # by number of the collective, the last few


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank's recorder says."""

    version: str
    groups: Mapping[str, GroupDump]  # by the name that all of its ranks share


def rank_of(name: str) -> int | None:
    """The rank whose dump a file is: PyTorch appends it to the configured prefix, and nothing in the file tells it."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def read(data: bytes) -> Dump:
    """A dump; UnreadableDumpError where it is none."""
    tree = _json(data) if data[:1] == b"{" else _pickled(data)
    if not isinstance(tree, dict) or not isinstance(tree.get("entries", []), list):
        raise UnreadableDumpError("broken", "no dump of a flight recorder")
    entries = [entry for entry in tree.get("entries", [])[-MOST_ENTRIES:] if isinstance(entry, dict)]
    return Dump(_text(tree.get("version")), dict(_groups(entries, _mapping(tree.get("pg_config")), _mapping(tree.get("pg_status")))))


def groups(dumps: Mapping[int, Dump]) -> Sequence[Group]:
    """The groups of all ranks' dumps, joined by name."""
    places: dict[str, dict[int, Place]] = {}
    for rank, dump in sorted(dumps.items()):
        for name, group in dump.groups.items():
            places.setdefault(name, {})[rank] = group.place
    return [Group(name, found) for name, found in sorted(places.items())]


def absent(dumps: Mapping[int, Dump], *, local: frozenset[int], size: int) -> frozenset[int]:
    """The ranks that should have a dump here and have none.

    ``local`` are the ranks known to run on this node, ``size`` is the number of all. Dumps that lie on this node's own disk are those of
    its own ranks, and then only these are missed.
    """
    everybody = {rank for dump in dumps.values() for group in dump.groups.values() for rank in group.members} or set(
        range(min(size, MOST_RANKS))
    )
    wanted = local if dumps.keys() <= local else everybody | local
    return frozenset(wanted - dumps.keys()) if dumps else frozenset()


class _Plain(pickle.Unpickler):
    """Knows containers, texts and numbers; looks up no name."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnreadableDumpError("hostile", f"names {module}.{name}"[:200])

    def persistent_load(self, pid: Any) -> Any:
        raise UnreadableDumpError("hostile", "refers to something outside itself")


def _pickled(data: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(data)).load()
    except BROKEN as error:
        raise UnreadableDumpError("broken", f"{type(error).__name__}: {error}"[:200]) from error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableDumpError("broken", str(error)[:200]) from error


def _groups(
    entries: Sequence[Mapping[Any, Any]], configured: Mapping[Any, Any], status: Mapping[Any, Any]
) -> Iterator[tuple[str, GroupDump]]:
    """A group's number differs from rank to rank, its name does not; only the entries tell which is which."""
    by_name: dict[str, list[Mapping[Any, Any]]] = {}
    for entry in entries:
        if entry.get("is_p2p") is not True and (name := _name(entry)):
            by_name.setdefault(name, []).append(entry)
    for name, own in list(by_name.items())[:MOST_GROUPS]:
        numbers = _mapping(status.get(str(own[-1].get("pg_id"))) or status.get(own[-1].get("pg_id")))
        enqueued = _whole(numbers.get("last_enqueued_collective"))
        completed = _whole(numbers.get("last_completed_collective"))
        told = [(number, entry) for entry in own if (number := _whole(entry.get("collective_seq_id"))) is not None]
        if enqueued is None:
            enqueued = max((number for number, _ in told), default=0)
        if completed is None:
            completed = max((number for number, entry in told if entry.get("state") == "completed"), default=-1)
        config = _mapping(configured.get(name))
        yield (
            name,
            GroupDump(
                Place(enqueued, completed),
                _description(own[-1]) or _text(config.get("desc")),
                _members(config.get("ranks")),
                {number: _text(entry.get("profiling_name")) for number, entry in told[-8:]},
            ),
        )


def _name(entry: Mapping[Any, Any]) -> str:
    group = entry.get("process_group")
    return _text(group[0]) if isinstance(group, (tuple, list)) and group else ""


def _description(entry: Mapping[Any, Any]) -> str:
    group = entry.get("process_group")
    return _text(group[1]) if isinstance(group, (tuple, list)) and len(group) > 1 else ""


def _members(ranks: Any) -> frozenset[int]:
    """Written as a text, "[0, 1]", by most versions."""
    if isinstance(ranks, str):
        return frozenset(int(found[0]) for found in _NUMBER.finditer(ranks[: 8 * MOST_RANKS]))
    found = [_whole(rank) for rank in ranks[:MOST_RANKS]] if isinstance(ranks, (list, tuple)) else []
    return frozenset(rank for rank in found if rank is not None and rank >= 0)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """A number of the kind that counts collectives; the JSON form has them as texts."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _text(value: Any) -> str:
    return "".join(letter if letter.isprintable() else "_" for letter in value[:NAME_LENGTH]) if isinstance(value, str) else ""

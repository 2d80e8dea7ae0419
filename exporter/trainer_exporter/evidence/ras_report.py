"""What a report of NCCL RAS says: which ranks do not answer, and how many collectives each rank has launched in each communicator. Pure.

A rank of a communicator is not the rank of the job, except in the one that holds all of it. In JSON the process behind each rank tells
which is which; of the text of older versions (2.24 to 2.28.6) only that one communicator is used. What cannot be read is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_exporter.evidence.judge import Group, Place, culprits, few

MOST_COMMUNICATORS: Final = 16_384
MOST_RANKS: Final = 1 << 17
Process = tuple[str, int, int]  # host, PID, CUDA device

_TITLE = re.compile(r"#(\d+)-(\d+) \(\w+\) ([A-Z]+)")
_TABLE_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+\S+\s+\S+")  # group, communicators, ..., ranks of each
_OPERATION = re.compile(r"Communicator ranks have different (\w+) operation counts")
_MANY = re.compile(r"\d+ ranks have (?:launched up to operation (\d+)|not launched any operations)")
_ONE = re.compile(r"Rank (\d{1,7})(?: has (?:launched up to operation (\d+)|(not launched any operations)))? -- ")
_PID = re.compile(r"managed by process (\d+) on node")


@dataclass(frozen=True, slots=True)
class Report:
    """One answer."""

    groups: Sequence[Group] = ()
    missing: Mapping[int, str] = field(default_factory=dict)  # rank of the job -> dead, unresponsive or missing
    ranks: int = 0  # of the largest communicator
    pids: frozenset[int] = frozenset()  # of the job, as its processes know themselves
    unplaced: int = 0  # ranks of communicators that no rank of the job could be found for


@dataclass(frozen=True, slots=True)
class Finding:
    """Which ranks hold the job up, each with a word that says why."""

    suspects: Mapping[int, str]
    notes: Sequence[str] = ()


def parse(answer: bytes) -> Report | None:
    """A report; None where it is none."""
    if answer.lstrip()[:1] == b"{":
        try:
            tree = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        return _from_json(tree) if isinstance(tree, dict) else None
    text = answer.decode(errors="replace")
    return _from_text(text.splitlines()) if "Job summary" in text or _TITLE.search(text) else None


def compare(first: Report, second: Report) -> Finding:
    """What two reports, some seconds apart, say of a hang: a communicator whose counts went on between them is well."""
    before = {group.name: group for group in first.groups}
    still = [group for group in second.groups if before.get(group.name) == group]
    missing = few(second.missing, second.ranks)
    behind = culprits(still) - missing
    suspects = {**dict.fromkeys(sorted(behind), "behind"), **{rank: second.missing[rank] for rank in sorted(missing)}}
    return Finding(suspects, tuple(_notes(still, second, moved=len(second.groups) - len(still))))


def _notes(still: Sequence[Group], report: Report, *, moved: int) -> Iterator[str]:
    yield f"{len(report.groups)} communicators, the largest of {report.ranks} ranks; {moved} went on between two looks"
    for rank, word in sorted(report.missing.items())[:8]:
        yield f"rank {rank} is {word}"
    for group in [group for group in still if group.behind][:8]:
        odd = ", ".join(f"rank {rank} {group.places[rank].enqueued}" for rank in sorted(group.behind)[:8])
        yield f"communicator {group.name}: collectives launched {group.front}, but {odd}"
    if report.unplaced:
        yield f"{report.unplaced} ranks of communicators could not be told apart as ranks of the job"


# -- JSON


@dataclass(frozen=True, slots=True)
class _Member:
    rank: int
    process: Process
    launched: int | None = None  # None: it does not answer
    word: str = ""


def _from_json(tree: Mapping[str, Any]) -> Report:
    communicators = [
        (str(each.get("hash", ""))[:20] or str(number), _members(each))
        for number, each in enumerate(_dicts(tree.get("communicators"))[:MOST_COMMUNICATORS])
    ]
    largest = max((members for _, members in communicators), key=len, default=[])
    whole = {member.process: member.rank for member in largest}
    groups, missing, unplaced = [], {}, 0
    for name, members in communicators:
        placed = [
            (rank, member) for member in members if (rank := member.rank if members is largest else whole.get(member.process)) is not None
        ]
        unplaced += len(members) - len(placed)
        groups.append(Group(name, {rank: Place(member.launched) for rank, member in placed if member.launched is not None}))
        missing.update({rank: member.word for rank, member in placed if member.launched is None})
    pids = frozenset(member.process[1] for _, members in communicators for member in members)
    return Report(tuple(groups), missing, len(largest), pids, unplaced)


def _members(communicator: Mapping[str, Any]) -> list[_Member]:
    found = []
    for each in _dicts(communicator.get("ranks")):
        launched = sum(_count(count) or 0 for count in _dict(each.get("collective_counts")).values())
        if (rank := _count(each.get("rank"))) is not None:
            found.append(_Member(rank, _process(each), launched))
    for each in _dicts(communicator.get("missing_ranks")):
        status = _dict(each.get("status"))
        word = "dead" if status.get("considered_dead") is True else "unresponsive" if status.get("unresponsive") is True else "missing"
        if (rank := _count(each.get("rank"))) is not None:
            found.append(_Member(rank, _process(each), None, word))
    return found


def _process(each: Mapping[str, Any]) -> Process:
    return str(each.get("host", ""))[:256], _count(each.get("pid")) or 0, _count(each.get("cuda_dev")) or 0


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


# -- text


def _from_text(lines: Sequence[str]) -> Report:
    """Of the communicator that holds the whole job alone: it is the first, where there is one of its size."""
    rows = [(int(found[1]), int(found[2]), int(found[3])) for line in lines if (found := _TABLE_ROW.fullmatch(line.rstrip()))]
    first = next((row for row in rows if row[0] == 0), None)
    is_one = first is not None and first[1] == 1
    missing: dict[int, str] = {}
    counts: dict[str, dict[int, int]] = {}
    most: dict[str, int] = {}
    section, operation, many = "", "", 0
    for line in lines:
        if title := _TITLE.match(line):
            section, operation = title[3] if title[1] == title[2] == "0" and is_one else "", ""
        elif section == "MISMATCH" and (found := _OPERATION.search(line)):
            operation = found[1]
        elif operation and (found := _MANY.search(line)):
            many = int(found[1] or 0)
            most.setdefault(operation, many)  # sorted, the most common count first; whose ranks are not listed
        elif found := _ONE.search(line):
            if section == "INCOMPLETE":
                missing[int(found[1])] = "missing"
            elif operation:
                launched = int(found[2]) if found[2] else 0 if found[3] else many
                counts.setdefault(operation, {})[int(found[1])] = launched
    size = min(first[2], MOST_RANKS) if first else 0
    groups = []
    for operation, odd in sorted(counts.items()):
        usual = dict.fromkeys(range(size) if operation in most else (), most.get(operation, 0))
        launched_by = {rank: count for rank, count in {**usual, **odd}.items() if rank not in missing}
        groups.append(Group(f"0-0 {operation}", {rank: Place(count) for rank, count in launched_by.items()}))
    pids = frozenset(int(found[1]) for line in lines if (found := _PID.search(line)))
    return Report(tuple(groups), missing, size, pids)

"""Dumps on disk: which files are this hang's, what they say together, and copies of them before their job's directory is cleaned."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.evidence import dumps
from trainer_exporter.evidence.dumps import Dump, UnreadableDumpError
from trainer_exporter.evidence.judge import Group, culprits, few
from trainer_exporter.evidence.keep import Keeper
from trainer_exporter.evidence.request import FLIGHT_RECORDER, Answer, Request

FILE_BYTES: Final = 32 << 20  # one of 20,000 entries with stacks has some 20 MB
MOST_FILES: Final = 8192
COPIES: Final = 0.5  # of the directory's limit, the most that copies of one hang's dumps may take


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a dump."""

    path: str
    rank: int
    mtime_ns: int
    size: int


class Search:
    """The dumps of one hang."""

    def __init__(self, request: Request, keeper: Keeper) -> None:
        self._request = request
        self._keeper = keeper
        self._words: list[str] = []
        self._notes: list[str] = []

    def answer(self) -> Answer:
        """What they say; an answer with the mark that is known already says nothing new."""
        files = self._files()
        mark = _mark(files.values())
        if mark == self._request.known:
            return Answer(FLIGHT_RECORDER, mark=mark)
        if not files:
            return Answer(FLIGHT_RECORDER, notes=("no dump yet",), mark=mark)
        read = {rank: dump for rank, each in sorted(files.items()) if (dump := self._read(each)) is not None}
        suspects = self._suspects(read)
        self._copy([files[rank] for rank in sorted(read, key=lambda rank: (rank not in suspects, rank))])
        notes = (f"dumps of {len(read)} ranks", *self._notes)
        return Answer(FLIGHT_RECORDER, suspects, notes, self._words, mark)

    def _suspects(self, read: Mapping[int, Dump]) -> Mapping[int, str]:
        groups = dumps.groups(read)
        self._notes += list(_sentences(groups, read))
        local = frozenset(trainer.rank for trainer in self._request.trainers if trainer.rank is not None)
        missed = dumps.absent(read, local=local, size=self._request.world_size)
        if missed:
            self._notes.append(f"no dump of rank {_listed(missed)}")
        silent = few(missed, len(missed) + len(read))
        return {**dict.fromkeys(silent, "no_dump"), **dict.fromkeys(culprits(groups), "behind")}

    def _files(self) -> Mapping[int, Found]:
        """The newest file of each rank."""
        newest: dict[int, Found] = {}
        for path in self._paths():
            rank = dumps.rank_of(os.path.basename(path))  # noqa: PTH119
            seen = _seen(path)
            if rank is None or seen is None or seen.st_mtime < self._request.newer_than:
                continue
            found = Found(path, rank, seen.st_mtime_ns, seen.st_size)
            if rank not in newest or newest[rank].mtime_ns < found.mtime_ns:
                newest[rank] = found
        return newest

    def _paths(self) -> Iterator[str]:
        left = MOST_FILES
        for pattern in self._request.dumps:
            for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - patterns are absolute, and a path is nothing more here
                if not left:
                    return
                left -= 1
                yield path

    def _read(self, found: Found) -> Dump | None:
        if found.size > FILE_BYTES:
            self._complain(found, "dump_too_large", f"{found.size >> 20} MiB")
            return None
        try:
            return dumps.read(_content(found.path))
        except UnreadableDumpError as error:
            self._complain(found, f"dump_{error.word}", str(error))
        except OSError as error:
            self._complain(found, "dump_unreadable", error.strerror or "")
        return None

    def _complain(self, found: Found, word: str, detail: str) -> None:
        self._words.append(word)
        if len(self._notes) < 8:
            self._notes.append(f"{word.replace('_', ' ')}: rank {found.rank}, {detail}")

    def _copy(self, files: Sequence[Found]) -> None:
        left = COPIES * self._request.maximum_bytes
        for found in files:
            left -= found.size
            if left < 0:
                self._words.append("no_room")
                return
            try:
                if not self._keeper.write(f"flight-recorder-rank-{found.rank}", _content(found.path)):
                    self._words.append("no_room")
                    return
            except OSError:
                self._words.append("not_kept")
                return


def _sentences(groups: Sequence[Group], read: Mapping[int, Dump]) -> Iterator[str]:
    for group in [group for group in groups if group.behind][:8]:
        views = {rank: read[rank].groups[group.name] for rank in group.places}
        title = next((view.description for view in views.values() if view.description not in ("", "undefined")), "")
        operation = next((view.operations[group.front] for view in views.values() if view.operations.get(group.front)), "")
        odd = ", ".join(f"rank {rank} at {group.places[rank].enqueued}" for rank in sorted(group.behind)[:8])
        name = f"group {group.name}" + (f" ({title})" if title else "")
        yield f"{name}: others are at collective {group.front}" + (f" ({operation})" if operation else "") + f", {odd}"
    for group in groups[:256]:
        yield from _disagreement(group, read)


def _disagreement(group: Group, read: Mapping[int, Dump]) -> Iterator[str]:
    """Ranks that call different collectives at the same place: a bug of the program, and no rank's fault alone."""
    told = {rank: read[rank].groups[group.name].operations.get(group.front, "") for rank in group.places}
    if len(set(told.values()) - {""}) > 1:
        shown = ", ".join(f"rank {rank} {operation}" for rank, operation in sorted(told.items())[:8] if operation)
        yield f"group {group.name}: different operations at collective {group.front}: {shown}"


def _listed(ranks: frozenset[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:16]))
    return shown if len(ranks) <= 16 else f"{shown} and {len(ranks) - 16} more"


def _seen(path: str) -> os.stat_result | None:
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return seen if stat.S_ISREG(seen.st_mode) else None


def _content(path: str) -> bytes:
    """Of a regular file; what has become a link or a pipe since it was looked at is refused."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "no regular file")
        return file.read(FILE_BYTES)


def _mark(files: Iterable[Found]) -> str:
    """Tells whether anything has changed since."""
    text = "\n".join(f"{each.path} {each.mtime_ns} {each.size}" for each in sorted(files, key=lambda each: each.path))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

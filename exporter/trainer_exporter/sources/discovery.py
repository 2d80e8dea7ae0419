"""Which files to follow: what the configuration or the command line points at, looked for again and again.

A directory means the log-like files in and below it; a file or glob means what it says. A file is found once, by whatever
paths it can be reached, and stays found for as long as it exists: a hung run's log is old and still wanted.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from trainer_exporter.clock import Clock
from trainer_exporter.health import Health
from trainer_exporter.sources.files import Identity, identity_of
from trainer_exporter.sources.rotation import rotated_from
from trainer_exporter.sources.trackers import Lister, MissingExtraError, Tracker, holder_named, tracker_named
from trainer_exporter.sources.walk import Walk, has_magic

log = logging.getLogger(__name__)

_LOG_NAME: Final = re.compile(r".+\.(?:log|out|err|txt|jsonl)|stdout|stderr|log", re.IGNORECASE)
_NO_LOG: Final = re.compile(  # text that lies beside models and code
    r"(?:requirements|constraints|readme|license|notice|copying|vocab|merges|prompt|cmakelists).*\.txt"
    r"|latest_checkpointed_iteration\.txt|(?:special_|added_)?tokens?.*\.txt|debug(?:-internal|-core)?\.log",
    re.IGNORECASE,
)
_BINARY: Final = re.compile(
    r".+\.(?:safetensors|bin|pt|pth|ckpt|distcp|npy|npz|h5|hdf5|onnx|gguf|parquet|arrow|pickle|pkl|so|o|pyc|whl|png|jpe?g"
    r"|mp4|gz|bz2|xz|zst|lz4|zip|tar|tgz|db|sqlite|wandb|nsys-rep|qdrep)|events\.out\.tfevents\..+",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r"https?://")
_NO_DEVICE: Final = -1  # of what is no file
_REMEMBERED_S: Final = 3600.0
_REMEMBERED: Final = 4  # times as many paths as are followed at most


@dataclass(frozen=True, slots=True)
class Spec:
    """One thing to follow, as the user wrote it."""

    pattern: str  # absolute or relative to the working directory; a file, a directory, or a glob with ** for any depth
    run: str = ""  # name or template of the run; "" where it is found out
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    owner_here: bool = False  # this node publishes it, held open here or not
    from_command_line: bool = False
    why: str = ""  # nobody wrote it: a process led to it, in these words
    format: str = ""  # of its files, where the user says it


@dataclass(frozen=True, slots=True)
class Found:
    """A file to follow, and the first of the specs that led to it."""

    path: str
    spec: Spec
    identity: Identity

    @property
    def why(self) -> str:
        """Why it is followed, in words for the status page."""
        spec = self.spec
        is_named = os.path.abspath(spec.pattern) == self.path  # noqa: PTH100 - text only
        if spec.why:
            return spec.why if is_named else f"{self.path.rpartition('/')[2]} {spec.why}"
        whose = "on the command line" if spec.from_command_line else "by the configuration"
        if is_named:
            return f"named {whose}"
        return f"matches {spec.pattern}, named {whose}" if has_magic(spec.pattern) else f"found in {spec.pattern}, named {whose}"


@dataclass(frozen=True, slots=True)
class DiscoveryLimits:
    """What bounds the search."""

    every_s: float = 10.0
    max_age_s: float = 24 * 3600.0  # a run that ended last month is not picked up
    files: int = 2000


Holding = Callable[[Collection[Identity]], Collection[Identity]]


def _held_by_nobody(identities: Collection[Identity]) -> Collection[Identity]:
    return ()


class Discovery:
    """Looks at the file system at most every ten seconds; ``scan`` between two looks gives what was found last."""

    def __init__(self, specs: Sequence[Spec], clock: Clock, health: Health, *, limits: DiscoveryLimits = DiscoveryLimits()) -> None:
        self._specs = specs
        self._found_out: Sequence[Spec] = ()
        self._clock = clock
        self._health = health
        self._limits = limits
        self._walk = Walk(clock, health)
        self._listers: dict[str, Lister] = {}
        self._listed: set[str] = set()  # places asked in this look: a lister is kept no longer than its place is named
        self._found: dict[str, Found] = {}
        # When each path was last found: in the middle of a rotation only the rotated file stands there.
        self._last_found_mono: dict[str, float] = {}
        self._next_mono = clock.mono()
        self._beyond = 0

    @property
    def directories(self) -> Collection[str]:
        """Where new files can appear, for the waker."""
        return self._walk.directories

    def also(self, specs: Sequence[Spec]) -> None:
        """Look for these too, from now on, and no longer for those given before."""
        if specs != self._found_out:
            self._found_out = specs
            self._next_mono = self._clock.mono()

    def scan(self, *, now: bool = False, held: Holding = _held_by_nobody) -> Sequence[Found]:
        """The files to follow, in a stable order. ``now``: something was said to have changed, look at once.

        ``held`` tells which of some old files a process of this node still holds: those are picked up whatever their age.
        """
        if now or self._clock.mono() >= self._next_mono:
            self._next_mono = self._clock.mono() + self._limits.every_s
            self._look(held)
        return list(self._found.values())

    def _look(self, held: Holding) -> None:
        self._walk.begin()
        self._listed.clear()
        candidates: dict[Identity, list[_Candidate]] = {}
        for each in self._candidates():
            candidates.setdefault(each.found.identity, []).append(each)
        self._walk.finish()
        chosen = [self._choice(same) for same in candidates.values()]
        old = {each.found.identity for each in chosen if each.too_old}
        wanted = set(held(old)) if old else set()
        kept = [each for each in chosen if not each.too_old or each.found.identity in wanted]
        self._found = {found.path: found for found in self._bounded(kept, held)}
        self._remember(self._clock.mono())
        self._listers = {place: lister for place, lister in self._listers.items() if place in self._listed}

    def _remember(self, now: float) -> None:
        recent = {path: at for path, at in self._last_found_mono.items() if now - at < _REMEMBERED_S and path not in self._found}
        self._last_found_mono = recent | dict.fromkeys(self._found, now)
        beyond = len(self._last_found_mono) - _REMEMBERED * self._limits.files
        if beyond > 0:  # the longest gone stand first
            self._last_found_mono = dict(list(self._last_found_mono.items())[beyond:])
            self._health.drop("remembered_paths", beyond)

    def _choice(self, same: list[_Candidate]) -> _Candidate:
        """One file by several paths: a spec of the user's, the path it is followed by already, his own word for it, no symbolic link."""
        return min(same, key=lambda each: (bool(each.found.spec.why), each.found.path not in self._found, not each.explicit, each.link))

    def _bounded(self, kept: list[_Candidate], held: Holding) -> list[Found]:
        """Those found first stay. Of more than the bound the newcomers are dropped, but before them old logs that nobody holds: on a node
        where nothing is ever deleted they would keep every new run out.
        """
        aged = {each.found.identity for each in kept if each.aged} if len(kept) > self._limits.files else set()
        over = aged - set(held(aged)) if aged else set()
        kept.sort(key=lambda each: (each.found.identity in over, each.found.path not in self._found, each.found.path))
        beyond = max(0, len(kept) - len(over) - self._limits.files)
        if beyond > self._beyond:
            self._health.drop("files", beyond - self._beyond)
        self._beyond = beyond
        return [each.found for each in kept[: self._limits.files]]

    def _candidates(self) -> Iterator[_Candidate]:
        for spec in (*self._specs, *self._found_out):
            if _ADDRESS.match(spec.pattern):
                yield from self._held_at(spec.pattern, spec)
                continue
            path = os.path.abspath(spec.pattern)  # noqa: PTH100 - text only: links are kept as the user wrote them
            if has_magic(path) and not os.path.lexists(path):
                yield from self._matching(self._walk.glob(path), spec, wanted=_is_text)
            elif os.path.isdir(path):  # noqa: PTH112
                yield from self._matching(self._walk.below(path), spec, wanted=_is_log)
                yield from self._kept(self._walk.kept_by_trackers(path), spec)
            elif holder_named(path) is not None:
                yield from self._held_at(path, spec)
            else:
                tracker = tracker_named(path)
                yield from self._looked_at(tracker.source(path) if tracker else path, spec, explicit=True, tracker=tracker)

    def _matching(self, paths: Iterator[str], spec: Spec, *, wanted: Callable[[str], bool]) -> Iterator[_Candidate]:
        kept, names = [], []
        for path in paths:
            if holder_named(path) is not None:
                yield from self._held_at(path, spec)
            elif tracker_named(path) is not None:
                kept.append(path)
            elif wanted(path.rpartition("/")[2]):
                names.append(path)
        logs = self._last_found_mono.keys() | set(names)
        for path in names:
            if not self._is_rotated(path, logs):
                yield from self._looked_at(path, spec, explicit=False)
        yield from self._kept(kept, spec)

    def _held_at(self, place: str, spec: Spec) -> Iterator[_Candidate]:
        """The runs that a tracker keeps together at one place, each under a path of its own."""
        holder = holder_named(place)
        if holder is None or holder.lister is None:
            return
        lister = self._listers.setdefault(place, holder.lister(place))
        self._listed.add(place)
        try:
            sources = lister.sources(self._clock.wall() - self._limits.max_age_s)
        except (OSError, MissingExtraError) as error:
            if self._health.count("discovery", f"tracker_{holder.name}", detail=str(error)):
                log.warning("%s: %s; it is tried again, and further ones are only counted", place, error)
            return
        for path in sources:
            yield _Candidate(Found(path, spec, (_NO_DEVICE, zlib.crc32(path.encode()))), explicit=True, link=False, too_old=False)

    def _kept(self, paths: Iterable[str], spec: Spec) -> Iterator[_Candidate]:
        """Files of trackers, each source once by the path that stands for it."""
        sources = {tracker.source(path): tracker for path in paths if (tracker := tracker_named(path)) is not None}
        for path, tracker in sources.items():
            yield from self._looked_at(path, spec, explicit=False, tracker=tracker)

    def _is_rotated(self, path: str, logs: set[str]) -> bool:
        """Its log's follower reads it where that is needed."""
        directory, _, name = path.rpartition("/")
        log = rotated_from(name)
        return log is not None and f"{directory}/{log}" in logs

    def _looked_at(self, path: str, spec: Spec, *, explicit: bool, tracker: Tracker | None = None) -> Iterator[_Candidate]:
        try:
            seen = tracker.written(path) if tracker is not None else os.stat(path)  # noqa: PTH116
            link = os.path.islink(path)  # noqa: PTH114
        except OSError:
            return  # not there yet, or no longer; what cannot be opened is the follower's to count
        if not stat.S_ISREG(seen.st_mode) and not explicit:
            return
        known = path in self._found
        aged = self._clock.wall() - seen.st_mtime > self._limits.max_age_s
        found = Found(path, spec, identity_of(seen))
        yield _Candidate(found, explicit=explicit, link=link, too_old=aged and not explicit and not known, aged=aged and not explicit)


@dataclass(frozen=True, slots=True)
class _Candidate:
    found: Found
    explicit: bool
    link: bool
    too_old: bool  # to be picked up
    aged: bool = False


def _is_text(name: str) -> bool:
    return not _BINARY.fullmatch(name)


def _is_log(name: str) -> bool:
    return bool(_LOG_NAME.fullmatch(name)) and not _NO_LOG.fullmatch(name) and not name.startswith(".")

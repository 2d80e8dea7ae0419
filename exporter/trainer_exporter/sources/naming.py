"""Which files are one run, and what the run is called, from paths alone. Pure: a name depends on nothing but its arguments.

This is the last resort of a run's name; the configuration and the processes that write a file know better.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from trainer_exporter.names import sanitise, says_something
from trainer_exporter.sources.trackers import tracker_named

_STREAM: Final = re.compile(r"(?:^|[-_.])(?:stdout|stderr|out|err)(?=$|[-_.])", re.IGNORECASE)
_RANK: Final = re.compile(r"(?:^|[-_.])(?:(?:local|global)[-_]?)?(?:rank|node|worker|proc|task)[-_.]?\d+(?=$|[-_.])", re.IGNORECASE)
# Logs that LLaMA-Factory writes into the directory of its run, by opening, appending and closing for each record.
_OWN_LOG: Final = re.compile(r"(?:^|/)(?:trainer_log\.jsonl|running_log\.txt)$")
_TORCHRUN: Final = re.compile(r"(?P<log_dir>.+)/attempt_\d+/\d+/(?:stdout|stderr)\.log")  # torch elastic's log directory


@dataclass(frozen=True, slots=True)
class Named:
    """A file's run, and the key that its files have in common."""

    run: str
    group: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file belongs as its path says: the run's directory, and the part of its name that tells runs apart there."""

    directory: str
    stem: str  # without words for streams and ranks; "" where only they stand there
    tracker: bool

    @property
    def group(self) -> str:
        return self.directory if self.tracker and not self.stem else f"{self.directory}/{self.stem}"


def run_names(paths: Sequence[str], taken: Mapping[str, Named], *, reserved: Collection[str] = ()) -> Mapping[str, Named]:
    """The run of each path. Paths in ``taken`` keep what they have; no other run gets a name that is taken or reserved."""
    named = {path: taken[path] for path in paths if path in taken}
    fresh = [path for path in paths if path not in taken]
    groups = _groups(fresh, taken)
    runs = {known.group: known.run for known in taken.values()}
    runs |= _names(
        {group: members for group, members in groups.items() if group not in runs},
        crowded=_crowded([*taken, *fresh]),
        used={*runs.values(), *reserved},
    )
    for group, members in groups.items():
        named |= {path: Named(runs[group], group) for path in members}
    return named


def grouped(named: Mapping[str, Named]) -> Mapping[str, Sequence[str]]:
    """The paths of each group, sorted."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in sorted(named):
        groups[named[path].group].append(path)
    return groups


def run_directory(path: str) -> str:
    """The directory that the files of the run have in common: where a library puts its own below that, the run's."""
    return _place(path).directory


def is_of_output(path: str) -> bool:
    """Whether the file lies in the directory that the trainer saves to, wherever the trainer was started."""
    return _OWN_LOG.search(path) is not None or ((tracker := tracker_named(path)) is not None and not tracker.apart)


def is_reopened(path: str) -> bool:
    """Whether it is written by opening, writing and closing for each record: that nobody holds it says nothing about its writer."""
    return _OWN_LOG.search(path) is not None or ((tracker := tracker_named(path)) is not None and not tracker.held_open)


def tracker_of(output_dir: str, trackers: Sequence[str], *, console_directory: str, cwd: str = "") -> str | None:
    """Of directories that hold a trainer's own files, the one that a console log calls its ``output_dir``.

    A relative one is looked for from the writer's working directory where that is known, else from the console's directory
    and all above it, else by its last parts if there are two or more and only one directory ends in them.
    """
    wanted = _clean(output_dir)
    if not output_dir:
        return None
    if wanted.startswith("/"):
        return next((each for each in trackers if _clean(each) == wanted), None)
    bases = [cwd] if cwd else [console_directory, *map(str, PurePosixPath(console_directory).parents)]
    for base in bases:
        place = _clean(f"{base}/{wanted}")
        if (found := next((each for each in trackers if _clean(each) == place), None)) is not None:
            return found
    if cwd or "/" not in wanted or wanted.startswith(".."):
        return None
    ending = [each for each in trackers if _clean(each).endswith(f"/{wanted}")]
    return ending[0] if len(ending) == 1 else None


def _clean(path: str) -> str:
    """Without empty and ``.`` parts, ``..`` resolved as far as text can."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _place(path: str) -> _Place:
    directory, _, name = path.rpartition("/")
    if "://" in path:
        return _Place("", name, tracker=True)
    if _OWN_LOG.search(path):
        return _Place(directory, "", tracker=True)
    if (tracker := tracker_named(path)) is not None:
        own = tracker.below.sub("", directory) if tracker.below is not None else directory
        return _Place(own, _apart(directory, name, own) if tracker.apart else "", tracker=True)
    if elastic := _TORCHRUN.fullmatch(path):
        return _Place(elastic["log_dir"], "", tracker=False)
    stem, dot, _ = name.rpartition(".")
    bare = _RANK.sub("", _STREAM.sub("", stem if dot and stem else name))
    return _Place(directory, bare.strip("-_."), tracker=False)


def _apart(directory: str, name: str, own: str) -> str:
    """What tells runs apart: the directory that one has to itself, else what it is called in what holds many."""
    return name.rpartition("#")[2] if directory == own else directory.rpartition("/")[2]


def _groups(fresh: Sequence[str], taken: Mapping[str, Named]) -> dict[str, list[str]]:
    """The new paths by group. A tracker joins the only console of its directory, whichever of the two was there first."""
    consoles: dict[str, set[str]] = defaultdict(set)
    trackers: dict[str, set[str]] = defaultdict(set)
    known: dict[_Place, str] = {}
    for path in (*taken, *fresh):
        place = _place(path)
        if path in taken:
            known.setdefault(place, taken[path].group)
        (trackers if place.tracker else consoles)[place.directory].add(known.get(place, place.group))
    groups: dict[str, list[str]] = defaultdict(list)
    for path in fresh:
        place = _place(path)
        group = known.get(place, place.group)
        if place not in known and len(consoles[place.directory]) == 1:
            others = trackers[place.directory] & {each.group for each in taken.values()}
            group = next(iter(consoles[place.directory])) if place.tracker else min(others, default=group)
        groups[group].append(path)
    return groups


def _crowded(paths: Sequence[str]) -> set[str]:
    """Directories with files of more than one run: there the directory's name is not enough."""
    stems: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        place = _place(path)
        if not place.tracker or place.stem:
            stems[place.directory].add(place.stem)
    return {directory for directory, found in stems.items() if len(found) > 1}


def _names(groups: Mapping[str, Sequence[str]], *, crowded: set[str], used: set[str]) -> dict[str, str]:
    """A name for each group: as many parts of its full name, from the right, as make it say something and differ."""
    parts = {group: _parts(members[0], crowded) for group, members in groups.items()}
    length = {group: _least(*parts[group]) for group in groups}
    while True:
        by_name: dict[str, list[str]] = defaultdict(list)
        for group in groups:
            by_name[_joined(parts[group][0], length[group])].append(group)
        clashing = [group for name, same in by_name.items() if len(same) > 1 or name in used for group in same]
        longer = [group for group in clashing if length[group] < len(parts[group][0])]
        for group in longer:
            length[group] += 1
        if not longer:
            return _numbered(by_name, used)


def _numbered(by_name: Mapping[str, Sequence[str]], used: set[str]) -> dict[str, str]:
    """Names whose parents are used up and which still clash get a number."""
    names: dict[str, str] = {}
    taken = set(used)
    for name, groups in sorted(by_name.items()):
        for group in sorted(groups):
            number, candidate = 1, name
            while candidate in taken:
                number += 1
                candidate = f"{name}#{number}"
            taken.add(candidate)
            names[group] = candidate
    return names


def _parts(path: str, crowded: set[str]) -> tuple[list[str], bool]:
    """All parts that a name may have, and whether the last is the file's own."""
    place = _place(path)
    directories = [part for part in place.directory.split("/") if part]
    crowd = place.directory in crowded and (not place.tracker or bool(place.stem))
    file_tells = crowd or not any(says_something(directories, at) for at in range(len(directories)))
    if not file_tells:
        return directories, False
    name = path.rpartition("/")[2]
    return [*directories, place.stem or name.partition(".")[0] or name], True


def _least(parts: Sequence[str], ends_in_file: bool) -> int:
    """How many parts, from the right, a name needs at least: up to the first directory that says something."""
    directories = parts[:-1] if ends_in_file else parts
    for at in range(len(directories) - 1, -1, -1):
        if says_something(directories, at):
            return len(parts) - at
    return 1


def _joined(parts: Sequence[str], length: int) -> str:
    return sanitise("/".join(parts[-length:])) or "unnamed"

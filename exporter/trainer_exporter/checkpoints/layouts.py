"""How trainers lay their checkpoints out: which names are checkpoints, and what is written last into each.

A new layout is one row in LAYOUTS. Sources of the facts are the savers themselves: transformers' Trainer, accelerate's save_state,
Megatron-LM's save_checkpoint, DeepSpeed's engine, Lightning's strategies, torch.distributed.checkpoint, verl's trainers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_exporter.regular import start_of

MEGATRON_TRACKER: Final = "latest_checkpointed_iteration.txt"
MAX_JSON_BYTES: Final = 64 * 2**20  # a trainer_state.json of a long run has tens of MB; beyond this its last byte must do
MOST_NAME_BYTES: Final = 256  # of a tracker file
ZIP_HEAD: Final = b"PK\x03\x04"
ZIP_END: Final = b"PK\x05\x06"  # end-of-central-directory record, 22 bytes: torch.save writes it last
QUIET_S: Final = 30.0  # a file whose end does not show is complete when it has not changed for so long


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint lies."""

    folder: Path
    path: Path
    step: int | None


@dataclass(frozen=True, slots=True)
class Marker:
    """The last thing that a save writes, found by its name; ``proof`` says whether it is whole."""

    path: Path
    mtime: float | None  # None: it speaks of a later checkpoint, so its time is not this one's
    exact: bool = True  # False: a tracker that has moved on past this step


@dataclass(frozen=True, slots=True)
class Proof:
    """That a save is over, as far as one look can tell."""

    mtime: float | None  # of the marker, wall time
    exact: bool
    settle_s: float  # how long nothing may have changed before it is believed; 0: two looks that agree


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to save. ``marker`` finds what is written last; ``begun`` tells a checkpoint from a namesake."""

    name: str
    pattern: re.Pattern[str]
    marker: Callable[[Place], Marker | None]
    begun: Callable[[Place], bool] = lambda _: True


def mtime_of(path: Path) -> float | None:
    """None when it is not there."""
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def first_marker(*names: str) -> Callable[[Place], Marker | None]:
    """The first of these files that lies inside the checkpoint."""

    def find(place: Place) -> Marker | None:
        for name in names:
            mtime = mtime_of(place.path / name)
            if mtime is not None:
                return Marker(place.path / name, mtime)
        return None

    return find


def text_of(path: Path) -> str:
    """The content of a tracker file, "" when it is not there."""
    try:
        return start_of(path, MOST_NAME_BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""


def tracked(place: Place, tracker: str, number: re.Pattern[str]) -> Marker | None:
    """A tracker beside the checkpoints names the last complete one; written by rank 0 after everything else."""
    found = number.fullmatch(text_of(place.folder / tracker))
    if found is None or place.step is None or int(found[1]) < place.step:
        return None
    if int(found[1]) == place.step:
        return Marker(place.folder / tracker, mtime_of(place.folder / tracker))
    inside = dcp_marker(place)
    return inside or Marker(place.folder / tracker, None, exact=False)


def hf_marker(place: Place) -> Marker | None:
    """What is complete under a temporary name is finished by its renaming (transformers 4.36 to 4.39)."""
    if place.path.name.startswith("tmp-"):
        return None
    return first_marker("trainer_state.json", "random_states_0.pkl")(place)


def megatron_marker(place: Place) -> Marker | None:
    return tracked(place, MEGATRON_TRACKER, re.compile(r"(\d+)"))


def deepspeed_marker(place: Place) -> Marker | None:
    return tracked(place, "latest", re.compile(r"global_step(\d+)"))


dcp_marker = first_marker(".metadata", "model_and_optim/.metadata", "weights/.metadata", "model/.metadata")


def step_marker(place: Place) -> Marker | None:
    """verl keeps Megatron's tracker beside its own directories; torchtitan and others leave it to DCP."""
    if mtime_of(place.folder / MEGATRON_TRACKER) is not None:
        return megatron_marker(place)
    return dcp_marker(place)


def is_step_checkpoint(place: Place) -> bool:
    """A directory called step-N may hold anything: shards of DCP, or a tracker beside it, make it a checkpoint."""
    if dcp_marker(place) is not None or mtime_of(place.folder / MEGATRON_TRACKER) is not None:
        return True
    return any(next(place.path.glob(pattern), None) for pattern in ("*.distcp", "*/*.distcp"))


def lightning_marker(place: Place) -> Marker | None:
    """One file, or a directory where the strategy shards: FSDP writes meta.pt last, DeepSpeed its tag file."""
    if place.path.is_file():
        return Marker(place.path, mtime_of(place.path))
    return first_marker("meta.pt", "latest", ".metadata", "weights/.metadata")(place)


def proof(layout: Layout, place: Place, *, after: float = 0.0) -> Proof | None:
    """That the checkpoint was completed, and after a moment that is known already; OSError passes."""
    marker = layout.marker(place)
    if marker is None or (after and (marker.mtime or 0.0) <= after):
        return None
    settle = _settle_s(marker.path)
    return None if settle is None else Proof(marker.mtime, marker.exact, settle)


def _settle_s(path: Path) -> float | None:
    """None while the marker itself is being written."""
    if path.name == "trainer_state.json":
        return 0.0 if _is_whole_json(path) else None
    if path.suffix != ".ckpt":
        return 0.0
    with path.open("rb") as file:
        if file.read(4) != ZIP_HEAD:
            return QUIET_S
        file.seek(-min(22, path.stat().st_size), 2)
        return 0.0 if file.read(4) == ZIP_END else None


def _is_whole_json(path: Path) -> bool:
    """A plain write without a rename: the closing brace of an inner object can stand last for a moment."""
    if path.stat().st_size > MAX_JSON_BYTES:
        with path.open("rb") as file:
            file.seek(-8, 2)
            return file.read().rstrip().endswith(b"}")
    try:
        return isinstance(json.loads(start_of(path, MAX_JSON_BYTES)), dict)
    except (ValueError, RecursionError):
        return False


LAYOUTS: Final = (
    # accelerate's save_state (diffusers) has the Trainer's names but no trainer_state.json: its random states come last
    Layout("hf", re.compile(r"(?:tmp-)?checkpoint-(\d+)"), hf_marker),
    Layout("megatron", re.compile(r"iter_(\d{7,})"), megatron_marker),
    Layout("deepspeed", re.compile(r"global_step(\d+)"), deepspeed_marker),
    Layout("dcp", re.compile(r"(?:global_step_|step[-_]?)(\d+)"), step_marker, begun=is_step_checkpoint),
    # last.ckpt is a copy of, or a link to, one that is counted under its own name
    Layout("lightning", re.compile(r"(?!last\b|\.).*?(?:\bstep=(\d+).*)?\.ckpt"), lightning_marker),
)
FOLDERS: Final = frozenset({"checkpoint", "checkpoints"})  # where trainers put them below their output directory


def layout_of(name: str) -> tuple[Layout, int | None] | None:
    """The layout that an entry's name belongs to, with its step; None for what is left alone."""
    for layout in LAYOUTS:
        found = layout.pattern.fullmatch(name)
        if found is not None:
            return layout, None if found[1] is None else int(found[1])
    return None

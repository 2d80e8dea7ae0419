"""Where the flight recorder of a PyTorch process writes its dumps, as patterns of paths that we can see."""

from __future__ import annotations

import glob
import pwd
from collections.abc import Iterator, Sequence
from typing import Final

from trainer_exporter.attribution.places import Places
from trainer_exporter.attribution.processes import ProcessFacts

VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # the newer name counts first, as in PyTorch
# Where neither is set: below the user's home from 2.8 on, and in older versions. HOME itself is not read; the user's entry is.
IN_HOME: Final = ".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_"
IN_TMP: Final = "/tmp/nccl_trace_rank_"


def dump_patterns(facts: ProcessFacts, places: Places) -> Sequence[str]:
    """Patterns of the dumps of this process and of its peers: the configured prefix and a rank."""
    patterns = []
    for prefix in _prefixes(facts):
        directory, _, name = prefix.rpartition("/")
        if place := places.seen(facts.pid, directory or "/"):
            patterns.append(f"{glob.escape(f'{place}/{name}')}[0-9]*")
    return patterns


def _prefixes(facts: ProcessFacts) -> Iterator[str]:
    told = next((facts.environment[name] for name in VARIABLES if facts.environment.get(name)), "")
    if told:
        path = told if told.startswith("/") else f"{facts.cwd}/{told}"
        if path.startswith("/"):
            yield path
        return
    home = _home(facts.user)
    yield from (f"{home}/{name}" for name in IN_HOME if home)
    yield IN_TMP


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return ""

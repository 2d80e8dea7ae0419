"""Jobs by GPU as a scheduler's prolog writes them down: dcgm-exporter's ``--hpc-job-mapping-dir``.

A file is named after a GPU's index ("3") or that of a MIG instance ("3.1": GPU and GPU instance) and holds a job id a line. Indices are the
scheduler's; they are NVML's where Slurm finds its GPUs by NVML (gres.conf: AutoDetect=nvml). An epilog that failed leaves its file behind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainer_exporter.health import Health
from trainer_exporter.names import sanitise

SITE: Final = "job_mapping"
LARGEST_FILE: Final = 4096
MOST_JOBS: Final = 16  # of one GPU
MOST_FILES: Final = 512
_NAME: Final = re.compile(r"\d{1,3}(?:\.\d{1,3})?")


class JobMapping:
    """Reads the directory anew each time."""

    def __init__(self, directory: str | Path, health: Health) -> None:
        self._directory = Path(directory)
        self._health = health

    def jobs(self) -> Mapping[str, tuple[str, ...]]:
        """Job ids by the name of their file; what cannot be read is counted and left out."""
        try:
            names = sorted(name for name in os.listdir(self._directory) if _NAME.fullmatch(name))  # noqa: PTH208
        except OSError as error:
            self._health.count(SITE, "directory", detail=f"{self._directory}: {error.strerror}")
            return {}
        return {name: jobs for name in names[:MOST_FILES] if (jobs := self._read(name))}

    def _read(self, name: str) -> tuple[str, ...]:
        try:
            with (self._directory / name).open("rb") as file:
                told = file.read(LARGEST_FILE).decode(errors="replace").split()
        except FileNotFoundError:  # the job has just ended
            return ()
        except OSError as error:
            self._health.count(SITE, "file", detail=f"{self._directory / name}: {error.strerror}")
            return ()
        return tuple(dict.fromkeys(sanitise(job) for job in told))[:MOST_JOBS]

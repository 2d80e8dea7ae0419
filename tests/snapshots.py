"""Runs as readers see them, made by hand for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_exporter.model import EMPTY, Histogram, Phase, RunSnapshot

NOW = 1_700_000_000.0  # when a clock that is moved by hand begins
USUAL: Mapping[float, float] = {0.5: 2.0, 0.95: 20.0, 1.0: 25.0}


def a_run(age_s: float, **others: Any) -> RunSnapshot:
    """A run that trains, and made its last step so long ago."""
    known: dict[str, Any] = {
        "run": "llama",
        "info": {"format": "plain"},
        "labels": {},
        "phase": Phase.TRAINING,
        "attempts": 1,
        "progress_wall": NOW - age_s,
        "progress_gaps": USUAL,
        "writer_alive": True,
    }
    nothing = dict.fromkeys(
        ("gauges", "windows", "nonfinite_total", "nonfinite_wall", "nonfinite_streak", "eval_metrics", "eval_metric_changes"), EMPTY
    )
    counts = {"incidents": EMPTY, "incident_wall": EMPTY, "checkpoint_durations": Histogram((), (0,), 0.0), "checkpoint_failures": 0}
    rest = {"checkpoint_started_wall": None, "skipped_steps": None, "lost_steps": 0}
    return RunSnapshot(**{**nothing, **counts, **rest, **known, **others})

"""What the files of a run's output directory tell about its checkpoints: starts, ends, sizes, failures."""

from trainer_exporter.checkpoints.watch import CheckpointLimits, CheckpointWatcher, Filesystem, Saving

__all__ = ["CheckpointLimits", "CheckpointWatcher", "Filesystem", "Saving"]

"""Files as trackers write them, for tests: TensorBoard's with its own writer, the others by hand in their writers' shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

T0 = 1_700_000_000.0


class Events:
    """An event file, with the package's own writer."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        before = set(directory.iterdir())
        self._writer = EventFileWriter(str(directory))
        self._writer.flush()
        (self.path,) = set(directory.iterdir()) - before

    def step(self, step: int, values: Mapping[str, float], *, wall: float | None = None, as_tensor: bool = False) -> None:
        """One event a value, as SummaryWriter.add_scalar does."""
        for tag, value in values.items():
            summary = summary_pb2.Summary(
                value=[self._tensor(tag, value) if as_tensor else summary_pb2.Summary.Value(tag=tag, simple_value=value)]
            )
            self._writer.add_event(event_pb2.Event(wall_time=T0 + step if wall is None else wall, step=step, summary=summary))
        self._writer.flush()

    def picture(self, size: int) -> None:
        """Something large that is no number."""
        image = summary_pb2.Summary.Image(encoded_image_string=b"\0" * size)
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="picture", image=image)])
        self._writer.add_event(event_pb2.Event(wall_time=T0, step=0, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    @staticmethod
    def _tensor(tag: str, value: float) -> summary_pb2.Summary.Value:
        content = numpy.float32(value).tobytes()
        return summary_pb2.Summary.Value(tag=tag, tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=content))


def trainer_state(path: Path, *steps: int, loss: float = 2.0, target: int = 1000) -> Path:
    """A trainer_state.json with a report of each step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"epoch": step / 100, "grad_norm": 0.5, "learning_rate": 1e-4, "loss": loss, "step": step} for step in steps]
    path.write_text(json.dumps({"global_step": max(steps, default=0), "max_steps": target, "log_history": history}, indent=2))
    return path

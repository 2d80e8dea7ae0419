"""Files as trackers write them, for tests: TensorBoard's with its own writer, the others by hand in their writers' shape."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

T0 = 1_700_000_000.0
RECORDED = Path(__file__).parent / "recorded"
TEXTS = {
    "metrics_csv": "epoch,step,train_loss_step,val_loss\n0,49,2.5,\n0,99,2.25,\n0,99,,2.75\n1,149,1.875,\n",
    "metrics_json": '{"train/loss": {"1": 2.5, "2": 2.25}, "train/grad_norm": {"1": 0.9, "2": 0.8}, "validation/accuracy": {"2": 0.75}}',
    "scalars_json": '{"lr": 0.005, "loss": 2.5, "epoch": 1, "step": 10}\n{"lr": 0.004, "loss": 2.25, "epoch": 1, "step": 20}\n',
}
_NAMES = {"metrics_csv": "metrics.csv", "metrics_json": "metrics.json", "scalars_json": "scalars.json"}
_JUNK = [b"\0", b"\xff", b"\n", b"{", b"}", b'"', b"[" * 2000, b"9" * 5000, b"1e999", b"NaN", b"-1", b",,", b": ", b"null", b"!!int ''"]
_JUNK += [b"\x7f\xff\xff\xff\xff"]


def valid(name: str, folder: Path) -> tuple[Path, Path]:
    """A small file of this tracker: the path that is followed, and that of what holds the values."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in TEXTS:
        path = folder / _NAMES[name]
        path.write_text(TEXTS[name])
        return path, path
    if name == "mlflow":
        (run,) = (each.parent for each in RECORDED.rglob("meta.yaml") if (each.parent / "metrics").is_dir())
        shutil.copytree(run, folder / run.name)
        return folder / run.name / "meta.yaml", folder / run.name / "metrics" / "loss"
    pattern = {"tensorboard": "*.1", "wandb": "*.wandb", "trainer_state": "llama_factory/trainer_state.json"}[name]
    recorded = next(RECORDED.rglob(pattern) if "/" not in pattern else RECORDED.glob(pattern))
    path = folder / recorded.name
    shutil.copyfile(recorded, path)
    return path, path


def mangle(data: bytes, chance: random.Random) -> bytes:
    """The data with a piece of it lost, doubled or moved, or junk in between."""
    at, to = sorted(chance.choices(range(len(data) + 1), k=2))
    return data[:at] + chance.choice((chance.choice(_JUNK) + data[at:], data[to:], data[to : to + 40] + data[at:], b""))


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

"""The model of a run, from what lies in the directory it saves to: config.json, or adapter_config.json beside which all else is frozen."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_exporter.health import Health
from trainer_exporter.model import ModelShape
from trainer_exporter.models.documents import Document, Documents
from trainer_exporter.models.network import Network, adapter_weights
from trainer_exporter.models.shapes import network

ENTRIES: Final = 10_000  # of a directory that is searched for checkpoints
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,12})")
# Weights that are kept in half precision are computed with in it; those in single precision may be cast for it, or not.
_HALVES: Final = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Model:
    """What a model's files say."""

    shape: ModelShape
    dtype: str = ""  # that is computed in; "" where the files do not tell


class ModelFiles:
    """Looks into one output directory, again and again. Not for the path of a scrape: the file system may hang."""

    def __init__(self, directory: str, health: Health) -> None:
        self._directory = Path(directory)
        self._documents = Documents(health)
        self._listed: tuple[int, Path | None] = (-1, None)  # the directory's time, and the newest checkpoint in it then

    def look(self) -> Model | None:
        """The model as the directory, else its newest checkpoint, has it; None where there is none, or none that is known."""
        for place in (self._directory, self._newest_checkpoint()):
            if place is None:
                continue
            adapter = self._documents.object_in(place / "adapter_config.json")
            if adapter is not None:
                return self._adapted(place, adapter)
            config = self._documents.object_in(place / "config.json")
            if config is not None:
                return _whole(config)
        return None

    def _adapted(self, place: Path, adapter: Document) -> Model | None:
        """Weights of the base model are frozen. Its configuration lies beside the adapter, or where the adapter says.

        The data type is not told: the base is cast, or unpacked from 4 bits, to what the trainer was asked for.
        """
        config = self._documents.object_in(place / "config.json")
        base = adapter.get("base_model_name_or_path")
        if config is None and isinstance(base, str) and base.startswith("/") and "\0" not in base:
            config = self._documents.object_in(Path(base) / "config.json")
        frozen = None if config is None else network(config)
        if frozen is None or adapter.get("peft_type") != "LORA":
            return None
        weights = adapter_weights(frozen, adapter)
        if weights is None:
            weights = self._stored_weights(place, frozen)
        return None if weights is None else Model(frozen.shape(adapter_weights=weights))

    def _stored_weights(self, place: Path, frozen: Network) -> float | None:
        """As many as the adapter's file holds. Of a mixture's experts a token meets a few only, and the file does not tell which."""
        tensors = self._documents.object_in(place / "adapter_model.safetensors")
        if tensors is None or frozen.is_mixture:
            return None
        sizes = [_size(about) for name, about in tensors.items() if name != "__metadata__" and "embed" not in name]
        return float(sum(sizes)) if sizes and min(sizes) > 0 else None

    def _newest_checkpoint(self) -> Path | None:
        try:
            mtime = self._directory.stat().st_mtime_ns
            if mtime != self._listed[0]:
                self._listed = (mtime, self._search())
        except OSError:
            return None  # whoever watches the saves in it counts that
        return self._listed[1]

    def _search(self) -> Path | None:
        newest: tuple[int, Path | None] = (-1, None)
        with os.scandir(self._directory) as listing:
            for _, entry in zip(range(ENTRIES), listing):  # noqa: B905 - ends with the shorter of the two
                named = _CHECKPOINT.fullmatch(entry.name)
                if named is not None and int(named[1]) > newest[0]:
                    newest = (int(named[1]), Path(entry.path))
        return newest[1]


def _whole(config: Document) -> Model | None:
    found = network(config)
    if found is None:
        return None
    dtype = config.get("torch_dtype") or config.get("dtype")  # the newer name is from transformers 4.56
    return Model(found.shape(), _HALVES.get(str(dtype), ""))


def _size(tensor: Any) -> int:
    """Numbers in a tensor as a safetensors head describes it; 0 where it does not."""
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(shape, list) or not all(isinstance(extent, int) and extent > 0 for extent in shape):
        return 0
    return math.prod(shape)

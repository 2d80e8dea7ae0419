"""What each run computes, beyond what its log says: from the configuration, the model's files, and the GPUs. Part of the composition.

Called in the thread that watches the saves, since the model's files lie where those do and the file system may hang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainer_exporter.clock import Clock
from trainer_exporter.config_model import ModelConfig
from trainer_exporter.gpu.specs import peak_tflops
from trainer_exporter.health import Health
from trainer_exporter.model import ModelShape, RunSnapshot, Workload
from trainer_exporter.model_gpu import GpuOwner, GpuSnapshot
from trainer_exporter.models import Model, ModelFiles
from trainer_exporter.runs.store import Store

LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Known:
    """What the scout and the poller have found."""

    saves: Mapping[str, tuple[str, ...]]  # by run, the directories that it may save to
    models: Mapping[str, ModelConfig]  # by run, what the configuration says
    owners: Sequence[GpuOwner]
    gpus: GpuSnapshot


class Workloads:
    """Tells the store what runs compute."""

    def __init__(self, store: Store, *, clock: Clock, health: Health) -> None:
        self._store = store
        self._clock = clock
        self._health = health
        self._files: dict[str, ModelFiles] = {}
        self._looked_mono: float | None = None

    def look(self, known: Known) -> None:
        """Look at all runs, if it is time."""
        now = self._clock.mono()
        if self._looked_mono is not None and now - self._looked_mono < LOOK_S:
            return
        self._looked_mono = now
        wanted = {directory for places in known.saves.values() for directory in places}
        self._files = {place: self._files.get(place) or ModelFiles(place, self._health) for place in wanted}
        names = {reading.identity.uuid: reading.identity.name for reading in known.gpus.readings}
        owners: dict[str, list[GpuOwner]] = defaultdict(list)
        for owner in known.owners:
            owners[owner.run].append(owner)
        for run in self._store.snapshot():
            with self._health.guard("workloads"):
                told = known.models.get(run.run, ModelConfig())
                found = self._model(known.saves.get(run.run, ()))
                self._store.note_workload(run.run, _workload(run, told, found, owners=owners[run.run], names=names))

    def _model(self, places: Iterable[str]) -> Model | None:
        return next((model for place in places if (model := self._files[place].look()) is not None), None)


def _workload(
    run: RunSnapshot, told: ModelConfig, found: Model | None, *, owners: Sequence[GpuOwner], names: Mapping[str, str]
) -> Workload:
    cards = {names.get(owner.uuid, "") for owner in owners}
    card = told.gpu or (cards.pop() if len(cards) == 1 else "")
    dtype = told.dtype or run.info.get("dtype", "") or (found.dtype if found is not None else "")
    gpus = told.gpus
    if gpus is None and "world_size" not in run.gauges:
        gpus = job_size(owners)
    return Workload(
        shape=shape(told, found.shape if found is not None else None),
        sequence_length=told.sequence_length,
        global_batch_size=told.global_batch_size,
        gpus=gpus,
        peak_tflops=peak_tflops(card, dtype) if card and dtype else None,
        causal=told.attention == "causal",
    )


def shape(told: ModelConfig, found: ModelShape | None) -> ModelShape | None:
    """What the configuration says, completed from the model's files; None where something is missing."""
    if found is None:
        if told.weights is None or told.layers is None or told.hidden is None:
            return None
        return ModelShape(told.weights, told.layers, told.hidden, frozen=told.frozen or 0.0)
    weights = found.weights if told.weights is None else float(told.weights)
    frozen = found.frozen * weights / found.weights if told.frozen is None else float(told.frozen)
    windowed = found.windowed_layers if told.layers in (None, found.layers) else 0
    return replace(
        found,
        weights=weights,
        layers=found.layers if told.layers is None else told.layers,
        attention_width=found.attention_width if told.hidden is None else told.hidden,
        frozen=min(frozen, weights),
        windowed_layers=windowed,
    )


def job_size(owners: Sequence[GpuOwner]) -> int | None:
    """GPUs of a job all of whose processes are on this node's cards; None where others may be elsewhere.

    Every process of a distributed job is told how many they are. One that was told nothing is alone.
    """
    processes = {owner.pid for owner in owners}
    if 0 in processes:  # known by their allocation alone
        return None
    sizes = {owner.facts.get("world_size", "") for owner in owners}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    is_whole = len(processes) == int(size) if size.isdecimal() else len(processes) == 1
    return len({owner.uuid for owner in owners}) if is_whole else None

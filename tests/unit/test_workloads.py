"""What a run computes, put together from the configuration, the model's files and the GPUs; and that nothing is put in their place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_exporter.clock import Clock, SystemClock
from trainer_exporter.config_model import ModelConfig
from trainer_exporter.health import Health
from trainer_exporter.model import ModelShape, Record
from trainer_exporter.model_gpu import GpuIdentity, GpuOwner, GpuReading, GpuSnapshot
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.workloads import Known, Workloads, job_size, shape

START = 1_700_000_000.0
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
PER_TOKEN = 6 * 7_504_658_432 + 12 * 32 * 4096 * 4096  # Llama 3 8B in sequences of 4096 tokens


def owner(gpu: int, *, pid: int = 0, world_size: str = "") -> GpuOwner:
    return GpuOwner(f"GPU-{gpu}", gpu, run="demo", pid=pid or 100 + gpu, facts={"world_size": world_size} if world_size else {})


def card(gpu: int, name: str = "NVIDIA H100 80GB HBM3") -> GpuReading:
    return GpuReading(GpuIdentity(f"GPU-{gpu}", gpu, name), success=True, collected_wall=START)


class Node:
    """A run that makes 16384 tokens a second on this node."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.store = Store(StoreSettings(), clock=self.clock, health=Health())
        self.workloads = Workloads(self.store, clock=self.clock, health=Health())
        self.known = Known({}, {}, (), GpuSnapshot())
        for step in range(1, 6):
            fields = {"step": step, "loss": 2.0, "global_batch_size": 8, "sequence_length": 4096, "step_duration_seconds": 2.0}
            self.store.fold("demo", [(Record(step, fields), Moment(START + step, live=True))], source="a", format_name="plain")
        self.store.publish()

    def gauge(self, name: str, **known: object) -> float | None:
        self.workloads.look(replace(self.known, **known))  # type: ignore[arg-type]
        self.store.publish()
        (run,) = self.store.snapshot()
        return run.gauges.get(name)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def saves(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return {"demo": (str(tmp_path),)}


CARDS = GpuSnapshot(readings=[card(gpu) for gpu in range(4)])
OWNERS = [owner(gpu, world_size="4") for gpu in range(4)]


def test_the_model_lies_beside_the_saves_and_the_cards_serve_the_run(node: Node, saves: dict[str, tuple[str, ...]]) -> None:
    tflops = node.gauge("tflops_per_gpu", saves=saves, owners=OWNERS, gpus=CARDS)

    expected = 16384 * PER_TOKEN / 4 / 1e12
    assert tflops == pytest.approx(expected)
    assert node.gauge("mfu_ratio", saves=saves, owners=OWNERS, gpus=CARDS) == pytest.approx(expected / 989)


def test_all_of_it_may_stand_in_the_configuration(node: Node) -> None:
    told = ModelConfig(parameters=7_504_658_432, layers=32, hidden=4096, gpus=64, gpu="NVIDIA H100 80GB HBM3", dtype="fp8")

    assert node.gauge("tflops_per_gpu", models={"demo": told}) == pytest.approx(16384 * PER_TOKEN / 64 / 1e12)
    assert node.gauge("mfu_ratio") == pytest.approx(16384 * PER_TOKEN / 64 / 1e12 / 1979)


MISSING = {
    "no model": {"saves": {}},
    "no card": {"owners": (), "gpus": GpuSnapshot()},
    "half of the job": {"owners": [owner(gpu, world_size="8") for gpu in range(4)]},
}


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
def test_without_one_of_them_there_is_no_figure(node: Node, saves: dict[str, tuple[str, ...]], missing: dict[str, object]) -> None:
    known: dict[str, object] = {"saves": saves, "owners": OWNERS, "gpus": CARDS, **missing}

    assert node.gauge("tflops_per_gpu", **known) is None


def test_cards_that_differ_have_no_common_peak(node: Node, saves: dict[str, tuple[str, ...]]) -> None:
    mixed = GpuSnapshot(readings=[*(card(gpu) for gpu in range(3)), card(3, "NVIDIA A100-SXM4-80GB")])

    assert node.gauge("tflops_per_gpu", saves=saves, owners=OWNERS, gpus=mixed) is not None
    assert node.gauge("mfu_ratio", saves=saves, owners=OWNERS, gpus=mixed) is None


SIZES = {
    "one process a card, all here": ([owner(gpu, world_size="4") for gpu in range(4)], 4),
    "more elsewhere": ([owner(gpu, world_size="16") for gpu in range(4)], None),
    "one process for all cards": ([owner(gpu, pid=7, world_size="1") for gpu in range(4)], 4),
    "one process that was told nothing": ([owner(gpu, pid=7) for gpu in range(2)], 2),
    "several that were told nothing": ([owner(0), owner(1)], None),
    "words that differ": ([owner(0, world_size="2"), owner(1, world_size="3")], None),
    "nobody": ([], None),
}


@pytest.mark.parametrize(("owners", "gpus"), SIZES.values(), ids=SIZES.keys())
def test_the_size_of_a_job_is_known_where_all_of_it_is_here(owners: list[GpuOwner], gpus: int | None) -> None:
    assert job_size(owners) == gpus


FOUND = ModelShape(weights=100.0, layers=10, attention_width=20, frozen=90.0)
SHAPES = {
    "found alone": (ModelConfig(), FOUND, FOUND),
    "told alone": (ModelConfig(parameters=50, layers=2, hidden=4), None, ModelShape(50, 2, 4)),
    "told in part, nothing found": (ModelConfig(parameters=50, layers=2), None, None),
    "experts that a token meets": (ModelConfig(parameters=50, active_parameters=5, layers=2, hidden=4), None, ModelShape(5, 2, 4)),
    "told before found": (ModelConfig(layers=2, hidden=4), FOUND, replace(FOUND, layers=2, attention_width=4)),
    "as large a share stays frozen": (ModelConfig(parameters=200), FOUND, replace(FOUND, weights=200.0, frozen=180.0)),
    "frozen is told": (ModelConfig(frozen=50), FOUND, replace(FOUND, frozen=50.0)),
    "no more than all is frozen": (ModelConfig(frozen=500), FOUND, replace(FOUND, frozen=100.0)),
}


@pytest.mark.parametrize(("told", "found", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_a_shape_is_told_found_or_both(told: ModelConfig, found: ModelShape | None, expected: ModelShape | None) -> None:
    assert shape(told, found) == expected

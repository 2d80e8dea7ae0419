"""The model of a run from the files that lie where it saves: found, frozen beside an adapter, and never a reason to stumble."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter.health import Health
from trainer_exporter.models import ModelFiles
from trainer_exporter.models.network import adapter_weights
from trainer_exporter.models.shapes import FAMILIES, network

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
WEIGHTS = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 100
ADAPTER = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}


def write(path: Path, tree: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree), encoding="utf-8")


def test_a_model_lies_in_the_directory(tmp_path: Path) -> None:
    write(tmp_path / "config.json", LLAMA)

    model = ModelFiles(str(tmp_path), Health()).look()

    assert model is not None
    assert (model.shape.weights, model.shape.frozen, model.shape.attention_width, model.dtype) == (WEIGHTS, 0, 64, "bf16")


@pytest.mark.parametrize(
    ("about", "dtype"),
    [({"dtype": "float16"}, "fp16"), ({"torch_dtype": "bfloat16"}, "bf16"), ({"dtype": "float32"}, ""), ({}, "")],
    ids=["half", "the older name", "single precision may be cast", "not told"],
)
def test_the_data_type_is_told_where_it_is_certain(tmp_path: Path, about: dict[str, str], dtype: str) -> None:
    write(tmp_path / "config.json", {**{key: value for key, value in LLAMA.items() if key != "torch_dtype"}, **about})

    model = ModelFiles(str(tmp_path), Health()).look()

    assert model is not None
    assert model.dtype == dtype


def test_the_newest_checkpoint_has_it_where_the_directory_has_not(tmp_path: Path) -> None:
    files = ModelFiles(str(tmp_path), Health())
    assert files.look() is None
    write(tmp_path / "checkpoint-9" / "config.json", {**LLAMA, "num_hidden_layers": 1})

    write(tmp_path / "checkpoint-10" / "config.json", LLAMA)
    os.utime(tmp_path, (1, 1))  # the clock of a file system may be too coarse to tell two entries apart

    model = files.look()
    assert model is not None
    assert model.shape.layers == 2


def test_a_model_that_changes_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "config.json", LLAMA)
    files = ModelFiles(str(tmp_path), Health())
    files.look()

    write(tmp_path / "config.json", {**LLAMA, "num_hidden_layers": 10})

    model = files.look()
    assert model is not None
    assert model.shape.layers == 10


def test_all_but_an_adapter_is_frozen(tmp_path: Path) -> None:
    write(tmp_path / "base" / "config.json", LLAMA)
    write(tmp_path / "out" / "checkpoint-5" / "adapter_config.json", {**ADAPTER, "base_model_name_or_path": str(tmp_path / "base")})

    model = ModelFiles(str(tmp_path / "out"), Health()).look()

    assert model is not None
    assert model.shape.frozen == WEIGHTS
    assert model.shape.weights == WEIGHTS + 2 * 4 * (64 + 64)
    assert model.dtype == ""  # the base is cast to what the trainer was asked for


@pytest.mark.parametrize(
    "about",
    [
        {"base_model_name_or_path": "meta/llama"},
        {"base_model_name_or_path": 3},
        {"base_model_name_or_path": "/\ud800/x"},
        {"peft_type": "IA3"},
    ],
    ids=["a name on a hub", "no text", "no path that can be", "another kind of adapter"],
)
def test_an_adapter_without_its_base_tells_nothing(tmp_path: Path, about: dict[str, object]) -> None:
    write(tmp_path / "adapter_config.json", {**ADAPTER, **about})

    assert ModelFiles(str(tmp_path), Health()).look() is None


def safetensors(path: Path, shapes: dict[str, object]) -> None:
    head = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()})
    path.write_bytes(struct.pack("<Q", len(head)) + head.encode() + b"\0" * 64)


def test_an_adapter_whose_targets_are_a_pattern_is_as_large_as_its_file(tmp_path: Path) -> None:
    write(tmp_path / "config.json", LLAMA)
    write(tmp_path / "adapter_config.json", {**ADAPTER, "target_modules": ".*(q|v)_proj"})
    safetensors(tmp_path / "adapter_model.safetensors", {"a": [4, 64], "b": [64, 4]})

    model = ModelFiles(str(tmp_path), Health()).look()

    assert model is not None
    assert model.shape.weights == WEIGHTS + 512


BROKEN = {
    "half a file": (b'{"model_type": "lla', {("models", "broken_json"): 1}),
    "no object": (b"[1, 2]", {}),
    "too large": (b" " * (5 << 20), {("models", "too_large"): 1}),
    "deep": (b"[" * 200_000, {("models", "broken_json"): 1}),
    "binary": (b"\xff\x00\x80", {("models", "broken_json"): 1}),
    "empty": (b"", {("models", "broken_json"): 1}),
}


@pytest.mark.parametrize(("content", "errors"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_cannot_be_used_tells_nothing_and_is_counted_once(
    tmp_path: Path, content: bytes, errors: dict[tuple[str, str], int]
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    health = Health()
    files = ModelFiles(str(tmp_path), health)

    assert files.look() is None
    assert files.look() is None

    assert health.snapshot().errors == errors


def test_a_pipe_in_place_of_the_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")

    assert ModelFiles(str(tmp_path), Health()).look() is None


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=4)
KEYS = sorted(
    {*LLAMA, "n_embd", "num_key_value_heads", "head_dim", "layer_types", "sliding_window", "num_experts", "num_experts_per_tok"}
    | {"mlp_only_layers", "decoder_sparse_step", "moe_intermediate_size", "n_routed_experts", "kv_lora_rank", "v_head_dim"}
)


@given(st.sampled_from(FAMILIES), st.dictionaries(st.sampled_from(KEYS), VALUES), st.dictionaries(st.sampled_from(["r", *ADAPTER]), VALUES))
def test_no_content_makes_it_stumble(family: str, more: dict[str, object], adapter: dict[str, object]) -> None:
    found = network({**LLAMA, **more, "model_type": family})

    if found is not None:
        assert found.shape().weights >= 0
        adapter_weights(found, adapter)

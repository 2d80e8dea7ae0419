"""The shape of a model from Megatron's arguments, held against the FLOPs that Megatron itself counts for them."""

from __future__ import annotations

import pytest

from trainer_exporter.formats.megatron_shape import shape
from trainer_exporter.model import Record
from trainer_exporter.runs.flops import flops_per_token, logged_shape
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

LLAMA3_8B = {
    "num_layers": "32",
    "hidden_size": "4096",
    "ffn_hidden_size": "14336",
    "num_attention_heads": "32",
    "kv_channels": "128",
    "swiglu": "True",
    "group_query_attention": "True",
    "num_query_groups": "8",
    "num_experts": "None",
}
MIXTRAL = {**LLAMA3_8B, "num_experts": "8", "moe_router_topk": "2", "moe_layer_freq": "1"}
GPT3 = {
    "num_layers": "96",
    "hidden_size": "12288",
    "ffn_hidden_size": "49152",
    "num_attention_heads": "96",
    "kv_channels": "128",
    "swiglu": "False",
    "num_experts": "[1]",
}
COUNTED = {  # case: (arguments, vocabulary, sequence, whether half of the attention counts, FLOPs a token by Megatron's own formula)
    "Llama 3 8B, core 0.11": (LLAMA3_8B, 128256, 8192, False, 57_912_852_480),
    "Llama 3 8B, core 0.17": (LLAMA3_8B, 128256, 8192, True, 51_470_401_536),
    "GPT-3 175B, core 0.5": (GPT3, 51200, 2048, False, 1_076_442_955_776),
    "Mixtral 8x7B, core 0.11": (MIXTRAL, 32000, 4096, False, 82_927_681_536),
}


@pytest.mark.parametrize(("arguments", "vocabulary", "sequence", "causal", "flops"), COUNTED.values(), ids=COUNTED.keys())
def test_megatron_counts_the_same(arguments: dict[str, str], vocabulary: int, sequence: int, causal: bool, flops: float) -> None:
    told = logged_shape(shape(arguments, vocabulary))

    assert told is not None
    assert flops_per_token(told, sequence, causal=causal) == pytest.approx(flops, rel=0.001)


def test_experts_stand_in_some_layers_and_one_is_shared() -> None:
    dense = shape(LLAMA3_8B, 0)["token_weights"]
    every_other = {**MIXTRAL, "moe_layer_freq": "2", "moe_ffn_hidden_size": "1024", "moe_shared_expert_intermediate_size": "2048"}

    told = shape(every_other, 0)["token_weights"]

    expert = 3 * 4096 * (2 * 1024 + 2048) + 4096 * 8
    assert told == dense + 16 * (expert - 3 * 4096 * 14336)
    assert shape({**every_other, "moe_layer_freq": "[" + ", ".join(["0", "1"] * 16) + "]"}, 0)["token_weights"] == told


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({**LLAMA3_8B, "multi_latent_attention": "True"}, id="latent attention"),
        pytest.param({**LLAMA3_8B, "hybrid_layer_pattern": "M-M*"}, id="state space"),
        pytest.param({**LLAMA3_8B, "decoder_num_layers": "12"}, id="encoder and decoder"),
        pytest.param({**LLAMA3_8B, "num_experts": "[8]"}, id="experts in another way"),
        pytest.param({**MIXTRAL, "moe_layer_freq": "0"}, id="no such frequency"),
        pytest.param({key: value for key, value in LLAMA3_8B.items() if key != "swiglu"}, id="a version that does not say"),
        pytest.param({}, id="no arguments"),
    ],
)
def test_what_the_arguments_do_not_tell_is_not_guessed(arguments: dict[str, str]) -> None:
    assert shape(arguments, 32000) == {}


@pytest.mark.parametrize(
    ("version", "printed"),
    [pytest.param({}, 523.5, id="core 0.11"), pytest.param({"mtp_num_layers": "None"}, 465.3, id="core 0.12 and newer")],
)
def test_a_run_without_a_printed_throughput_has_the_one_that_its_version_would_print(version: dict[str, str], printed: float) -> None:
    state = RunState("demo", StateSettings(), daemon_start=0.0)
    told = {"world_size": 8.0, "sequence_length": 8192.0, **shape({**LLAMA3_8B, **version}, 128256)}
    state.fold(Record(1, told), Moment(1.0, live=True), source="a")

    fields = {"step": 10.0, "loss": 2.0, "step_duration_seconds": 14.5, "global_batch_size": 128.0}
    state.fold(Record(2, fields), Moment(2.0, live=True), source="a")

    assert state.snapshot(3.0).gauges["tflops_per_gpu"] == pytest.approx(printed, rel=0.001)

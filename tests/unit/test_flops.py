"""FLOPs of a token, and what follows: held against what Megatron, torchtitan and nanoGPT print of the same run.

Their figures are theirs: torchtitan's stand in logs of real runs (Qwen3 14B on B200), nanoGPT's and Megatron's follow from the formulas
in their sources (karpathy/nanoGPT model.py estimate_mfu; NVIDIA/Megatron-LM training.py num_floating_point_operations), computed apart.
"""

from __future__ import annotations

import pytest

from trainer_exporter.model import ModelShape, Workload
from trainer_exporter.models.network import Network, adapter_weights
from trainer_exporter.models.shapes import network
from trainer_exporter.runs.flops import efficiency, flops_per_token

QWEN3_14B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "vocab_size": 151936,
}
LLAMA3_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50304}
GPT3_175B = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 12288,
    "n_layer": 96,
    "n_head": 96,
    "vocab_size": 51200,
}
MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "sliding_window": None,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def known(config: dict[str, object]) -> Network:
    found = network(config)
    assert found is not None
    return found


def derived(config: dict[str, object], *, tokens: float, sequence: int, gpus: int, peak: float | None = None, causal: bool = False):
    """TFLOPS a GPU and MFU of a run that makes ``tokens`` a second on all of its GPUs."""
    workload = Workload(shape=known(config).shape(), peak_tflops=peak, causal=causal)
    return efficiency({"tokens_per_second": tokens}, workload, sequence_length=sequence, gpus=gpus)


@pytest.mark.parametrize(
    ("sequence", "tokens_per_gpu", "printed_tflops", "printed_mfu"),
    [
        pytest.param(4096, 8544, 803.17, 0.3570, id="long sequences"),
        pytest.param(4096, 678, 63.75, 0.0283, id="the first step of the same run"),
        pytest.param(128, 1150, 96.88, None, id="short sequences, float8"),
    ],
)
def test_torchtitan_prints_the_same(sequence: int, tokens_per_gpu: float, printed_tflops: float, printed_mfu: float | None) -> None:
    figures = derived(QWEN3_14B, tokens=8 * tokens_per_gpu, sequence=sequence, gpus=8, peak=2250)

    assert figures["tflops_per_gpu"] == pytest.approx(printed_tflops, rel=0.001)
    if printed_mfu is not None:
        assert figures["mfu_ratio"] == pytest.approx(printed_mfu, rel=0.005)


def test_nanogpt_prints_the_same() -> None:
    # config/train_gpt2.py on 8 A100: 40 micro-batches of 12 x 1024 tokens an iteration, here in 250 ms. It counts 123.59M parameters
    # (norms too, positions not) and 5 x 12 sequences a GPU, so it prints "mfu 67.33%".
    tokens = 40 * 12 * 1024 / 0.250

    figures = derived(GPT2, tokens=tokens, sequence=1024, gpus=8, peak=312)

    assert figures["mfu_ratio"] == pytest.approx(0.6733, rel=0.001)


MEGATRON = {
    # case: (config, sequence, GPUs, sequences an iteration, seconds an iteration, causal, TFLOP/s/GPU that it prints)
    "core 0.5 to 0.11, GPT-3 on 1024 A100": (GPT3_175B, 2048, 1024, 1536, 23.62, False, 140.0),
    "core 0.11, Llama 3 8B on 8 H100": (LLAMA3_8B, 8192, 8, 128, 14.5, False, 523.5),
    "core 0.12 and newer, the same run": (LLAMA3_8B, 8192, 8, 128, 14.5, True, 465.3),
    "core 0.11, Mixtral 8x7B on 64 H100": (MIXTRAL, 4096, 64, 256, 6.0, False, 226.4),
}


@pytest.mark.parametrize(("config", "sequence", "gpus", "batch", "seconds", "causal", "printed"), MEGATRON.values(), ids=MEGATRON.keys())
def test_megatron_prints_the_same(
    config: dict[str, object], sequence: int, gpus: int, batch: int, seconds: float, causal: bool, printed: float
) -> None:
    figures = derived(config, tokens=batch * sequence / seconds, sequence=sequence, gpus=gpus, causal=causal)

    assert figures["tflops_per_gpu"] == pytest.approx(printed, rel=0.001)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        pytest.param(LLAMA3_8B, 8.03 - 0.525, id="Llama 3 8B: all but the input embeddings"),
        pytest.param(QWEN3_14B, 14.7683 - 0.7779, id="Qwen3 14B"),
        pytest.param(DEEPSEEK_V3, 37.55 - 0.927, id="DeepSeek V3: of 671 the 37 that a token is sent to"),
        pytest.param(MIXTRAL, 12.88 - 0.131, id="Mixtral 8x7B: of 47 the 13 that a token is sent to"),
        pytest.param({**GPT2, "vocab_size": 50257}, 0.1236, id="GPT-2: the shared embeddings are its output layer"),
    ],
)
def test_the_weights_that_a_token_is_multiplied_with(config: dict[str, object], billions: float) -> None:
    assert known(config).shape().weights / 1e9 == pytest.approx(billions, rel=0.003)


def test_scores_and_values_of_different_width_count_by_their_mean() -> None:
    assert known(DEEPSEEK_V3).shape().attention_width == 128 * (128 + 64 + 128) / 2


def test_a_reward_model_has_no_output_layer() -> None:
    whole, reward = known(LLAMA3_8B), known({**LLAMA3_8B, "architectures": ["LlamaForSequenceClassification"]})

    assert whole.shape().weights - reward.shape().weights == 4096 * 128256


def test_a_window_bounds_the_attention_of_its_layers() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    shape = known({**LLAMA3_8B, "num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 1024}).shape()

    assert flops_per_token(shape, 4096) - flops_per_token(shape, 0) == 12 * 4096 * (5 * 1024 + 4096)
    assert flops_per_token(shape, 512) - flops_per_token(shape, 0) == 12 * 4096 * 6 * 512


UNKNOWN = {
    "a family that nobody described": {**LLAMA3_8B, "model_type": "mamba2"},
    "no family": {"hidden_size": 4096},
    "a size that is missing": {key: value for key, value in LLAMA3_8B.items() if key != "num_hidden_layers"},
    "a size that is no number": {**LLAMA3_8B, "hidden_size": "4096"},
    "more layers than any model": {**LLAMA3_8B, "num_hidden_layers": 1 << 31},
    "layers of another kind": {**LLAMA3_8B, "layer_types": ["linear_attention"] * 32},
    "layers that do not add up": {**LLAMA3_8B, "layer_types": ["full_attention"] * 31},
    "a head that nobody described": {**LLAMA3_8B, "architectures": ["LlamaForImages"]},
    "an architecture that is no list": {**LLAMA3_8B, "architectures": 5},
    "a window in a family that has none": {**LLAMA3_8B, "sliding_window": 128},
}


@pytest.mark.parametrize("config", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_is_not_known_is_not_guessed(config: dict[str, object]) -> None:
    assert network(config) is None


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LORA = {  # case: (adapter, weights of the adapter by hand)
    "two of the attention": ({"r": 8, "target_modules": ["q_proj", "v_proj"]}, 32 * 8 * (8192 + 5120)),
    "all of the attention": ({"r": 16, "target_modules": ATTENTION}, 32 * 16 * 2 * (8192 + 5120)),
    "all linear layers": ({"r": 8, "target_modules": "all-linear"}, 32 * 8 * (2 * (8192 + 5120) + 3 * 18432)),
    "named with their parent": ({"r": 8, "target_modules": ["self_attn.q_proj"]}, 32 * 8 * 8192),
}


@pytest.mark.parametrize(("adapter", "weights"), LORA.values(), ids=LORA.keys())
def test_an_adapter_is_as_large_as_its_rank_and_targets_say(adapter: dict[str, object], weights: float) -> None:
    assert adapter_weights(known(LLAMA3_8B), adapter) == weights


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param({"target_modules": ["q_proj"]}, id="no rank"),
        pytest.param({"r": 8, "target_modules": ".*proj"}, id="a pattern"),
        pytest.param({"r": 8, "target_modules": ["q_proj", "vision_proj"]}, id="a module that the model lacks"),
        pytest.param({"r": 8, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 4}}, id="ranks that differ"),
        pytest.param({"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, id="more than an adapter"),
    ],
)
def test_an_adapter_that_rank_and_targets_do_not_size_has_no_size(adapter: dict[str, object]) -> None:
    assert adapter_weights(known(LLAMA3_8B), adapter) is None


def test_frozen_weights_cost_no_gradient_of_their_own() -> None:
    llama = known(LLAMA3_8B)
    weights = llama.shape().weights

    adapted = llama.shape(adapter_weights=1e6)

    assert flops_per_token(adapted, 0) == 4 * weights + 6 * 1e6
    assert flops_per_token(adapted, 2048) - flops_per_token(adapted, 0) == 12 * 32 * 4096 * 2048  # gradients pass through attention


SHAPE = ModelShape(weights=1e9, layers=10, attention_width=1000)
FULL = {"figures": {"tokens_per_second": 1e5}, "workload": Workload(shape=SHAPE, peak_tflops=100), "sequence_length": 1000, "gpus": 4}
MISSING = {
    "no shape": {"workload": Workload(peak_tflops=100)},
    "no sequence length": {"sequence_length": None},
    "no GPUs": {"gpus": None},
    "no tokens": {"figures": {}},
}


def test_all_that_is_needed_is_known() -> None:
    assert efficiency(**FULL) == {"tflops_per_gpu": pytest.approx(153.0), "mfu_ratio": pytest.approx(1.53)}


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING.keys())
def test_without_one_of_them_there_is_no_figure(missing: dict[str, object]) -> None:
    assert efficiency(**{**FULL, **missing}) == {"tflops_per_gpu": None, "mfu_ratio": None}


def test_without_a_peak_there_is_no_share_of_it() -> None:
    assert efficiency(**{**FULL, "workload": Workload(shape=SHAPE)}) == {"tflops_per_gpu": pytest.approx(153.0), "mfu_ratio": None}


def test_what_the_trainer_prints_is_believed() -> None:
    assert efficiency(**{**FULL, "figures": {"tokens_per_second": 1e5, "tflops_per_gpu": 50.0}}) == {
        "tflops_per_gpu": 50.0,
        "mfu_ratio": 0.5,
    }
    assert efficiency(**{**FULL, "figures": {"tflops_per_gpu": 50.0, "mfu_ratio": 0.4}}) == {"tflops_per_gpu": 50.0, "mfu_ratio": 0.4}

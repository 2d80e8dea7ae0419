"""The network that a Hugging Face config.json describes, for families whose matrices follow from it alone.

Where the shapes come from: the families' modeling files in huggingface/transformers. A family that is not here (state space, encoder and
decoder, vision beside text) has no network, and then nothing is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from trainer_exporter.models.network import HEAD, ROUTER, Matrix, Network

LARGEST: Final = 1 << 32  # of any count in a config.json; beyond it the file is no model's
MOST_LAYERS: Final = 4096


class _UnknownError(Exception):
    """The file does not say what is asked."""


class _Config:
    """Typed access to the keys of a config.json; families name the same thing differently."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.hidden = self.whole("hidden_size", "n_embd", "d_model")
        self.layers = self.whole("num_hidden_layers", "n_layer", "num_layers")
        self.heads = self.whole("num_attention_heads", "n_head", "num_heads")
        if self.layers > MOST_LAYERS:
            raise _UnknownError("num_hidden_layers")

    def whole(self, *names: str, default: int | None = None) -> int:
        value = next((self._values[name] for name in names if self._values.get(name) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise _UnknownError(names[0])
        return value

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def listed(self, name: str) -> list[Any]:
        value = self._values.get(name)
        if not isinstance(value, (list, type(None))):
            raise _UnknownError(name)
        return value or []

    @property
    def head_size(self) -> int:
        return self.whole("head_dim", default=self.hidden // max(1, self.heads))

    @property
    def width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.whole("num_key_value_heads", default=self.heads) * self.head_size

    @property
    def feed_forward(self) -> int:
        return self.whole("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * self.hidden)


def network(config: Mapping[str, Any]) -> Network | None:
    """The network of a parsed config.json; None for a family that is not known or a file that lacks something."""
    build = _FAMILIES.get(str(config.get("model_type")))
    if build is None:
        return None
    try:
        read = _Config(config)
        matrices = [*build(read), *_head(read)]
        windowed, window = _window(read)
        width = _latent_width(read) if build is _deepseek else read.width
    except _UnknownError:
        return None
    is_mixture = any(matrix.name == ROUTER for matrix in matrices)
    return Network(matrices, read.layers, width, windowed_layers=windowed, window=window, is_mixture=is_mixture)


def _head(config: _Config) -> list[Matrix]:
    """The output layer multiplies whether it shares its weights with the embeddings or not; a reward model has none."""
    kind = str(next(iter(config.listed("architectures")), ""))
    if "ForCausalLM" in kind or "LMHeadModel" in kind:
        return [Matrix(HEAD, config.hidden, config.whole("vocab_size"), 1)]
    if "ForSequenceClassification" in kind or "ForTokenClassification" in kind:
        return []
    raise _UnknownError("architectures")


def _window(config: _Config) -> tuple[int, int]:
    """(layers whose attention reaches a window only, its tokens)."""
    kinds, window = config.listed("layer_types"), config.get("sliding_window")
    if kinds:
        windowed = kinds.count("sliding_attention")
        if len(kinds) != config.layers or windowed + kinds.count("full_attention") != config.layers:
            raise _UnknownError("layer_types")
        return (windowed, config.whole("sliding_window")) if windowed else (0, 0)
    if window is None or config.get("use_sliding_window") is False:
        return 0, 0
    if config.get("model_type") in {"mistral", "mixtral", "phi3", "starcoder2"}:
        return config.layers, config.whole("sliding_window")
    if config.get("model_type") == "gemma2":
        return (config.layers + 1) // 2, config.whole("sliding_window")  # the even ones
    raise _UnknownError("sliding_window")


# Attention


def _grouped(config: _Config, *names: str) -> list[Matrix]:
    """Queries, keys, values and output; keys and values may have fewer heads."""
    query, key, value, output = names or ("q_proj", "k_proj", "v_proj", "o_proj")
    hidden, layers = config.hidden, config.layers
    return [
        Matrix(query, hidden, config.width, layers),
        Matrix(key, hidden, config.kv_width, layers),
        Matrix(value, hidden, config.kv_width, layers),
        Matrix(output, config.width, hidden, layers),
    ]


def _fused(config: _Config, name: str, output: str, *, kv_width: int) -> list[Matrix]:
    return [
        Matrix(name, config.hidden, config.width + 2 * kv_width, config.layers),
        Matrix(output, config.width, config.hidden, config.layers),
    ]


def _latent(config: _Config) -> list[Matrix]:
    """DeepSeek's multi-head latent attention: queries (where compressed), keys and values pass through a narrow layer."""
    hidden, layers, heads = config.hidden, config.layers, config.heads
    plain, rotary, value = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim"), config.whole("v_head_dim")
    kv_rank, query = config.whole("kv_lora_rank"), heads * (plain + rotary)
    matrices = [
        Matrix("kv_a_proj_with_mqa", hidden, kv_rank + rotary, layers),
        Matrix("kv_b_proj", kv_rank, heads * (plain + value), layers),
        Matrix("o_proj", heads * value, hidden, layers),
    ]
    if config.get("q_lora_rank") is None:
        return [*matrices, Matrix("q_proj", hidden, query, layers)]
    rank = config.whole("q_lora_rank")
    return [*matrices, Matrix("q_a_proj", hidden, rank, layers), Matrix("q_b_proj", rank, query, layers)]


def _latent_width(config: _Config) -> float:
    """Scores are as wide as queries, sums as wide as values: 12 x their mean is what both cost."""
    scores = config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim")
    return config.heads * (scores + config.whole("v_head_dim")) / 2


# Feed-forward


def _gated(config: _Config, width: int, uses: float) -> list[Matrix]:
    hidden = config.hidden
    return [
        Matrix("gate_proj", hidden, width, uses),
        Matrix("up_proj", hidden, width, uses),
        Matrix("down_proj", width, hidden, uses),
    ]


def _two(config: _Config, up: str, down: str) -> list[Matrix]:
    width = config.feed_forward
    return [Matrix(up, config.hidden, width, config.layers), Matrix(down, width, config.hidden, config.layers)]


def _experts(config: _Config, layers: int, *, number: int, width: int) -> list[Matrix]:
    """A router, and the experts that a token is sent to."""
    return [Matrix(ROUTER, config.hidden, number, layers), *_gated(config, width, layers * config.whole("num_experts_per_tok"))]


# Families


def _llama(config: _Config) -> list[Matrix]:
    return [*_grouped(config), *_gated(config, config.feed_forward, config.layers)]


def _phi3(config: _Config) -> list[Matrix]:
    width, layers = config.feed_forward, config.layers
    feed = [Matrix("gate_up_proj", config.hidden, 2 * width, layers), Matrix("down_proj", width, config.hidden, layers)]
    return [*_fused(config, "qkv_proj", "o_proj", kv_width=config.kv_width), *feed]


def _mixtral(config: _Config) -> list[Matrix]:
    hidden, width = config.hidden, config.feed_forward
    uses = config.layers * config.whole("num_experts_per_tok")
    experts = [Matrix("w1", hidden, width, uses), Matrix("w3", hidden, width, uses), Matrix("w2", width, hidden, uses)]
    return [*_grouped(config), Matrix(ROUTER, hidden, config.whole("num_local_experts"), config.layers), *experts]


def _olmoe(config: _Config) -> list[Matrix]:
    return [*_grouped(config), *_experts(config, config.layers, number=config.whole("num_experts"), width=config.feed_forward)]


def _qwen_moe(config: _Config) -> list[Matrix]:
    step, dense = config.whole("decoder_sparse_step", default=1), config.listed("mlp_only_layers")
    sparse = sum(1 for layer in range(config.layers) if step and layer not in dense and (layer + 1) % step == 0)
    experts = _experts(config, sparse, number=config.whole("num_experts"), width=config.whole("moe_intermediate_size"))
    shared = config.whole("shared_expert_intermediate_size", default=0)
    more = [*_gated(config, shared, sparse), Matrix("shared_expert_gate", config.hidden, 1, sparse)] if shared else []
    return [*_grouped(config), *experts, *more, *_gated(config, config.feed_forward, config.layers - sparse)]


def _deepseek(config: _Config) -> list[Matrix]:
    first, every = config.whole("first_k_dense_replace", default=0), config.whole("moe_layer_freq", default=1)
    if not every or config.get("n_routed_experts") is None:
        return [*_latent(config), *_gated(config, config.feed_forward, config.layers)]
    sparse = sum(1 for layer in range(config.layers) if layer >= first and layer % every == 0)
    width = config.whole("moe_intermediate_size")
    shared = _gated(config, width * config.whole("n_shared_experts", default=0), sparse)
    experts = _experts(config, sparse, number=config.whole("n_routed_experts"), width=width)
    return [*_latent(config), *experts, *shared, *_gated(config, config.feed_forward, config.layers - sparse)]


def _gpt2(config: _Config) -> list[Matrix]:
    return [*_fused(config, "c_attn", "c_proj", kv_width=config.width), *_two(config, "c_fc", "c_proj")]


def _gpt_bigcode(config: _Config) -> list[Matrix]:
    kv_width = config.head_size if config.get("multi_query") is not False else config.width
    return [*_fused(config, "c_attn", "c_proj", kv_width=kv_width), *_two(config, "c_fc", "c_proj")]


def _gpt_neox(config: _Config) -> list[Matrix]:
    feed = _two(config, "dense_h_to_4h", "dense_4h_to_h")
    return [*_fused(config, "query_key_value", "dense", kv_width=config.width), *feed]


def _falcon(config: _Config) -> list[Matrix]:
    kv_heads = config.heads
    if config.get("new_decoder_architecture"):
        kv_heads = config.whole("num_kv_heads", default=config.heads)
    elif config.get("multi_query") is not False:
        kv_heads = 1
    feed = _two(config, "dense_h_to_4h", "dense_4h_to_h")
    return [*_fused(config, "query_key_value", "dense", kv_width=kv_heads * config.head_size), *feed]


def _opt(config: _Config) -> list[Matrix]:
    if config.whole("word_embed_proj_dim", default=config.hidden) != config.hidden:
        raise _UnknownError("word_embed_proj_dim")
    return [*_grouped(config, "q_proj", "k_proj", "v_proj", "out_proj"), *_two(config, "fc1", "fc2")]


def _gptj(config: _Config) -> list[Matrix]:
    return [*_grouped(config, "q_proj", "k_proj", "v_proj", "out_proj"), *_two(config, "fc_in", "fc_out")]


def _phi(config: _Config) -> list[Matrix]:
    return [*_grouped(config, "q_proj", "k_proj", "v_proj", "dense"), *_two(config, "fc1", "fc2")]


def _starcoder2(config: _Config) -> list[Matrix]:
    return [*_grouped(config), *_two(config, "c_fc", "c_proj")]


def _nemotron(config: _Config) -> list[Matrix]:
    return [*_grouped(config), *_two(config, "up_proj", "down_proj")]


_FAMILIES: Final[Mapping[str, Callable[[_Config], list[Matrix]]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "olmo3"), _llama),
    **dict.fromkeys(("granite", "smollm3", "cohere", "stablelm", "minicpm", "baichuan", "glm", "glm4", "seed_oss"), _llama),
    "phi3": _phi3,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _qwen_moe),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _deepseek),
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    **dict.fromkeys(("gpt_neox", "bloom"), _gpt_neox),
    "falcon": _falcon,
    "opt": _opt,
    "gptj": _gptj,
    "phi": _phi,
    "starcoder2": _starcoder2,
    **dict.fromkeys(("nemotron", "apertus"), _nemotron),
}
FAMILIES: Final = tuple(sorted(_FAMILIES))

"""The shape of the model from Megatron's argument dump, as its own count of FLOPs takes it (training.py, num_floating_point_operations)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ARGUMENTS: Final = frozenset(
    {
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "swiglu"),
        *("group_query_attention", "num_query_groups", "num_key_value_heads"),
        *("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq"),
        *("multi_latent_attention", "hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model", "mtp_num_layers"),
        *("experimental_attention_variant", "moe_latent_size", "attention_output_gate", "decoder_num_layers"),
    }
)
# With one of these set, the matrices are other ones than those below.
_OTHERWISE: Final = (
    *("multi_latent_attention", "hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model", "mtp_num_layers"),
    *("experimental_attention_variant", "moe_latent_size", "attention_output_gate", "decoder_num_layers"),
)
_SINCE_CAUSAL: Final = "mtp_num_layers"  # came with core 0.12, as did the count of half of the attention
_UNSET: Final = ("None", "False", "0", "")
_DENSE: Final = ("None", "[1]")  # the list is Megatron-DeepSpeed's
_LIST: Final = re.compile(r"\[[01](?:, [01])*\]")


def shape(arguments: Mapping[str, str], vocabulary: int) -> dict[str, float]:
    """token_weights, layers, attention_width and causal_attention; empty where the arguments do not tell all of it."""
    if any(arguments.get(name, "None") not in _UNSET for name in _OTHERWISE) or "swiglu" not in arguments:
        return {}
    try:
        hidden, layers, heads = (int(arguments[name]) for name in ("hidden_size", "num_layers", "num_attention_heads"))
        size = int(arguments["kv_channels"])
        attention = 2 * hidden * size * (heads + _kv_heads(arguments, heads))
        feed = _feed_forward(arguments, hidden, layers)
    except (KeyError, ValueError, ZeroDivisionError):
        return {}
    counted = {"causal_attention": 1.0} if _SINCE_CAUSAL in arguments else {}
    weights = layers * attention + feed + hidden * vocabulary
    return {"token_weights": weights, "layers": layers, "attention_width": size * heads, **counted}


def _kv_heads(arguments: Mapping[str, str], heads: int) -> int:
    if arguments.get("group_query_attention") == "True":
        return int(arguments["num_query_groups"])
    return int(arguments.get("num_key_value_heads", heads))


def _feed_forward(arguments: Mapping[str, str], hidden: int, layers: int) -> int:
    """Of all layers; where some have experts, of those that a token is sent to, and of the shared one."""
    matrix = hidden * (3 if arguments["swiglu"] == "True" else 2)
    width = int(arguments["ffn_hidden_size"])
    if arguments.get("num_experts", "None") in _DENSE:
        return layers * matrix * width
    sparse = _sparse_layers(arguments.get("moe_layer_freq", "1"), layers)
    expert = _or(arguments.get("moe_ffn_hidden_size"), width) * int(arguments["moe_router_topk"])
    shared = _or(arguments.get("moe_shared_expert_intermediate_size"), 0)
    router = hidden * int(arguments["num_experts"])
    return (layers - sparse) * matrix * width + sparse * (matrix * (expert + shared) + router)


def _sparse_layers(frequency: str, layers: int) -> int:
    if _LIST.fullmatch(frequency):
        return frequency.count("1")
    return -(-layers // int(frequency))  # the first and every n-th after it


def _or(value: str | None, default: int) -> int:
    return default if value in (None, "None") else int(value)

"""Model FLOPs of training: per token from the shape of the model, per second and GPU, and as a share of what the card can do.

A matrix of N weights costs a token 2N forward, 2N for the gradient of its input and 2N for its own: 6N, and 4N where it is frozen.
Attention costs 12 x layers x heads x head size x sequence length beside that (PaLM, arXiv 2204.02311, appendix B; nanoGPT and torchtitan
count the same). Megatron did too until core 0.11; since 0.12 it leaves out the half that a causal mask hides. Recomputed activations do
not count: these are the model's FLOPs, not the hardware's. Pure, and None where an input is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainer_exporter.model import ModelShape, Workload

TERA = 1e12


def flops_per_token(shape: ModelShape, sequence_length: float, *, causal: bool = False) -> float:
    """FLOPs of one token, forward and backward, in sequences of this length."""
    weights = 6.0 * (shape.weights - shape.frozen) + 4.0 * shape.frozen
    windowed = shape.windowed_layers
    reach = (shape.layers - windowed) * sequence_length + windowed * min(sequence_length, shape.window)
    return weights + (6.0 if causal or shape.causal else 12.0) * shape.attention_width * reach


def logged_shape(constants: Mapping[str, float]) -> ModelShape | None:
    """The shape as the trainer's own log has it."""
    weights, layers, width = (constants.get(name) for name in ("token_weights", "layers", "attention_width"))
    if weights is None or layers is None or width is None:
        return None
    return ModelShape(weights, round(layers), width, causal=constants.get("causal_attention") == 1.0)


def efficiency(
    figures: Mapping[str, float | None], workload: Workload, *, sequence_length: float | None, gpus: float | None
) -> dict[str, float | None]:
    """TFLOPS a GPU and MFU: as logged, else from tokens/s, else not at all."""
    tflops, mfu = figures.get("tflops_per_gpu"), figures.get("mfu_ratio")
    tokens = figures.get("tokens_per_second")
    if tflops is None and tokens is not None and workload.shape is not None and sequence_length and gpus:
        per_token = flops_per_token(workload.shape, sequence_length, causal=workload.causal)
        tflops = tokens * per_token / gpus / TERA
    if mfu is None and tflops is not None and workload.peak_tflops:
        mfu = tflops / workload.peak_tflops
    return {"tflops_per_gpu": tflops, "mfu_ratio": mfu}

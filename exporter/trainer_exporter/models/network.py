"""The matrices that a token passes through in training, and what follows from them. Pure.

Biases, norms and positions are left out: they cost no matrix product, and are under a thousandth of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainer_exporter.model import ModelShape

HEAD: Final = "lm_head"
ROUTER: Final = "gate"
# Ways to train an adapter that rank and targets alone do not size.
_SIZED_OTHERWISE: Final = ("rank_pattern", "layers_to_transform", "layers_pattern", "modules_to_save", "use_dora", "target_parameters")


@dataclass(frozen=True, slots=True)
class Matrix:
    """One linear layer by the name that it has in the model, and how many like it a token passes through."""

    name: str
    inputs: int
    outputs: int
    uses: float

    @property
    def weights(self) -> float:
        """Of all of them that a token passes through."""
        return self.inputs * self.outputs * self.uses


@dataclass(frozen=True, slots=True)
class Network:
    """A decoder of transformer layers."""

    matrices: Sequence[Matrix]
    layers: int
    attention_width: float
    windowed_layers: int = 0
    window: int = 0
    is_mixture: bool = False

    def shape(self, *, adapter_weights: float | None = None) -> ModelShape:
        """All of it trained; with ``adapter_weights`` those alone, beside all of it frozen."""
        weights = sum(matrix.weights for matrix in self.matrices)
        return ModelShape(
            weights=weights + (adapter_weights or 0.0),
            layers=self.layers,
            attention_width=self.attention_width,
            frozen=0.0 if adapter_weights is None else weights,
            windowed_layers=self.windowed_layers,
            window=self.window,
        )


def adapter_weights(network: Network, adapter: Mapping[str, Any]) -> float | None:
    """Weights of a LoRA adapter from its rank and target modules (PEFT's adapter_config.json); None where those do not tell."""
    rank, targets = adapter.get("r"), adapter.get("target_modules")
    if not isinstance(rank, int) or rank < 1 or any(adapter.get(key) for key in _SIZED_OTHERWISE):
        return None
    if targets == "all-linear":
        chosen = {matrix.name for matrix in network.matrices} - {HEAD}
    elif isinstance(targets, list) and all(isinstance(target, str) for target in targets):
        chosen = {target.removeprefix("self_attn.").removeprefix("mlp.") for target in targets}
    else:
        return None
    if not chosen or not chosen <= {matrix.name for matrix in network.matrices}:
        return None
    return sum(rank * (matrix.inputs + matrix.outputs) * matrix.uses for matrix in network.matrices if matrix.name in chosen)

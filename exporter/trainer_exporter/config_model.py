"""The part ``model`` of a source: what is known about the training behind its logs and stands neither in them nor beside them.

It is for runs whose figures cannot be derived otherwise, and what is said here is believed before anything that was found.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from trainer_exporter.config_section import Section
from trainer_exporter.gpu.specs import spec

DTYPES: Final = ("bf16", "fp16", "fp8", "tf32", "fp32")
ATTENTION: Final = ("full", "causal")
CARD: Final = "the name that nvidia-smi prints for a card whose dense peak is known, such as NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """None and "" are not said."""

    parameters: int | None = None  # without the input embeddings, which are looked up and not multiplied
    active_parameters: int | None = None  # of a mixture of experts: those that a token meets
    frozen: int | None = None  # of the active ones, those that get no gradient
    layers: int | None = None
    hidden: int | None = None  # heads x head size
    sequence_length: int | None = None
    global_batch_size: int | None = None  # samples an optimizer step
    gpus: int | None = None  # of the whole job
    gpu: str = ""
    dtype: str = ""
    attention: str = "full"  # "causal": count half of it, as Megatron does from core 0.12 on

    @property
    def weights(self) -> int | None:
        """What a token is multiplied with."""
        return self.parameters if self.active_parameters is None else self.active_parameters


def model(section: Section) -> ModelConfig:
    """What a section says; ConfigError where it cannot be."""
    found = ModelConfig(
        parameters=section.count("parameters"),
        active_parameters=section.count("active_parameters"),
        frozen=section.count("frozen"),
        layers=section.count("layers"),
        hidden=section.count("hidden"),
        sequence_length=section.count("sequence_length"),
        global_batch_size=section.count("global_batch_size"),
        gpus=section.count("gpus"),
        gpu=section.text("gpu"),
        dtype=section.text("dtype"),
        attention=section.choice("attention", ATTENTION),
    )
    section.finish(field.name for field in fields(ModelConfig))
    _check(section, found)
    return found


def _check(section: Section, found: ModelConfig) -> None:
    if found.parameters is not None and found.active_parameters is not None and found.active_parameters > found.parameters:
        raise section.error("active_parameters", found.active_parameters, "as many as parameters, or fewer")
    if found.frozen is not None and found.weights is not None and found.frozen > found.weights:
        raise section.error("frozen", found.frozen, "as many as the parameters that a token meets, or fewer")
    if found.dtype and found.dtype not in DTYPES:
        raise section.error("dtype", found.dtype, "one of " + ", ".join(DTYPES))
    card = spec(found.gpu) if found.gpu else None
    if found.gpu and card is None:
        raise section.error("gpu", found.gpu, CARD)
    if card is not None and found.dtype and found.dtype not in card.peak_tflops:
        raise section.error("dtype", found.dtype, f"one in which the peak of {card.model} is known: " + ", ".join(card.peak_tflops))

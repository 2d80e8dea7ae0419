"""What a card can do at most: dense peaks by data type, and its memory as sold.

For MFU, so dense figures: vendors print twice as much for sparse matrices. Only what a source states is here; a model or a data type
that is not in the table has no peak, and then there is no MFU either. At run time NVML is the source for memory, not this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BOOK: Final = "stas00/ml-engineering compute/accelerator/README.md"
TITAN: Final = "pytorch/torchtitan torchtitan/tools/utils.py"
SHEET: Final = "the vendor's data sheet"

_ALIASES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A model of card. ``peak_tflops`` by fp32, tf32, bf16, fp16, fp8, in 1e12 FLOPs per second without sparsity."""

    model: str
    pattern: re.Pattern[str]
    peak_tflops: Mapping[str, float]
    memory_gib: float
    source: str


def _spec(model: str, pattern: str, memory_gib: float, source: str, **peak_tflops: float) -> Spec:
    if "bf16" in peak_tflops:
        peak_tflops.setdefault("fp16", peak_tflops["bf16"])
    return Spec(model, re.compile(pattern), peak_tflops, memory_gib, source)


# The first that matches counts. NVML's names are odd: the SXM form of H100 is told by its HBM3 alone, and "H20" stands in "H200".
SPECS: Final = (
    _spec("GB300", r"\bGB300\b", 288, BOOK, tf32=1250, bf16=2500, fp8=5000),
    _spec("B300", r"\bB300\b", 288, BOOK, tf32=1125, bf16=2250, fp8=4500),
    _spec("GB200", r"\bGB200\b", 186, TITAN, tf32=1250, bf16=2500, fp8=5000),
    _spec("B200", r"\bB200\b", 180, BOOK, tf32=1125, bf16=2250, fp8=4500),
    _spec("GH200", r"\bGH200\b", 96, BOOK, fp32=67, tf32=494.5, bf16=989, fp8=1979),
    _spec("H200 NVL", r"\bH200 NVL\b", 141, BOOK, bf16=835, fp8=1671),
    _spec("H200", r"\bH200\b", 141, BOOK, fp32=67, tf32=494.5, bf16=989, fp8=1979),
    _spec("H20", r"\bH20\b", 96, TITAN, bf16=148),
    _spec("H800", r"\bH800\b(?! (PCIe|NVL))", 80, BOOK, bf16=989, fp8=1979),
    _spec("H100 NVL", r"\bH100 NVL\b", 94, TITAN, bf16=835, fp8=1671),
    _spec("H100 PCIe", r"\bH100 PCIe\b", 80, TITAN, fp32=51, tf32=378, bf16=756, fp8=1513),
    _spec("H100 SXM", r"\bH100 80GB HBM3\b", 80, TITAN, fp32=67, tf32=494.5, bf16=989, fp8=1979),
    _spec("A800 80GB", r"\bA800\b.*80GB", 80, BOOK, fp32=19.5, tf32=156, bf16=312),
    _spec("A100 80GB", r"\bA100\b.*80GB", 80, TITAN, fp32=19.5, tf32=156, bf16=312),
    _spec("A100 40GB", r"\bA100\b.*40GB", 40, TITAN, fp32=19.5, tf32=156, bf16=312),
    _spec("L40S", r"\bL40S\b", 48, TITAN, fp32=91.6, tf32=183, bf16=362, fp8=733),
    _spec("RTX 4090", r"\b4090\b(?! (D|Laptop))", 24, SHEET, bf16=165),
    _spec("V100S", r"\bV100S\b", 32, SHEET, fp16=130),
    _spec("V100 SXM2", r"\bV100-SXM2\b", 32, SHEET, fp16=125),
    _spec("V100 PCIe", r"\bV100-PCIE\b", 32, SHEET, fp16=112),
)


def spec(name: str) -> Spec | None:
    """The model that NVML's name tells; None when it is unknown, and for a MIG slice, which has a share of its card's peak only."""
    if "MIG " in name:
        return None
    return next((spec for spec in SPECS if spec.pattern.search(name)), None)


def peak_tflops(name: str, dtype: str) -> float | None:
    """Dense peak in 1e12 FLOPs per second of a card (NVML's name) for a data type (bf16, bfloat16, ...); None where no source has it."""
    found = spec(name)
    return found.peak_tflops.get(_ALIASES.get(dtype.lower(), dtype.lower())) if found else None

"""NVML's names of cards are odd: the right row must be found, and none where there is a doubt."""

from __future__ import annotations

import pytest

from trainer_exporter.gpu.specs import peak_tflops, spec


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("A100-SXM4-40GB", "tf32", 156),  # drivers before R470 leave the vendor out
        ("NVIDIA A100 80GB PCIe", "float16", 312),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835),
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H200 NVL", "bf16", 835),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA H20-3e", "bf16", 148),
        ("NVIDIA GH200 480GB", "bf16", 989),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA L40S", "bf16", 362),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
    ],
)
def test_a_known_card_has_its_dense_peak(name: str, dtype: str, peak: float) -> None:
    assert peak_tflops(name, dtype) == peak


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("NVIDIA A1000", "bf16", id="a name that contains another"),
        pytest.param("NVIDIA L40", "bf16", id="a sibling that is not in the table"),
        pytest.param("NVIDIA H800 PCIe", "bf16", id="a slower form of a known card"),
        pytest.param("NVIDIA GeForce RTX 4090 D", "bf16", id="a cut-down form"),
        pytest.param("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16", id="a slice of a card"),
        pytest.param("Tesla V100-SXM2-32GB", "bf16", id="a data type that the card lacks"),
        pytest.param("NVIDIA H100 80GB HBM3", "int4", id="a data type that no source states"),
        pytest.param("", "bf16", id="no name"),
    ],
)
def test_where_no_source_states_a_peak_there_is_none(name: str, dtype: str) -> None:
    assert peak_tflops(name, dtype) is None


def test_the_memory_forms_of_a_card_are_told_apart() -> None:
    small, large = spec("NVIDIA A100-SXM4-40GB"), spec("NVIDIA A100-SXM4-80GB")

    assert small is not None
    assert large is not None
    assert (small.memory_gib, large.memory_gib) == (40, 80)

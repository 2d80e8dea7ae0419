"""What the page says of the cards, from snapshots made by hand."""

from __future__ import annotations

from collections.abc import Iterable

from trainer_exporter.metrics import gpus
from trainer_exporter.metrics.family import Sample
from trainer_exporter.model_gpu import GpuIdentity, GpuMemory, GpuOwner, GpuReading, GpuSnapshot, XidCount

NOW = 1_700_000_000.0
CARD = GpuIdentity("GPU-a", 3, "NVIDIA H200", serial="42", pci_bus_id="00000000:18:00.0", driver_version="570.86.10")


def series(samples: Iterable[Sample]) -> dict[str, float]:
    """Samples as a page would show them."""
    shown = {}
    for sample in samples:
        labels = ",".join(f"{name}={value}" for name, value in zip(sample.family.labels, sample.labels, strict=True) if value)
        shown[f"{sample.family.name}{{{labels}}}"] = sample.value
    return shown


def test_a_healthy_card_shows_what_it_can_say_and_nothing_else() -> None:
    reading = GpuReading(
        CARD,
        success=True,
        collected_wall=NOW - 4,
        utilization_ratio=0.98,
        memory=GpuMemory(total_bytes=1000, used_bytes=700, reserved_bytes=50),
        energy_joules=12.5,
        throttle_active={"sw_power_cap": True, "gpu_idle": False},
        ecc_errors={("uncorrected", "aggregate"): 2},
    )

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,), devices=1, devices_expected=8), (), NOW))

    del shown["gpu_info{uuid=GPU-a,gpu=3,name=NVIDIA H200,serial=42,pci_bus_id=00000000:18:00.0,driver_version=570.86.10}"]
    assert {name: value for name, value in shown.items() if "xid" not in name} == {
        "gpu_devices{}": 1,
        "gpu_devices_expected{}": 8,
        "gpu_collect_success{uuid=GPU-a,gpu=3}": 1,
        "gpu_last_collect_timestamp_seconds{uuid=GPU-a,gpu=3}": NOW - 4,
        "gpu_lost{uuid=GPU-a,gpu=3}": 0,
        "gpu_utilization_ratio{uuid=GPU-a,gpu=3}": 0.98,
        "gpu_memory_used_bytes{uuid=GPU-a,gpu=3}": 700,
        "gpu_memory_total_bytes{uuid=GPU-a,gpu=3}": 1000,
        "gpu_memory_reserved_bytes{uuid=GPU-a,gpu=3}": 50,
        "gpu_energy_joules_total{uuid=GPU-a,gpu=3}": 12.5,
        "gpu_throttle_active{uuid=GPU-a,gpu=3,reason=sw_power_cap}": 1,
        "gpu_throttle_active{uuid=GPU-a,gpu=3,reason=gpu_idle}": 0,
        "gpu_ecc_errors_total{uuid=GPU-a,gpu=3,kind=uncorrected,counter=aggregate}": 2,
    }


def test_figures_of_links_rows_pages_and_pipes_are_shown_by_their_kind() -> None:
    reading = GpuReading(
        CARD,
        success=True,
        collected_wall=NOW,
        remapped_rows={"corrected": 1, "uncorrected": 0},
        row_remap_pending=True,
        row_remap_failure=False,
        retired_pages={"corrected": 3},
        nvlink_active_links=17,
        nvlink_errors={"replay": 5},
        pcie_link_width=8,
        pcie_link_width_max=16,
        pcie_replays=4,
        tensor_active_ratio=0.4,
    )

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,)), (), NOW))

    assert {name: value for name, value in shown.items() if name.startswith(("gpu_re", "gpu_ro", "gpu_nv", "gpu_pcie", "gpu_te"))} == {
        "gpu_remapped_rows{uuid=GPU-a,gpu=3,kind=corrected}": 1,
        "gpu_remapped_rows{uuid=GPU-a,gpu=3,kind=uncorrected}": 0,
        "gpu_row_remap_pending{uuid=GPU-a,gpu=3}": 1,
        "gpu_row_remap_failure{uuid=GPU-a,gpu=3}": 0,
        "gpu_retired_pages{uuid=GPU-a,gpu=3,kind=corrected}": 3,
        "gpu_nvlink_active_links{uuid=GPU-a,gpu=3}": 17,
        "gpu_nvlink_errors_total{uuid=GPU-a,gpu=3,kind=replay}": 5,
        "gpu_pcie_link_width{uuid=GPU-a,gpu=3}": 8,
        "gpu_pcie_link_width_max{uuid=GPU-a,gpu=3}": 16,
        "gpu_pcie_replays_total{uuid=GPU-a,gpu=3}": 4,
        "gpu_tensor_active_ratio{uuid=GPU-a,gpu=3}": 0.4,
    }


def test_a_mig_instance_names_its_card_and_has_only_the_xids_that_happened() -> None:
    part = GpuIdentity("MIG-b", 3, "NVIDIA H200 MIG 1g.18gb", parent_uuid="GPU-a", gpu_instance="7", compute_instance="0")
    reading = GpuReading(part, success=True, collected_wall=NOW, memory=GpuMemory(total_bytes=10, used_bytes=4, reserved_bytes=0))

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,), xids={("MIG-b", 94): XidCount(1, NOW)}), (), NOW))

    name = "NVIDIA H200 MIG 1g.18gb"
    assert shown[f"gpu_info{{uuid=MIG-b,gpu=3,name={name},parent_uuid=GPU-a,gpu_instance=7,compute_instance=0}}"] == 1
    assert shown["gpu_memory_used_bytes{uuid=MIG-b,gpu=3}"] == 4
    assert [series for series in shown if series.startswith("gpu_xid_errors_total")] == ["gpu_xid_errors_total{uuid=MIG-b,gpu=3,xid=94}"]


def test_a_lost_card_shows_its_loss_its_run_and_no_data() -> None:
    reading = GpuReading(CARD, success=False, collected_wall=NOW - 90, error="lost")
    owner = GpuOwner("GPU-a", 3, run="qwen-sft", rank="11", local_rank="3", job_id="812")

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,), lost=frozenset({"GPU-a"}), devices=7), (owner,), NOW))

    assert shown["gpu_lost{uuid=GPU-a,gpu=3}"] == 1
    assert shown["gpu_collect_success{uuid=GPU-a,gpu=3}"] == 0
    assert shown["gpu_last_collect_timestamp_seconds{uuid=GPU-a,gpu=3}"] == NOW - 90
    assert shown["gpu_run_info{uuid=GPU-a,gpu=3,run=qwen-sft,rank=11,local_rank=3,job_id=812}"] == 1
    assert not any(name.startswith(("gpu_memory", "gpu_util", "gpu_power", "gpu_temp")) for name in shown)


def test_xids_that_rules_ask_for_are_there_before_they_happen() -> None:
    reading = GpuReading(CARD, success=True, collected_wall=NOW)
    xids = {("GPU-a", 79): XidCount(1, NOW - 30), ("GPU-a", 171): XidCount(2, NOW + 5)}

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,), xids=xids), (), NOW))

    assert shown["gpu_xid_errors_total{uuid=GPU-a,gpu=3,xid=48}"] == 0
    assert "gpu_xid_last_timestamp_seconds{uuid=GPU-a,gpu=3,xid=48}" not in shown
    assert shown["gpu_xid_errors_total{uuid=GPU-a,gpu=3,xid=79}"] == 1
    assert shown["gpu_xid_last_timestamp_seconds{uuid=GPU-a,gpu=3,xid=79}"] == NOW - 30
    assert shown["gpu_xid_errors_total{uuid=GPU-a,gpu=3,xid=171}"] == 2
    assert shown["gpu_xid_last_timestamp_seconds{uuid=GPU-a,gpu=3,xid=171}"] == NOW, "no time that is published lies in the future"


def test_beside_dcgm_exporter_only_what_it_lacks_is_shown() -> None:
    reading = GpuReading(CARD, success=True, collected_wall=NOW, utilization_ratio=1.0, power_watts=300.0)
    owner = GpuOwner("GPU-a", 3, run="qwen-sft")

    shown = series(gpus.samples(GpuSnapshot(readings=(reading,)), (owner,), NOW, readings=False))

    assert "gpu_run_info{uuid=GPU-a,gpu=3,run=qwen-sft}" in shown
    assert "gpu_xid_errors_total{uuid=GPU-a,gpu=3,xid=79}" in shown
    assert not {"gpu_utilization_ratio{uuid=GPU-a,gpu=3}", "gpu_power_watts{uuid=GPU-a,gpu=3}"} & shown.keys()


def test_a_node_without_a_driver_says_no_devices() -> None:
    assert series(gpus.samples(GpuSnapshot(driver="absent"), (), NOW)) == {"gpu_devices{}": 0, "gpu_devices_expected{}": 0}


def test_every_family_that_is_shown_is_declared() -> None:
    assert len({family.name for family in gpus.FAMILIES}) == len(gpus.FAMILIES)
    assert all(family.name.endswith("_total") == (family.kind == "counter") for family in gpus.FAMILIES)

"""What the kernel's log tells of the GPUs: which lines count, and that each line is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_exporter.gpu.kernel import KernelLog, KernelXid, bus_id, gpus, xid


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param("NVRM: Xid (0000:03:00): 14, Channel 00000002", KernelXid((0, 3, 0), 14), id="oldest form"),
        pytest.param(
            "NVRM: Xid (PCI:0000:1b:00): 63, pid=2210, Row Remapper: New row marked", KernelXid((0, 0x1B, 0), 63), id="with a PID"
        ),
        pytest.param(
            "4,771,90215541,-;NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            KernelXid((0, 0x2A, 0), 79),
            id="as /dev/kmsg has it",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0002:00:00): 119, pid=901, name=my, odd name, Timeout after 6s of waiting",
            KernelXid((2, 0, 0), 119),
            id="domain and a name with a comma",
        ),
        pytest.param("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=4, Contained: CE", KernelXid((0, 1, 0), 94, "5"), id="GPU instance"),
        pytest.param("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 31, pid=9", KernelXid((0, 1, 0), 31, "5", "0"), id="compute instance"),
        pytest.param("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", KernelXid((0, 0x18, 0), 79), id="fallen, no Xid"),
        pytest.param(
            r"NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:20b2)\x0aNVRM: fallen off the bus and is not responding to commands.",
            KernelXid((0, 0x18, 0), 79),
            id="fallen, two lines in one record",
        ),
        pytest.param(r"NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:0fff)\x0aNVRM: is not supported by this driver", None, id="too old"),
        pytest.param("NVRM: GPU at PCI:0000:91:00: GPU-2ab7c5f0", None, id="only a UUID"),
        pytest.param("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61", None, id="a switch"),
        pytest.param("NVRM: Xid (PCI:0000:2a:00): 123456, pid=1", None, id="no such Xid"),
        pytest.param("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None, id="anything else"),
    ],
)
def test_a_line_of_the_log_is_read_as_what_it_tells(line: str, told: KernelXid | None) -> None:
    assert xid(line) == told


@pytest.mark.parametrize("text", ["00000000:2A:00.0", "0000:2a:00.0", "0000:2a:00", "2a:00"])
def test_a_bus_id_is_the_same_in_every_spelling(text: str) -> None:
    assert bus_id(text) == (0, 0x2A, 0)


def test_what_stood_in_the_log_before_is_not_news(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("old\n")
    log = KernelLog(str(path))

    with path.open("a") as kernel:
        kernel.write("new\nhal")

    assert log.lines() == ["new"]
    with path.open("a") as kernel:
        kernel.write("f\n")
    assert log.lines() == ["half"]
    assert log.lines() == []


def test_a_log_that_is_not_ours_to_read_has_no_lines(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))

    assert not log.is_readable
    assert log.lines() == []


def test_the_kernels_list_of_gpus_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "0000:07:00.0").mkdir()

    assert gpus(str(tmp_path)) == {"0000:07:00.0"}
    assert gpus(str(tmp_path / "none")) == gpus("") == frozenset()

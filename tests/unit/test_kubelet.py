"""What the kubelet says of GPUs, read from a real gRPC server that says it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import kubelet as fake
from trainer_exporter.attribution.kubelet import Answer, Granted, Kubelet
from trainer_exporter.health import Health

GPU = "GPU-0badcafe-0000-4000-8000-00000000000"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fake.Kubelet]:
    server = fake.Kubelet(tmp_path / "kubelet.sock")
    yield server
    server.stop()


def errors(health: Health) -> dict[tuple[str, str], int]:
    return dict(health.snapshot().errors)


def test_each_gpu_is_given_with_its_container_whatever_the_resource_is_called(server: fake.Kubelet) -> None:
    shared = {"nvidia.com/gpu.shared": [f"{GPU}2::0"], "intel.com/nic": ["0000:18:00.1"]}
    server.pods = [
        fake.pod("ml", "llama-worker-0", trainer={"nvidia.com/gpu": [f"{GPU}0", f"{GPU}1"]}, sidecar={}),
        fake.pod("dev", "notebook", jupyter=shared),
        fake.pod("dev", "small", main={"nvidia.com/mig-1g.10gb": ["MIG-11111111-2222-3333-4444-555555555555"]}),
        fake.pod("gke", "sliced", main={"nvidia.com/gpu": ["nvidia0", "nvidia3/gi1", "nvidia4/vgpu1", "nvidia4/gi2/vgpu0", "nvidia-x"]}),
        fake.pod("kube-system", "dns", coredns={}),
    ]
    server.allocatable = [f"{GPU}0", f"{GPU}1", f"{GPU}2::0", f"{GPU}2::1"]
    server.start()
    health = Health()

    answer = Kubelet(str(server.socket), health).ask()

    assert answer == Answer(
        (
            Granted(f"{GPU}0", "llama-worker-0", "ml", "trainer"),
            Granted(f"{GPU}1", "llama-worker-0", "ml", "trainer"),
            Granted(f"{GPU}2", "notebook", "dev", "jupyter"),
            Granted("MIG-11111111-2222-3333-4444-555555555555", "small", "dev", "main"),
            *(Granted(device, "sliced", "gke", "main") for device in ("nvidia0", "nvidia3/gi1", "nvidia4", "nvidia4/gi2")),
        ),
        frozenset({f"{GPU}0", f"{GPU}1", f"{GPU}2"}),
    )
    assert errors(health) == {}


def test_a_kubelet_that_does_not_tell_of_allocatable_devices_is_asked_for_the_others(server: fake.Kubelet) -> None:
    server.pods = [fake.pod("ml", "a", main={"nvidia.com/gpu": [f"{GPU}0"]})]
    server.start()
    health = Health()

    answer = Kubelet(str(server.socket), health).ask()

    assert answer == Answer((Granted(f"{GPU}0", "a", "ml", "main"),), None)
    assert errors(health) == {}


def test_a_kubelet_that_restarts_is_heard_again(server: fake.Kubelet, tmp_path: Path) -> None:
    server.start()
    health = Health()
    asked = Kubelet(str(server.socket), health)
    assert asked.ask() == Answer()
    server.stop()
    server.socket.unlink(missing_ok=True)
    assert asked.ask() is None
    again = fake.Kubelet(server.socket)

    again.start()
    answer = asked.ask()

    again.stop()
    assert answer == Answer()
    assert errors(health) == {("kubelet", "absent"): 1}


def test_a_socket_behind_which_nobody_is_left_is_counted(server: fake.Kubelet) -> None:
    server.socket.touch()
    health = Health()

    assert Kubelet(str(server.socket), health).ask() is None
    assert errors(health) == {("kubelet", "unavailable"): 1}


def test_a_slow_kubelet_is_left_and_counted(server: fake.Kubelet) -> None:
    server.slow.set()
    server.start()
    health = Health()

    assert Kubelet(str(server.socket), health, timeout_s=0.2).ask() is None
    assert errors(health) == {("kubelet", "deadline_exceeded"): 1}


@pytest.mark.parametrize(
    "answer",
    [b"\x0a\x7fshort", b"\x0b", b"\xff" * 12, b"\x0a"],
    ids=["cut short", "a kind that is no longer used", "a number without an end", "a length that is missing"],
)
def test_what_is_no_answer_is_counted(server: fake.Kubelet, answer: bytes) -> None:
    server.broken = answer
    server.start()
    health = Health()

    assert Kubelet(str(server.socket), health).ask() is None
    assert errors(health) == {("kubelet", "malformed"): 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_socket_that_is_roots_alone_is_counted(server: fake.Kubelet) -> None:
    server.start()
    server.socket.chmod(0)
    health = Health()

    assert Kubelet(str(server.socket), health).ask() is None
    assert errors(health) == {("kubelet", "permission"): 1}

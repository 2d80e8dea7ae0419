"""A kubelet for tests: pod-resources over a unix socket, by a real gRPC server, with the pods that a test puts there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from pathlib import Path

import grpc

Devices = Mapping[str, Sequence[str]]  # ids by the name of the resource


def field(number: int, value: bytes | str) -> bytes:
    """A field with a length, as protocol buffers have it."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    head = b""
    while number > 0x7F:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def devices_in(resources: Devices) -> Iterable[bytes]:
    """ContainerDevices, each with the fields that nobody reads."""
    topology = field(3, field(1, varint(1 << 3) + varint(1)))
    for name, ids in resources.items():
        yield field(1, name) + b"".join(field(2, each) for each in ids) + topology


def pod(namespace: str, name: str, **containers: Devices) -> bytes:
    """A PodResources."""
    cpus = varint(3 << 3) + varint(300)
    told = b"".join(
        field(3, field(1, container) + b"".join(field(2, each) for each in devices_in(resources)) + cpus)
        for container, resources in containers.items()
    )
    return field(1, name) + field(2, namespace) + told


class Kubelet:
    """Serves on ``socket`` between ``start`` and ``stop``; ``hold`` makes it slow, ``broken`` has it answer with nonsense."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[bytes] = []
        self.allocatable: list[str] | None = None
        self.broken = b""
        self.slow = threading.Event()
        self._go_on = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        methods = {"List": self._list, "GetAllocatableResources": self._allocatable}
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self._go_on.set()
        if self._server is not None:
            self._server.stop(None).wait()

    def _list(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        if self.slow.is_set():
            self._go_on.wait()
        return self.broken or b"".join(field(1, each) for each in self.pods)

    def _allocatable(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        if self.allocatable is None:
            context.abort(grpc.StatusCode.UNKNOWN, "Pods GetAllocatableResources is disabled")
        return b"".join(field(1, each) for each in devices_in({"nvidia.com/gpu": self.allocatable or ()}))

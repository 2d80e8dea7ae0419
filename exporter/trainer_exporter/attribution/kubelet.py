"""What the kubelet has given to whom: its pod-resources API (v1), asked over its unix socket.

The few fields wanted are read from the bytes of the answer (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto), so that neither generated
code nor a Kubernetes client is needed, only grpcio: the extra ``kubernetes``. The answer names no pod's UID, and says nothing of processes.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trainer_exporter.attribution.wire import messages, text
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.health import Health

SITE: Final = "kubelet"
SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
TIMEOUT_S: Final = 5.0
LARGEST_ANSWER: Final = 16 << 20
MOST_DEVICES: Final = 4096
LIST: Final = "/v1.PodResourcesLister/List"
_GPU: Final = re.compile(r"((?:GPU|MIG)-[\w/.-]+|nvidia\d+(?:/gi\d+)?)(?:::\d+|/vgpu\d+)?$")
ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


class MissingGrpcError(TrainerExporterError):
    """The kubelet is to be asked, and what speaks its language is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the kubelet is not asked whose a GPU is: grpcio is missing; install it with: pip install 'trainer-exporter[kubernetes]'"
        )


class Granted(NamedTuple):
    """A device and the container that it was given to."""

    device: str  # UUID of a GPU or of a MIG instance; from GKE's plugin "nvidia3" or "nvidia3/gi1", by the number of the device file
    pod: str
    namespace: str
    container: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the kubelet said. ``allocatable`` None: this one does not say (it is old, or the call is switched off)."""

    granted: tuple[Granted, ...] = ()
    allocatable: frozenset[str] | None = None


class _RefusedError(Exception):
    """The kubelet did not answer; the reason is a short fixed word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def is_installed() -> bool:
    """Whether grpcio is there."""
    return importlib.util.find_spec("grpc") is not None


class Kubelet:
    """Asks anew each time, over a channel of its own: a kubelet that restarts makes a new socket. Raises MissingGrpcError."""

    def __init__(self, socket: str, health: Health, *, timeout_s: float = TIMEOUT_S) -> None:
        if not is_installed():
            raise MissingGrpcError
        self._socket = socket
        self._health = health
        self._timeout_s = timeout_s

    def ask(self) -> Answer | None:
        """What it has given to whom; None when it did not answer, which is counted. Waits for ``timeout_s`` at most twice."""
        try:
            return self._ask()
        except _RefusedError as refused:
            self._health.count(SITE, refused.reason, detail=str(refused))
        except ValueError as error:
            self._health.count(SITE, "malformed", detail=str(error))
        return None

    def _ask(self) -> Answer:
        import grpc

        if not os.path.exists(self._socket):  # noqa: PTH110 - False too where its directory may not be read
            raise _RefusedError("absent", f"{self._socket} is not there, or its directory may not be read")
        if not os.access(self._socket, os.R_OK | os.W_OK):
            raise _RefusedError("permission", f"{self._socket} may not be used: it belongs to root")
        options = [("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            granted = tuple(_granted(self._call(channel, LIST)))[:MOST_DEVICES]
            return Answer(granted, self._allocatable(channel))

    def _allocatable(self, channel: Any) -> frozenset[str] | None:
        try:
            answer = self._call(channel, ALLOCATABLE)
        except _RefusedError as refused:
            # A kubelet before 1.23 has it switched off, and says so with an unknown error.
            if refused.reason in {"unimplemented", "unknown"}:
                return None
            raise
        return frozenset(gpu for devices in messages(answer, 1) for gpu in _gpus(devices))

    def _call(self, channel: Any, method: str) -> bytes:
        import grpc

        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            answer: bytes = call(b"", timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise _RefusedError(error.code().name.lower(), f"{method}: {error.details()}") from error
        return answer


def _granted(answer: bytes) -> Iterator[Granted]:
    """The devices of a ListPodResourcesResponse. Raises ValueError."""
    for pod in messages(answer, 1):
        name, namespace = text(pod, 1), text(pod, 2)
        for container in messages(pod, 3):
            for devices in messages(container, 2):
                yield from (Granted(gpu, name, namespace, text(container, 1)) for gpu in _gpus(devices))


def _gpus(devices: bytes) -> Iterator[str]:
    """The GPUs of a ContainerDevices, whatever the resource is called; a share of one (time slicing) is the GPU's or the instance's."""
    for device in messages(devices, 2):
        found = _GPU.match(device.decode(errors="replace"))
        if found is not None:
            yield found[1]

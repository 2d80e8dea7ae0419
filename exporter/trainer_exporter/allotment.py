"""Who is asked to whom GPUs were given, as the configuration has it. Part of the composition."""

from __future__ import annotations

import logging
import os

from trainer_exporter.attribution import SOCKET, Allocations, JobMapping, Kubelet, MissingGrpcError
from trainer_exporter.clock import Clock
from trainer_exporter.config import AttributionConfig, Config
from trainer_exporter.health import Health

log = logging.getLogger(__name__)


def allocations(config: Config, *, clock: Clock, health: Health, socket: str = SOCKET) -> Allocations:
    """``socket`` is the kubelet's where the configuration does not say. Raises MissingGrpcError where the configuration wants it asked."""
    if not config.gpu.enabled:
        return Allocations(clock)
    told = config.attribution
    mapping = JobMapping(told.job_mapping_dir, health) if told.job_mapping_dir else None
    return Allocations(clock, kubelet=_kubelet(told, health, socket), mapping=mapping)


def _kubelet(config: AttributionConfig, health: Health, socket: str) -> Kubelet | None:
    is_wanted = config.kubelet or (config.kubelet is None and bool(config.kubelet_socket))
    place = config.kubelet_socket or socket
    if is_wanted:
        return Kubelet(place, health)
    if config.kubelet is False or not os.path.exists(place):  # noqa: PTH110 - False too where its directory may not be read
        return None
    if not os.access(place, os.R_OK | os.W_OK):
        log.info("%s is there and may not be used, so the kubelet is not asked whose a GPU is; that takes root", place)
        return None
    try:
        return Kubelet(place, health)
    except MissingGrpcError as error:
        log.warning("%s", error)
        return None

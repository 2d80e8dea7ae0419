"""Prometheus exporter for LLM training: follows trainers' logs and NVML, publishes loss, speed and trouble."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trainer-exporter")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

"""Prometheus exporter for LLM training: follows trainers' logs and NVML, publishes loss, speed and trouble."""


def version() -> str:
    """The installed version. Looked up when asked for: the child that reads NVML is spared the 3 MB that the look-up costs."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("trainer-exporter")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"

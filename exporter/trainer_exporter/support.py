"""What somebody who helps wants to know: versions, the configuration in effect, and what a running daemon says of itself. Composition.

Nothing of environments and command lines, no password, no hash, no key goes in: of the web configuration it is told only what it asks for.
"""

from __future__ import annotations

import json
import os
import platform
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Final

from trainer_exporter import config, version
from trainer_exporter.errors import ConfigError

PACKAGES: Final = (
    *("prometheus-client", "nvidia-ml-py", "watchdog", "PyYAML"),
    *("bcrypt", "grpcio", "tensorboard", "mlflow-skinny", "matplotlib"),
)
OWN: Final = ("trainer_exporter_", "process_", "gpu_collect_success", "gpu_devices")
WAIT_S: Final = 5.0


def report(loaded: config.Config, *, trouble: str = "") -> Iterator[str]:
    """The report's lines, for a person to read before it is sent to anybody; ``trouble``: why the file cannot be used, then ``loaded`` has
    the defaults.
    """
    yield from _titled("Versions", _versions())
    if trouble:
        yield from _titled(
            "Configuration", [f"cannot be used: {trouble}", "what follows is of the defaults, and of a daemon on the default port"]
        )
    yield from _titled("Configuration in effect", config.effective(loaded).splitlines())
    yield from _titled("Private formats", (f"{spec.name} ({spec.kind})" for spec in loaded.formats))
    yield from _titled("Web configuration", _web(loaded.web.config_file))
    yield from _titled("The daemon", _daemon(loaded))


def _titled(title: str, lines: Iterator[str] | list[str]) -> Iterator[str]:
    yield f"== {title}"
    yield from lines
    yield ""


def _versions() -> Iterator[str]:
    yield f"trainer-exporter {version()}"
    yield f"{platform.python_implementation()} {platform.python_version()}, {ssl.OPENSSL_VERSION}"
    yield f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
    for package in PACKAGES:
        try:
            yield f"{package} {installed(package)}"
        except PackageNotFoundError:
            yield f"{package} is not installed"


def _web(path: str) -> Iterator[str]:
    if not path:
        yield "none: plain HTTP for everybody"
        return
    try:
        security = config.web_security(path)
    except ConfigError as error:
        yield f"cannot be used: {error}"
        return
    tls = "plain HTTP" if security.context is None else f"TLS, client certificates: {security.context.verify_mode.name}"
    yield f"{tls}; users: {len(security.users)}; headers: {len(security.headers)}; rate limit: {'yes' if security.interval_s else 'no'}"


def _daemon(loaded: config.Config) -> Iterator[str]:
    host, port = config.listen_address(loaded.web.listen_address, file=loaded.file, key="web.listen_address")
    base = f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{port}"
    try:
        page, runs = (_asked(f"{base}{path}") for path in ("/metrics", "/api/v1/runs"))
    except (OSError, ValueError) as error:
        yield f"{base} does not answer: {getattr(error, 'reason', error)}"
        if loaded.web.config_file:
            yield "with TLS or users, ask it yourself: /metrics and /api/v1/runs"
        return
    yield from (line for line in page.splitlines() if line.startswith(OWN))
    yield from json.dumps(json.loads(runs), indent=1).splitlines()


def _asked(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())

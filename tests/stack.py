"""The real Prometheus and Alertmanager on free ports, and a receiver that keeps what it is sent. Each is a context manager.

They run with the shipped files; what a test must change (addresses, paths, intervals) is changed in a copy, grouping, routing
and inhibition never are.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SHIPPED_ALERTMANAGER = REPOSITORY / "alertmanager" / "alertmanager.yml"
SHIPPED_PROMETHEUS = REPOSITORY / "deploy" / "prometheus" / "prometheus.yml"
SHIPPED_RECEIVER = "http://127.0.0.1:19401"
START_S = 60.0
PORTS = range(20_000, 32_000)  # below those that Linux takes for connections
PORT_RANGES = 12

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], *, within_s: float, what: str, every_s: float = 0.1, seen: Callable[[], object] = lambda: ""
) -> T:
    """The first truthy result of ``condition``; AssertionError naming ``what``, and what ``seen`` tells, when none came in time."""
    deadline = time.monotonic() + within_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}; {seen()}")
        time.sleep(every_s)


def free_port() -> int:
    """A port that nobody listens on just now, out of a range that no other worker of this suite and no connection of anybody takes from."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORTS.start + worker % PORT_RANGES * (len(PORTS) // PORT_RANGES)
    while True:
        port = first + secrets.randbelow(len(PORTS) // PORT_RANGES)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Notification:
    """One POST of Alertmanager: where to, when, and its JSON."""

    path: str
    wall: float
    body: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Alertmanager's group key: what makes a page one page."""
        return str(self.body["groupKey"])

    @property
    def alertnames(self) -> list[str]:
        """Names of the alerts that fire in it, sorted."""
        return sorted(alert["labels"]["alertname"] for alert in self.body["alerts"] if alert["status"] == "firing")


@dataclass
class Receiver:
    """What came in, by path."""

    url: str
    notifications: list[Notification] = field(default_factory=list)

    def at(self, path: str) -> list[Notification]:
        """All notifications to this path so far."""
        return [notification for notification in list(self.notifications) if notification.path == path]

    def pages(self) -> list[Notification]:
        """The first firing notification of each group that went to the pager: updates and resolves are no further pages."""
        first: dict[str, Notification] = {}
        for notification in self.at("/page"):
            if notification.body["status"] == "firing":
                first.setdefault(notification.group, notification)
        return list(first.values())


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A webhook receiver on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.notifications.append(Notification(self.path, time.time(), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def alertmanager_config(receiver_url: str, *, group_wait: str | None = None, group_interval: str | None = None) -> str:
    """The shipped configuration with its webhooks sent to ``receiver_url``, its templates found, and intervals cut where given."""
    config = yaml.safe_load(SHIPPED_ALERTMANAGER.read_text().replace(SHIPPED_RECEIVER, receiver_url))
    config["templates"] = [str(SHIPPED_ALERTMANAGER.parent / pattern) for pattern in config["templates"]]
    for key, value in (("group_wait", group_wait), ("group_interval", group_interval)):
        if value is not None:
            _set_in_routes(config["route"], key, value)
    return yaml.safe_dump(config)


def _set_in_routes(route: dict[str, Any], key: str, value: str) -> None:
    if key in route:
        route[key] = value
    for child in route.get("routes", []):
        _set_in_routes(child, key, value)


def prometheus_config(
    targets: Sequence[str], *, alertmanager_url: str, scrape_interval: str | None = None, evaluation_interval: str | None = None
) -> str:
    """The shipped configuration, scraping ``targets`` (host:port) as the exporters and judging with the shipped rules."""
    config = yaml.safe_load(SHIPPED_PROMETHEUS.read_text())
    config["rule_files"] = [str((SHIPPED_PROMETHEUS.parent / pattern).resolve()) for pattern in config["rule_files"]]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "trainer-exporter"]
    job["static_configs"] = [{"targets": list(targets)}]
    for key, value in (("scrape_interval", scrape_interval), ("evaluation_interval", evaluation_interval)):
        if value is not None:
            config["global"][key] = value
    return yaml.safe_dump(config)


@dataclass(frozen=True)
class Alertmanager:
    """A running Alertmanager."""

    url: str
    process: subprocess.Popen[bytes]

    def post(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Send alerts as Prometheus does: a list of {labels, annotations, startsAt, endsAt}."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        urllib.request.urlopen(request, timeout=10).close()

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that it holds, with ``status.inhibitedBy``."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            return list(json.load(answer))


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    process: subprocess.Popen[bytes]

    def query(self, expr: str, *, at: float | None = None) -> list[dict[str, Any]]:
        """The instant vector of an expression, now or as of a moment: a list of {metric, value}. A busy machine answers late."""
        asked = {"query": expr, **({} if at is None else {"time": f"{at:.3f}"})}
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{urlencode(asked)}", timeout=60) as answer:
            return list(json.load(answer)["data"]["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that fire now, Watchdog apart."""
        found = self.query('ALERTS{alertstate="firing", alertname!="Watchdog"}')
        return {series["metric"]["alertname"] for series in found}


@contextlib.contextmanager
def alertmanager(directory: Path, config: str) -> Iterator[Alertmanager]:
    """Alertmanager with this configuration and its data below ``directory``, ready; alone, without a cluster."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "alertmanager.yml"
    path.write_text(config)
    port = free_port()
    arguments = [
        f"--config.file={path}",
        f"--storage.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(["prometheus-alertmanager", "alertmanager"], arguments, directory=directory, port=port) as process:
        yield Alertmanager(f"http://127.0.0.1:{port}", process)


@contextlib.contextmanager
def prometheus(directory: Path, config: str, *options: str) -> Iterator[Prometheus]:
    """Prometheus with this configuration and its data below ``directory``, ready; ``options`` are its command line's."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "prometheus.yml"
    path.write_text(config)
    port = free_port()
    arguments = [
        f"--config.file={path}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *options,
    ]
    with running(["prometheus"], arguments, directory=directory, port=port) as process:
        yield Prometheus(f"http://127.0.0.1:{port}", process)


@contextlib.contextmanager
def running(names: Sequence[str], arguments: Sequence[str], *, directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The first of these programs that is installed, until the block ends; its log stands beside its data."""
    program = next((path for name in names if (path := shutil.which(name))), None)
    assert program is not None, f"none of {', '.join(names)} is installed"
    log = directory / f"{names[-1]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, *arguments], cwd=directory, stdout=output, stderr=subprocess.STDOUT, env=_environment())
    try:
        eventually(lambda: _is_ready(process, port, log), within_s=START_S, what=f"{names[-1]} ready, see {log}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Without proxies: everything here is on this machine."""
    return {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}


def _is_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

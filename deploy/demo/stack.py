"""The programs of the demo: found or installed, configured from the shipped files, started on free ports, ended for certain."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALERTMANAGER_SETTINGS = ROOT / "alertmanager" / "alertmanager.yml"
PROMETHEUS_SETTINGS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
READY_S = 60.0
ALERTMANAGER_NAMES = ("prometheus-alertmanager", "alertmanager")  # Debian's name, and the name it has elsewhere
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")  # a scheduler's variables would name the runs after the job that runs the demo


class DemoError(Exception):
    """Ends the demo with a message that says what to do."""


def program(names: Sequence[str], package: str) -> str:
    """Path of the first of these commands; Debian's package is installed where none is there and we may."""
    found = _found(names)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        found = _found(names)
    if found is None:
        raise DemoError(f"{names[0]} is not installed. On Debian or Ubuntu: sudo apt-get install prometheus prometheus-alertmanager")
    return found


def _found(names: Sequence[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def _install(package: str) -> None:
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    sys.stdout.write(f"{package} is missing: installing Debian's package with apt-get\n")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(["apt-get", "-q", *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoError(f"apt-get {' '.join(arguments)} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """Programs and a directory that do not outlive this process, even if it is killed."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._janitor = subprocess.Popen([sys.executable, HERE / "janitor.py"], stdin=subprocess.PIPE, start_new_session=True, text=True)
        self.directory = Path(tempfile.mkdtemp(prefix="trainer-exporter-demo-"))
        self._tell(f"directory {self.directory}")

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the cleaning short
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        for process in self._processes.values():
            process.wait()
        self._janitor.wait()

    def start(self, name: str, command: Sequence[str | Path]) -> int:
        """Start a program in a group of its own and return its PID; what it says goes to a file beside the others'."""
        environment = {key: value for key, value in os.environ.items() if key in PASSED_ON}
        with self._output(name).open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self._tell(f"process {process.pid}")
        self._processes[name] = process
        return process.pid

    def check(self, names: Sequence[str]) -> None:
        """DemoError where one of these programs has ended by itself."""
        for name in names:
            status = self._processes[name].poll()
            if status is not None:
                said = self._output(name).read_text(errors="replace")[-1500:]
                raise DemoError(f"{name} ended with status {status}; its last words:\n{said}")

    def wait_until_ready(self, name: str, url: str) -> None:
        """Return when the program answers under ``url``; DemoError when it ends first or never does."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            self.check([name])
            try:
                urllib.request.urlopen(url, timeout=2).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            else:
                return
        raise DemoError(f"{name} did not answer at {url} within {READY_S:.0f} s")

    def _output(self, name: str) -> Path:
        return self.directory / f"{name}.out"

    def _tell(self, line: str) -> None:
        assert self._janitor.stdin is not None
        self._janitor.stdin.write(line + "\n")
        self._janitor.stdin.flush()


def prometheus_settings(shipped: Path, exporter: str, alertmanager: str) -> str:
    """The shipped configuration of Prometheus, intervals and all, its two addresses pointed at the demo's programs."""
    settings = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    settings["rule_files"] = [str(shipped.parent / path) for path in settings["rule_files"]]
    settings["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    for job in settings["scrape_configs"]:
        job["static_configs"] = [{"targets": [exporter], "labels": {"cluster": "demo"}}]
    return json.dumps(settings, indent=1)  # JSON is YAML

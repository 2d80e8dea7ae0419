"""The daemon as a user starts it, for tests: a process on a free port, its page parsed, its log kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from stack import eventually


class Daemon:
    """``trainer-exporter serve`` with these arguments; ends with the block."""

    def __init__(
        self, *arguments: str | Path, log: Path, env: Mapping[str, str] | None = None, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._log = log
        self._env = {**os.environ, **(env or {})}
        self._asked_port = port
        self.host = host
        self.port = 0

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self, *, ready_within_s: float = 60.0) -> None:
        """Start it and wait until it has read what is there."""
        self.launch(within_s=ready_within_s)
        eventually(self.is_ready, within_s=ready_within_s, what=f"ready; its log: {self.log()}")

    def launch(self, *, within_s: float = 60.0) -> None:
        """Start it and wait until it serves."""
        command = [sys.executable, "-m", "trainer_exporter", "serve", *self._arguments]
        command.append(f"--web.listen-address={self.host}:{self.port or self._asked_port}")
        before = self.log().count("serving on port")
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=self._env)
        eventually(
            lambda: self.log().count("serving on port") > before or self.process.poll() is not None, within_s=within_s, what="serving"
        )
        assert self.process.poll() is None, self.log()
        self.port = int(re.findall(r"serving on port (\d+)", self.log())[-1])

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.host}:{self.port}{path}", timeout=5) as response:
            return response.read().decode()

    def is_ready(self) -> bool:
        try:
            return self.get("/-/ready") == "ready\n"
        except (urllib.error.URLError, ConnectionError):
            return False

    def samples(self) -> dict[str, float]:
        """{'name{label="value",...}': value} of the page, labels sorted."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None when it is not there."""
        shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        return self.samples().get(f"{name}{{{shown}}}" if shown else name)

"""Words to systemd: what is sent, and that nothing is where nobody listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trainer_exporter.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_it_says_when_it_serves_lives_and_ends(tmp_path: Path, abstract: bool) -> None:
    name = f"@trainer-exporter-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": name})

        notifier.ready()
        notifier.alive()
        notifier.stopping()

        assert [listener.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.parametrize("name", ["", "/nonexistent/notify"])
def test_where_nobody_listens_nothing_happens(name: str) -> None:
    Notifier({"NOTIFY_SOCKET": name}).ready()


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({}, None),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
    ids=["ours", "anybodys", "anothers", "none", "broken"],
)
def test_the_watchdog_is_fed_twice_in_its_time_if_it_is_meant_for_us(environment: dict[str, str], watchdog_s: float | None) -> None:
    assert Notifier(environment).watchdog_s == watchdog_s

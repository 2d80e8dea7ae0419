"""Words to systemd (sd_notify(3)), where it started us and listens; elsewhere nothing happens."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends to the socket that ``NOTIFY_SOCKET`` names. A manager that has gone is no reason to stop."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        # The watchdog is meant for us only if it names our PID; half of its time leaves room for one late turn.
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        self.watchdog_s = int(usec) / 2e6 if usec.isdecimal() and int(usec) > 0 else None

    def ready(self) -> None:
        """The daemon serves."""
        self._send("READY=1")

    def alive(self) -> None:
        """The daemon still turns its wheels."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon ends by itself."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(message.encode(), self._address)
        except OSError:
            return

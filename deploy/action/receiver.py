"""Acts on alerts: a webhook of Alertmanager that starts one allowed command for an incident. Dry unless told to act.

It runs what the file of actions names and nothing else: no shell, no command or option from outside, values of labels only where the file
has a place for them. Each decision is a line of JSON in the audit log, from which it also remembers, over a restart, what it has done.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import ipaddress
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAX_BODY = 1 << 20
MAX_OUTPUT = 4096  # bytes of a command's output that are kept, from its end
WAITING = 64  # notifications that may wait for a command that is running
HOUR_S = 3600.0
PLACE = re.compile(r"\{(\w+)\}")
# A label's value becomes an argument, or a part of one: it must not look like an option or a path that leads upwards.
HARMLESS = re.compile(r"(?!-)(?!.*\.\.)[\w.:@/+=-]{1,200}")


class RefusedError(Exception):
    """The file of actions, or a request, cannot be used; the message says what was found and what was expected."""


@dataclass(frozen=True)
class Action:
    """A command that is allowed for one alert, with these labels."""

    alert: str
    command: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert with these labels is the one."""
        return labels.get("alertname") == self.alert and all(labels.get(name) == value for name, value in self.labels.items())

    def arguments(self, labels: Mapping[str, str]) -> list[str]:
        """The command with its places filled; RefusedError where a label is missing or could do harm."""
        return [PLACE.sub(lambda place: _harmless(place[1], labels), word) for word in self.command]


def _harmless(name: str, labels: Mapping[str, str]) -> str:
    value = labels.get(name, "")
    if not HARMLESS.fullmatch(value):
        raise RefusedError(f"label {name}: found {value[:80]!r}, expected letters, digits and . : @ / + = - with no - in front")
    return value


@dataclass(frozen=True)
class Settings:
    """What the file of actions says."""

    token: str
    actions: tuple[Action, ...]
    most_per_hour: int = 5


def load(path: Path) -> Settings:
    """Settings of a JSON file; RefusedError with file, key, found and expected."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        token = Path(known["token_file"]).read_text(encoding="utf-8").strip()
        actions = tuple(_action(path, place, entry) for place, entry in enumerate(known["actions"]))
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise RefusedError(f"{path}: found no {error}, expected an object with token_file and actions") from error
    if len(token) < 16:
        raise RefusedError(f"{path}: token_file: found {len(token)} characters, expected 16 or more")
    if strange := known.keys() - {"token_file", "actions", "most_per_hour"}:
        raise RefusedError(f"{path}: found {sorted(strange)}, expected token_file, actions, most_per_hour")
    return Settings(token, actions, int(known.get("most_per_hour", 5)))


def _action(path: Path, place: int, entry: Mapping[str, Any]) -> Action:
    where = f"{path}: actions[{place}]"
    if strange := entry.keys() - {"alert", "command", "labels", "timeout_seconds"}:
        raise RefusedError(f"{where}: found {sorted(strange)}, expected alert, command, labels, timeout_seconds")
    command = entry.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise RefusedError(f"{where}.command: found {command!r}, expected a list of words; there is no shell")
    if PLACE.search(command[0]) or not command[0].startswith("/"):
        raise RefusedError(f"{where}.command: found the program {command[0]!r}, expected an absolute path without a place for a label")
    return Action(entry["alert"], tuple(command), dict(entry.get("labels", {})), float(entry.get("timeout_seconds", 30)))


class Ledger:
    """The audit log, and what it says has been done for an incident that is not over."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._lock = threading.Lock()
        self._acted: set[tuple[str, str]] = set()  # (group key, alert)
        self._starts: list[float] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):  # the last line, where the machine went down while it was written
                self._remember(json.loads(line))

    def note(self, event: str, group: str, alert: str, **more: object) -> None:
        """Write one line, on the disk before anything follows from it."""
        entry = {"time": self._now(), "event": event, "group": group, "alert": alert, **more}
        with self._lock, self._path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
            log.flush()
            os.fsync(log.fileno())
            self._remember(entry)

    def has_acted(self, group: str, alert: str) -> bool:
        """Whether this incident has had its action."""
        return (group, alert) in self._acted

    def starts_of_the_last_hour(self) -> int:
        """How many commands were started, or would have been."""
        return sum(1 for wall in self._starts if wall > self._now() - HOUR_S)

    def _remember(self, entry: Mapping[str, Any]) -> None:
        key = (entry["group"], entry["alert"])
        if entry["event"] in {"start", "dry_run"}:
            self._acted.add(key)
            self._starts = [*self._starts[-1000:], entry["time"]]
        elif entry["event"] == "over":
            self._acted.discard(key)


class Actor:
    """Decides on notifications one after the other, in a thread of its own, and runs at most one command at a time."""

    def __init__(self, settings: Settings, ledger: Ledger, *, dry: bool) -> None:
        self._settings, self._ledger, self._dry = settings, ledger, dry
        self._waiting: queue.Queue[Mapping[str, Any]] = queue.Queue(WAITING)
        threading.Thread(target=self._work, daemon=True).start()

    def take(self, notification: Mapping[str, Any]) -> bool:
        """Put a notification behind those that wait; False when too many do."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(notification)
            return True
        return False

    def _work(self) -> None:
        while True:
            notification = self._waiting.get()
            for action in self._settings.actions:
                self._consider(action, notification)

    def _consider(self, action: Action, notification: Mapping[str, Any]) -> None:
        group = notification["groupKey"]
        fitting = [alert for alert in notification["alerts"] if action.fits(alert["labels"])]
        firing = [alert for alert in fitting if alert["status"] == "firing"]
        if not firing:
            if fitting and self._ledger.has_acted(group, action.alert):
                self._ledger.note("over", group, action.alert)
            return
        if self._ledger.has_acted(group, action.alert):
            return
        if self._ledger.starts_of_the_last_hour() >= self._settings.most_per_hour:
            self._ledger.note("too_many", group, action.alert, most_per_hour=self._settings.most_per_hour)
            return
        try:
            arguments = action.arguments(firing[0]["labels"])
        except RefusedError as error:
            self._ledger.note("refused", group, action.alert, reason=str(error))
            return
        self._ledger.note("dry_run" if self._dry else "start", group, action.alert, command=arguments, labels=firing[0]["labels"])
        if not self._dry:
            self._ledger.note("end", group, action.alert, **run(arguments, action.timeout_s, firing[0]))


def run(arguments: Sequence[str], timeout_s: float, alert: Mapping[str, Any]) -> dict[str, object]:
    """How a command ended, with all that it has started; it finds the alert as JSON in TRAINER_ALERT."""
    environment = {**os.environ, "TRAINER_ALERT": json.dumps(alert)}
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    except OSError as error:
        return {"error": str(error)}
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return {"code": process.returncode, "output": _end_of(output)}
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return {"error": f"not done within {timeout_s:g} s, killed", "output": _end_of(output)}


def _end_of(output: bytes) -> str:
    return output[-MAX_OUTPUT:].decode("utf-8", "replace")


class Handler(BaseHTTPRequestHandler):
    """POST /alerts with the token takes a notification; GET /-/healthy answers anybody."""

    timeout = 10  # seconds for a client that sends nothing
    actor: Actor
    token: str

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/-/healthy" else 404)

    def do_POST(self) -> None:
        given = self.headers.get("Authorization", "").encode()
        length = self.headers.get("Content-Length", "")
        if self.path != "/alerts":
            self._answer(404)
        elif not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            self._answer(401)
        elif not length.isdecimal():
            self._answer(411)
        elif int(length) > MAX_BODY:
            self._answer(413)
        else:
            self._take(self.rfile.read(int(length)))

    def _take(self, body: bytes) -> None:
        try:
            notification = checked(json.loads(body))
        except (RefusedError, ValueError, RecursionError):
            self._answer(400)
            return
        self._answer(200 if self.actor.take(notification) else 503)  # Alertmanager comes again after 503

    def _answer(self, code: int) -> None:
        self.close_connection = True
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass  # what matters is in the audit log


def checked(notification: Any) -> Mapping[str, Any]:
    """A notification in which everything that is looked at has its type; RefusedError otherwise."""
    if not isinstance(notification, dict) or not isinstance(notification.get("groupKey"), str):
        raise RefusedError("groupKey")
    alerts = notification.get("alerts")
    if not isinstance(alerts, list) or not all(_is_alert(alert) for alert in alerts):
        raise RefusedError("alerts")
    return notification


def _is_alert(alert: Any) -> bool:
    if not isinstance(alert, dict) or not isinstance(alert.get("labels"), dict) or alert.get("status") not in {"firing", "resolved"}:
        return False
    return all(isinstance(text, str) for pair in alert["labels"].items() for text in pair)


def address(text: str) -> tuple[str, int]:
    """HOST:PORT of this machine alone: who wants it elsewhere puts a proxy with TLS before it."""
    host, _, port = text.rpartition(":")
    try:
        if ipaddress.ip_address(host.strip("[]")).is_loopback:
            return host.strip("[]"), int(port)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text!r}, expected an address of this machine alone, such as 127.0.0.1:19402")


@contextlib.contextmanager
def served(where: tuple[str, int], settings: Settings, ledger: Ledger, *, dry: bool) -> Iterator[ThreadingHTTPServer]:
    """A server that has not begun to serve."""
    handler = type("Bound", (Handler,), {"actor": Actor(settings, ledger, dry=dry), "token": settings.token})
    with ThreadingHTTPServer(where, handler) as server:
        server.daemon_threads = True
        yield server


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=Path, required=True, metavar="FILE", help="JSON: token_file, actions, most_per_hour")
    parser.add_argument(
        "--audit-log", type=Path, required=True, metavar="FILE", help="a line of JSON for each decision; kept over restarts"
    )
    parser.add_argument("--listen", type=address, default=("127.0.0.1", 19402), metavar="HOST:PORT", help="of this machine alone")
    parser.add_argument("--act", action="store_true", help="start the commands; without it they are only written down")
    given = parser.parse_args(arguments)
    try:
        settings, ledger = load(given.actions), Ledger(given.audit_log)
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with served(given.listen, settings, ledger, dry=not given.act) as server:
        sys.stderr.write(f"listening on {given.listen[0]}:{server.server_port}, {'acting' if given.act else 'dry run'}\n")
        sys.stderr.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

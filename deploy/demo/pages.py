"""The demo's pager: takes what Alertmanager sends to PagerDuty and to Slack, and makes it readable on a terminal.

Alertmanager runs on the shipped configuration. What an operator would fill in is filled in here: which receivers are chosen,
and their secrets, which lead to this server.
"""

from __future__ import annotations

import json
import queue
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

WIDTH = 110
OFFERED = ("pagerduty.yml", "slack.yml")
CHOSEN = {"page-webhook": "page-pagerduty", "ticket-webhook": "ticket-slack"}


def alertmanager_settings(shipped: Path, url: str, secrets: Path) -> str:
    """The shipped configuration with receivers chosen as a user would, from those beside it, and their addresses pointed at ``url``."""
    settings = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    settings["templates"] = [str(shipped.parent / path) for path in settings["templates"]]
    for offered in OFFERED:
        settings["receivers"] += yaml.safe_load((shipped.parent / "receivers" / offered).read_text(encoding="utf-8"))["receivers"]
    for route in _routes(settings["route"]):
        if "receiver" in route:
            route["receiver"] = CHOSEN.get(route["receiver"], route["receiver"])
    for receiver in settings["receivers"]:
        for entry in receiver.get("pagerduty_configs", ()):
            entry |= {"url": f"{url}/page", "routing_key_file": _secret(secrets / "pagerduty-routing-key", "demo")}
        for entry in receiver.get("slack_configs", ()):
            entry["api_url_file"] = _secret(secrets / "slack-webhook-url", f"{url}/ticket")
        for entry in receiver.get("webhook_configs", ()):
            entry["url"] = f"{url}/webhook"
    return json.dumps(settings, indent=1)  # JSON is YAML


def _routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield route
    for child in route.get("routes", ()):
        yield from _routes(child)


def _secret(path: Path, content: str) -> str:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to a person."""

    kind: str  # PAGE, TICKET, or OVER when what was told before has ended
    group: str  # messages about one incident share it
    text: str

    def is_about(self, alert: str, run: str) -> bool:
        return alert in self.text and run in self.text

    def box(self, head: str) -> list[str]:
        """The message in a frame, its first line saying what it is."""
        inner = [piece for line in self.text.strip().splitlines() for piece in _wrapped(line)]
        title = f" {self.kind} " + (f"- {head} " if head else "")
        return ["┌" + title + "─" * max(0, WIDTH - len(title)), *(f"│ {line}" for line in inner), "└" + "─" * WIDTH]


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH - 2, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ") or [""]


def notice(path: str, message: Mapping[str, Any]) -> Notice | None:
    """What a request of Alertmanager's tells a person; None for a heartbeat."""
    if path == "/page":
        over = message["event_action"] == "resolve"
        payload = message.get("payload", {})
        return Notice("OVER" if over else "PAGE", message["dedup_key"], payload.get("custom_details", {}).get("text") or payload["summary"])
    if path == "/ticket":
        attachment = message["attachments"][0]
        return Notice("TICKET", attachment.get("title", ""), attachment.get("text", ""))
    return None


class Receiver:
    """A web server that keeps the messages until they are asked for."""

    def __init__(self) -> None:
        self._news: queue.Queue[Notice] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._news))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def news(self) -> Iterator[Notice]:
        """The messages that have come since the last question."""
        while True:
            try:
                yield self._news.get_nowait()
            except queue.Empty:
                return


def _handler(news: queue.Queue[Notice]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = notice(self.path, json.loads(body))
            if found is not None:
                news.put(found)
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Say nothing: the terminal is the pager."""

    return Handler

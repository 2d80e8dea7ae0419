"""The HTTP side. Handlers read snapshots only, so that no request ever waits for a file, a driver or a lock that is held long."""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.health import Health
from trainer_exporter.metrics.gate import DEFAULT_HEADERS, Gate

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 32 << 10  # its line and all of its headers; http.server alone would take 6 MB from each client
READ_BYTES = 8 << 10  # at once; from Python 3.14 on its own choice is four times a whole request
PATIENCE_S = 10.0  # for a request from its first byte to its last, and for each write of the answer
TLS_BEGINS = b"\x16"  # first byte of a handshake (RFC 8446, 5.1)
NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nthis port speaks HTTPS\n"


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)  # of this page; those of the web configuration go before them


Handler = Callable[[Message], Response]  # from request headers


class Server:
    """Serves routes, by (method, path), on one address; port 0 takes a free one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        routes: Mapping[tuple[str, str], Handler],
        health: Health,
        gate: Gate | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        try:
            self._http = _Http((host, port), routes, health=health, gate=gate, patience_s=patience_s)
        except OSError as error:
            reason = error.strerror or str(error)
            raise TrainerExporterError(
                f"cannot listen on {host or '*'}:{port}: {reason}; choose another address with --web.listen-address"
            ) from error
        self._thread = threading.Thread(target=self._http.serve_forever, name="http", kwargs={"poll_interval": 0.5}, daemon=True)

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._http.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer nobody any more; waits for the accepting thread, not for slow clients."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _TooLargeError(Exception):
    """A request that goes on and on."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], routes: Mapping[tuple[str, str], Handler], *, health: Health, gate: Gate | None, patience_s: float
    ) -> None:
        if (not address[0] and socket.has_dualstack_ipv6()) or ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.routes = routes
        self.health = health
        self.gate = gate
        self.patience_s = patience_s
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # The base class would look its own name up in the DNS, which can take seconds at start.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.health.drop("connections")
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if (secured := self._secured(request)) is not None:
                super().process_request_thread(secured, client_address)
        finally:
            self._slots.release()

    def _secured(self, request: socket.socket) -> socket.socket | None:
        """The connection with TLS where that is spoken; None, and closed, where the client does not keep to it."""
        context = self.gate.security().context if self.gate is not None else None
        if self.gate is None or context is None:
            return request
        request.settimeout(self.patience_s)
        secured: socket.socket = request
        try:
            if request.recv(1, socket.MSG_PEEK) != TLS_BEGINS:
                request.sendall(NOT_TLS)
                self._refuse(request, "plain_http")
                return None
            secured = context.wrap_socket(request, server_side=True)
            if self.gate.admits(secured):
                return secured
            self._refuse(secured, "client_name")
        except OSError as error:  # ssl's errors are some
            self._refuse(secured, "timeout" if isinstance(error, TimeoutError) else "handshake")
        return None

    def _refuse(self, request: socket.socket, reason: str) -> None:
        self.health.count("tls", reason)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client went away", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    server_version = "trainer-exporter"
    sys_version = ""
    disable_nagle_algorithm = True  # the end of a page would wait for the client's word on its beginning, which Linux holds back for 40 ms

    def setup(self) -> None:
        super().setup()
        self._patient = _Patient(self.connection, self.server.patience_s)
        self.rfile = io.BufferedReader(self._patient, READ_BYTES)

    def handle_one_request(self) -> None:
        self._patient.begin()
        try:
            super().handle_one_request()
        except _TooLargeError:
            self.server.health.drop("request_bytes")
            self.close_connection = True
            self.requestline = self.request_version = self.command = ""
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._send(Response(f"{status.value} {status.phrase}\n".encode(), status=status), body=True)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("GET", body=False)

    def do_POST(self) -> None:
        self.close_connection = True  # a body, if there is one, is not read
        self._answer("POST")

    def _answer(self, method: str, *, body: bool = True) -> None:
        self.connection.settimeout(self.server.patience_s)
        refused = self.server.gate.refusal(self.headers) if self.server.gate is not None else None
        if refused is not None:
            self._send(Response(f"{refused.value} {refused.phrase}\n".encode(), status=refused), body=body)
            return
        path = urlsplit(self.path).path
        handler = self.server.routes.get((method, path))
        if handler is None:
            known = any(route == path for _, route in self.server.routes)
            status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
            self._send(Response(f"{status.value} {status.phrase}\n".encode(), status=status), body=body)
            return
        response = Response(b"500 this page failed; the exporter's log says why\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        with self.server.health.guard("http"):
            response = handler(self.headers)
        self._send(response, body=body)

    def _send(self, response: Response, *, body: bool) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        if response.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="trainer-exporter", charset="UTF-8"')
        general = self.server.gate.headers() if self.server.gate is not None else DEFAULT_HEADERS
        for name, text in {**response.headers, **general}.items():
            self.send_header(name, text)
        self.end_headers()
        if body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Patient(io.RawIOBase):
    """What a client sends, for as long as one request may take and as much as it may be: a byte now and then does not keep a connection
    for ever, and headers without end do not fill the memory.
    """

    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        self._connection = connection
        self._patience_s = patience_s
        self._deadline = 0.0
        self._left_bytes = MAX_REQUEST_BYTES

    def begin(self) -> None:
        """The next request may take its time and its room."""
        self._deadline = time.monotonic() + self._patience_s
        self._left_bytes = MAX_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        if self._left_bytes <= 0:
            raise _TooLargeError
        self._connection.settimeout(left)
        got = self._connection.recv_into(buffer, min(len(buffer), self._left_bytes))
        self._left_bytes -= got
        return got

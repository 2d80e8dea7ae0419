"""The HTTP side: routes, errors, clients that misbehave."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.health import Health
from trainer_exporter.metrics.server import Response, Server


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[Server]:
    def fails(_: object) -> Response:
        raise KeyError("a bug")

    routes = {
        ("GET", "/"): lambda headers: Response(f"accept={headers.get('Accept', '')}".encode()),
        ("GET", "/bug"): fails,
        ("POST", "/-/reload"): lambda headers: Response(b"done"),
    }
    served = Server("127.0.0.1", 0, routes=routes, health=health)
    served.start()
    yield served
    served.stop()


def ask(server: Server, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request(method, path, headers={"Accept": "text/x"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/", 200, b"accept=text/x"),
        ("GET", "/?x=1", 200, b"accept=text/x"),
        ("HEAD", "/", 200, b""),
        ("GET", "/nothing", 404, b"404 Not Found\n"),
        ("POST", "/", 405, b"405 Method Not Allowed\n"),
        ("GET", "/-/reload", 405, b"405 Method Not Allowed\n"),
        ("POST", "/-/reload", 200, b"done"),
    ],
)
def test_routes(server: Server, method: str, path: str, status: int, body: bytes) -> None:
    assert ask(server, method, path) == (status, body)


def test_a_page_that_fails_says_where_to_look_and_is_counted(server: Server, health: Health) -> None:
    status, body = ask(server, "GET", "/bug")

    assert status == 500
    assert b"log says why" in body
    assert health.snapshot().errors == {("http", "KeyError"): 1}


def test_clients_that_say_nothing_do_not_keep_others_out(server: Server, health: Health) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]

    assert ask(server, "GET", "/")[0] == 200

    for client in silent:
        client.close()


def test_a_port_that_is_taken_is_said_without_a_traceback(server: Server, health: Health) -> None:
    with pytest.raises(TrainerExporterError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; choose another"):
        Server("127.0.0.1", server.port, routes={}, health=health)


def test_garbage_is_answered_and_the_server_lives_on(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(b"\x00\xff\x16\x03\x01garbage\r\n\r\n")
        client.recv(1000)

    assert ask(server, "GET", "/")[0] == 200

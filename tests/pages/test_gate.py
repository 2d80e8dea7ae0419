"""Who may talk to the daemon: TLS, client certificates, users, in the format of Prometheus's exporter-toolkit."""

from __future__ import annotations

import base64
import http.client
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme

from stack import eventually
from trainer_exporter import config
from trainer_exporter.clock import ManualClock
from trainer_exporter.errors import ConfigError
from trainer_exporter.health import Health
from trainer_exporter.metrics.gate import LOOK_S, Gate
from trainer_exporter.metrics.server import Response, Server

PASSWORD = "c0rrect horse"
HASH = "$2b$04$CtMQuLTWyjxYbjtGSDaQaOQCcMlu71I02KECn6OPuUP7TFeOiQQL2"  # of it, quick to check
TLS = "tls_server_config: {cert_file: node.pem, key_file: node.key%s}\n"
USERS = f"basic_auth_users: {{prometheus: '{HASH}'}}\n"
MUTUAL = TLS % ", client_ca_file: clients.pem, client_auth_type: RequireAndVerifyClientCert%s"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def clients() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA, clients: trustme.CA) -> Path:
    write_certificate(authority, tmp_path)
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    return tmp_path


def write_certificate(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "node.key")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")


class Node:
    """A server behind a gate, and clients of it."""

    def __init__(self, folder: Path, text: str, *, patience_s: float = 10.0) -> None:
        self.file = folder / "web.yml"
        self.file.write_text(text)
        self.health = Health()
        self.clock = ManualClock()
        path = str(self.file)
        gate = Gate(lambda: config.web_security(path), path=path, clock=self.clock, health=self.health)
        policy = {"Content-Security-Policy": "default-src 'none'"}
        routes = {("GET", "/"): lambda headers: Response(b"hello", headers=policy)}
        self._server = Server("127.0.0.1", 0, routes=routes, health=self.health, gate=gate, patience_s=patience_s)
        self.port = self._server.port

    def __enter__(self) -> Node:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def change(self, text: str) -> None:
        self.file.write_text(text)
        self.clock.advance(LOOK_S)

    def ask(self, *, user: str = "", password: str = "", context: ssl.SSLContext | None = None) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        connection = kind("127.0.0.1", self.port, timeout=30, **({"context": context} if context else {}))
        told = base64.b64encode(f"{user}:{password}".encode()).decode()
        connection.request("GET", "/", headers={"Authorization": f"Basic {told}"} if user else {})
        return connection.getresponse()


def trusting(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


def test_who_trusts_the_authority_is_answered_in_tls(folder: Path, authority: trustme.CA) -> None:
    with Node(folder, TLS % "") as node:
        response = node.ask(context=trusting(authority))

        assert (response.status, response.read()) == (200, b"hello")
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_who_comes_in_plain_http_is_told_and_counted(folder: Path) -> None:
    with Node(folder, TLS % "") as node:
        response = node.ask()

        assert (response.status, response.read()) == (400, b"this port speaks HTTPS\n")
        plain = {("tls", "plain_http"): 1}
        eventually(lambda: node.health.snapshot().errors == plain, within_s=60, what=str(plain), seen=node.health.snapshot)


@pytest.mark.parametrize(
    ("user", "password", "status"),
    [
        ("prometheus", PASSWORD, 200),
        ("prometheus", PASSWORD + "x", 401),
        ("prometheus", "", 401),
        ("prometheus", "p" * 100, 401),
        ("prometheus", "a\0b", 401),
        ("someone", PASSWORD, 401),
        ("", "", 401),
    ],
    ids=["right", "wrong", "empty", "longer than bcrypt looks", "with a NUL", "unknown", "none"],
)
def test_a_user_is_known_by_the_password_alone(folder: Path, user: str, password: str, status: int) -> None:
    with Node(folder, USERS) as node:
        answers = [node.ask(user=user, password=password) for _ in range(2)]  # the second is remembered

        assert [answer.status for answer in answers] == [status, status]
        assert all((answer.headers["WWW-Authenticate"] is not None) == (status == 401) for answer in answers)


@pytest.mark.parametrize("told", ["Bearer abc", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"no colon").decode(), "Basic /w=="])
def test_a_header_that_is_no_password_is_refused(folder: Path, told: str) -> None:
    with Node(folder, USERS) as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
        connection.request("GET", "/", headers={"Authorization": told})

        assert connection.getresponse().status == 401


def test_a_client_needs_a_certificate_of_the_right_authority_and_name(folder: Path, authority: trustme.CA, clients: trustme.CA) -> None:
    with Node(folder, MUTUAL % ", client_allowed_sans: [prometheus.example]") as node:
        known = clients.issue_cert("prometheus.example")

        assert node.ask(context=trusting(authority, known)).status == 200
        for strange in (None, clients.issue_cert("other.example"), authority.issue_cert("prometheus.example")):
            with pytest.raises((OSError, http.client.HTTPException)):
                node.ask(context=trusting(authority, strange))
        counted = {("tls", "handshake"): 2, ("tls", "client_name"): 1}  # after the client has been told, or has gone
        eventually(lambda: node.health.snapshot().errors == counted, within_s=60, what=str(counted), seen=node.health.snapshot)


def test_a_client_that_says_nothing_in_tls_does_not_keep_others_out(folder: Path, authority: trustme.CA) -> None:
    with Node(folder, TLS % "") as node:
        silent = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(40)]

        assert node.ask(context=trusting(authority)).status == 200
        for client in silent:
            client.close()


def test_a_request_that_never_ends_is_cut_off(folder: Path) -> None:
    with Node(folder, USERS, patience_s=0.5) as node, socket.create_connection(("127.0.0.1", node.port), timeout=60) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")

        # A byte now and then would keep the connection if each byte were waited for anew.
        assert is_closed(slow, sending=b"X", within_s=30.0)


def is_closed(connection: socket.socket, *, sending: bytes, within_s: float) -> bool:
    """Whether the other side ends the connection though bytes keep coming."""
    connection.settimeout(0.1)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            connection.sendall(sending)
            if not connection.recv(1000):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_a_changed_file_holds_from_the_next_request_on(folder: Path) -> None:
    with Node(folder, "basic_auth_users: {}\n") as node:
        assert node.ask().status == 200

        node.change(USERS)

        assert node.ask().status == 401
        assert node.ask(user="prometheus", password=PASSWORD).status == 200


def test_a_new_certificate_is_shown_to_the_next_client(folder: Path, authority: trustme.CA) -> None:
    other = trustme.CA()
    with Node(folder, TLS % "") as node:
        assert node.ask(context=trusting(authority)).status == 200

        write_certificate(other, folder)
        node.clock.advance(LOOK_S)

        assert node.ask(context=trusting(other)).status == 200


def test_a_file_that_has_become_bad_leaves_the_old_one_in_force_and_shows_it(folder: Path) -> None:
    with Node(folder, USERS) as node:
        node.change("basic_auth_users: [nobody\n")

        assert node.ask().status == 401
        assert node.ask(user="prometheus", password=PASSWORD).status == 200
        assert node.health.snapshot().errors == {("web_config", "invalid"): 1}
        assert "web.yml" in node.health.snapshot().latest["web_config", "invalid"]


def test_no_more_requests_are_answered_than_the_rate_allows(folder: Path) -> None:
    with Node(folder, "rate_limit: {interval: 1s, burst: 2}\n") as node:
        assert [node.ask().status for _ in range(3)] == [200, 200, 429]

        node.clock.advance(1.0)

        assert [node.ask().status for _ in range(2)] == [200, 429]
        assert node.health.snapshot().dropped == {"rate_limit": 2}


def test_headers_of_the_file_stand_in_every_answer(folder: Path) -> None:
    with Node(folder, "http_server_config: {headers: {X-Frame-Options: deny}}\n") as node:
        response = node.ask()

        assert response.headers["X-Frame-Options"] == "deny"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'"


def test_a_policy_of_the_file_stands_in_place_of_the_pages_own(folder: Path) -> None:
    with Node(folder, "http_server_config: {headers: {Content-Security-Policy: sandbox}}\n") as node:
        assert node.ask().headers.get_all("Content-Security-Policy") == ["sandbox"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls: {}", "tls: found an unknown key, expected one of basic_auth_users, http_server_config, rate_limit, tls_server_config"),
        ("tls_server_config: {cert_fle: a.pem, key_file: node.key}", "tls_server_config.cert_fle: found an unknown key, expected one of"),
        ("tls_server_config: {cert_file: node.pem}", "tls_server_config.key_file: found nothing, expected the path of a PEM file"),
        ("tls_server_config: {cert_file: gone.pem, key_file: node.key}", "gone.pem', expected a file that can be read (No such file"),
        ("tls_server_config: {cert_file: node.key, key_file: node.key}", "tls_server_config.cert_file: found a certificate and a key that"),
        (TLS % ", client_auth_type: RequireAnyClientCert", "client_auth_type: found 'RequireAnyClientCert', expected one of NoClientCert"),
        (TLS % ", client_auth_type: RequireAndVerifyClientCert", "and client_ca_file with either"),
        (TLS % ", client_ca_file: clients.pem", "client_auth_type: found 'NoClientCert', expected VerifyClientCertIfGiven or"),
        (TLS % ", client_allowed_sans: [a]", "without which client_allowed_sans holds nobody off"),
        (TLS % ", min_version: SSL3", "min_version: found 'SSL3', expected one of TLS12"),
        (TLS % ", min_version: TLS13, max_version: TLS12", "max_version: found 'TLS12', expected at least the min_version, TLS13"),
        (TLS % ", cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]", "cipher_suites[0]: found 'TLS_RSA_WITH_RC4_128_SHA', expected one of"),
        (TLS % ", curve_preferences: [X25519, CurveP256]", "expected one curve"),
        ("basic_auth_users: {a: secret}", "basic_auth_users.a: found a text that is no bcrypt hash, expected a bcrypt hash"),
        (f"basic_auth_users: {{'a:b': '{HASH}'}}", "found a name with a colon"),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}", "X-Frame-Options: found 'maybe', expected deny or sameorigin"),
        ("http_server_config: {headers: {Server: x}}", "headers.Server: found an unknown key"),
        ("rate_limit: {interval: 1s}", "rate_limit.burst: found 0, expected how many requests may come at once"),
        ("rate_limit: {interval: soon, burst: 1}", "rate_limit.interval: found 'soon', expected a duration"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(folder: Path, text: str, message: str) -> None:
    (folder / "web.yml").write_text(text)

    with pytest.raises(ConfigError) as error:
        config.web_security(str(folder / "web.yml"))

    assert str(error.value).startswith(str(folder / "web.yml"))
    assert message in str(error.value)
    assert "secret" not in str(error.value)


@pytest.fixture
def everything(folder: Path) -> Iterator[Path]:
    suites = "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], curve_preferences: [CurveP256], prefer_server_cipher_suites: false"
    text = MUTUAL % f", min_version: TLS12, max_version: TLS13, {suites}"
    text += "http_server_config: {http2: true, headers: {X-Content-Type-Options: nosniff}}\n" + USERS
    (folder / "web.yml").write_text(text)
    yield folder / "web.yml"


def test_the_format_is_that_of_prometheus(everything: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing; make programs installs it"

    said = subprocess.run([promtool, "check", "web-config", everything], capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stderr
    assert config.web_security(str(everything)).users == {"prometheus": HASH}


def test_an_expired_certificate_is_the_clients_to_refuse(folder: Path, authority: trustme.CA) -> None:
    past = datetime.now(timezone.utc) - timedelta(days=1)
    issued = authority.issue_cert("127.0.0.1", not_after=past)
    issued.private_key_pem.write_to_path(folder / "node.key")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")

    with Node(folder, TLS % "") as node, pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        node.ask(context=trusting(authority))

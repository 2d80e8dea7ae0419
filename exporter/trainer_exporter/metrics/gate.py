"""Who may ask: users and their passwords, client certificates, how many requests; by the web configuration as it stands in its file now."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from trainer_exporter.clock import Clock
from trainer_exporter.errors import ConfigError
from trainer_exporter.health import Health
from trainer_exporter.model import WebSecurity

log = logging.getLogger(__name__)

REMEMBERED: Final = 128  # answers about a user and a password: a hash costs tens of milliseconds, and a scraper comes every 15 s
LOOK_S: Final = 1.0  # between two looks at the files
# Of no password: who tries names learns nothing from how long the answer takes.
NOBODY: Final = b"$2b$10$IqPdp0VuXTOjy5Vt/hw7seWXpFGnF5c8xQeWO1vI5Y1L4.HYkJc2a"
DEFAULT_HEADERS: Final = {"X-Content-Type-Options": "nosniff"}


class Gate:
    """Decides on requests by the configuration that ``load`` gives, loaded anew when one of its files has changed.

    A file that has become unusable leaves what was known in force; that is counted (site ``web_config``) and logged.
    """

    def __init__(self, load: Callable[[], WebSecurity], *, path: str, clock: Clock, health: Health) -> None:
        self._load = load
        self._path = path
        self._clock = clock
        self._health = health
        self._lock = threading.Lock()
        self._checking = threading.Lock()  # one password at a time: hashes are no way to take a node's cores from the training
        self._answers: OrderedDict[bytes, bool] = OrderedDict()
        self._security = load()
        self._seen = self._look()
        self._looked = clock.mono()
        self._allowance, self._counted = float(self._security.burst), clock.mono()

    def security(self) -> WebSecurity:
        """What holds now."""
        with self._lock:
            if self._clock.mono() - self._looked >= LOOK_S:
                self._looked = self._clock.mono()
                self._renew()
            return self._security

    def refusal(self, headers: Message) -> HTTPStatus | None:
        """Why a request with these headers is not answered; None where it is."""
        security = self.security()
        if not self._is_in_time(security):
            self._health.drop("rate_limit")
            return HTTPStatus.TOO_MANY_REQUESTS
        if security.users and not self._is_known(security, headers.get("Authorization", "")):
            return HTTPStatus.UNAUTHORIZED
        return None

    def headers(self) -> Mapping[str, str]:
        """What every response carries."""
        return {**DEFAULT_HEADERS, **self.security().headers}

    def admits(self, connection: ssl.SSLSocket) -> bool:
        """Whether the client's certificate, which has been verified, bears an allowed name."""
        allowed = self.security().allowed_sans
        certificate: dict[str, Any] = connection.getpeercert() or {}
        return not allowed or any(name in allowed for _, name in certificate.get("subjectAltName", ()))

    def _renew(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._security = self._load()
        except ConfigError as error:
            self._health.count("web_config", "invalid", detail=str(error))
            log.error("the web configuration stays as it was: %s", error)
            return
        self._answers.clear()
        self._seen = self._look()
        log.info("the web configuration has been read again")

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(map(_state, (self._path, *self._security.files)))

    def _is_in_time(self, security: WebSecurity) -> bool:
        """A bucket of ``burst`` requests, refilled by one every ``interval``."""
        if not security.interval_s:
            return True
        with self._lock:
            now = self._clock.mono()
            self._allowance = min(security.burst, self._allowance + (now - self._counted) / security.interval_s)
            self._counted = now
            if self._allowance < 1:
                return False
            self._allowance -= 1
            return True

    def _is_known(self, security: WebSecurity, authorization: str) -> bool:
        name, password = _credentials(authorization)
        if name is None:
            return False
        hashed = security.users.get(name, "").encode() or NOBODY
        key = hashlib.sha256(b"\0".join((name.encode(), hashed, password))).digest()
        with self._checking:
            known = self._answers.get(key)
            if known is None:
                known = _matches(password, hashed) and name in security.users
                self._answers[key] = known
                if len(self._answers) > REMEMBERED:
                    self._answers.popitem(last=False)
            else:
                self._answers.move_to_end(key)
        return known


def _state(path: str) -> tuple[int, int, int]:
    try:
        seen = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _credentials(authorization: str) -> tuple[str | None, bytes]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, b""
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode() if colon else None), password
    except (binascii.Error, ValueError):
        return None, b""


def _matches(password: bytes, hashed: bytes) -> bool:
    """bcrypt looks at 72 bytes of a password; a longer one, or one with a NUL, is nobody's."""
    import bcrypt

    if len(password) > 72 or b"\0" in password:
        return False
    return hmac.compare_digest(bcrypt.hashpw(password, hashed), hashed)

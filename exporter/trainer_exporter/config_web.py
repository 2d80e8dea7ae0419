"""The web configuration, in the format of Prometheus's exporter-toolkit: TLS, client certificates, users, headers, rate limit.

What that format can say and OpenSSL under Python cannot do is refused, never passed over: a half-kept security setting is none.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trainer_exporter.config_section import Section
from trainer_exporter.errors import ConfigError
from trainer_exporter.model import WebSecurity

VERSIONS: Final = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS10": ssl.TLSVersion.TLSv1,
}
# Go's names of the suites up to TLS 1.2 that it counts as safe -> OpenSSL's. Those of TLS 1.3 cannot be chosen, in Go neither.
SUITES: Final = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{short}"
    for exchange in ("ECDHE_RSA", "ECDHE_ECDSA")
    for cipher, short in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
CURVES: Final = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
CLIENTS: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
HEADERS: Final = (
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
)
BCRYPT: Final = re.compile(r"\$2[abxy]?\$\d\d\$[./A-Za-z0-9]{53}")
TLS_KEYS: Final = (
    *("cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans", "min_version", "max_version"),
    *("cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
)


def security(root: Section, *, directory: Path) -> WebSecurity:
    """What the file says, certificates loaded; names of files are relative to ``directory``. ConfigError where it cannot be kept."""
    tls, http, rate = (root.section(name) for name in ("tls_server_config", "http_server_config", "rate_limit"))
    for section, known in ((tls, TLS_KEYS), (http, ("http2", "headers")), (rate, ("interval", "burst"))):
        section.finish(known)
    files = {name: _file(tls, name, directory) for name in ("cert_file", "key_file", "client_ca_file") if tls.has(name)}
    http.boolean("http2", default=True)  # HTTP/1.1 is spoken either way, which every client of an HTTP/2 server can do
    found = WebSecurity(
        context=_context(tls, files) if any(tls.has(name) for name in TLS_KEYS) else None,
        allowed_sans=frozenset(tls.texts("client_allowed_sans")),
        users=_users(root),
        headers=_headers(http.section("headers")),
        interval_s=0.0 if rate.raw("interval") in (0, "0") else rate.duration("interval", 0.0, minimum=0.001),
        burst=rate.whole("burst", 0, minimum=0),
        files=tuple(map(str, files.values())),
    )
    if found.interval_s and not found.burst:
        raise rate.error("burst", found.burst, "how many requests may come at once, 1 or more: with none, nobody is ever answered")
    root.finish(("tls_server_config", "http_server_config", "rate_limit", "basic_auth_users"))
    return found


def _file(section: Section, name: str, directory: Path) -> Path:
    path = directory / section.text(name, required=True)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise section.told(name, repr(str(path)), f"a file that can be read ({error.strerror})") from error


def _context(tls: Section, files: Mapping[str, Path]) -> ssl.SSLContext:
    for name in ("cert_file", "key_file"):
        if name not in files:
            raise tls.error(name, None, "the path of a PEM file: where anything of TLS is configured, TLS is spoken")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _set_versions(context, tls)
    _set_ciphers(context, tls)
    try:
        context.load_cert_chain(files["cert_file"], files["key_file"], password=lambda: b"")  # asks nobody for one
    except (OSError, ValueError) as error:
        raise tls.told(
            "cert_file", f"a certificate and a key that cannot be used ({_reason(error)})", "PEM files that belong together"
        ) from error
    _ask_clients(context, tls, files.get("client_ca_file"))
    return context


def _set_versions(context: ssl.SSLContext, tls: Section) -> None:
    lowest, highest = tls.choice("min_version", tuple(VERSIONS)), tls.choice("max_version", ("TLS13", *VERSIONS))
    if VERSIONS[lowest] > VERSIONS[highest]:
        raise tls.error("max_version", highest, f"at least the min_version, {lowest}")
    context.minimum_version, context.maximum_version = VERSIONS[lowest], VERSIONS[highest]


def _set_ciphers(context: ssl.SSLContext, tls: Section) -> None:
    if suites := _known(tls, "cipher_suites", SUITES):
        context.set_ciphers(":".join(suites))
    if curves := _known(tls, "curve_preferences", CURVES):
        if len(curves) > 1:
            raise tls.error(
                "curve_preferences", tls.raw("curve_preferences"), "one curve (Python's ssl takes no list), or none for OpenSSL's own"
            )
        context.set_ecdh_curve(curves[0])
    if tls.boolean("prefer_server_cipher_suites", default=True):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE


def _known(tls: Section, name: str, names: Mapping[str, str]) -> Sequence[str]:
    for at, one in enumerate(tls.texts(name)):
        if one not in names:
            raise tls.error(f"{name}[{at}]", one, "one of " + ", ".join(names))
    return [names[one] for one in tls.texts(name)]


def _ask_clients(context: ssl.SSLContext, tls: Section, authority: Path | None) -> None:
    """A certificate that is asked for and not verified protects from nobody, and Python's ssl cannot do it."""
    policy = tls.choice("client_auth_type", tuple(CLIENTS))
    if tls.has("client_allowed_sans") and policy != "RequireAndVerifyClientCert":
        raise tls.error("client_auth_type", policy, "RequireAndVerifyClientCert, without which client_allowed_sans holds nobody off")
    if (policy == "NoClientCert") != (authority is None):
        expected = "VerifyClientCertIfGiven or RequireAndVerifyClientCert where client_ca_file is given, and client_ca_file with either"
        raise tls.error("client_auth_type", policy, expected)
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise tls.told("client_ca_file", f"no certificate ({_reason(error)})", "a PEM file of certificates") from error
    context.verify_mode = CLIENTS[policy]


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def _users(root: Section) -> Mapping[str, str]:
    users = root.mapping("basic_auth_users")
    for name, hashed in users.items():
        if ":" in name:
            raise ConfigError(root.file, f"basic_auth_users.{name}", found="a name with a colon", expected="a name without one (RFC 7617)")
        if not BCRYPT.fullmatch(hashed):  # which is not shown: it may be the password itself
            expected = 'a bcrypt hash, as `htpasswd -nBC 10 ""` makes it'
            raise ConfigError(root.file, f"basic_auth_users.{name}", found="a text that is no bcrypt hash", expected=expected)
    if users:
        _require_bcrypt(root.file)
    return users


def _require_bcrypt(file: str) -> None:
    try:
        import bcrypt  # noqa: F401 - only whether it is there
    except ImportError as error:
        expected = "the package bcrypt: pip install 'trainer-exporter[basic-auth]'"
        raise ConfigError(file, "basic_auth_users", found="users, and no way to check their passwords", expected=expected) from error


def _headers(section: Section) -> Mapping[str, str]:
    headers = {name: section.text(name) for name in HEADERS if section.has(name)}
    for name, allowed in (("X-Frame-Options", ("deny", "sameorigin")), ("X-Content-Type-Options", ("nosniff",))):
        if name in headers and headers[name].lower() not in allowed:
            raise section.error(name, headers[name], " or ".join(allowed))
    for name, text in headers.items():
        if not text.isprintable():
            raise section.error(name, text, "one line of printable characters")
    section.finish(HEADERS)
    return headers

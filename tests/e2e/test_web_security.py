"""The daemon behind TLS and a password, scraped by the real Prometheus: by one that may, and by those that may not."""

from __future__ import annotations

import urllib.error
from datetime import datetime, timedelta, timezone
from pathlib import Path

import bcrypt
import pytest
import trustme
import yaml

from daemon import Daemon
from stack import eventually, prometheus

pytestmark = pytest.mark.e2e

PASSWORD = "c0rrect horse"


class Guarded(Daemon):
    """A daemon that does not answer the test's plain questions: it is up when it says who may not ask."""

    def is_ready(self) -> bool:
        try:
            self.get("/-/ready")
        except urllib.error.HTTPError as error:
            return error.code == 400
        except OSError:
            return False
        return False


def write_node(folder: Path, authority: trustme.CA, *, until: datetime | None = None) -> Path:
    """The web configuration of a node, with its certificate."""
    folder.mkdir()
    issued = authority.issue_cert("127.0.0.1", not_after=until)
    issued.private_key_pem.write_to_path(folder / "node.key")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    settings = {"tls_server_config": {"cert_file": "node.pem", "key_file": "node.key"}, "basic_auth_users": {"prometheus": hashed}}
    (folder / "web.yml").write_text(yaml.safe_dump(settings))
    return folder / "web.yml"


def job(name: str, port: int, **settings: object) -> dict[str, object]:
    return {"job_name": name, "scheme": "https", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}], **settings}


def test_only_who_may_scrapes_the_daemon(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    good = write_node(tmp_path / "good", authority)
    expired = write_node(tmp_path / "expired", authority, until=datetime.now(timezone.utc) - timedelta(days=1))
    flags = ("--no-gpu", str(tmp_path / "logs"))
    with (
        Guarded(*flags, f"--web.config.file={good}", log=tmp_path / "a.log") as node,
        Guarded(*flags, f"--web.config.file={expired}", log=tmp_path / "b.log") as old,
    ):
        user = {"username": "prometheus", "password": PASSWORD}
        trust = {"ca_file": str(tmp_path / "ca.pem")}
        jobs = [
            job("right", node.port, basic_auth=user, tls_config=trust),
            job("wrong password", node.port, basic_auth={**user, "password": "wrong"}, tls_config=trust),
            job("no password", node.port, tls_config=trust),
            job("unknown authority", node.port, basic_auth=user),
            job("plain HTTP", node.port, basic_auth=user) | {"scheme": "http"},
            job("expired certificate", old.port, basic_auth=user, tls_config=trust),
        ]
        config = yaml.safe_dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs})

        with prometheus(tmp_path / "prometheus", config) as server:
            eventually(lambda: server.query('up{job="right"} == 1'), within_s=60, what="the one that may")
            eventually(lambda: len(server.query("count_over_time(up[5m]) > 2")) == len(jobs), within_s=60, what="every job three times")
            answered = {one["metric"]["job"] for one in server.query("max_over_time(up[5m]) == 1")}

        assert answered == {"right"}

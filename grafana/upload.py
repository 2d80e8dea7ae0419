"""Puts the dashboards into a Grafana that is there already: ``python grafana/upload.py http://GRAFANA:3000 [--prometheus URL]``.

GRAFANA_TOKEN holds a token of a service account that may edit (and create data sources, for --prometheus), or the address holds user and
password. Run again it replaces what it put there; links and bookmarks stay, because uids do.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

BUILT = Path(__file__).resolve().parent / "dashboards"
FOLDER = {"uid": "trainer-exporter", "title": "Training"}
ALREADY_THERE = frozenset({409, 412})
TIMEOUT_S = 30


class Grafana:
    """A Grafana by its HTTP API; every failure ends the program with what was said."""

    def __init__(self, address: str, token: str) -> None:
        parts = urlsplit(address)
        host = parts.hostname or ""
        self._base = urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path.rstrip("/"), "", ""))
        self._authorization = f"Bearer {token}"
        if parts.username:
            told = f"{parts.username}:{parts.password or ''}"
            self._authorization = f"Basic {base64.b64encode(told.encode()).decode()}"

    def post(self, path: str, what: dict[str, Any], *, may_exist: bool = False) -> dict[str, Any]:
        """The answer; empty where the thing ``may_exist`` and does."""
        headers = {"Content-Type": "application/json", "Authorization": self._authorization}
        request = urllib.request.Request(f"{self._base}{path}", json.dumps(what).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if may_exist and error.code in ALREADY_THERE:
                return {}
            sys.exit(f"{self._base}{path}: {error.code} {error.read().decode(errors='replace')[:300]}")
        except OSError as error:
            sys.exit(f"{self._base}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grafana", help="its address, such as http://localhost:3000 or http://admin:admin@localhost:3000")
    parser.add_argument("--prometheus", help="also make a data source of the Prometheus at this address, as Grafana reaches it")
    asked = parser.parse_args()
    grafana = Grafana(asked.grafana, os.environ.get("GRAFANA_TOKEN", ""))
    if asked.prometheus:
        settings = {"timeInterval": "15s", "httpMethod": "POST"}
        source = {"name": "trainer-exporter", "type": "prometheus", "access": "proxy", "url": asked.prometheus, "jsonData": settings}
        grafana.post("/api/datasources", source, may_exist=True)
    grafana.post("/api/folders", FOLDER, may_exist=True)
    for path in sorted(BUILT.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        put = grafana.post("/api/dashboards/db", {"dashboard": dashboard, "folderUid": FOLDER["uid"], "overwrite": True})
        sys.stdout.write(f"{dashboard['title']}: {put.get('url', '')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

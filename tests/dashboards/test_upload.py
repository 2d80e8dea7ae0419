"""grafana/upload.py against a web server that answers as Grafana's API does."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from boards import PATHS, REPOSITORY


class Api:
    """What was posted, by path; the folder is there already, and a token is asked for."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, dict[str, Any]]] = []
        self.url = ""

    def answer(self, path: str, authorization: str, body: dict[str, Any]) -> int:
        self.posted.append((path, authorization, body))
        return 401 if authorization == "Bearer " else 412 if path == "/api/folders" else 200


@pytest.fixture
def grafana() -> Iterator[Api]:
    api = Api()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(api.answer(self.path, self.headers["Authorization"], body))
            self.end_headers()
            self.wfile.write(b'{"url": "/d/x"}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield api
    server.shutdown()
    thread.join()
    server.server_close()


def upload(*arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")} | {"GRAFANA_TOKEN": token}
    command = [sys.executable, REPOSITORY / "grafana" / "upload.py", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_every_dashboard_is_put_into_the_folder_and_replaces_the_one_before(grafana: Api) -> None:
    done = upload(f"http://{grafana.url}/", token="secret")

    put = [body for path, _, body in grafana.posted if path == "/api/dashboards/db"]
    assert done.returncode == 0, done.stderr
    assert [body["dashboard"]["uid"] for body in put] == [f"trainer-{path.stem}" for path in PATHS]
    assert {(body["folderUid"], body["overwrite"]) for body in put} == {("trainer-exporter", True)}
    assert {authorization for _, authorization, _ in grafana.posted} == {"Bearer secret"}


def test_a_data_source_is_made_where_one_is_asked_for_and_user_and_password_stay_out_of_what_is_said(grafana: Api) -> None:
    done = upload(f"http://ada:secret@{grafana.url}", "--prometheus", "http://prometheus:9090")

    ((path, authorization, source), *_) = grafana.posted
    assert (path, source["type"], source["url"]) == ("/api/datasources", "prometheus", "http://prometheus:9090")
    assert authorization.startswith("Basic ")
    assert "secret" not in done.stdout + done.stderr


def test_a_refusal_ends_it_with_what_grafana_said(grafana: Api) -> None:
    done = upload(f"http://{grafana.url}")

    assert done.returncode == 1
    assert "/api/folders: 401" in done.stderr
    assert len(grafana.posted) == 1

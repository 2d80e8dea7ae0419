"""The composition root, as far as it can be seen without a process of its own."""

from __future__ import annotations

import urllib.request

from trainer_exporter.app import App
from trainer_exporter.config import Config, parse

ALONE = """
sources: []
gpu: {enabled: false}
evidence: {enabled: false}
web: {listen_address: "127.0.0.1:0"}
"""


def test_a_reload_that_fails_for_a_reason_nobody_foresaw_leaves_everything_as_it_was() -> None:
    def load() -> Config:
        raise MemoryError("no room for the new configuration")

    app = App(parse(ALONE, file="c.yml"), reload=load)
    app.start()
    try:
        done = app.reload()

        with urllib.request.urlopen(f"http://127.0.0.1:{app.port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert not done
        assert "\ntrainer_exporter_config_last_reload_successful 0.0\n" in page
        assert 'trainer_exporter_errors_total{reason="MemoryError",site="reload"} 1.0' in page
        assert app.is_alive
    finally:
        app.stop()

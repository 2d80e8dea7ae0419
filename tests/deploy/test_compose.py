"""deploy/compose: what it mounts is there, what it starts is pinned, and each finds the others where the shipped files say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer_exporter import config

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "compose"
PROJECT = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = PROJECT["services"]


def by_default(text: str) -> str:
    """With the default of each variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts(service: str) -> dict[str, str]:
    """Places within the container, and what is mounted there."""
    pairs = (by_default(volume).split(":")[:2] for volume in SERVICES[service].get("volumes", []))
    return {inside: outside for outside, inside in pairs}


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_mounted_is_in_the_repository_or_a_volume_or_of_the_host(service: str) -> None:
    outside = mounts(service).values()

    missing = [path for path in outside if path.startswith(".") and not (FOLDER / path).exists()]
    unknown = [path for path in outside if not path.startswith((".", "/")) and path not in PROJECT["volumes"]]

    assert missing == []
    assert unknown == []


@pytest.mark.parametrize("service", SERVICES)
def test_each_image_is_built_here_or_has_a_version(service: str) -> None:
    image = SERVICES[service]["image"]

    assert "build" in SERVICES[service] or re.search(r":v?\d+\.\d+", image), image


def test_the_shipped_configuration_of_prometheus_finds_its_rules_in_the_container() -> None:
    (named,) = [argument for argument in SERVICES["prometheus"]["command"] if argument.startswith("--config.file=")]
    inside = Path(named.removeprefix("--config.file="))
    mounted = mounts("prometheus")
    shipped = FOLDER / mounted[str(inside.parent)] / inside.name

    (pattern,) = yaml.safe_load(shipped.read_text(encoding="utf-8"))["rule_files"]

    rules = Path("/".join((str(inside.parent), pattern))).parent
    parts: list[str] = []
    for part in rules.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    assert list((FOLDER / mounted[str(Path(*parts))]).glob("*.yml"))


def test_all_share_the_hosts_network_and_answer_on_this_machine_alone() -> None:
    listening = {
        name: [
            by_default(text)
            for text in (*service.get("command", []), *(f"{key}={value}" for key, value in service.get("environment", {}).items()))
            if "BIND" in text
        ]
        for name, service in SERVICES.items()
    }

    assert {service["network_mode"] for service in SERVICES.values()} == {"host"}
    assert all(any("127.0.0.1" in text for text in texts) for texts in listening.values()), listening


def test_grafana_is_provisioned_with_the_built_dashboards_and_the_source_of_the_project() -> None:
    mounted = mounts("grafana")
    provider = yaml.safe_load((FOLDER / mounted["/etc/grafana/provisioning"] / "dashboards" / "trainer-exporter.yml").read_text())
    path = provider["providers"][0]["options"]["path"]

    boards = list((FOLDER / mounted[path]).glob("*.json"))
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert Path(home).parent == Path(path)
    assert Path(home).name in {board.name for board in boards}
    assert "PROMETHEUS_URL" in SERVICES["grafana"]["environment"]


def test_the_exporters_configuration_loads() -> None:
    loaded = config.load(FOLDER / "config.yml")

    assert [source.path for source in loaded.sources] == ["/data/runs"]

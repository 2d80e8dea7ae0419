"""The shipped configurations of Prometheus: promtool takes them, and exporters are found under their node's name, by the rules' job."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
CONFIGURATIONS = sorted(path for path in FOLDER.glob("*.yml"))
RULES = Path(__file__).parents[2] / "alertmanager" / "rules" / "exporter.yml"


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_promtool_takes_it(path: Path, tmp_path: Path) -> None:
    checked = check(path)
    if "field kubernetes_sd_configs not found" in checked.stdout + checked.stderr:
        # Debian builds Prometheus without Kubernetes: then all but that key is checked.
        loaded = yaml.safe_load(path.read_text())
        for job in loaded["scrape_configs"]:
            assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["trainer-exporter"]}}]
        path = tmp_path / path.name
        path.write_text(yaml.safe_dump(loaded))
        checked = check(path)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def check(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_the_rules_find_exporters_by_its_job(path: Path) -> None:
    (wanted,) = set(re.findall(r'up\{job=~"([^"]+)"\}', RULES.read_text()))

    jobs = [job["job_name"] for job in yaml.safe_load(path.read_text())["scrape_configs"]]

    assert [job for job in jobs if re.fullmatch(wanted, job)] == ["trainer-exporter"]


@pytest.mark.parametrize(
    ("file", "address", "instance"),
    [
        pytest.param("prometheus.yml", "localhost:19400", "localhost", id="a machine"),
        pytest.param("file_sd.yml", "node-1:19400", "node-1", id="a short name"),
        pytest.param("file_sd.yml", "node-2.gpu.example.org:19400", "node-2", id="a long name"),
        pytest.param("http_sd.yml", "node-3.gpu.example.org:19400", "node-3", id="from an inventory"),
    ],
)
def test_instance_is_the_name_of_the_node(file: str, address: str, instance: str) -> None:
    (job,) = [job for job in yaml.safe_load((FOLDER / file).read_text())["scrape_configs"] if job["job_name"] == "trainer-exporter"]

    (relabelling,) = job["relabel_configs"]

    assert (relabelling["source_labels"], relabelling["target_label"]) == (["__address__"], "instance")
    match = re.fullmatch(relabelling["regex"], address)
    assert match is not None
    assert match[1] == instance


def test_in_kubernetes_too() -> None:
    (job,) = yaml.safe_load((FOLDER / "kubernetes_sd.yml").read_text())["scrape_configs"]

    labels = {one.get("target_label"): one["source_labels"] for one in job["relabel_configs"]}

    assert labels["instance"] == ["__meta_kubernetes_pod_node_name"]
    assert "pod" not in labels


def test_everything_is_scraped_every_fifteen_seconds() -> None:
    for path in CONFIGURATIONS:
        loaded = yaml.safe_load(path.read_text())
        overall = loaded.get("global", {}).get("scrape_interval")
        assert {job.get("scrape_interval", overall) for job in loaded["scrape_configs"]} == {"15s"}, path.name

"""The chart through Helm's own engine, and what comes out of it through the schemas and programs that it is for."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trainer_exporter import config

helm = pytest.importorskip("helm_python", reason="Helm's engine comes with the extra dev")

REPOSITORY = Path(__file__).parents[2]
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
RULES = sorted((REPOSITORY / "alertmanager" / "rules").glob("*.yml"))
DASHBOARDS = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))


def _build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kubernetes_build", KUBERNETES / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _build()

EVERYTHING: Mapping[str, Any] = {
    "image": {"repository": "example.org/trainer-exporter", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "config": {"sources": [{"path": "/shared/*/train.log", "labels": {"team": "nlp"}}], "gpu": {"metrics": False}},
    "extraArgs": ["--log.format=json"],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "shared", "hostPath": {"path": "/shared"}}],
    "extraVolumeMounts": [{"name": "shared", "mountPath": "/shared", "readOnly": True}],
    "priorityClassName": "system-node-critical",
    "podLabels": {"team": "sre"},
    "podAnnotations": {"note": "x"},
    "affinity": {"nodeAffinity": {}},
    "security": {"kernelLog": True, "seLinuxType": "spc_t"},
    "hostPaths": {"docker": "/var/lib/docker/containers"},
    "serviceAccount": {"annotations": {"a": "b"}},
    "networkPolicy": {"egress": [{"to": [{"podSelector": {"matchLabels": {"app": "mlflow"}}}]}]},
    "podMonitor": {"labels": {"release": "monitoring"}},
    "prometheusRule": {"labels": {"release": "monitoring"}, "exclude": ["watchdog"]},
    "alertmanagerConfig": {
        "enabled": True,
        "receivers": {"page": {"pagerdutyConfigs": [{"routingKey": {"name": "pager", "key": "k"}, "severity": "critical"}]}},
    },
    "dashboards": {"annotations": {"grafana_folder": "Training"}},
}


def objects(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """What the chart makes of these values, but for the rules and dashboards: they are long."""
    quick = {"dashboards": {"enabled": False}, "prometheusRule": {"enabled": False}, **(values or {})}
    return [one for text in build.rendered(quick).values() for one in yaml.safe_load_all(text) if one]


def of_kind(kind: str, among: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in among if one["kind"] == kind]


@pytest.fixture(scope="module")
def shipped() -> list[dict[str, Any]]:
    """What stands in manifests/."""
    return [one for path in (KUBERNETES / "manifests").glob("*.yaml") for one in yaml.safe_load_all(path.read_text()) if one]


def test_helm_has_nothing_to_say_against_it() -> None:
    report = helm.lint(KUBERNETES / "chart", strict=True)

    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "version"),
    [
        pytest.param({}, "1.30", id="as it is, where the field for AppArmor is new"),
        pytest.param({}, kubernetes_validate.latest_version(), id="as it is, newest"),
        pytest.param({"security": {"appArmorProfile": ""}, "runtimeClassName": "", "nodeSelector": {}}, "1.25", id="an old cluster"),
        pytest.param(EVERYTHING, kubernetes_validate.latest_version(), id="everything set"),
    ],
)
def test_kubernetes_takes_what_it_makes(values: Mapping[str, Any], version: str) -> None:
    own = [one for one in objects(values) if not one["apiVersion"].startswith("monitoring.coreos.com/")]

    assert {"DaemonSet", "ConfigMap", "ServiceAccount", "NetworkPolicy"} == {one["kind"] for one in own}
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)


def test_kubernetes_refuses_a_key_that_it_does_not_know() -> None:
    (daemonset,) = of_kind("DaemonSet", objects())
    daemonset["spec"]["template"]["spec"]["hostPid"] = True

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemonset, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({"imagee": {}}, "imagee", id="a key that nobody knows"),
        pytest.param({"port": "19400"}, "port", id="a text for a number"),
        pytest.param({"security": {"capabilities": ["CAP_SYS_PTRACE"]}}, "capabilities", id="a capability with its prefix"),
        pytest.param({"podMonitor": {"interval": "15"}}, "interval", id="a duration without its unit"),
        pytest.param({"image": {"digest": "latest"}}, "digest", id="a digest that is none"),
        pytest.param({"networkPolicy": {"from": []}}, "from", id="a policy that lets everybody in"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        build.rendered(values)


def test_the_exporter_takes_the_configuration_from_its_config_map() -> None:
    maps = of_kind("ConfigMap", objects(EVERYTHING))

    (text,) = [one["data"]["config.yml"] for one in maps if "config.yml" in one["data"]]

    loaded = config.parse(text, file="config.yml")
    assert [source.path for source in loaded.sources] == ["/shared/*/train.log"]
    assert loaded.gpu.metrics is False


def test_a_changed_configuration_rolls_the_pods() -> None:
    before, after = (of_kind("DaemonSet", objects({"config": {"gpu": {"enabled": one}}}))[0] for one in (True, False))

    checksums = {one["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for one in (before, after)}

    assert len(checksums) == 2


def test_nothing_of_the_node_can_be_written() -> None:
    (daemonset,) = of_kind("DaemonSet", objects({"hostPaths": {"docker": "/var/lib/docker/containers"}}))
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == []
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}


def test_the_manifests_are_what_the_chart_makes() -> None:
    on_disk = {path.name: path.read_text() for path in (KUBERNETES / "manifests").glob("*.yaml") if path.name != "namespace.yaml"}

    assert on_disk == build.manifests(), "run deploy/kubernetes/build.py"
    assert (KUBERNETES / "chart" / "files" / "alertmanager.yaml").read_text() == build.routes(), "run deploy/kubernetes/build.py"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_rule_file_is_a_prometheus_rule(path: Path, shipped: list[dict[str, Any]]) -> None:
    name = f"trainer-exporter-{path.stem.replace('_', '-')}"

    (rule,) = [one for one in of_kind("PrometheusRule", shipped) if one["metadata"]["name"] == name]

    assert rule["spec"] == yaml.safe_load(path.read_text())


def test_no_rule_is_shipped_that_has_no_file(shipped: list[dict[str, Any]]) -> None:
    assert len(of_kind("PrometheusRule", shipped)) == len(RULES)
    assert build.rendered({"prometheusRule": {"exclude": ["watchdog"]}})["prometheusrule"].count("kind: PrometheusRule") == len(RULES) - 1


def test_dashboards_reach_the_sidecar_as_they_are() -> None:
    maps = [one for one in of_kind("ConfigMap", objects({"dashboards": {}})) if one["metadata"]["labels"].get("grafana_dashboard") == "1"]

    found = {name.removeprefix("trainer-"): json.loads(text) for one in maps for name, text in one["data"].items()}

    assert found == {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
    assert max(len(json.dumps(one)) for one in maps) < 1 << 20  # etcd takes no more


# -- Alertmanager

_CAMEL = {"groupBy": "group_by", "groupWait": "group_wait", "groupInterval": "group_interval", "repeatInterval": "repeat_interval"}


def _matchers(given: list[Mapping[str, str]]) -> list[str]:
    return [f'{one["name"]}{one["matchType"]}"{one["value"]}"' for one in given]


def _route(given: Mapping[str, Any]) -> dict[str, Any]:
    """As prometheus-operator writes a route into Alertmanager's file; KeyError for a key that it does not know."""
    own = {"receiver": "receiver", "matchers": "matchers", "routes": "routes", "continue": "continue"}
    known = {**_CAMEL, **own, "muteTimeIntervals": "mute_time_intervals"}
    made = {known[key]: value for key, value in given.items()}
    if "matchers" in made:
        made["matchers"] = _matchers(made["matchers"])
    if "routes" in made:
        made["routes"] = [_route(child) for child in made["routes"]]
    return made


def as_alertmanager(spec: Mapping[str, Any]) -> dict[str, Any]:
    """An AlertmanagerConfig, with the matcher strategy None, as a file of Alertmanager."""
    inhibitions = [
        {"source_matchers": _matchers(one["sourceMatch"]), "target_matchers": _matchers(one["targetMatch"]), "equal": one["equal"]}
        for one in spec["inhibitRules"]
    ]
    times = {"startTime": "start_time", "endTime": "end_time", "timeIntervals": "time_intervals", "daysOfMonth": "days_of_month"}

    def interval(given: Any) -> Any:
        if isinstance(given, dict):
            return {times.get(key, key): interval(value) for key, value in given.items()}
        return [interval(one) for one in given] if isinstance(given, list) else given

    return {
        "route": _route(spec["route"]),
        "inhibit_rules": inhibitions,
        "receivers": [{"name": one["name"]} for one in spec["receivers"]],
        "time_intervals": interval(spec.get("muteTimeIntervals", [])),
    }


def label_sets() -> Iterator[str]:
    for severity in ("critical", "warning", "info"):
        yield f"alertname=GpuLost severity={severity} instance=node-1"
        yield f"alertname=TrainingStalled severity={severity} run=llama"
        yield f"alertname=TrainingStalled severity={severity} run=llama page=no"
        yield f"alertname=TrainerExporterDown severity={severity} instance=node-1"
    yield "alertname=Watchdog severity=none"


def test_alerts_go_where_they_go_without_the_operator(tmp_path: Path, shipped: list[dict[str, Any]]) -> None:
    (resource,) = of_kind("AlertmanagerConfig", shipped)
    converted = tmp_path / "alertmanager.yml"
    converted.write_text(yaml.safe_dump(as_alertmanager(resource["spec"])))

    own = {labels: routed(converted, labels) for labels in label_sets()}

    plain = REPOSITORY / "alertmanager" / "alertmanager.yml"
    assert own == {labels: build.RECEIVERS[routed(plain, labels)] for labels in label_sets()}
    assert as_alertmanager(resource["spec"])["time_intervals"] == yaml.safe_load(plain.read_text()).get("time_intervals", [])
    assert set(own.values()) == {"page", "ticket", "watchdog", "nobody"}


def test_a_cause_silences_the_same_symptoms(shipped: list[dict[str, Any]]) -> None:
    (resource,) = of_kind("AlertmanagerConfig", shipped)

    plain = yaml.safe_load((REPOSITORY / "alertmanager" / "alertmanager.yml").read_text())

    assert as_alertmanager(resource["spec"])["inhibit_rules"] == plain["inhibit_rules"]


def routed(file: Path, labels: str) -> str:
    """The receiver that an alert reaches."""
    command = ["amtool", "config", "routes", "test", f"--config.file={file}", *labels.split()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

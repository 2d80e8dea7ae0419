"""Builds what is derived: the routes of Alertmanager in the operator's form for the chart, and plain manifests from the chart.

Run it after a change of the chart, of alertmanager/ or of the rules; with --check it changes nothing and fails where a file is outdated.
Rules, templates and dashboards need no copy: the chart holds links to them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
CHART, MANIFESTS = HERE / "chart", HERE / "manifests"
ALERTMANAGER = HERE.parents[1] / "alertmanager" / "alertmanager.yml"

NAMESPACE = "trainer-exporter"
# Which objects go into which file; dashboards are one command from their own files, see the README.
FILES: Mapping[str, Sequence[str]] = {
    "exporter.yaml": ("serviceaccount", "configmap", "daemonset", "networkpolicy"),
    "prometheus-operator.yaml": ("podmonitor", "prometheusrule"),
    "alertmanager-config.yaml": ("alertmanagerconfig",),
}
MADE = "# Made by deploy/kubernetes/build.py from the chart; edit that.\n"
# The receivers of alertmanager.yml by what they are for. The operator's take their secrets from Secrets: they stand in the chart's values.
RECEIVERS = {"page-webhook": "page", "ticket-webhook": "ticket", "watchdog-webhook": "watchdog", "nobody": "nobody"}
_MATCHER = re.compile(r'(?P<name>\w+)(?P<kind>=~|!~|!=|=)"(?P<value>.*)"')


def matcher(text: str) -> dict[str, str]:
    """A matcher such as ``run=~".+"`` as an object."""
    found = _MATCHER.fullmatch(text)
    if found is None:
        raise ValueError(f"{ALERTMANAGER}: found the matcher {text!r}, expected NAME, =, !=, =~ or !~, and a value in double quotes")
    return {"name": found["name"], "matchType": found["kind"], "value": found["value"]}


def route(node: Mapping[str, Any]) -> dict[str, Any]:
    """A route with all below it in the operator's form."""
    converted: dict[str, Any] = {}
    for key, value in node.items():
        if key == "matchers":
            converted[key] = [matcher(text) for text in value]
        elif key == "routes":
            converted[key] = [route(child) for child in value]
        elif key == "receiver":
            converted[key] = RECEIVERS[value]
        else:
            converted[camel(key)] = value
    return converted


def inhibition(rule: Mapping[str, Any]) -> dict[str, Any]:
    """An inhibition in the operator's form."""
    return {
        "sourceMatch": [matcher(text) for text in rule["source_matchers"]],
        "targetMatch": [matcher(text) for text in rule["target_matchers"]],
        "equal": rule["equal"],
    }


def interval(given: Any) -> Any:
    """A time interval in the operator's form: the same, but for its keys."""
    if isinstance(given, dict):
        return {camel(key): interval(value) for key, value in given.items()}
    return [interval(one) for one in given] if isinstance(given, list) else given


def camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def routes() -> str:
    """Route and inhibitions of alertmanager.yml for the AlertmanagerConfig."""
    loaded = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))
    spec: dict[str, Any] = {"route": route(loaded["route"]), "inhibitRules": [inhibition(rule) for rule in loaded["inhibit_rules"]]}
    if "time_intervals" in loaded:
        spec["muteTimeIntervals"] = interval(loaded["time_intervals"])
    made = "# Made by deploy/kubernetes/build.py from alertmanager/alertmanager.yml; edit that.\n"
    return made + yaml.safe_dump(spec, sort_keys=False, width=140)


def rendered(values: Mapping[str, Any] | None = None, *, release: str = "trainer-exporter") -> dict[str, str]:
    """What Helm's engine makes of the chart, by name of the template; HelmError where it refuses the values."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values or {}))
        made = chart.render(dict(values or {}), name=release, namespace=NAMESPACE)
    return {Path(path).stem: text.strip() for path, text in made.items() if path.endswith(".yaml") and text.strip()}


def manifests() -> dict[str, str]:
    """The plain manifests, by file name. Labels that only say who manages an object are Helm's."""
    made = rendered({"alertmanagerConfig": {"enabled": True}})
    texts = {name: "\n---\n".join(made[template].removeprefix("---\n") for template in templates) for name, templates in FILES.items()}
    return {name: MADE + re.sub(r"(?m)^ *app\.kubernetes\.io/managed-by: Helm\n|^ +$", "", text) + "\n" for name, text in texts.items()}


def write(path: Path, text: str, *, check: bool) -> bool:
    """Whether the file was as it should be; writes it unless it is only checked."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if check:
        sys.stdout.write(f"{path.relative_to(HERE.parents[1])} is outdated: run deploy/kubernetes/build.py\n")
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is outdated")
    check = parser.parse_args().check
    # The routes first: the manifests are made with them.
    current = [write(CHART / "files" / "alertmanager.yaml", routes(), check=check)]
    current += [write(MANIFESTS / name, text, check=check) for name, text in manifests().items()]
    return 1 if check and not all(current) else 0


if __name__ == "__main__":
    sys.exit(main())

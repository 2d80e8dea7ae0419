"""The built dashboards as tests read them: panels, queries, variables, links."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PATHS = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
RULES = sorted((REPOSITORY / "alertmanager" / "rules").glob("*.yml"))
UID = "trainer-{}"  # of a dashboard by its file's name; alerts and bookmarks rely on it


class Query(NamedTuple):
    """One question of a dashboard to Prometheus, as it stands in the JSON."""

    board: str
    title: str  # of its panel, and what tells it from the panel's others
    expr: str
    is_range: bool  # over the time range, or at its end only


def built(name: str) -> dict[str, Any]:
    return dict(json.loads((REPOSITORY / "grafana" / "dashboards" / f"{name}.json").read_text(encoding="utf-8")))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[Query]:
    """Every query of panels and annotations."""
    board = dashboard["uid"].removeprefix(UID.format(""))
    for panel in panels(dashboard):
        for target in panel["targets"]:
            named = target["legendFormat"] if target["legendFormat"] != "__auto" else target["refId"]
            yield Query(board, f"{panel['title']}: {named}", target["expr"], bool(target.get("range")))
    for annotation in dashboard["annotations"].get("list", []):
        yield Query(board, f"mark {annotation['name']}", annotation["expr"], True)


def variables(dashboard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def links(part: Any) -> Iterator[str]:
    """Every URL anywhere within a dashboard."""
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "url" and isinstance(value, str))
        part = list(part.values())
    if isinstance(part, list):
        yield from itertools.chain.from_iterable(map(links, part))


def rules() -> Iterator[dict[str, Any]]:
    """The shipped rules."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def recorded_names() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def metrics_in(expr: str) -> set[str]:
    """Names of the metrics in an expression: what carries matchers, and every bare word of our families and rules."""
    unquoted = re.sub(r'"[^"]*"', '""', expr)
    selected = re.findall(r"([a-zA-Z_:][\w:]*)\{", unquoted)
    bare = re.findall(r"(?<![\w:])(?:(?:trainer|gpu)_\w+|(?:run|gpu|node|cluster):[\w:]+|DCGM_\w+)", re.sub(r"\{[^}]*\}", "", unquoted))
    return {*selected, *bare}


def words(expr: str) -> set[str]:
    """Every word of an expression that could be a metric, functions and labels included; comments and strings are not looked at."""
    bare = re.sub(r"#[^\n]*", "", re.sub(r'"[^"]*"', '""', expr))
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare))

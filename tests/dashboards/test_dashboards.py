"""What every dashboard promises, held against the built JSON, the exporter's own families, the shipped rules and the real Prometheus."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import pkgutil
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack
from trainer_exporter import metrics
from trainer_exporter.metrics.family import Family, Kind

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
RULES = sorted((REPOSITORY / "alertmanager" / "rules").glob("*.yml"))
OF_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "up"}
OF_THE_PROCESS: dict[str, Kind] = {  # what Prometheus's client library publishes for every program
    "process_cpu_seconds_total": "counter",
    "process_open_fds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
}
SAME_FOR_ALL = {"$job": ".*", "$cluster": ".*", "$team": ".*", "$node": ".*", "$run": "r1", "$smoothing": "5m", "$__rate_interval": "1m"}
EVENTS = {  # an answer to these is an event, and nothing is wrong in the page that is published here
    "A new attempt began",
    "Checkpoint complete",
    "{{alertname}}",
    "Runs that changed: {{run}}",
    "Exporter restarted",
    "Incidents: B",  # the cause of a stall
    "Incidents: C",  # its suspect
    "Incidents: D",  # the alerts of a run
}
OF_ONE_RUN = ["run"]
SCRAPED = re.compile(r"\b(?:trainer|gpu|process|DCGM)_\w+\{[^}]*\}|\bup\{[^}]*\}")
RECORDED = re.compile(r"(?<![\w$])[a-z]+:[a-z0-9_:]+(?:\{[^}]*\})?|\bALERTS(?:_FOR_STATE)?(?:\{[^}]*\})?")


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(json.loads(request.param.read_text(encoding="utf-8")))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and expression of every query of panels and annotations."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            named = target["legendFormat"] if target["legendFormat"] != "__auto" else target["refId"]
            yield f"{panel['title']}: {named}", target["expr"]
    for annotation in dashboard["annotations"].get("list", []):
        yield annotation["titleFormat"], annotation["expr"]


def builder() -> Any:
    """grafana/build.py as a module. The dashboards' kit wants Python 3.11; on 3.10 the JSON is what there is."""
    pytest.importorskip("grafana_foundation_sdk", reason="the dashboards' kit needs Python 3.11")
    spec = importlib.util.spec_from_file_location("build_dashboards", REPOSITORY / "grafana" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def families() -> list[Family]:
    """Everything that the exporter declares, found by walking the package."""
    modules = [importlib.import_module(f"{metrics.__name__}.{found.name}") for found in pkgutil.iter_modules(metrics.__path__)]
    return [family for module in modules for family in getattr(module, "FAMILIES", ())]


def names_of(family: Family) -> set[str]:
    parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
    return {family.name + part for part in parts.get(family.kind, ("",))}


def recorded_names() -> set[str]:
    groups = itertools.chain.from_iterable(yaml.safe_load(path.read_text())["groups"] for path in RULES)
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def metrics_in(expr: str) -> set[str]:
    """Names of the metrics in an expression: what carries matchers, and every bare word of our families and rules."""
    unquoted = re.sub(r'"[^"]*"', '""', expr)
    selected = re.findall(r"([a-zA-Z_:][\w:]*)\{", unquoted)
    bare = re.findall(r"(?<![\w:])(?:(?:trainer|gpu)_\w+|(?:run|gpu|node|cluster):[\w:]+|DCGM_\w+)", re.sub(r"\{[^}]*\}", "", unquoted))
    return {*selected, *bare}


@pytest.fixture(params=OF_ONE_RUN)
def of_one_run(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A dashboard of which all is about the chosen run."""
    return built(request.param)


def built(name: str) -> dict[str, Any]:
    return dict(json.loads((REPOSITORY / "grafana" / "dashboards" / f"{name}.json").read_text(encoding="utf-8")))


def test_the_json_is_what_the_code_builds() -> None:
    outdated = builder().outdated()

    assert outdated == [], "run grafana/build.py"


def test_building_twice_gives_the_same_bytes() -> None:
    first = builder().dashboards()

    assert builder().dashboards() == first


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_links_to_a_dashboard_live_because_its_uid_is_its_file_name(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))

    assert dashboard["uid"] == f"trainer-{path.stem}"
    assert dashboard.get("id") is None


def test_no_two_panels_share_an_id_or_a_place(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(ids)) == len(ids)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_each_panel_has_a_unit_says_what_is_normal_and_what_absence_means(dashboard: dict[str, Any]) -> None:
    lacking = []

    for panel in panels(dashboard):
        about, defaults = panel.get("description", ""), panel["fieldConfig"]["defaults"]
        says_absence = re.search(r"\b([Ww]ithout|Empty|An empty|gap)\b", about)
        if not (defaults.get("unit") and "Normal:" in about and says_absence and defaults.get("noValue", "").strip()):
            lacking.append(panel["title"])

    assert lacking == []


def test_a_panel_without_data_is_not_green(dashboard: dict[str, Any]) -> None:
    green = []

    for panel in panels(dashboard):
        config = panel["fieldConfig"]
        colored = [config["defaults"].get("thresholds")]
        colored += [
            prop["value"] for override in config.get("overrides", []) for prop in override["properties"] if prop["id"] == "thresholds"
        ]
        bases = [steps["steps"][0]["color"] for steps in colored if steps]
        if any("green" in base for base in bases) or (panel["type"] == "stat" and not bases):
            green.append(panel["title"])

    assert green == []


def test_each_query_is_of_the_chosen_run(of_one_run: dict[str, Any]) -> None:
    foreign = [title for title, expr in queries(of_one_run) if 'run="$run"' not in expr]

    assert foreign == []


def test_each_scraped_series_is_of_the_chosen_job_and_of_chosen_runs_or_nodes(dashboard: dict[str, Any]) -> None:
    """What is scraped from a fleet is too much for a screen: such figures are recorded first."""
    selectors = [(title, found) for title, expr in queries(dashboard) for found in SCRAPED.findall(expr)]

    loose = [
        (title, selector)
        for title, selector in selectors
        if 'job=~"$job",cluster=~"$cluster"' not in selector or not re.search(r'run=~?"\$run"|instance=~"\$node"', selector)
    ]

    assert loose == []


def test_each_recorded_series_is_of_the_chosen_cluster(dashboard: dict[str, Any]) -> None:
    selectors = [(title, found) for title, expr in queries(dashboard) for found in RECORDED.findall(expr)]

    loose = [(title, selector) for title, selector in selectors if 'cluster=~"$cluster"' not in selector]

    assert loose == []


def test_rates_of_panels_are_taken_over_the_rate_interval(dashboard: dict[str, Any]) -> None:
    exprs = [(panel["title"], target["expr"]) for panel in panels(dashboard) for target in panel["targets"]]

    fixed = [
        title
        for title, expr in exprs
        for window in re.findall(r"\b(?:i?rate|increase|i?delta)\(.*?\[(.*?)\]", expr)
        if window != "$__rate_interval"
    ]

    assert fixed == []


def test_each_metric_is_one_that_the_exporter_declares_or_the_rules_record(dashboard: dict[str, Any]) -> None:
    known = OF_PROMETHEUS | OF_THE_PROCESS.keys() | recorded_names() | {name for family in families() for name in names_of(family)}
    asked = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    used = {name for expr in (*asked, *(expr for _, expr in queries(dashboard))) for name in metrics_in(expr)}

    unknown = used - known

    assert used
    assert unknown == set()


def test_the_data_source_and_the_cluster_are_variables_and_each_variable_is_of_those_before_it(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    chain = [name for name in ("job", "cluster", "team", "run", "node") if name in variables]

    unchained = [(name, before) for before, name in itertools.pairwise(chain) if f'{before}=~"${before}"' not in variables[name]["query"]]

    assert {"datasource", "cluster"} <= variables.keys()
    assert unchained == []
    assert {panel["datasource"]["uid"] for panel in panels(dashboard)} == {"${datasource}"}


def test_each_variable_that_a_query_names_is_one_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval", "__range"}

    used = {name for _, expr in queries(dashboard) for name in re.findall(r"\$([a-z_]\w*)", expr)}

    assert used <= known


def links(part: Any) -> Iterator[str]:
    """Every URL anywhere within a dashboard."""
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "url" and isinstance(value, str))
        part = list(part.values())
    if isinstance(part, list):
        yield from itertools.chain.from_iterable(map(links, part))


def test_each_link_leads_to_one_of_our_dashboards_keeps_the_time_and_fills_in_variables_that_it_has(dashboard: dict[str, Any]) -> None:
    ours = {path.stem: {variable["name"] for variable in built(path.stem)["templating"]["list"]} for path in DASHBOARDS}

    wrong = []
    for url in filter(lambda url: url.startswith("/"), links(dashboard)):
        found = re.fullmatch(r"/d/trainer-(\w+)\?(.*)&\$\{__url_time_range\}", url)
        named = {given or kept for given, kept in re.findall(r"var-(\w+)=|\$\{(\w+):queryparam\}", url)}
        if not found or "datasource" not in named or not named <= ours.get(found[1], set()):
            wrong.append(url)

    assert wrong == []


# -- the wall: a screen of 1920 x 1080, for weeks


def test_the_wall_fits_a_screen_without_scrolling() -> None:
    units = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in built("wall")["panels"])

    assert units * 38 - 8 + 2 * 16 <= 1080, "a unit is 30 pixels and a gap of 8, the page has a margin of 16"


def test_the_wall_asks_for_little_and_not_often() -> None:
    wall = built("wall")
    targets = [target for panel in panels(wall) for target in panel["targets"]]

    assert wall["refresh"] in {"30s", "1m"}
    assert len(targets) <= 40
    assert all(target["instant"] and not target.get("range") for target in targets)


def test_the_wall_reads_nothing_but_what_the_rules_record() -> None:
    read = {name for _, expr in queries(built("wall")) for name in metrics_in(expr)}

    assert read <= recorded_names() | OF_PROMETHEUS


def test_the_figures_of_the_wall_play_as_written() -> None:
    scenes = Path(__file__).with_name("wall_rules.yml")

    played = subprocess.run(["promtool", "test", "rules", scenes.name], cwd=scenes.parent, capture_output=True, text=True, check=False)

    assert played.returncode == 0, played.stdout + played.stderr


# -- the real Prometheus, with everything published twice, as two nodes of one job do


CHOICES: dict[str, Sequence[str]] = {
    "run": ["r1"],
    "phase": ["starting", "training", "evaluating", "checkpointing", "ended", "failed"],
    "field": ["loss", "grad_norm"],
    "window": ["100", "1000"],
    "kind": ["cuda_oom", "uncorrected"],
    "counter": ["volatile"],
    "reason": ["hw_slowdown"],
    "uuid": ["GPU-1", "GPU-2"],
    "gpu": ["0"],
    "rank": ["0", "1"],
    "result": ["record", "unmatched", "malformed"],
}
LAST_OF_THEIR_GROUPS = (
    "run:labels:info",
    "run:source_stall_threshold_seconds:max",
    "run:gpu_power_of_limit_spread_ratio:max",
    "gpu:power_of_limit_ratio:avg1m",
    "run:attention:score",
    "cluster:gpus:count",
    'ALERTS{alertname="Watchdog"}',
)
VALUES = {"trainer_nonfinite_streak_records": 0, "gpu_lost": 0}  # everything else is 1


def page_lines(family: Family, moments: Sequence[float]) -> Iterator[str]:
    """A family with every combination of labels, on two nodes, over time; counters grow, moments in time are recent."""
    for instance, *values in itertools.product(("n1:19400", "n2:19400"), *(CHOICES.get(label, ["x"]) for label in family.labels)):
        labels = {"job": "trainer-exporter", "cluster": "c1", "instance": instance, **dict(zip(family.labels, values, strict=True))}
        if labels.get("phase") not in (None, "training"):
            continue
        if family.kind == "summary":
            labels["quantile"] = "0.95"
        written = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for part in sorted(names_of(family) - {f"{family.name}_bucket"}) if family.kind == "histogram" else [family.name]:
            for number, moment in enumerate(moments):
                growing = number + 1 if family.kind in ("counter", "histogram") else 1
                value = moment if "timestamp" in family.name else VALUES.get(family.name, growing)
                yield f"{part}{{{written}}} {value} {moment:.3f}"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Prometheus]:
    """Prometheus that has all families in its past, and judges them with the shipped rules."""
    directory = tmp_path_factory.mktemp("prometheus")
    now = time.time()
    moments = [now - age for age in range(300, 0, -15)]
    foreign = [Family(name, kind, "") for name, kind in {"up": "gauge", **OF_THE_PROCESS}.items()]
    text = "\n".join(itertools.chain.from_iterable(page_lines(family, moments) for family in (*families(), *foreign)))
    (directory / "page.txt").write_text(f"{text}\n# EOF\n")
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(directory / "page.txt"), str(directory / "data")]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    config = {"global": {"evaluation_interval": "1s"}, "rule_files": [str(path) for path in RULES]}
    with stack.prometheus(directory, yaml.safe_dump(config)) as running:
        for record in LAST_OF_THEIR_GROUPS:
            stack.eventually(lambda record=record: running.query(record), within_s=30, what=f"{record} is recorded")
        yield running


def filled(expr: str) -> str:
    """The expression as Grafana sends it."""
    for variable in sorted(SAME_FOR_ALL, key=len, reverse=True):
        expr = expr.replace(variable, SAME_FOR_ALL[variable])
    assert not re.search(r"\$[a-z_{]", expr)
    return expr


def answer(prometheus: stack.Prometheus, expr: str) -> dict[str, Any]:
    url = f"{prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': filled(expr)})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def test_prometheus_answers_each_query_also_when_two_nodes_publish_the_same_run(
    dashboard: dict[str, Any], prometheus: stack.Prometheus
) -> None:
    answers = {title: answer(prometheus, expr) for title, expr in queries(dashboard)}

    errors = {title: got.get("error") for title, got in answers.items() if got["status"] != "success"}
    warnings = {title: got["warnings"] for title, got in answers.items() if got.get("warnings")}
    empty = {title for title, got in answers.items() if got["status"] == "success" and not got["data"]["result"]}

    assert errors == {}
    assert warnings == {}
    assert empty - EVENTS == set()


def test_two_nodes_that_publish_the_same_run_are_drawn_once(of_one_run: dict[str, Any], prometheus: stack.Prometheus) -> None:
    answers = {title: answer(prometheus, expr)["data"]["result"] for title, expr in queries(of_one_run)}

    doubled = {title for title, found in answers.items() if any("instance" in series["metric"] for series in found)}

    assert doubled == {title for title in doubled if title.startswith(("GPUs", "Suspects"))}


# -- provisioning


def provisioned(kind: str) -> list[dict[str, Any]]:
    files = sorted((REPOSITORY / "grafana" / "provisioning" / kind).glob("*.yml"))
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]


def test_dashboards_are_provisioned_from_files_and_not_edited_in_the_browser() -> None:
    (file,) = provisioned("dashboards")

    (provider,) = file["providers"]

    assert (file["apiVersion"], provider["type"], provider["allowUiUpdates"]) == (1, "file", False)


def test_the_data_source_knows_the_interval_of_the_shipped_scrape() -> None:
    shipped = yaml.safe_load(stack.SHIPPED_PROMETHEUS.read_text())

    (source,) = provisioned("datasources")[0]["datasources"]

    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == shipped["global"]["scrape_interval"]

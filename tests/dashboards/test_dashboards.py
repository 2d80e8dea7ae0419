"""What every dashboard promises, held against the built JSON, the exporter's own families and the shipped rules."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack
from boards import PATHS, REPOSITORY, RULES, built, links, metrics_in, panels, queries, recorded_names, variables
from trainer_exporter import metrics
from trainer_exporter.metrics.family import Family

OF_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE", "up"}
# What Prometheus's client library publishes for every program.
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes", "process_start_time_seconds"}
THROTTLES = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}  # told as throttled_...
OF_ONE_RUN = ["run"]
GREY = "#6e7280"  # of what is not known
SCRAPED = re.compile(r"\b(?:trainer|gpu|process|DCGM)_\w+\{[^}]*\}|\bup\{[^}]*\}")
RECORDED = re.compile(r"(?<![\w$])[a-z]+:[a-z0-9_:]+(?:\{[^}]*\})?|\bALERTS(?:_FOR_STATE)?(?:\{[^}]*\})?")


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(json.loads(request.param.read_text(encoding="utf-8")))


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


@pytest.fixture(params=OF_ONE_RUN)
def of_one_run(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A dashboard of which all is about the chosen run."""
    return built(request.param)


def test_the_json_is_what_the_code_builds() -> None:
    outdated = builder().outdated()

    assert outdated == [], "run grafana/build.py"


def test_building_twice_gives_the_same_bytes() -> None:
    first = builder().dashboards()

    assert builder().dashboards() == first


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
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


def test_a_panel_without_data_is_grey(dashboard: dict[str, Any]) -> None:
    colored = []

    for panel in panels(dashboard):
        config = panel["fieldConfig"]
        thresholds = [config["defaults"].get("thresholds")]
        thresholds += [found for _, properties in overrides(panel) if (found := properties.get("thresholds"))]
        bases = {steps["steps"][0]["color"] for steps in thresholds if steps}
        if not bases <= {GREY, "transparent"} or (panel["type"] == "stat" and not bases):
            colored.append(panel["title"])

    assert colored == []


def overrides(panel: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a panel: the columns or series that are dressed, and how."""
    for override in panel["fieldConfig"].get("overrides", []):
        yield override["matcher"]["options"], {prop["id"]: prop["value"] for prop in override["properties"]}


def test_each_query_is_of_the_chosen_run(of_one_run: dict[str, Any]) -> None:
    foreign = [title for _, title, expr, _ in queries(of_one_run) if 'run="$run"' not in expr]

    assert foreign == []


def test_each_scraped_series_is_of_the_chosen_job_and_of_chosen_runs_or_nodes(dashboard: dict[str, Any]) -> None:
    """What is scraped from a fleet is too much for a screen: such figures are recorded first."""
    selectors = [(title, found) for _, title, expr, _ in queries(dashboard) for found in SCRAPED.findall(expr)]

    loose = [
        (title, selector)
        for title, selector in selectors
        if 'job=~"$job",cluster=~"$cluster"' not in selector or not re.search(r'run=~?"\$run"|instance=~"\$node"', selector)
    ]

    assert loose == []


def test_each_recorded_series_is_of_the_chosen_cluster(dashboard: dict[str, Any]) -> None:
    selectors = [(title, found) for _, title, expr, _ in queries(dashboard) for found in RECORDED.findall(expr)]

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
    known = OF_PROMETHEUS | OF_THE_PROCESS | recorded_names() | {name for family in families() for name in names_of(family)}
    asked = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    used = {name for expr in (*asked, *(expr for _, _, expr, _ in queries(dashboard))) for name in metrics_in(expr)}

    unknown = used - known

    assert used
    assert unknown == set()


def test_the_data_source_and_the_cluster_are_variables_and_each_variable_is_of_those_before_it(dashboard: dict[str, Any]) -> None:
    known = variables(dashboard)
    chain = [name for name in ("job", "cluster", "team", "run", "node") if name in known]

    unchained = [(name, before) for before, name in itertools.pairwise(chain) if f'{before}=~"${before}"' not in known[name]["query"]]

    assert {"datasource", "cluster"} <= known.keys()
    assert unchained == []
    assert {panel["datasource"]["uid"] for panel in panels(dashboard)} == {"${datasource}"}


def test_each_variable_that_a_query_names_is_one_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    known = variables(dashboard).keys() | {"__rate_interval", "__range"}

    used = {name for _, _, expr, _ in queries(dashboard) for name in re.findall(r"\$([a-z_]\w*)", expr)}

    assert used <= known


def test_each_link_leads_to_one_of_our_dashboards_keeps_the_time_and_fills_in_variables_that_it_has(dashboard: dict[str, Any]) -> None:
    ours = {path.stem: variables(built(path.stem)).keys() for path in PATHS}

    wrong = []
    for url in filter(lambda url: url.startswith("/"), links(dashboard)):
        found = re.fullmatch(r"/d/trainer-(\w+)\?(.*)&\$\{__url_time_range\}", url)
        named = {given or kept for given, kept in re.findall(r"var-(\w+)=|\$\{(\w+):queryparam\}", url)}
        if not found or "datasource" not in named or not named <= ours.get(found[1], set()):
            wrong.append(url)

    assert wrong == []


def test_what_a_link_takes_from_its_row_is_not_shown_in_other_words(dashboard: dict[str, Any]) -> None:
    """Grafana fills a link with what a column shows: a run, a node or the name of a runbook must stand there as it is."""
    replaced = []

    for panel in panels(dashboard):
        renamed = {new: old for shape in panel.get("transformations", []) for old, new in shape["options"].get("renameByName", {}).items()}
        worded = {renamed.get(column, column) for column, properties in overrides(panel) if "mappings" in properties}
        taken = set(re.findall(r"__data\.fields\.(\w+)", " ".join(links(panel))))
        replaced += [(panel["title"], column) for column in taken & worded]

    assert replaced == []


def test_rows_are_kept_by_their_value_also_where_one_query_alone_has_an_answer(dashboard: dict[str, Any]) -> None:
    """Grafana calls the only answer's column Value, which is Value #A beside others."""
    shapes = [(panel["title"], shape) for panel in panels(dashboard) for shape in panel.get("transformations", [])]

    emptied = [
        title
        for title, shape in shapes
        if shape["id"] == "filterByValue" and not {"Value", "Value #A"} <= {one["fieldName"] for one in shape["options"]["filters"]}
    ]

    assert emptied == []


def test_each_reason_and_cause_that_the_rules_give_is_told_in_words() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in RULES)
    board = json.dumps(built("oncall"))

    given = set(re.findall(r'"(?:reason|cause)", "([a-z_]+)"', written)) - THROTTLES | {f"throttled_{reason}" for reason in THROTTLES}

    assert given > {"lost", "dead_rank"}
    assert {name for name in given if f'"{name}": {{' not in board} == set(), "words are in grafana/src/oncall_stall.py and oncall.py"


# What alerts, bookmarks and other tools may link to: /d/trainer-NAME with these variables as var-VARIABLE, and from and to in milliseconds.
LINKED = {"run": {"cluster", "run"}, "oncall": {"cluster", "team", "run"}, "node": {"cluster", "run", "node"}, "wall": {"cluster", "team"}}


@pytest.mark.parametrize("name", LINKED)
def test_links_from_outside_live_because_uids_and_variables_stay(name: str) -> None:
    dashboard = built(name)

    assert dashboard["uid"] == f"trainer-{name}"
    assert variables(dashboard).keys() >= LINKED[name]


def test_alerts_link_to_dashboards_that_exist_and_fill_in_variables_that_they_have() -> None:
    folder = REPOSITORY / "alertmanager"
    texts = [path.read_text(encoding="utf-8") for path in (*RULES, *sorted(folder.glob("templates/*")), folder / "alertmanager.yml")]

    urls = [found for text in texts for found in re.findall(r"/d/([\w-]+)(\?[^\s\"']*)?", text)]

    wrong = [
        (uid, asked)
        for uid, asked in urls
        if not set(re.findall(r"var-(\w+)=", asked)) <= LINKED.get(uid.removeprefix("trainer-"), set()) or not uid.startswith("trainer-")
    ]
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
    read = {name for _, _, expr, _ in queries(built("wall")) for name in metrics_in(expr)}

    assert read <= recorded_names() | OF_PROMETHEUS


@pytest.mark.parametrize("scenes", sorted(Path(__file__).parent.glob("wall_*.yml")), ids=lambda scenes: scenes.stem)
def test_the_figures_of_the_wall_play_as_written(scenes: Path) -> None:
    played = subprocess.run(["promtool", "test", "rules", scenes.name], cwd=scenes.parent, capture_output=True, text=True, check=False)

    assert played.returncode == 0, played.stdout + played.stderr


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

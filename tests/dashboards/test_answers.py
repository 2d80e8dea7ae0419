"""Every query of every dashboard is answered by the real Prometheus that watches real exporters; the scene is in scene.py."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest

import stack
from boards import PATHS, Query, built, links, panels, queries, variables
from scene import HEALTHY, HUNG, KILLED, Scene, scene

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
CHOSEN = {"job": ".*", "cluster": ".*", "team": ".*", "node": ".*", "run": HEALTHY, "smoothing": "1m", "__rate_interval": "20s"}
CHOSEN_IN: Mapping[str, Mapping[str, str]] = {"oncall": {"run": HUNG}, "compare": {"run": f"{HEALTHY}|{HUNG}"}}


@dataclass
class Heard:
    """What Prometheus said to each query so far."""

    answers: dict[Query, list[dict[str, Any]]] = field(default_factory=dict)  # the first that held something
    errors: dict[Query, str] = field(default_factory=dict)
    warnings: dict[Query, list[str]] = field(default_factory=dict)

    def take(self, query: Query, said: dict[str, Any]) -> None:
        if said["status"] != "success":
            self.errors[query] = said["error"]
            return
        if said.get("warnings"):
            self.warnings[query] = said["warnings"]
        if said["data"]["result"]:
            self.answers.setdefault(query, said["data"]["result"])


def filled(query: Query) -> str:
    """The expression as Grafana sends it."""
    chosen = {**CHOSEN, **CHOSEN_IN.get(query.board, {})}
    return re.sub(r"\$([a-z_]\w*)", lambda found: chosen[found[1]], query.expr)


def ask(fleet: Scene, path: str, **asked: Any) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{fleet.prometheus.url}/api/v1/{path}?{urlencode(asked)}", timeout=60) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def answer(fleet: Scene, query: Query) -> dict[str, Any]:
    if query.is_range:
        return ask(fleet, "query_range", query=filled(query), start=fleet.began, end=time.time(), step=3)
    return ask(fleet, "query", query=filled(query))


def hear(fleet: Scene, asked: list[Query]) -> Heard:
    """Ask until each query has been answered with something, or the time is over: what panels show comes and goes."""
    heard = Heard()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and (left := [query for query in asked if query not in heard.answers]):
        for query in left:
            heard.take(query, answer(fleet, query))
        time.sleep(1)
    return heard


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene, once a state of the run that will die has been recorded long enough to be seen changing."""
    with scene(tmp_path_factory.mktemp("fleet")) as fleet:
        seen = f'(run:state:code{{run="{KILLED}"}} > 1)[1m:15s]'
        stack.eventually(lambda: fleet.prometheus.query(seen), within_s=PATIENCE_S, what=f"{seen} is there, as all other runs' should")
        fleet.go_on()
        yield fleet


@pytest.fixture(scope="module")
def heard(fleet: Scene) -> Heard:
    return hear(fleet, [query for path in PATHS for query in queries(built(path.stem))])


@pytest.mark.parametrize("board", [path.stem for path in PATHS])
def test_each_query_of_a_dashboard_is_answered(heard: Heard, board: str) -> None:
    asked = list(queries(built(board)))

    silent = [query.title for query in asked if query not in heard.answers]

    assert {query.title: said for query, said in heard.errors.items() if query.board == board} == {}
    assert {query.title: said for query, said in heard.warnings.items() if query.board == board} == {}
    assert silent == [], f"no data within {PATIENCE_S:g} s"


def test_two_nodes_that_publish_the_same_run_are_drawn_once(heard: Heard) -> None:
    answers = {query.title: found for query, found in heard.answers.items() if query.board == "run"}

    doubled = {title for title, found in answers.items() if any("instance" in series["metric"] for series in found)}

    assert doubled == {title for title in doubled if title.startswith(("GPUs", "Suspects"))}


@pytest.mark.parametrize("board", [path.stem for path in PATHS])
def test_rows_have_what_their_links_take(heard: Heard, board: str) -> None:
    lacking = []

    for panel in panels(built(board)):
        its = f"{panel['title']}: "
        answers = [found for query, found in heard.answers.items() if query.board == board and query.title.startswith(its)]
        labels = {label for found in answers for series in found for label in series["metric"]}
        taken = set(re.findall(r"__data\.fields\.(\w+)", " ".join(links(panel))))
        lacking += [(panel["title"], label) for label in taken - labels]

    assert lacking == []


@pytest.mark.parametrize("board", [path.stem for path in PATHS])
def test_each_variable_offers_what_is_there(fleet: Scene, board: str) -> None:
    asking = {name: variable["query"] for name, variable in variables(built(board)).items() if variable["type"] == "query"}

    offered = {name: values(fleet, board, query) for name, query in asking.items()}

    assert offered.get("cluster") == ["c1"]
    assert offered.get("team", ["birds"]) == ["birds"]
    assert {HEALTHY, HUNG} <= set(offered.get("run", [HEALTHY, HUNG]))
    assert offered.get("node", ["127.0.0.1", "127.0.0.2"]) == ["127.0.0.1", "127.0.0.2"]


def test_the_on_call_page_opens_with_the_run_that_needs_help_most(fleet: Scene) -> None:
    (first, *_) = values(fleet, "oncall", variables(built("oncall"))["run"]["query"])

    assert first == HUNG


def values(fleet: Scene, board: str, asked: str) -> list[str]:
    """What a variable offers, as Grafana asks for it."""
    query = filled(Query(board, "", asked.replace("$run", ".*"), is_range=False))
    if found := re.fullmatch(r"label_values\((.*), (\w+)\)", query):
        said = ask(fleet, f"label/{found[2]}/values", **{"match[]": found[1]})
        return list(said["data"])
    (ranked,) = re.findall(r"query_result\((.*)\)", query)
    return [series["metric"]["run"] for series in ask(fleet, "query", query=ranked)["data"]["result"]]

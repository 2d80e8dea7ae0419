"""The dashboard of whoever is woken: what is wrong now, since when, on which node, and what to do first?

Above, the incidents as Alertmanager tells them; in the middle, the anatomy of one run that stands still; below, what changed lately.
"""

from __future__ import annotations

from typing import Any

from alerts import RUNBOOK, WATCHDOG, causes, firing, in_words
from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import Dashboard, ValueMap, ValueMappingResult, VariableSort
from house import (
    GREEN,
    NODE_OF_ROW,
    ORANGE,
    RED,
    RUN_OF_ROW,
    SLATE,
    STATES,
    TAG,
    Page,
    address,
    columns,
    grid,
    label_variable,
    link,
    links,
    of_row,
    option,
    painted,
    placed,
    rows,
    scope,
    shaped,
    steps,
    tile,
    timeline,
    transparent,
    words,
)
from oncall_stall import anatomy, reasons
from shapes import AGE, without_place

HERE = 'cluster=~"$cluster"'
KINDS = {"critical": ("page", RED), "warning": ("ticket", ORANGE)}
TOLD, OF_A_RUN = 'severity=~"critical|warning"', 'run=~".+"'
PAGES, TICKETS = causes('severity="critical"'), causes('severity="warning"')
CAUSES = {
    "sick_gpu": ("a GPU or node is sick", RED),
    "storage": ("waits for storage", ORANGE),
    "dead_rank": ("one rank is stuck, the others wait", RED),
    "collective": ("all wait, none stands apart", ORANGE),
    "data": ("the GPUs wait for data", ORANGE),
    "unknown": ("not known", SLATE),
}
QUIET = "All quiet"
EMPTY, UNPAINTED, WRAPPED = option("noValue", "–"), option("thresholds", transparent()), option("custom.wrapText", True)


def build() -> Dashboard:
    """The whole dashboard."""
    page = Page(
        "On call",
        uid="trainer-oncall",
        about="What is wrong, since when, where, and what to do first? Top: incidents, causes only. Middle: one run that stands still.",
        tags=[TAG, "alerts"],
        since="now-3h",
        refresh="30s",
    )
    page.variables(
        *scope("trainer_run_phase"),
        label_variable("team", "Team", f"run:state:code{{{HERE}}}", many=True),
        # The runs that need help first, by the rules' own order, so that the anatomy is of the worst without a click.
        _worst_first(),
    )
    for panel in (_pages(), _tickets(), _hung(), _crashed(), _gpus(), _watch()):
        page.add(panel, width=4, height=4)
    page.add(_incidents(), width=24, height=10)
    anatomy(page)
    _changes(page)
    return page.build()


def _worst_first() -> Any:
    variable = label_variable("run", "Run", "", many=False)
    ranked = f'sort_desc(run:attention:score{{{HERE},team=~"$team"}})'
    return variable.query(f"query_result({ranked})").regex('/run="([^"]+)"/').sort(VariableSort.DISABLED)


# -- now


def _count(title: str, expr: str, *, about: str, color: str, absent: str) -> Any:
    panel = tile(title, {title: expr}, unit="none", about=about, absent=absent)
    return panel.thresholds(steps((0, GREEN), (1, color)))


def _judged(expr: str) -> str:
    """A zero only where the watchdog proves that the rules are judged."""
    return f"count ({expr}) or 0 * count ({WATCHDOG})"


def _pages() -> Any:
    about = (
        "Incidents that page now: causes, without the symptoms that they explain. Normal: 0. Without data nobody judges: the "
        "rules are not loaded."
    )
    told = f"count by (cluster, run, alertname) ({PAGES})"
    return _count("Pages", _judged(told), about=about, color=RED, absent="not judged")


def _tickets() -> Any:
    about = (
        "Incidents that are tickets now: causes, without what a page explains. Normal: few. Without data nobody judges: the "
        "rules are not loaded."
    )
    told = f"count by (cluster, run, alertname) ({TICKETS})"
    return _count("Tickets", _judged(told), about=about, color=ORANGE, absent="not judged")


def _hung() -> Any:
    about = "Runs that make no steps and should. Normal: 0. Without data no run is published."
    return _count("Hung", f'sum (cluster:runs:count{{{HERE},team=~"$team",state="hung"}})', about=about, color=RED, absent="no run known")


def _crashed() -> Any:
    about = "Runs that died before their end and were not taken up again. Normal: 0. Without data no run is published."
    expr = f'sum (cluster:runs:count{{{HERE},team=~"$team",state=~"crashed|failed"}})'
    return _count("Crashed", expr, about=about, color=RED, absent="no run known")


def _gpus() -> Any:
    about = "GPUs that are sick, silent or lost. Normal: 0. Without data no GPU is read."
    expr = f'sum (cluster:gpus:count{{{HERE},state=~"sick|silent|lost"}})'
    return _count("GPUs sick or lost", expr, about=about, color=RED, absent="no GPU is read")


def _watch() -> Any:
    about = "Nodes of which nobody has heard for a while: their runs and GPUs are unwatched. Normal: 0. Without data no node is known."
    return _count("Silent nodes", f"sum (node:gpu_state:max{{{HERE}}} == bool 4)", about=about, color=ORANGE, absent="no node known")


def _incidents() -> Any:
    about = (
        "What fires, the pages first, without what Alertmanager holds back because something else explains it. Cause, suspect and first "
        "remedy are those of the page; a click on the alert opens its runbook, on a run, node or suspect its dashboard. Normal: all quiet, "
        "which is "
        "said. Without data nobody judges: the rules are not loaded. An empty suspect: no GPU stands apart from the others."
    )
    by = "cluster, run, instance, alertname, severity"
    told = causes(TOLD)
    age = f"max by ({by}) (time() - ALERTS_FOR_STATE{{{HERE}}} and on ({by}, uuid) ({told}))"
    quiet = f'label_replace(0 * max ({WATCHDOG}) - 1, "alertname", "{QUIET}", "", "") unless on () ({told})'
    incidents = f'label_replace({age} or {quiet}, "first", "$1", "alertname", "(.+)")'
    causing = f"max by (cluster, run, cause) (run:stall_cause:info{{{HERE}}} and on (cluster, run) run:stalled_seconds:min{{{HERE}}})"
    surest = f'label_replace(topk by (cluster, run) (1, run:suspect_gpu{{{HERE}}}), "at", "$1", "instance", "(.+)")'
    suspect = f'label_join({surest}, "suspect", " GPU ", "instance", "gpu")'
    panel = grid(
        "Incidents",
        rows(placed(incidents), ref="A"),
        rows(placed(causing), ref="B"),
        rows(placed(f"max by (cluster, run, suspect, at, reason) ({suspect})"), ref="C"),
        rows(placed(f"count by (cluster, run) ({firing(OF_A_RUN)})"), ref="D"),
        unit="string",
        about=about,
        absent="not judged",
    )
    # "Value" where nothing but the first query has an answer: when all is quiet
    names = {"Value": "age", "Value #A": "age", "Value #D": "alerts", "alertname": "what", "instance": "node"}
    order = ("severity", "Value", "Value #A", "run", "instance", "alertname", "cause", "suspect", "reason", "first", "Value #D")
    merge, organize = columns(*order, hidden=("Time", "cluster", "Value #B", "Value #C"), names=names)
    panel.transformations([merge, _where_known("Value #A", "Value"), organize])
    panel.sort_by([common.TableSortByFieldState().display_name("kind").desc(False)]).cell_height(looks.TableCellHeight.LG)
    return _dressed(panel)


def _where_known(*fields: str) -> Any:
    known = [{"fieldName": field, "config": {"id": "isNotNull", "options": {}}} for field in fields]
    return shaped("filterByValue", type="include", match="any", filters=known)


def _dressed(panel: Any) -> Any:
    panel.override_by_name("severity", [*painted(KINDS), option("displayName", "kind"), option("custom.width", 80)])
    panel.override_by_name("age", [*AGE, option("custom.width", 80)])
    summary, remedy = (option("mappings", in_words(annotation)) for annotation in ("summary", "remedy"))
    panel.override_by_name("what", [summary, links(link("Runbook", RUNBOOK)), option("custom.width", 330)])
    remedy.value.append(ValueMap({QUIET: ValueMappingResult("nothing to do")}))
    panel.override_by_name("first", [option("displayName", "first remedy"), remedy, WRAPPED])
    panel.override_by_name("run", [links(link("Run", RUN_OF_ROW)), option("custom.width", 160), EMPTY])
    panel.override_by_name("node", [links(link("Node", NODE_OF_ROW)), option("custom.width", 80), EMPTY])
    panel.override_by_name("cause", [*painted(CAUSES), option("custom.width", 240), EMPTY, UNPAINTED])
    of_suspect = address("trainer-node", cluster=of_row("place"), node=of_row("at"))
    panel.override_by_name("suspect", [links(link("Node", of_suspect)), option("custom.width", 120), EMPTY])
    panel.override_by_name("at", [option("custom.hidden", True)])
    panel.override_by_name("reason", [option("displayName", "because"), option("custom.width", 210), option("mappings", reasons()), EMPTY])
    panel.override_by_name("alerts", [option("unit", "none"), option("custom.width", 60), EMPTY])
    return without_place(panel)


# -- what changed


def _changes(page: Page) -> None:
    page.row("What changed in the last hour?")
    page.add(_moved(), width=14, height=9)
    page.add(_news(), width=10, height=9)


def _moved() -> Any:
    about = (
        "The runs whose state changed within the last hour, saving and evaluating apart, and without those that have ended well. Normal: "
        "starts "
        "that somebody planned. A gap: nothing was published then. Without data no run changed, or none is published."
    )
    state = f'run:state:code{{{HERE},team=~"$team"}}'
    coarse = f"max by (cluster, run) ({state} > 4 or 2 + 0 * ({state} > 1) or {state})"
    changed = f"changes({coarse}[1h:15s] @ end()) > 0 unless on (cluster, run) {state} @ end() == 5"
    expr = f"{coarse} and on (cluster, run) ({changed})"
    panel = timeline("Runs that changed", {"{{run}}": expr}, unit="none", about=about, absent="no run changed")
    return panel.mappings(words(STATES)).time_from("1h")


def _news() -> Any:
    about = (
        "What began or ended within the last hour: alerts, attempts and ends of runs, exporters that were restarted. Normal: what you did "
        "yourself. All quiet, which is said, needs the watchdog; without data nobody judges."
    )
    began = f"ALERTS_FOR_STATE{{{HERE}}} > time() - 3600 and on (cluster, run, instance, uuid, alertname, severity) {firing(TOLD)}"
    fired = f"max by (cluster, run, instance, alertname) ({began})"
    gone = f"last_over_time({firing(TOLD)}[1h]) unless on (cluster, run, instance, uuid, alertname) {firing()}"
    over = f"max by (cluster, run, instance, alertname) ({gone})"
    again = f"max by (cluster, run) (changes(run:attempts:max{{{HERE}}}[1h])) > 0"
    ended = f"max by (cluster, run) (run:state:code{{{HERE}}} == 5 unless on (cluster, run) run:state:code{{{HERE}}} offset 1h == 5)"
    restarted = f"max by (cluster, instance) (exporter:start_timestamp_seconds:max{{{HERE}}} > time() - 3600)"
    everything = " or ".join(
        (
            _told(f"1000 * {fired}", "began"),
            _told(f"0 * {over}", "is over"),
            _told(f"0 * ({again})", "began", what="a new attempt"),
            _told(f"0 * {ended}", "ended", what="the run"),
            _told(f"1000 * {restarted}", "restarted", what="the exporter"),
        )
    )
    quiet = _told(f"0 * max ({WATCHDOG})", "All quiet") + f" unless on () ({everything})"
    panel = grid("News", rows(f"{everything} or {quiet}", ref="A"), unit="string", about=about, absent="not judged")
    names = {"Value": "when", "alertname": "what", "instance": "node"}
    panel.transformations(columns("Value", "alertname", "news", "run", "instance", hidden=("Time", "cluster"), names=names)[1:])
    panel.sort_by([common.TableSortByFieldState().display_name("when").desc(True)])
    unless_known = option("mappings", words({"0": ("within the hour", "transparent")}))
    panel.override_by_name("when", [option("unit", "dateTimeFromNow"), unless_known, option("custom.width", 130)])
    panel.override_by_name("what", [option("mappings", in_words("summary")), option("custom.width", 330)])
    panel.override_by_name("news", [option("custom.width", 80)])
    return panel.override_by_name("run", [EMPTY]).override_by_name("node", [EMPTY, option("custom.width", 80)])


def _told(expr: str, news: str, *, what: str = "") -> str:
    said = f'label_replace({expr}, "news", "{news}", "", "")'
    return f'label_replace({said}, "alertname", "{what}", "", "")' if what else said

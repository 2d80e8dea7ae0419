"""The dashboard of the exporters themselves: do they see everything, and what do they cost?"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import Dashboard
from house import (
    GREEN,
    NODE_OF_ROW,
    ORANGE,
    RED,
    TAG,
    YELLOW,
    Page,
    curve,
    events,
    fixed,
    label_variable,
    link,
    links,
    option,
    painted,
    scope,
    scraped_of_nodes,
    thresholds,
    tile,
)
from shapes import bars, exporters, figures_of, on_the_right, shown_as, without_place, zero

WORST = 8  # lines in a panel; the table has them all


def build() -> Dashboard:
    """The whole dashboard."""
    page = Page(
        "Exporter health",
        uid="trainer-exporter",
        about="Do the exporters see everything, and what do they cost? Top: now. Below: by node, the worst of them.",
        tags=[TAG, "monitoring"],
        since="now-6h",
        refresh="1m",
    )
    page.variables(
        *scope("trainer_exporter_build_info"),
        label_variable("node", "Node", 'trainer_exporter_build_info{job=~"$job",cluster=~"$cluster"}', many=True, of="instance"),
    )
    restarts = f"changes({scraped_of_nodes('process_start_time_seconds')}[2m]) > 0"
    page.annotations(events("Restarts", f"max by (instance) ({restarts})", color="orange", title="Exporter restarted", text="{{instance}}"))
    for panel in (_answering(), _files(), _understood(), _lag(), _errors(), _cost()):
        page.add(panel, width=4, height=5)
    page.add(_each(), width=24, height=10)
    _reading(page)
    _itself(page)
    return page.build()


def _sum(metric: str, *matchers: str) -> str:
    return f"sum ({scraped_of_nodes(metric, *matchers)})"


def _rate(metric: str, *matchers: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({scraped_of_nodes(metric, *matchers)}[$__rate_interval]))"


# -- now


def _answering() -> Any:
    about = "Exporters that answer Prometheus, and that do not. Normal: all, and none. Without data Prometheus knows of none."
    return exporters(about)


def _files() -> Any:
    about = (
        "Files that are followed, and the lines that they grow by. Normal: a few files a run, some lines a second. Without data "
        "no exporter answers."
    )
    panel = tile(
        "Files",
        {"files": _sum("trainer_exporter_files_followed"), "lines/s": _rate("trainer_exporter_lines_total")},
        unit="none",
        about=about,
        absent="no exporter answers",
    )
    return panel.decimals(0).override_by_name("lines/s", [option("decimals", 1)])


def _gap(by: str = "") -> str:
    """The share of lines that look like a record and could not be read, of all that looked like one."""
    whole = _rate("trainer_exporter_lines_total", 'result=~"parsed|malformed"', by=by)
    return f"({_malformed(by)}) / ({whole} > 0)"


def _malformed(by: str = "") -> str:
    """0 where lines came and none was broken: the exporter counts a result from its first line on."""
    broken = _rate("trainer_exporter_lines_total", 'result="malformed"', by=by)
    return f"{broken} or 0 * {_rate('trainer_exporter_lines_total', by=by)}"


def _understood() -> Any:
    about = (
        "The parse gap: of the lines that look like a record, the share that was broken. And of all lines, the share that nobody "
        "recognised: "
        "progress bars and chatter are normal there, a jump is a trainer that prints in a new way. Normal: a gap of 0 %. "
        "Without data no line has come."
    )
    unmatched = _rate("trainer_exporter_lines_total", 'result="unmatched"')
    unknown = f"{unmatched} / ({_rate('trainer_exporter_lines_total')} > 0)"
    panel = tile(
        "Lines",
        {"parse gap": _gap(), "unmatched": unknown},
        unit="percentunit",
        about=about,
        absent="no line has come",
    )
    return panel.decimals(1).override_by_name("parse gap", [thresholds((0, GREEN), (0.001, YELLOW), (0.01, RED))])


def _lag() -> Any:
    about = (
        "Bytes that files hold and that are not read yet, all together and on the worst node. Normal: near 0. Growing: the "
        "exporter cannot follow. Without data no exporter answers."
    )
    panel = tile(
        "Lag",
        {"all": _sum("trainer_exporter_read_lag_bytes"), "worst node": f"max ({scraped_of_nodes('trainer_exporter_read_lag_bytes')})"},
        unit="bytes",
        about=about,
        absent="no exporter answers",
    )
    return panel.decimals(0).override_by_name("worst node", [thresholds((0, GREEN), (1048576, ORANGE), (104857600, RED))])


def _errors() -> Any:
    about = (
        "Errors within the exporters just now, and configurations that could not be loaded. Normal: none. "
        "Without data no exporter answers: a zero needs one that does."
    )
    lately = f"sum (increase({scraped_of_nodes('trainer_exporter_errors_total')}[$__rate_interval]))"
    zero = f"0 * count ({scraped_of_nodes('trainer_exporter_build_info')})"
    refused = f"sum (1 - {scraped_of_nodes('trainer_exporter_config_last_reload_successful')})"
    panel = tile(
        "Errors",
        {"errors": f"{lately} or {zero}", "bad configuration": refused},
        unit="none",
        about=about,
        absent="no exporter answers",
    )
    return panel.decimals(0).override_by_regexp(".*", [thresholds((0, GREEN), (0.5, ORANGE))])


def _cost() -> Any:
    about = (
        "What an exporter costs its node: processor of the busiest and memory of the largest. Normal: a few percent of one core, "
        "under 200 MiB. Without data no exporter answers."
    )
    busiest = f"max (rate({scraped_of_nodes('process_cpu_seconds_total')}[$__rate_interval]))"
    panel = tile(
        "Cost",
        {"of a core": busiest, "memory": f"max ({scraped_of_nodes('process_resident_memory_bytes')})"},
        unit="percentunit",
        about=about,
        absent="no exporter answers",
    )
    judged = [thresholds((0, GREEN), (0.1, YELLOW), (0.5, RED))]
    return (
        panel.decimals(1).override_by_name("of a core", judged).override_by_name("memory", [option("unit", "bytes"), option("decimals", 0)])
    )


def _each() -> Any:
    about = (
        "Every chosen exporter, the most behind first; a click on a node leads to it. Normal: rows that look alike. An empty "
        "cell: it did not answer, or had nothing to say."
    )
    by = "max by (cluster, instance) ({})"
    lines = "sum by (cluster, instance) (rate({}[$__rate_interval]))"
    figures = {
        "answers": by.format(scraped_of_nodes("up")),
        "files": by.format(scraped_of_nodes("trainer_exporter_files_followed")),
        "lines/s": lines.format(scraped_of_nodes("trainer_exporter_lines_total")),
        "unmatched/s": lines.format(scraped_of_nodes("trainer_exporter_lines_total", 'result="unmatched"')),
        "malformed/s": _malformed("cluster, instance"),
        "lag": by.format(scraped_of_nodes("trainer_exporter_read_lag_bytes")),
        "errors": f"sum by (cluster, instance) ({scraped_of_nodes('trainer_exporter_errors_total')})",
        "up for": f"time() - {by.format(scraped_of_nodes('process_start_time_seconds'))}",
        "processor": lines.format(scraped_of_nodes("process_cpu_seconds_total")),
        "memory": by.format(scraped_of_nodes("process_resident_memory_bytes")),
        "series": by.format(scraped_of_nodes("trainer_exporter_series")),
        "configuration": by.format(scraped_of_nodes("trainer_exporter_config_last_reload_successful")),
    }
    panel = figures_of("instance", "Each exporter", figures, about=about, names={"instance": "node"})
    panel.sort_by([common.TableSortByFieldState().display_name("lag").desc(True)]).cell_height(looks.TableCellHeight.SM)
    shown_as(panel, {"lag": ("bytes", 0), "memory": ("bytes", 0), "processor": ("percentunit", 1), "up for": ("s", 1)})
    for name in ("lines/s", "unmatched/s", "malformed/s"):
        panel.override_by_name(name, [option("decimals", 2)])
    panel.override_by_name("lag", [*painted(), thresholds((0, "transparent"), (1048576, ORANGE))])
    panel.override_by_name("malformed/s", [*painted(), thresholds((0, "transparent"), (0.01, ORANGE))])
    panel.override_by_name("errors", [*painted(), thresholds((0, "transparent"), (1, ORANGE)), option("decimals", 0)])
    panel.override_by_name("answers", painted({"1": ("yes", "transparent"), "0": ("no", RED)}))
    panel.override_by_name("configuration", painted({"1": ("loaded", "transparent"), "0": ("refused", RED)}))
    for name in figures:
        panel.override_by_name(name, [option("custom.width", 136)])
    without_place(panel)
    return panel.override_by_name("node", [links(link("Node", NODE_OF_ROW)), option("unit", "string")])


# -- over time


def _reading(page: Page) -> None:
    page.row("Does it read everything?")
    for panel in (_lines(), _broken(), _behind()):
        page.add(panel, width=8, height=8)


def _lines() -> Any:
    about = (
        "Lines by what became of them. Normal: level; records, progress and chatter. More unmatched or malformed than before: a "
        "trainer prints in a new way. Without data no line has come."
    )
    lines = _rate("trainer_exporter_lines_total", by="result")
    panel = curve("What became of the lines", {"{{result}}": lines}, unit="suffix:/s", about=about, absent="no line has come").min(0)
    for result, color in (("parsed", "green"), ("unmatched", "blue"), ("malformed", "orange"), ("incident", "red")):
        panel.override_by_name(result, [fixed(color)])
    return panel


def _broken() -> Any:
    about = (
        f"Of the lines that look like a record, the share that was broken, on the {WORST} worst nodes. Normal: 0. Without data no "
        "record has come."
    )
    panel = curve("Parse gap", _worst(_gap("instance")), unit="percentunit", about=about, absent="no record has come")
    return panel.min(0).axis_soft_max(0.05)


def _behind() -> Any:
    about = (
        f"Bytes not read yet, on the {WORST} worst nodes. Normal: teeth near 0. A slope: the exporter cannot follow. Without data "
        "no exporter answers."
    )
    return _of_worst("Lag by node", scraped_of_nodes("trainer_exporter_read_lag_bytes"), unit="bytes", about=about)


def _worst(figure: str) -> dict[str, str]:
    return {"{{instance}}": f"topk({WORST}, {figure})"}


def _of_worst(title: str, figure: str, *, unit: str, about: str) -> Any:
    return curve(title, _worst(figure), unit=unit, about=about, absent="no exporter answers").min(0)


def _itself(page: Page) -> None:
    page.row("Is it well?")
    for panel in (_troubles(), _collectors(), _dropped(), _processor(), _memory(), _series()):
        page.add(panel, width=8, height=8)


def _troubles() -> Any:
    about = (
        "Errors by place and reason, among them restarts of the child that reads the GPUs (site gpu). Normal: none, the line none at 0. "
        "Without data no exporter answers."
    )
    new = f"sum by (site, reason) (increase({scraped_of_nodes('trainer_exporter_errors_total')}[$__rate_interval])) > 0"
    none = zero(scraped_of_nodes("trainer_exporter_build_info"), "site")
    none = f'label_replace({none}, "reason", "at all", "", "")'
    panel = curve(
        "Errors and child restarts",
        {"{{site}} {{reason}}": f"{new} or on (site) {none}"},
        unit="none",
        about=about,
        absent="no exporter answers",
    )
    return bars(panel).decimals(0).axis_soft_max(1)


def _collectors() -> Any:
    about = (
        "The slowest run of each collector on any node, and collectors that failed (right axis). Normal: milliseconds, none "
        "failed. Without data no exporter answers."
    )
    slowest = f"max by (collector) ({scraped_of_nodes('trainer_exporter_collector_duration_seconds')})"
    failed = f"sum (1 - {scraped_of_nodes('trainer_exporter_collector_success')})"
    panel = curve("Collectors", {"{{collector}}": slowest, "failed": failed}, unit="s", about=about, absent="no exporter answers").min(0)
    return panel.override_by_name("failed", on_the_right("none", "red", soft_max=1))


def _dropped() -> Any:
    about = (
        "What a bound made the exporters let go, by reason. Normal: none, the line none at 0; raise the limit that it names. Without data "
        "no exporter answers."
    )
    let_go = f"sum by (reason) (increase({scraped_of_nodes('trainer_exporter_dropped_total')}[$__rate_interval])) > 0"
    none = zero(scraped_of_nodes("trainer_exporter_build_info"), "reason")
    panel = curve("Dropped", {"{{reason}}": f"{let_go} or on (reason) {none}"}, unit="none", about=about, absent="no exporter answers")
    return bars(panel).decimals(0).axis_soft_max(1)


def _processor() -> Any:
    about = f"Share of one core, the {WORST} busiest nodes. Normal: a few percent. Without data no exporter answers."
    busy = f"rate({scraped_of_nodes('process_cpu_seconds_total')}[$__rate_interval])"
    return _of_worst("Processor", busy, unit="percentunit", about=about)


def _memory() -> Any:
    about = (
        f"Memory of the process, the {WORST} largest. Normal: level, under 200 MiB. A slope over days is a leak. Without data no "
        "exporter answers."
    )
    return _of_worst("Memory", scraped_of_nodes("process_resident_memory_bytes"), unit="bytes", about=about)


def _series() -> Any:
    about = (
        f"Series that an exporter publishes, the {WORST} most: what it costs Prometheus. Normal: some hundreds, level. Without "
        "data no exporter answers."
    )
    return _of_worst("Series", scraped_of_nodes("trainer_exporter_series"), unit="none", about=about)

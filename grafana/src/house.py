"""The house style of our dashboards: what every panel, query and variable of them has in common.

Each panel says its unit, what normal looks like, and what it shows without data: a word, on grey. Absence never looks like health.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries, xychart
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DashboardSpecialValueMapOptions,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsConfig,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# Grounds for letters, which Grafana makes white on all but the brightest: each is dark enough for white, or bright enough for black.
GREY = "#6e7280"  # nothing is known
GREEN, YELLOW, ORANGE, RED = "#37872d", "#f2cc0c", "#ffab45", "semi-dark-red"
BLUE, PURPLE = "semi-dark-blue", "semi-dark-purple"
SLATE = "#2d3b55"  # a figure that is shown and not judged
IDLE = "#4a6494"  # at rest: unlike a gap in a dark picture, which SLATE is not
ALWAYS = -1e300  # a colour from any value on; only the absence of a value stays grey
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# An exporter's series carry the scrape's job; what rules record does not.
SCRAPED = 'job=~"$job",cluster=~"$cluster",run="$run"'
JOB = 'job=~"$job"'
NODES = 'cluster=~"$cluster",instance=~"$node"'
RECORDED = 'cluster=~"$cluster",run="$run"'

STATES = {  # what run:state:code says, and the rules' verdict in it
    "1": ("starting", YELLOW),
    "2": ("training", GREEN),
    "3": ("evaluating", BLUE),
    "4": ("saving", PURPLE),
    "5": ("ended", IDLE),
    "6": ("failed", RED),
    "7": ("hung", RED),
    "8": ("crashed", RED),
}
GPU_STATES = {  # what gpu:state:code says
    "0": ("idle", IDLE),
    "1": ("working", GREEN),
    "2": ("spinning", ORANGE),
    "3": ("sick", PURPLE),
    "4": ("silent", GREY),
    "5": ("lost", RED),
}
SEVERITIES = {"critical": ("critical", RED), "warning": ("warning", ORANGE), "info": ("info", BLUE)}
TAG = "trainer-exporter"  # what the list of dashboards in each header finds them by

PanelT = TypeVar("PanelT", stat.Panel, timeseries.Panel, statetimeline.Panel, table.Panel, xychart.Panel)


class _Built:
    """A value in the shape of a builder."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def build(self) -> Any:
        return self._value


def scraped(metric: str, *matchers: str) -> str:
    """A selector of one metric of the run, as the exporter publishes it."""
    return f"{metric}{{{','.join((SCRAPED, *matchers))}}}"


def recorded(metric: str, *matchers: str) -> str:
    """A selector of one metric of the run, as the rules record it."""
    return f"{metric}{{{','.join((RECORDED, *matchers))}}}"


def of_nodes(metric: str, *matchers: str) -> str:
    """A selector of one recorded metric of the chosen nodes."""
    return f"{metric}{{{','.join((NODES, *matchers))}}}"


def scraped_of_nodes(metric: str, *matchers: str) -> str:
    """A selector of one metric of the chosen nodes, as their exporters publish it."""
    return f"{metric}{{{','.join((JOB, NODES, *matchers))}}}"


def largest(metric: str, *matchers: str, by: str = "") -> str:
    """One series a run, however many nodes publish it."""
    return f"max by (cluster, run{', ' + by if by else ''}) ({scraped(metric, *matchers)})"


def largest_recorded(metric: str, *matchers: str) -> str:
    """One series a run of a figure that the rules record."""
    return f"max by (cluster, run) ({recorded(metric, *matchers)})"


def query(expr: str, legend: str, *, ref: str = "A") -> prometheus.Dataquery:
    """Over the time range."""
    return prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref).range().datasource(SOURCE)


def latest(expr: str, legend: str, *, ref: str = "A") -> prometheus.Dataquery:
    """At the end of the time range only."""
    return prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref).instant().datasource(SOURCE)


def rows(expr: str, *, ref: str) -> prometheus.Dataquery:
    """The latest values as rows of a table."""
    return latest(expr, "__auto", ref=ref).format(PromQueryFormat.TABLE)


def steps(*pairs: tuple[float, str]) -> _Built:
    """Colours from each value on; below the first, and without a value, grey."""
    first = [Threshold(color=GREY, value=None)]
    return _Built(ThresholdsConfig(ThresholdsMode.ABSOLUTE, first + [Threshold(color=color, value=value) for value, color in pairs]))


def transparent() -> ThresholdsConfig:
    """No color at any value: for cells that are painted by their word alone."""
    return ThresholdsConfig(ThresholdsMode.ABSOLUTE, [Threshold(color="transparent", value=None)])


def option(key: str, value: Any) -> DynamicConfigValue:
    return DynamicConfigValue(id_val=key, value=value)


def fixed(color: str) -> DynamicConfigValue:
    """An override: this series always has this colour."""
    return option("color", {"mode": "fixed", "fixedColor": color})


def thresholds(*pairs: tuple[float, str]) -> DynamicConfigValue:
    """An override with its own colours; see ``steps``."""
    return option("thresholds", steps(*pairs).build())


def words(meanings: Mapping[str, tuple[str, str]]) -> list[ValueMap]:
    """Numbers that stand for a word with a colour."""
    return [ValueMap({number: ValueMappingResult(text, color) for number, (text, color) in meanings.items()})]


def shaped(kind: str, **options: Any) -> DataTransformerConfig:
    """A transformation of a panel's rows."""
    return DataTransformerConfig(id_val=kind, options=options)


def columns(*shown: str, hidden: Sequence[str] = ("Time",), names: Mapping[str, str] | None = None) -> list[DataTransformerConfig]:
    """Queries of one panel as one table: which columns in which order under which names."""
    order = {name: index for index, name in enumerate(shown)}
    organized = shaped("organize", excludeByName=dict.fromkeys(hidden, True), indexByName=order, renameByName=dict(names or {}))
    return [shaped("merge"), organized]


def address(uid: str, *kept: str, **values: str) -> str:
    """The URL of another dashboard of ours with the time range and data source of this one, some of its variables, and these values."""
    taken = [f"${{{name}:queryparam}}" for name in ("datasource", *kept)]
    return f"/d/{uid}?{'&'.join(taken + [f'var-{name}={value}' for name, value in values.items()])}&${{__url_time_range}}"


def of_row(label: str) -> str:
    """In a link: this row's value of a label. ``cluster`` is there in each row because ``placed`` puts it there."""
    return f"${{__data.fields.{label}}}"


RUN_OF_ROW = address("trainer-run", cluster=of_row("place"), run=of_row("run"))
NODE_OF_ROW = address("trainer-node", cluster=of_row("place"), node=of_row("instance"))


def placed(expr: str) -> str:
    """With the cluster in a label that is there without clusters too, for links: a column that is missing would stay unreplaced."""
    everywhere = f'label_replace({expr}, "place", "All", "cluster", "")'
    return f'label_replace({everywhere}, "place", "$1", "cluster", "(.+)")'


def link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url}


def links(*targets: dict[str, Any]) -> DynamicConfigValue:
    """An override: where a click on this column leads."""
    return option("links", list(targets))


def painted(meanings: Mapping[str, tuple[str, str]] | None = None) -> list[DynamicConfigValue]:
    """An override: a cell of a table on its color."""
    cell = option("custom.cellOptions", {"type": "color-background", "mode": "basic"})
    return [cell, option("mappings", words(meanings))] if meanings else [cell]


def not_finite() -> SpecialValueMap:
    """NaN as a word that is seen across the room."""
    result = ValueMappingResult("NaN", RED, index=0)
    return SpecialValueMap(DashboardSpecialValueMapOptions(match=SpecialValueMatch.NA_N, result=result))


def dressed(panel: PanelT, title: str, *, unit: str, about: str, absent: str) -> PanelT:
    """``absent`` is what stands there when there is no data, and the last sentence of the description explains it."""
    identity = zlib.crc32(title.encode()) & 0x7FFFFFFF  # stays when panels move, so that links to a panel live
    return panel.id(identity).title(title).unit(unit).description(about).no_value(absent).datasource(SOURCE)


def board(title: str, *queries: prometheus.Dataquery, unit: str, about: str, absent: str, size: int | None = None) -> stat.Panel:
    """A tile for each row of a table, in letters of this size, or as large as all of them fit: what hangs on a wall."""
    panel = _painted(title, queries, unit=unit, about=about, absent=absent)
    every_row = common.ReduceDataOptions().values(True).calcs([]).fields("").limit(200)
    text = common.VizTextDisplayOptions()
    text = text.title_size(size).value_size(size) if size else text
    return panel.reduce_options(every_row).text(text).text_mode(looks.BigValueTextMode.VALUE)


def tile(title: str, figures: Mapping[str, str], *, unit: str, about: str, absent: str = "no data") -> stat.Panel:
    """Figures of now, expressions by their names, on a coloured ground; NaN is a figure too."""
    return _painted(title, [latest(expr, name, ref=ref) for ref, name, expr in lettered(figures)], unit=unit, about=about, absent=absent)


def lettered(named: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Queries of one panel: letter, name, expression."""
    return ((chr(ord("A") + place), name, expr) for place, (name, expr) in enumerate(named.items()))


def _painted(title: str, queries: Sequence[prometheus.Dataquery], *, unit: str, about: str, absent: str) -> stat.Panel:
    panel = dressed(stat.Panel(), title, unit=unit, about=about, absent=absent).targets(list(queries))
    reduce = common.ReduceDataOptions().calcs(["last"]).fields("").values(False)
    return (
        panel.reduce_options(reduce)
        .color_mode(looks.BigValueColorMode.BACKGROUND_SOLID)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .text_mode(looks.BigValueTextMode.AUTO if len(queries) == 1 else looks.BigValueTextMode.VALUE_AND_NAME)
        .justify_mode(looks.BigValueJustifyMode.CENTER)
        .orientation(looks.VizOrientation.HORIZONTAL)
        .text(common.VizTextDisplayOptions().title_size(15).value_size(22 if len(queries) > 1 else 34))
        .thresholds(steps((ALWAYS, SLATE)))
    )


def curve(title: str, lines: Mapping[str, str], *, unit: str, about: str, absent: str = "no data") -> timeseries.Panel:
    """Figures over time: expressions by their legends."""
    return (
        dressed(timeseries.Panel(), title, unit=unit, about=about, absent=absent)
        .targets([query(expr, legend, ref=ref) for ref, legend, expr in lettered(lines)])
        .line_width(1.5)
        .fill_opacity(0)
        .show_points(looks.VisibilityMode.NEVER)
        .legend(legend_below())
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )


def legend_below() -> common.VizLegendOptions:
    below = common.VizLegendOptions().show_legend(True).display_mode(looks.LegendDisplayMode.LIST)
    return below.placement(looks.LegendPlacement.BOTTOM).calcs([])


def log_scale(*, base: int = 10) -> common.ScaleDistributionConfig:
    return common.ScaleDistributionConfig().type(looks.ScaleDistribution.LOG).log(base)


def timeline(title: str, states: Mapping[str, str], *, unit: str, about: str, absent: str = "no data") -> statetimeline.Panel:
    """States over time: expressions by the names of their rows."""
    return (
        dressed(statetimeline.Panel(), title, unit=unit, about=about, absent=absent)
        .targets([query(expr, name, ref=ref) for ref, name, expr in lettered(states)])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.FIXED).fixed_color(GREY))  # by default there is no legend of the words
        .thresholds(steps())
        .merge_values(True)
        .show_value(looks.VisibilityMode.NEVER)  # cut off where a state is short; the legend has the words
        .row_height(0.8)
        .fill_opacity(85)
        .line_width(0)
        .legend(legend_below())
    )


def grid(title: str, *queries: prometheus.Dataquery, unit: str, about: str, absent: str = "no data") -> table.Panel:
    """Rows of the present."""
    return dressed(table.Panel(), title, unit=unit, about=about, absent=absent).targets(list(queries))


def reading(metric: str) -> str:
    """One series a GPU of a figure that the rules record, from whichever exporter reads it."""
    return f'max by (cluster, instance, uuid) ({metric}{{cluster=~"$cluster"}})'


def of_the_run(figure: str) -> str:
    """A reading of the GPUs that serve the run. The info is the many side: two processes on a GPU do not break the join."""
    return f"{recorded('gpu:run:info')} * on (cluster, instance, uuid) group_left () {figure}"


class EventQuery(AnnotationQuery):
    """An annotation from Prometheus with its title and text, which the kit's own type cannot hold."""

    def __init__(self, *, title: str, text: str, step: str, **known: Any) -> None:
        super().__init__(**known)
        self._more = {"titleFormat": title, "textFormat": text, "step": step, "useValueForTime": False}

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), **self._more}


def events(name: str, expr: str, *, color: str, title: str, text: str = "", enable: bool = True) -> Any:
    """Marks on every curve where the query has a value above 0."""
    known = {"name": name, "datasource": SOURCE, "enable": enable, "icon_color": color, "expr": expr}
    return _Built(EventQuery(title=title, text=text, step="60s", **known))


def source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def label_variable(name: str, label: str, asked: str, *, many: bool, of: str = "", all_of_them: bool = True) -> dashboard.QueryVariable:
    """Values of a label, ``of`` where it is not called as the variable. With ``many``, the choice of all stands for any value and for the
    label's absence too; without ``all_of_them`` there is no such choice."""
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .query(f"label_values({asked}, {of or name})")
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if not many:
        return variable
    if not all_of_them:
        return variable.multi(True)
    everything = VariableOption(selected=True, text="All", value="$__all")
    return variable.multi(True).include_all(True).all_value(".*").current(everything)


def scope(of: str) -> tuple[Any, ...]:
    """The variables that a dashboard begins with: the data source, and the jobs and clusters that publish this metric."""
    jobs = label_variable("job", "Job", of, many=True)
    return source_variable(), jobs, label_variable("cluster", "Cluster", f'{of}{{job=~"$job"}}', many=True)


class Page:
    """A dashboard that is filled row by row; panels flow from left to right."""

    def __init__(self, title: str, *, uid: str, about: str, tags: Sequence[str], since: str, refresh: str) -> None:
        self._builder = dashboard.Dashboard(title).uid(uid).description(about).tags(list(tags))
        others = dashboard.DashboardLink("Training").type(DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
        self._builder.links([others.keep_time(True).include_vars(True)])
        self._builder.time(since, "now").refresh(refresh).timezone("browser").editable().tooltip(DashboardCursorSync.CROSSHAIR)
        self._x = self._y = self._height = 0

    def leads_to(self, title: str, url: str) -> None:
        """A link in the header."""
        self._builder.link(dashboard.DashboardLink(title).type(DashboardLinkType.LINK).icon("external link").url(url))

    def variables(self, *variables: Any) -> None:
        self._builder.variables(list(variables))

    def annotations(self, *annotations: Any) -> None:
        self._builder.annotations(list(annotations))

    def row(self, title: str) -> None:
        self._newline()
        place = GridPos(h=1, w=24, x=0, y=self._y)
        identity = zlib.crc32(f"row {title}".encode()) & 0x7FFFFFFF
        self._builder.with_row(dashboard.Row(title).id(identity).grid_pos(place))
        self._y += 1

    def add(self, panel: Any, *, width: int, height: int) -> None:
        if self._x + width > 24:
            self._newline()
        self._builder.with_panel(panel.grid_pos(GridPos(h=height, w=width, x=self._x, y=self._y)))
        self._x += width
        self._height = max(self._height, height)

    def build(self) -> Dashboard:
        return self._builder.build()

    def _newline(self) -> None:
        self._x, self._y, self._height = 0, self._y + self._height, 0

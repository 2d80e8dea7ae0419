"""Shapes that panels of several dashboards have: figures in one tile, a table of figures, lines that stand beside others."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue
from house import (
    GREEN,
    RED,
    PanelT,
    columns,
    fixed,
    grid,
    lettered,
    option,
    placed,
    rows,
    scraped_of_nodes,
    thresholds,
    tile,
    words,
)

DASHED = option("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
USUAL = [fixed("#8e9aaf"), DASHED]  # what a figure is compared with
LIMIT = [fixed("red"), DASHED]  # what it must not reach
AGE = [option("unit", "s"), option("decimals", 0), option("mappings", words({"-1": ("–", "transparent")}))]  # -1 where there is none
NONE_IS_WELL = thresholds((0, GREEN), (1, RED))


def zero(proof: str, label: str, word: str = "none") -> str:
    """A zero that says so in a label; it needs ``proof``, which is there where somebody would know of more."""
    return f'label_replace(0 * max ({proof}), "{label}", "{word}", "", "")'


def exporters(about: str) -> stat.Panel:
    """How many exporters of the chosen nodes answer, and how many do not."""
    up = scraped_of_nodes("up")
    figures = {"answer": f"sum ({up})", "silent": f"sum (1 - {up})"}
    panel = tile("Exporters", figures, unit="none", about=about, absent="none known")
    return panel.override_by_name("silent", [NONE_IS_WELL])


def figures_of(key: str, title: str, figures: Mapping[str, str], *, about: str, names: Mapping[str, str] | None = None) -> table.Panel:
    """A table: a row for each value of the label ``key``, a column for each expression, by its name."""
    by_column = {f"Value #{ref}": name for ref, name, _ in lettered(figures)}
    asked = (rows(placed(expr), ref=ref) for ref, _, expr in lettered(figures))
    panel = grid(title, *asked, unit="none", about=about, absent="–")
    return panel.transformations(columns(key, *by_column, hidden=("Time", "cluster"), names={**by_column, **(names or {})}))


def shown_as(panel: PanelT, formats: Mapping[str, tuple[str, int]]) -> PanelT:
    """Units and decimals by the names of figures."""
    for name, (unit, decimals) in formats.items():
        panel.override_by_name(name, [option("unit", unit), option("decimals", decimals)])
    return panel


def with_bars(panel: table.Panel, *names: str) -> table.Panel:
    """Shares in a table as bars with their number."""
    bar = option("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"})
    for name in names:
        panel.override_by_name(name, [bar, fixed("semi-dark-blue"), option("decimals", 0)])
    return panel


def without_place(panel: table.Panel) -> table.Panel:
    """The column that links need (see ``placed``), out of sight."""
    return panel.override_by_name("place", [option("custom.hidden", True)])


def with_usual(panel: timeseries.Panel, color: str) -> timeseries.Panel:
    """The figure in its colour, and what is usual as a dashed grey line."""
    return panel.override_by_name("as logged", [fixed(color)]).override_by_name("usual", USUAL)


def bars(panel: timeseries.Panel) -> timeseries.Panel:
    """Events, stacked."""
    stacked = common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A")
    # two minutes: a single event is a bar that can be seen
    return panel.interval("2m").draw_style(looks.GraphDrawStyle.BARS).fill_opacity(80).line_width(0).stacking(stacked).min(0)


def on_the_right(unit: str, color: str, *, soft_max: int) -> list[DynamicConfigValue]:
    """An override: on an axis of its own, which reaches this far at least."""
    return [option("unit", unit), option("custom.axisPlacement", "right"), fixed(color), option("custom.axisSoftMax", soft_max)]

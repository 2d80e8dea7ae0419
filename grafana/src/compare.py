"""The dashboard that compares runs: which one learns more from the same number of steps?

Over steps, not over time: runs that began on different days, and at different speeds, lie over one another.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, xychart
from grafana_foundation_sdk.models import xychart as xymodel
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from house import (
    RUN_OF_ROW,
    STATES,
    TAG,
    Page,
    curve,
    dressed,
    label_variable,
    legend_below,
    link,
    links,
    option,
    painted,
    query,
    scope,
    shaped,
)
from shapes import figures_of, shown_as, without_place

CHOSEN = 'job=~"$job",cluster=~"$cluster",run=~"$run"'


class StepChart(xychart.Panel):
    """An XY chart as Grafana has it since 11.1, where each frame is a series; the kit knows the older one, which draws the first frame."""

    def build(self) -> Any:
        panel = super().build()
        panel.plugin_version = "11.1.0"
        legend = panel.options.legend
        x = {"matcher": {"id": "byName", "options": "step"}}
        panel.options = {"mapping": "auto", "series": [{"x": x}], "legend": legend, "tooltip": {"mode": "single"}}
        return panel


def _by_step(title: str, *queries: prometheus.Dataquery, unit: str, about: str, absent: str) -> StepChart:
    """Figures over steps instead of over time: query A is the step, query B the figure, a line for each run."""
    panel = dressed(StepChart(), title, unit=unit, about=about, absent=absent).targets(list(queries))
    own_frames = shaped("partitionByValues", fields=["run"], keepFields=False, naming={"asLabels": True})
    hidden = shaped("organize", excludeByName={"Time": True, "cluster": True}, renameByName={"Value #A": "step", "Value #B": "value"})
    # By run in the end, so that each has the color that it has in the curves over time.
    sorts = [shaped("sortBy", sort=[{"field": field}]) for field in ("Value #A", "run", "cluster")]
    panel.transformations([shaped("merge"), *sorts, hidden, own_frames])
    panel.show(xymodel.ScatterShow.LINES).line_width(2).legend(legend_below())
    panel.override_by_name("value", [option("displayName", "${__field.labels.run}")])
    return panel.override_by_name("step", [option("unit", "locale"), option("decimals", 0)])


def build() -> Dashboard:
    """The whole dashboard."""
    page = Page(
        "Compare runs",
        uid="trainer-compare",
        about="Which of these runs learns more from the same number of steps? Choose two or more, and a time range that holds them all.",
        tags=[TAG, "training"],
        since="now-24h",
        refresh="1m",
    )
    page.variables(
        *scope("trainer_run_info"),
        label_variable("team", "Team", 'trainer_run_info{job=~"$job",cluster=~"$cluster"}', many=True),
        label_variable("run", "Runs", 'trainer_run_info{job=~"$job",cluster=~"$cluster",team=~"$team"}', many=True, all_of_them=False),
    )
    page.add(_table(), width=24, height=6)
    for panel in (_loss(), _evaluation(), _gradient(), _rate()):
        page.add(panel, width=12, height=11)
    page.row("The same over time")
    page.add(_time(), width=12, height=8)
    page.add(_speed(), width=12, height=8)
    return page.build()


def _of(metric: str, *matchers: str) -> str:
    return f"max by (cluster, run) ({metric}{{{','.join((CHOSEN, *matchers))}}})"


def _steps(title: str, metric: str, *, unit: str = "none", about: str, absent: str) -> Any:
    figure = f"{_of(metric)} < +Inf"
    # A step that stands still tells nothing new, and ever again the same: only where it moved.
    step = f"{_of('trainer_step')} and on (cluster, run) {figure}"
    panel = _by_step(title, _sampled(step, "A"), _sampled(figure, "B"), unit=unit, about=about, absent=absent)
    return panel.max_data_points(400)


def _sampled(expr: str, ref: str) -> Any:
    return query(expr, "__auto", ref=ref).format(PromQueryFormat.TABLE)


def _table() -> Any:
    about = (
        "The runs beside each other as they are now; a click on a run leads to it. Normal: the one that is ahead at the same step has "
        "the lower loss. "
        "An empty cell: its log does not say it."
    )
    figures = {
        "state": 'max by (cluster, run) (run:state:code{cluster=~"$cluster",run=~"$run"})',
        "step": _of("trainer_step"),
        "target": _of("trainer_target_steps"),
        "loss": _of("trainer_loss"),
        "evaluation": _of("trainer_eval_loss"),
        "gradient norm": _of("trainer_grad_norm"),
        "learning rate": _of("trainer_learning_rate"),
        "tokens/s": _of("trainer_tokens_per_second"),
        "step time": _of("trainer_step_duration_seconds"),
        "MFU": _of("trainer_mfu_ratio"),
        "goodput": _of("trainer_goodput_ratio"),
    }
    panel = figures_of("run", "Runs", figures, about=about)
    panel.sort_by([common.TableSortByFieldState().display_name("loss").desc(False)])
    shown_as(panel, {"step": ("locale", 0), "target": ("locale", 0), "loss": ("none", 4), "evaluation": ("none", 4)})
    shown_as(panel, {"tokens/s": ("short", 1), "step time": ("s", 2), "MFU": ("percentunit", 1), "goodput": ("percentunit", 1)})
    shown_as(panel, {"learning rate": ("sci", 2)})
    panel.override_by_name("gradient norm", [option("decimals", 3)]).override_by_name("state", painted(STATES))
    without_place(panel)
    return panel.override_by_name("run", [links(link("Run", RUN_OF_ROW)), option("unit", "string")])


def _loss() -> Any:
    about = (
        "The loss as logged against the step, over the time range above. Normal: curves of one recipe lie on one another; the lower one "
        "learns more "
        "from the same data. A restart draws its steps twice. Without data the time range holds no step of these runs."
    )
    return _steps("Loss by step", "trainer_loss", about=about, absent="no step within the time range")


def _evaluation() -> Any:
    about = (
        "The loss on held-out data against the step. Normal: as the training loss, with a gap that does not grow. "
        "Without data none of the runs has evaluated within the time range."
    )
    return _steps("Evaluation by step", "trainer_eval_loss", about=about, absent="no evaluation within the time range")


def _gradient() -> Any:
    about = (
        "The gradient's norm before clipping against the step. Normal: bands of one height for one recipe. "
        "Without data the trainers do not log it."
    )
    return _steps("Gradient norm by step", "trainer_grad_norm", about=about, absent="not logged")


def _rate() -> Any:
    about = (
        "The learning rate against the step: what was configured, and whether it is the same. Normal: as you meant it. Without "
        "data it is not logged."
    )
    return _steps("Learning rate by step", "trainer_learning_rate", unit="sci", about=about, absent="not logged")


def _time() -> Any:
    about = "The loss as logged over time. Normal: falling, or flat late in a run. A gap: not finite, or nothing was published."
    return curve("Loss over time", {"{{run}}": f"{_of('trainer_loss')} < +Inf"}, unit="none", about=about, absent="no loss")


def _speed() -> Any:
    about = "Tokens per second of the whole job. Normal: level. Without data the log does not give them."
    return curve(
        "Tokens per second", {"{{run}}": _of("trainer_tokens_per_second")}, unit="short", about=about, absent="not in the log"
    ).min(0)

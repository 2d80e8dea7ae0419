"""The curves of a run by step as one SVG, with its alerts marked on them. Drawn by matplotlib, the extra ``report``.

The SVG holds no text of the log: only names of figures and the numbers of the alerts. Its colours are variables of the page around it.
"""

from __future__ import annotations

import io
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trainer_exporter.backtest.evidence import values_of
from trainer_exporter.backtest.playing import SPEEDS
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.model import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib wants colours, the page has variables: each of these stands for one.
COLOURS: Final = {
    "ink": "#0a0b01",
    "faint": "#0a0b02",
    "grid": "#0a0b03",
    "curve": "#0a0b04",
    "critical": "#0a0b05",
    "warning": "#0a0b06",
    "info": "#0a0b07",
}
SMOOTHING: Final = 0.6  # as people know it from TensorBoard
_COLUMNS: Final = 900  # more points than that are not seen; of each column the lowest and the highest are drawn
_LOGARITHMIC: Final = 50.0  # times between the largest value and the median: a diverging loss would hide all before
_TITLES: Final = {"tokens_per_second": "tokens / s", "samples_per_second": "samples / s", "step_duration_seconds": "s / step"}
_WIDTH_IN: Final = 11.0
_PANEL_IN: Final = 1.75

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure of the run."""

    title: str
    points: Sequence[Point]  # (step or number of the record, value); steps may go back where the run began anew


def require_library() -> None:
    """A TrainerExporterError that names the extra, where matplotlib is not installed."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise TrainerExporterError("--html needs matplotlib: pip install 'trainer-exporter[report]'") from error


def panels(log: Log, result: Result) -> list[Panel]:
    """Loss, gradient norm, learning rate and speed, as far as the log has them."""
    axis = _Axis(log)
    named = [("loss", "loss"), ("eval_loss", "evaluation loss"), ("grad_norm", "grad norm"), ("learning_rate", "learning rate")]
    found = [Panel(title, [(axis.at(value.line), value.value) for value in values_of(log.events, field)]) for field, title in named]
    return [*(panel for panel in found if panel.points), *_speed(result, axis)]


def _speed(result: Result, axis: _Axis) -> list[Panel]:
    for name in SPEEDS:
        if name == "step_duration_seconds" and result.clock == "steps":
            continue  # a second a step is what we made up
        if points := [(axis.at(mark.line), mark.speed[name]) for mark in result.marks if name in mark.speed]:
            return [Panel(_TITLES[name], points)]
    return []


class _Axis:
    """Lines to steps; to the numbers of the records in a log without steps."""

    def __init__(self, log: Log) -> None:
        self._lines: list[int] = []
        self._places: list[float] = []
        step: float | None = None
        for event in log.events:
            if isinstance(event, Record) and event.fields:
                step = event.fields.get("step", step)
                self._lines.append(event.line)
                self._places.append(step if step is not None else float("nan"))
        self.is_steps = step is not None
        if not self.is_steps:
            self._places = [float(number) for number in range(1, len(self._lines) + 1)]

    def at(self, line: int) -> float:
        """Where a line stands on the axis; of a line between two records, where the earlier one does."""
        if not self._lines:
            return 0.0
        place = bisect_left(self._lines, line + 1) - 1
        return self._places[max(0, place)]


def svg(log: Log, result: Result, firings: Sequence[Firing]) -> str:
    """The drawing, for inclusion in a page; "" of a log without curves. The alerts are numbered in the order given, from 1."""
    shown = panels(log, result)
    if not shown:
        return ""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    axis = _Axis(log)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainer-exporter", "font.size": 10, "axes.edgecolor": COLOURS["faint"]}):
        figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * len(shown) + 0.6), layout="constrained")
        figure.patch.set_alpha(0.0)
        rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for row, panel in zip(rows, shown, strict=True):
            _draw(row, panel)
            for number, firing in enumerate(firings, 1):
                _mark(row, (axis.at(firing.line), _end(axis, result, firing)), firing.severity, number if row is rows[0] else None)
        rows[-1].set_xlabel("step" if axis.is_steps else "record", color=COLOURS["faint"])
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _themed(out.getvalue())


def _draw(row: Axes, panel: Panel) -> None:
    row.patch.set_alpha(0.0)
    row.margins(x=0.01)
    row.set_title(panel.title, loc="left", fontsize=10, color=COLOURS["ink"], pad=4)
    row.tick_params(colors=COLOURS["faint"], labelsize=9, length=3)
    row.grid(visible=True, color=COLOURS["grid"], linewidth=0.6)
    for side in ("top", "right"):
        row.spines[side].set_visible(False)
    finite = [value for _, value in panel.points if math.isfinite(value)]
    smooth = panel.title == "loss" and len(finite) > _COLUMNS / 20
    for attempt in attempts(panel.points):
        xs, ys = _unzipped(thinned(attempt))
        row.plot(
            xs,
            ys,
            color=COLOURS["curve"],
            linewidth=0.8 if smooth else 1.2,
            alpha=0.35 if smooth else 1,
            marker="." if len(xs) == 1 else "",
        )
        if smooth:
            row.plot(*_unzipped(thinned(smoothed(attempt))), color=COLOURS["curve"], linewidth=1.4)
    if finite and min(finite) > 0 and max(finite) > _LOGARITHMIC * sorted(finite)[len(finite) // 2]:
        row.set_yscale("log")
    if broken := [place for place, value in panel.points if not math.isfinite(value)]:
        row.plot(broken, [0.03] * len(broken), "|", color=COLOURS["critical"], markersize=6, transform=row.get_xaxis_transform())
        row.annotate("not finite", (broken[0], 0.1), xycoords=row.get_xaxis_transform(), color=COLOURS["critical"], fontsize=8, ha="right")


def _mark(row: Axes, ends: tuple[float, float], severity: str, number: int | None) -> None:
    colour = COLOURS.get(severity, COLOURS["info"])
    if severity == "critical" and ends[1] > ends[0]:  # more than one shade over another says nothing
        row.axvspan(*ends, color=colour, alpha=0.10, linewidth=0)
    row.axvline(ends[0], color=colour, linewidth=1.1)
    if number is not None:
        # Neighbours stand one above the other, three high.
        height = 1.02 + 0.13 * ((number - 1) % 3)
        text = row.text(
            ends[0], height, str(number), transform=row.get_xaxis_transform(), color=colour, fontsize=9, fontweight="bold", ha="center"
        )
        text.set_url(f"#alert-{number}")


def _end(axis: _Axis, result: Result, firing: Firing) -> float:
    if firing.resolved_wall is None:
        return axis.at(result.marks[-1].line)
    until = firing.at_s + firing.resolved_wall - firing.wall
    return next((axis.at(mark.line) for mark in result.marks if mark.at_s >= until), axis.at(result.marks[-1].line))


def attempts(points: Sequence[Point]) -> list[list[Point]]:
    """Cut where the place goes back: another attempt is another curve. What is not finite leaves a gap."""
    found: list[list[Point]] = [[]]
    before = -math.inf
    for place, value in points:
        if place < before:
            found.append([])
        before = place
        found[-1].append((place, value if math.isfinite(value) else math.nan))
    return [attempt for attempt in found if attempt]


def thinned(points: Sequence[Point], columns: int = _COLUMNS) -> list[Point]:
    """At most two points a column, its lowest and its highest in their order, so that no spike is lost."""
    if len(points) <= 2 * columns:
        return list(points)
    size = math.ceil(len(points) / columns)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        column = points[start : start + size]
        finite = [point for point in column if math.isfinite(point[1])]
        ends = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])} if finite else {column[0]}
        kept += [point for point in column if point in ends][: 2 if len(ends) > 1 else 1]
    return kept


def smoothed(points: Sequence[Point]) -> list[Point]:
    """An exponential mean, begun at the first value; what is not finite is left out of it and stays a gap."""
    mean: float | None = None
    found = []
    for place, value in points:
        if math.isfinite(value):
            mean = value if mean is None else SMOOTHING * mean + (1 - SMOOTHING) * value
        found.append((place, mean if mean is not None and math.isfinite(value) else math.nan))
    return found


def _unzipped(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [place for place, _ in points], [value for _, value in points]


def _themed(drawing: str) -> str:
    """The SVG without its XML head, with the page's variables as colours, and as wide as the page."""
    body: str = drawing[drawing.index("<svg") :]
    names: dict[str, Any] = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    body = re.sub("|".join(names), lambda match: names[match[0]], body)
    return re.sub(r'<svg ([^>]*?)\bwidth="[^"]*pt"', r"<svg \1", re.sub(r'\bheight="[^"]*pt" ', "", body, count=1), count=1)

"""The wall: how is the fleet, and who needs help? For a screen that hangs for weeks and is read from across the room.

All of it asks for what the rules have recorded, the present only: some thirty answers of a few rows each, at any size of the fleet.
"""

from __future__ import annotations

from typing import Any

from alerts import WATCHDOG, causes, in_words
from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import Dashboard
from house import (
    ALWAYS,
    BLUE,
    GPU_STATES,
    GREEN,
    IDLE,
    ORANGE,
    PURPLE,
    RED,
    SLATE,
    STATES,
    TAG,
    Page,
    address,
    board,
    columns,
    label_variable,
    link,
    links,
    of_row,
    option,
    rows,
    shaped,
    source_variable,
    steps,
    thresholds,
    tile,
    words,
)

HERE = 'cluster=~"$cluster"'
OURS = f'{HERE},team=~"$team"'
ROWS, NODES, PAGES = 10, 96, 6  # what a screen holds in letters of that size
DASH, NOTHING = "–", "#6e728038"  # a grey that does not call
SECOND = option("displayName", "${__cell_1}")  # a tile's name is its row's second column: the first is whole, for links
UNKNOWN, NOT_FINITE = -1000000000, 1000000000  # stand for a word in a column of figures


def build() -> Dashboard:
    """The whole dashboard: 27 units high, which is a screen of 1920 x 1080 without a scroll bar; at twice the scale, one of 3840 x 2160."""
    page = Page(
        "Fleet wall",
        uid="trainer-wall",
        about="How is the fleet, and who needs help? Open with ?kiosk; on a 4K screen at a zoom of 200 %.",
        tags=[TAG, "wall"],
        since="now-1h",
        refresh="30s",
    )
    page.variables(
        source_variable(),
        label_variable("cluster", "Cluster", "run:state:code", many=True),
        label_variable("team", "Team", f"run:state:code{{{HERE}}}", many=True),
    )
    page.add(_runs(), width=9, height=4)
    page.add(_gpus(), width=7, height=4)
    page.add(_fleet(), width=8, height=4)
    for panel, width in _board():
        page.add(panel, width=width, height=13)
    page.add(_pages(), width=13, height=10)
    page.add(_nodes(), width=11, height=10)
    return page.build()


# -- counts


def _counts(metric: str, selection: str, groups: dict[str, str]) -> dict[str, str]:
    """How many are in a state, for each group of states."""
    return {name: f'sum ({metric}{{{selection},state=~"{states}"}})' for name, states in groups.items()}


def _runs() -> Any:
    groups = {
        "training": "training",
        "saving/eval": "saving|evaluating",
        "starting": "starting",
        "hung": "hung",
        "crashed": "crashed|failed",
    }
    about = (
        "Runs by what they do, the rules' verdict included; saving includes evaluating, crashed includes failed. "
        "Normal: nearly all training, none hung, none crashed. "
        "Without data no run is published, or the recording rules are not loaded."
    )
    panel = _large(tile("Runs", _counts("cluster:runs:count", OURS, groups), unit="none", about=about, absent="?"))
    panel.override_by_name("training", [thresholds((0, SLATE), (1, GREEN))])
    for name in ("hung", "crashed"):
        panel.override_by_name(name, [thresholds((0, SLATE), (1, RED))])
    return panel


def _gpus() -> Any:
    about = (
        "GPUs by state. Spinning: busy by the driver's count, without memory traffic and power. Sick: an alert names it, or it cannot be "
        "read. Lost: off the bus; silent ones, heard of within the last hour and no more, are counted with them. "
        "Normal: working and idle only. Without data no GPU is read."
    )
    groups = {"working": "working", "idle": "idle", "spinning": "spinning", "sick": "sick", "lost": "lost|silent"}
    panel = _large(tile("GPUs", _counts("cluster:gpus:count", HERE, groups), unit="none", about=about, absent="?"))
    panel.override_by_name("working", [thresholds((0, SLATE), (1, GREEN))])
    for name, color in (("idle", IDLE), ("spinning", ORANGE), ("sick", PURPLE), ("lost", RED)):
        panel.override_by_name(name, [thresholds((0, SLATE), (1, color))])
    return panel


def _fleet() -> Any:
    about = (
        "Power of all GPUs; model FLOPs per second of the runs that make steps; and the day's goodput: of the GPUs given to runs, the "
        "share whose run made steps. Normal: power and FLOPs follow one another, goodput above 90 %. Power without FLOPs is a fleet that "
        "waits. Without data no GPU is read, or no trainer tells its FLOPs."
    )
    panel = tile(
        "Fleet",
        {
            "power": f"sum (cluster:power_watts:sum{{{HERE}}})",
            "effective": f"sum (cluster:flops_per_second:sum{{{HERE}}})",
            "goodput 24 h": f"avg (avg_over_time(cluster:goodput_ratio:now{{{HERE}}}[1d]))",
        },
        unit="watt",
        about=about,
        absent="?",
    )
    panel.override_by_name("effective", [option("unit", "flops"), option("decimals", 0)])
    judged = [option("unit", "percentunit"), option("decimals", 0), thresholds((0, RED), (0.7, ORANGE), (0.9, GREEN))]
    panel = _large(panel).text(_letters(name=20, value=36))  # "999 PFLOPS" must fit
    return panel.decimals(0).override_by_name("goodput 24 h", judged)


def _large(panel: Any) -> Any:
    panel.orientation(looks.VizOrientation.VERTICAL)
    return panel.text(_letters(name=20, value=46))


def _letters(*, name: int, value: int) -> Any:
    return common.VizTextDisplayOptions().title_size(name).value_size(value)


# -- a row for each run: columns that hold the same rows in the same order


def _worst() -> str:
    return f"topk({ROWS}, max by (cluster, run) (run:attention:score{{{OURS}}}))"


def _column(title: str, expr: str, *, unit: str, about: str, of: str = "!= 5") -> Any:
    """``of``: the states in which the figure says something. A row without it has a dash."""
    shown = f"({expr}) and on (cluster, run) (run:state:code{{{HERE}}} {of})"
    filled = f"{shown} and on (cluster, run) {_worst()} or on (cluster, run) {_worst()} * 0 + {UNKNOWN}"
    panel = board(title, rows(_cut(_worst()), ref="A"), rows(_cut(filled), ref="B"), unit=unit, about=about, absent=DASH, size=30)
    by_score = [shaped("sortBy", sort=[{"field": "run"}]), shaped("sortBy", sort=[{"field": "Value #A", "desc": True}])]
    merge, organize = columns("run", "short", hidden=("Time", "Value #A", "cluster"))
    panel.transformations([merge, *by_score, organize]).orientation(looks.VizOrientation.HORIZONTAL)
    panel.mappings(words({str(UNKNOWN): (DASH, NOTHING)}))
    return panel.override_by_name("Value #B", [links(link("Run", address("trainer-run", "cluster", run=of_row("run")))), SECOND])


def _cut(expr: str, label: str = "short", *, letters: int = 26) -> str:
    """With the run's name in this label, as much of it as there is room for."""
    return f'label_replace(label_replace({expr}, "{label}", "$1", "run", "(.+)"), "{label}", "$1…", "run", "(.{{{letters}}}).+")'


def _host(expr: str, label: str, shape: str = "$1") -> str:
    """With the node's name in this label, without domain and port."""
    return f'label_replace({expr}, "{label}", "{shape}", "instance", "([a-zA-Z][^.:]*|[^:]+).*")'


def _of_run(metric: str) -> str:
    return f"max by (cluster, run) ({metric}{{{HERE}}})"


def _board() -> list[tuple[Any, int]]:
    state = _column(
        f"Runs that need help first, at most {ROWS}",
        _of_run("run:state:code"),
        unit="none",
        about="The runs, those that page, hang or crashed first, then the largest, and what they do. Normal: training. "
        "Without data no run is published, or the recording rules are not loaded.",
    )
    state.mappings(words(STATES)).text_mode(looks.BigValueTextMode.VALUE_AND_NAME).justify_mode(looks.BigValueJustifyMode.AUTO)
    alert = _column(
        "Alert",
        _of_run("run:severity:code"),
        unit="none",
        about="The worst that fires for the run. Normal: none. Without data the rules do not know the run.",
    )
    severities = {"0": ("none", SLATE), "1": ("info", BLUE), "2": ("ticket", ORANGE), "3": ("PAGE", RED)}
    alert.mappings(words({**severities, str(UNKNOWN): (DASH, NOTHING)}))
    return [(state, 8), (alert, 2), *_figures()]


def _figures() -> list[tuple[Any, int]]:
    done = _column(
        "Done",
        _of_run("run:progress_ratio:max"),
        unit="percentunit",
        about="Share of the target steps. Normal: it grows. Without data the trainer does not say how many steps it will make.",
    )
    left = _column(
        "Time left",
        _of_run("run:remaining_seconds:max"),
        unit="s",
        about="At the present pace. Normal: it shrinks as fast as the clock. "
        "Without data the target is not known, or the run does not move.",
        of="< 5",
    )
    slower = _column(
        "Speed lost",
        _of_run("run:throughput_loss_ratio:min"),
        unit="percentunit",
        about="Tokens/s lost against the best that this attempt sustained. Normal: a few percent; one bad node costs 5 % and more. "
        "Without data the log tells no times, or the run does not move.",
        of="< 5",
    )
    mfu = _column(
        "MFU",
        _of_run("run:mfu_ratio:max"),
        unit="percentunit",
        about="Model FLOPs utilization. Normal: 45 to 60 % for large models. Without data no FLOPs are known, or the run does not move.",
        of="< 5",
    )
    silence = _column(
        "Silence of its limit",
        _of_run("run:silence_of_limit_ratio:max"),
        unit="percentunit",
        about="Time since the last step as a share of the silence at which this run counts as hung, learned from its own gaps. "
        "Normal: under a half; at 100 % it is paged. Without data the run is over.",
        of="!= 8",
    )
    for panel in (done, slower, mfu, silence):
        panel.decimals(0)
    left.decimals(1)
    slower.thresholds(steps((ALWAYS, SLATE), (0.05, ORANGE), (0.3, RED)))
    silence.thresholds(steps((0, SLATE), (0.5, ORANGE), (1, RED)))
    return [(done, 2), (left, 3), (_trend(), 2), (slower, 2), (mfu, 2), (silence, 3)]


def _trend() -> Any:
    finite = _of_run("run:loss_change_ratio:max")
    expr = f"({_of_run('run:loss_nonfinite_streak_records:max')} > 0) * 0 + {NOT_FINITE} or on (cluster, run) {finite}"
    about = (
        "Change of the loss from the older to the newer half of its window (1000 steps, or 100); NaN where the newest losses are not "
        "finite, hidden or not. Normal: below 0, near 0 late in a run. Without data there are too few records."
    )
    panel = _column("Loss trend", expr, unit="percentunit", about=about, of="< 6")
    panel.mappings(words({str(UNKNOWN): (DASH, NOTHING), str(NOT_FINITE): ("NaN", RED)}))
    return panel.decimals(2).thresholds(steps((ALWAYS, SLATE), (0.02, ORANGE)))


# -- pages and nodes


def _pages() -> Any:
    told = causes('severity="critical"')
    quiet = f'label_replace(min by (alertname) ({WATCHDOG} * 0 - 1), "who", "All quiet.", "", "") unless on () ({told})'
    about = (
        f"What pages now and for how long, the latest first, at most {PAGES}: causes, without the symptoms that they explain, and where a "
        "run is concerned the node of the GPU that stands apart. Normal: all quiet, in words; this needs the watchdog, which proves that "
        "the rules are judged. Without data they are not, and nothing is known."
    )
    panel = board(
        "Pages",
        rows(f"bottomk({PAGES}, min by (who, alertname) ({_paging(told)})) or {quiet}", ref="A"),
        unit="s",
        about=about,
        absent="nobody judges: are the rules loaded?",
        size=24,
    )
    panel.transformations([shaped("sortBy", sort=[{"field": "Value"}]), *columns("who", "alertname")[1:]])
    panel.text_mode(looks.BigValueTextMode.VALUE_AND_NAME).justify_mode(looks.BigValueJustifyMode.AUTO)
    panel.decimals(0).thresholds(steps((0, RED))).mappings(words({"-1": ("no page", GREEN)}))
    panel.override_by_name("alertname", [option("mappings", in_words("summary"))])
    return panel.override_by_name("Value", [links(link("On call", address("trainer-oncall", "cluster")))])


def _paging(told: str) -> str:
    """The age of each page, and in the label "who" its run with the node of the surest suspect, else its node, else the fleet."""
    key = "cluster, run, instance, uuid, alertname, severity"
    age = f"time() - ALERTS_FOR_STATE{{{HERE}}} and on ({key}) ({told})"
    fleet = f'label_replace({age}, "who", "fleet", "", "")'
    who = _cut(_host(fleet, "who"), "who", letters=20)
    suspect = f"{_host(f'topk by (cluster, run) (1, run:suspect_gpu{{{HERE}}})', 'at', ' ($1)')} * 0 + 1"
    pointed = f"{who} * on (cluster, run) group_left (at) ({suspect}) or on ({key}) {who}"
    return f'label_replace(label_join({pointed}, "who", "", "who", "at"), "who", "$1:", "who", "(.+)")'


def _nodes() -> Any:
    worst = f"topk({NODES}, max by (cluster, instance) (node:gpu_state:max{{{HERE}}}))"
    short = f'label_replace({_host(worst, "short")}, "short", "…$1", "short", ".+(.{{6}})")'  # of one fleet's names the end tells
    about = (
        f"A tile for each node in the color of its worst GPU, at most {NODES}, the worst of them all. "
        "Normal: green where a run is, blue where none. "
        "Without data no GPU is read."
    )
    panel = board(
        "Nodes: green works, blue idles, orange spins, purple is sick, grey is silent, red is lost",
        rows(short, ref="A"),
        unit="none",
        about=about,
        absent="no GPU is read",
    )
    merge, organize = columns("instance", "short", hidden=("Time", "cluster"))
    panel.transformations([merge, shaped("sortBy", sort=[{"field": "instance"}]), organize])
    panel.mappings(words(GPU_STATES)).orientation(looks.VizOrientation.AUTO).text_mode(looks.BigValueTextMode.NAME)
    node = address("trainer-node", "cluster", node=of_row("instance"))
    return panel.override_by_name("Value", [links(link("Node", node)), SECOND])

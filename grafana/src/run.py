"""The dashboard of one run: is it healthy, and if not, why not.

The top row answers alone, with the present. Below it the same questions over time: state, learning, speed, progress, checkpoints, GPUs.
Where the rules record a figure that alerts judge, the recorded one is drawn, so that a panel and a page never disagree.
"""

from __future__ import annotations

from typing import Any

from alerts import RUNBOOK, in_words
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import Dashboard, DataTransformerConfig, VariableOption
from house import (
    ALWAYS,
    BLUE,
    GREEN,
    GREY,
    IDLE,
    ORANGE,
    PURPLE,
    RED,
    SEVERITIES,
    TAG,
    YELLOW,
    Page,
    address,
    events,
    grid,
    label_variable,
    largest,
    link,
    links,
    not_finite,
    of_the_run,
    option,
    painted,
    reading,
    recorded,
    rows,
    scope,
    scraped,
    thresholds,
    tile,
    timeline,
    words,
)
from oncall_stall import suspects
from run_gpus import gpus
from run_learning import learning
from run_work import checkpoints, progress, speed
from shapes import AGE, NONE_IS_WELL

UID = "trainer-run"
PHASES = {"starting": YELLOW, "training": GREEN, "evaluating": BLUE, "checkpointing": PURPLE, "ended": IDLE, "failed": RED}
STANDS = -1000000000  # for the words "stands still" in a tile of figures
STANDING = {str(STANDS): ("stands still", GREY)}
SAID = {"checkpointing": "saving"}  # as on the other dashboards
VERDICTS = {"hung": RED, "crashed": RED}  # what the rules see and the log does not say


def build() -> Dashboard:
    """The whole dashboard."""
    page = Page(
        "Run",
        uid=UID,
        about="Is this training run healthy, and if not, why not? Top row: now. Below: why.",
        tags=[TAG, "training"],
        since="now-6h",
        refresh="30s",
    )
    page.leads_to("Compare with other runs", address("trainer-compare", "job", "cluster", "team", "run"))
    page.leads_to("Its nodes", address("trainer-node", "cluster", "team", "run"))
    page.leads_to("On call", address("trainer-oncall", "cluster", "run"))
    _variables(page)
    _annotations(page)
    for section in (_health, _state, learning, speed, progress, checkpoints, gpus):
        section(page)
    return page.build()


def _variables(page: Page) -> None:
    smoothing = VariableOption(selected=True, text="5m", value="5m")
    page.variables(
        *scope("trainer_run_phase"),
        label_variable("team", "Team", 'trainer_run_info{job=~"$job",cluster=~"$cluster"}', many=True),
        label_variable("run", "Run", 'trainer_run_info{job=~"$job",cluster=~"$cluster",team=~"$team"}', many=False),
        dashboard.CustomVariable("smoothing").label("Smoothing").values("1m,5m,15m,1h").current(smoothing),
    )


def _annotations(page: Page) -> None:
    attempts = f"max by (cluster, run) (changes({scraped('trainer_run_attempts_total')}[1m])) > 0"
    firing = recorded("ALERTS", 'alertstate="firing"', 'severity=~"critical|warning"')
    saved = f"max by (cluster, run) (changes({scraped('trainer_checkpoint_timestamp_seconds')}[1m])) > 0"
    page.annotations(
        events("Alerts", f"max by (alertname, severity) ({firing})", color="red", title="{{alertname}}", text="{{severity}}"),
        events("Attempts", attempts, color="orange", title="A new attempt began"),
        events("Checkpoints", saved, color="purple", title="Checkpoint complete", enable=False),
    )


# -- now


def _health(page: Page) -> None:
    for panel in (_state_now(), _done(), _loss_now(), _silence(), _alerts_now(), _saved(), _pace(), _gpus_now()):
        page.add(panel, width=3, height=5)


def _state_number() -> str:
    """The furthest phase that a source of the run shows, or the rules' verdict on it, as its place in PHASES and VERDICTS.

    The furthest, because the logs of the other ranks stay at "starting".
    """
    one = [scraped("trainer_run_phase", f'phase="{phase}"') for phase in PHASES]
    numbered = [f"{phase} * {number}" for number, phase in enumerate(one, 1)]
    hung, crashed = len(PHASES) + 1, len(PHASES) + 2
    judged = [f"{recorded('run:stalled_seconds:min')} * 0 + {hung}", f"{recorded('run:crashed_seconds:min')} * 0 + {crashed}"]
    return f"max by (cluster, run) ({' or '.join(numbered + judged)})"


def _state_words() -> Any:
    return words({str(n): (SAID.get(state, state), color) for n, (state, color) in enumerate((PHASES | VERDICTS).items(), 1)})


def _state_now() -> Any:
    about = (
        "What the run is doing, as its log and files say, unless the rules find it hung or crashed. Normal: training, with short spells "
        "of evaluating and checkpointing. Without data nobody has published this run lately: its exporter is down, or the run has ended "
        "and aged out."
    )
    panel = tile("State", {"state": _state_number()}, unit="none", about=about, absent="unknown")
    return panel.mappings(_state_words())


def _done() -> Any:
    about = (
        "Share of the target steps done, time left at the present pace, and the step. Normal: the time left shrinks as fast as the clock. "
        "Without share and time the trainer does not say how many steps it will make; a run that hangs or has crashed stands still."
    )
    panel = tile(
        "Progress",
        {
            "done": largest("trainer_progress_ratio"),
            "left": _moving(largest("trainer_remaining_seconds")),
            "step": largest("trainer_step"),
        },
        unit="percentunit",
        about=about,
        absent="unknown",
    )
    left = [option("unit", "s"), option("decimals", 1), option("mappings", words(STANDING))]
    return panel.override_by_name("left", left).override_by_name("step", [option("unit", "locale"), option("decimals", 0)])


def _loss_now() -> Any:
    streak = largest("trainer_nonfinite_streak_records", 'field="loss"') + " > 0"
    about = (
        "The loss as last logged. NaN where the newest records are not finite, also where the trainer hides it behind a number. "
        "Normal: a number near the one of the curve below. Without data this node's logs carry no loss; "
        "Megatron prints it on its last rank only."
    )
    expr = f"({largest('trainer_loss')} unless on (cluster, run) {streak}) or on (cluster, run) ({streak}) * NaN"
    panel = tile(
        "Loss",
        {"loss": expr, "evaluation": largest("trainer_eval_loss")},
        unit="none",
        about=about,
        absent="no loss",
    )
    return panel.decimals(3).mappings([not_finite()])


def _running(expr: str) -> str:
    """Only while the trainer is at work: silence after the end means nothing."""
    ended = largest("trainer_run_phase", 'phase="ended"') + " == 1"
    return f"({expr}) unless on (cluster, run) {ended}"


def _moving(expr: str) -> str:
    """Of a run that hangs or has crashed the word for it: what it logged last is no pace."""
    standing = f"{recorded('run:stalled_seconds:min')} or {recorded('run:crashed_seconds:min')}"
    return f"({expr}) unless on (cluster, run) ({standing}) or max by (cluster, run) ({standing}) * 0 + {STANDS}"


def _share_of_limit() -> str:
    limit = f"max by (cluster, run) ({recorded('run:source_stall_threshold_seconds:max')})"
    return f"{recorded('run:progress_age_seconds:min')} / on (cluster, run) {limit}"


def _silence() -> Any:
    age = f"min by (cluster, run) ({scraped('trainer_progress_age_seconds')})"
    about = (
        "Time since a step last came, and that time as a share of the silence at which the run counts as hung. "
        "The limit is learned from this attempt's own gaps. Normal: well under a half; evaluation and saving have limits of their own. "
        "Without data the run has ended, or the rules that learn the limit are not loaded."
    )
    panel = tile(
        "Silence",
        {"since last step": _running(age), "of its limit": _running(_share_of_limit())},
        unit="s",
        about=about,
        absent="not running",
    )
    judged = [option("unit", "percentunit"), option("decimals", 0), thresholds((0, GREEN), (0.5, YELLOW), (1, RED))]
    return panel.decimals(0).override_by_name("of its limit", judged)


def _alerts_now() -> Any:
    known = f"max by (cluster, run) ({recorded('run:labels:info')}) * 0"
    about = (
        "Alerts that fire for this run now. Normal: none. A zero needs proof: without data the rules do not know the run, "
        "because they are not loaded or its exporter is silent."
    )
    firing = {severity: recorded("ALERTS", 'alertstate="firing"', f'severity="{severity}"') for severity in ("critical", "warning")}
    counts = {severity: f"count by (cluster, run) ({some}) or on (cluster, run) {known}" for severity, some in firing.items()}
    panel = tile("Alerts", counts, unit="none", about=about, absent="not judged")
    panel.override_by_name("critical", [NONE_IS_WELL])
    return panel.override_by_name("warning", [thresholds((0, GREEN), (1, ORANGE))])


def _saved() -> Any:
    age = f"time() - {largest('trainer_checkpoint_timestamp_seconds')}"
    about = (
        "What a crash would cost now: time since the last complete checkpoint. And how many saves failed in this run. "
        "Normal: an age below the usual interval of saving, and no failure. Without data no checkpoint was ever seen."
    )
    panel = tile(
        "Checkpoint",
        {"old": age, "failed": largest("trainer_checkpoint_failures_total")},
        unit="s",
        about=about,
        absent="none yet",
    )
    return panel.decimals(0).override_by_name("failed", [option("unit", "none"), thresholds((0, GREEN), (1, RED))])


def _pace() -> Any:
    slower = f"{largest('trainer_step_duration_seconds')} / {largest('trainer_step_duration_baseline_seconds')} - 1"
    about = (
        "How much longer a step takes than at this attempt's best, and the model FLOPs utilization. "
        "Normal: a few percent; one bad node of a large job costs 5 % and more. 45 to 60 % MFU is good for large models on A100. "
        "A run that hangs or has crashed stands still. Without data the log tells no times, and without a utilization no FLOPs."
    )
    panel = tile(
        "Pace",
        {"slower than best": _moving(slower), "MFU": _moving(largest("trainer_mfu_ratio"))},
        unit="percentunit",
        about=about,
        absent="unknown",
    )
    judged = [thresholds((ALWAYS, GREEN), (0.05, YELLOW), (0.5, RED)), option("decimals", 1)]
    return panel.decimals(0).mappings(words(STANDING)).override_by_name("slower than best", judged)


def _gpus_now() -> Any:
    lost = f"sum by (cluster, run) (({of_the_run(reading('gpu:state:code'))}) == bool 5)"
    about = (
        "GPUs that serve this run, the share of them that spins without work (busy by the driver's count, without memory traffic "
        "and power: a hung collective), and how many are lost. Normal: the job's full number, 0 %, none. "
        "Without data no GPU is attributed to the run on the nodes that are scraped."
    )
    panel = tile(
        "GPUs",
        {"GPUs": recorded("run:gpus:count"), "spinning": recorded("run:gpus_spinning:ratio"), "lost": lost},
        unit="none",
        about=about,
        absent="none known",
    )
    spinning = [option("unit", "percentunit"), thresholds((0, GREEN), (0.01, YELLOW), (0.5, RED))]
    return panel.override_by_name("spinning", spinning).override_by_name("lost", [NONE_IS_WELL])


# -- over time


def _state(page: Page) -> None:
    about = (
        "The states one after the other. Normal: long green, short stripes of evaluation and saving, no red. "
        "A gap: nothing was published then, so nothing is known."
    )
    states = timeline("States", {"state": _state_number()}, unit="none", about=about)
    page.add(states.mappings(_state_words()), width=11, height=5)
    page.add(suspects(), width=6, height=5)
    page.add(_firing(), width=7, height=5)


def _firing() -> Any:
    alerts = recorded("ALERTS", 'alertstate="firing"')
    since = f"{recorded('ALERTS_FOR_STATE')} and on (cluster, run, alertname, severity) {alerts}"
    some = f"time() - min by (severity, alertname) ({since})"
    nothing = f'label_replace(max by (run) ({recorded("run:labels:info")}) * 0 - 1, "alertname", "none", "", "")'
    firing = f"{some} or on () {nothing}"
    about = (
        "The alerts that fire for this run now. Normal: none, which is said where the rules judge the run. "
        "Without data they do not: they are not loaded, or its exporter is silent."
    )
    shape = {
        "excludeByName": {"Time": True, "run": True},
        "indexByName": {"severity": 0, "alertname": 1, "Value": 2},
        "renameByName": {"alertname": "alert", "Value": "age"},
    }
    organized = DataTransformerConfig(id_val="organize", options=shape)
    panel = grid("Firing alerts", rows(firing, ref="A"), unit="string", about=about, absent="not judged").transformations([organized])
    panel.override_by_name("age", [*AGE, option("custom.width", 100)])
    panel.override_by_name("alert", [option("mappings", in_words("summary")), links(link("Runbook", RUNBOOK))])
    return panel.override_by_name("severity", [*painted(SEVERITIES), option("custom.width", 90)])

"""Rows of the run's dashboard: does the run learn?"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import common as looks
from house import Page, curve, fixed, largest, log_scale, option, scraped
from shapes import bars, on_the_right, with_usual


def learning(page: Page) -> None:
    page.row("Is it learning?")
    page.add(_loss(), width=12, height=9)
    page.add(_gradient(), width=12, height=9)
    for panel in (_evaluation(), _spikes(), _movement()):
        page.add(panel, width=8, height=7)
    for panel in (_rate(), _scale(), _nonfinite()):
        page.add(panel, width=8, height=6)


def _finite_loss() -> str:
    """A gap where the loss is not finite, also where the trainer hides it behind a number."""
    streak = largest("trainer_nonfinite_streak_records", 'field="loss"')
    return f"{largest('trainer_loss')} < +Inf unless on (cluster, run) {streak} > 0"


def _loss() -> Any:
    about = (
        "The loss as logged (thin) and its mean over the smoothing chosen above (bold). A mean over time, not TensorBoard's smoothing, "
        "which PromQL cannot compute over records. Normal: falling, or flat late in a run. The thin line breaks off where the loss is "
        "not finite, hidden or not. Any other gap: nothing was logged or published."
    )
    panel = curve(
        "Loss over time",
        {"as logged": _finite_loss(), "smoothed": f"avg_over_time(({_finite_loss()})[$smoothing:15s])"},
        unit="none",
        about=about,
        absent="no loss in this node's logs",
    )
    thin = [fixed("#5794F277"), option("custom.lineWidth", 1)]
    return panel.override_by_name("as logged", thin).override_by_name("smoothed", [fixed("blue"), option("custom.lineWidth", 2.5)])


def _gradient() -> Any:
    about = (
        "The gradient's norm before clipping, and the median of the 100 records before it; logarithmic. It leads the loss by minutes. "
        "Normal: a band around its own median, whatever its absolute size. A jump of ten and more comes before a spike or NaN; "
        "0 means a skipped step or a detached graph, and like NaN it cannot be drawn here. Without data the trainer does not log it."
    )
    panel = curve(
        "Gradient norm",
        {"as logged": f"{largest('trainer_grad_norm')} < +Inf", "usual": largest("trainer_grad_norm_baseline")},
        unit="none",
        about=about,
        absent="not logged",
    ).scale_distribution(log_scale())
    return with_usual(panel, "orange")


def _evaluation() -> Any:
    about = (
        "The loss on held-out data, and every other result of the last evaluation. Normal: falls with the training loss. "
        "Rising while the training loss falls: overfitting, or a leak. Without data the run does not evaluate."
    )
    return curve(
        "Evaluation",
        {"loss": largest("trainer_eval_loss"), "{{name}}": largest("trainer_eval_metric", by="name")},
        unit="none",
        about=about,
        absent="no evaluation yet",
    ).line_interpolation(looks.LineInterpolation.STEP_AFTER)


def _spikes() -> Any:
    about = (
        "The largest value of the last two minutes as a multiple of the median of the 100 records before it; logarithmic. "
        "From every step, so none hides between two scrapes. Normal: 1 to 1.3; single records of a healthy run reach 2, its gradient more. "
        "Without data under 20 records are known."
    )
    return curve(
        "Spikes",
        {"loss": largest("trainer_loss_spike_ratio"), "gradient norm": largest("trainer_grad_norm_spike_ratio")},
        unit="suffix: ×",
        about=about,
        absent="too few records yet",
    ).scale_distribution(log_scale(base=2))


def _movement() -> Any:
    about = (
        "How much the loss changes from the older to the newer half of the last 100 and 1000 steps (below 0: it falls), "
        "and how widely it swings. Normal: negative early, near 0 late. Flat early: nothing is learned. "
        "Swings above their own past: the learning rate is too high or the batch too small. Without data the windows are not full yet."
    )
    change = largest("trainer_loss_change_ratio", by="window")
    swing = largest("trainer_loss_oscillation_ratio", 'window="100"')
    return curve(
        "Movement of the loss",
        {"change over {{window}}": change, "swing over 100": swing},
        unit="percentunit",
        about=about,
        absent="too few records yet",
    )


def _rate() -> Any:
    about = (
        "The learning rate as logged. Normal: the schedule you configured: warm-up, then decay or constant. "
        "Negative is always a bug; a line that never moves may be a forgotten schedule. Without data the trainer does not log it."
    )
    return curve("Learning rate", {"rate": largest("trainer_learning_rate")}, unit="sci", about=about, absent="not logged")


def _scale() -> Any:
    skipped = f"max by (cluster, run) (increase({scraped('trainer_skipped_steps_total')}[$__rate_interval]))"
    about = (
        "The loss scale of fp16 training, and the steps skipped for overflow. Normal: a single skipped step now and then, "
        "and a scale that recovers. Halving after halving: the run is diverging. Without data the run trains in bf16 or fp32."
    )
    panel = curve(
        "Loss scale and skipped steps",
        {"scale": largest("trainer_loss_scale"), "skipped": skipped},
        unit="short",
        about=about,
        absent="no loss scale (bf16 or fp32)",
    )
    panel.interval("2m")
    bar = [option("custom.drawStyle", "bars"), option("custom.fillOpacity", 60)]
    beside = [*bar, *on_the_right("none", "red", soft_max=1)]
    return panel.override_by_name("skipped", beside)


def _nonfinite() -> Any:
    new = f"max by (cluster, run, field) (increase({scraped('trainer_nonfinite_steps_total')}[$__rate_interval]))"
    about = (
        "Records whose value was NaN or infinite, by field, hidden ones included. Normal: none at all. One bad batch heals; "
        "a row of them never does. Without data no record has been read."
    )
    panel = curve("Values that are not finite", {"{{field}}": new}, unit="none", about=about, absent="no records yet")
    return bars(panel).axis_soft_max(1)

"""Rows of the run's dashboard: is it fast, does it move, are its checkpoints safe?"""

from __future__ import annotations

from typing import Any

from house import Page, curve, fixed, largest, log_scale, option, recorded, scraped
from shapes import LIMIT, USUAL, bars, on_the_right, with_usual


def speed(page: Page) -> None:
    page.row("Is it fast?")
    for panel in (_throughput(), _step_time(), _flops()):
        page.add(panel, width=8, height=7)


def _throughput() -> Any:
    about = (
        "Samples and tokens per second of the whole job over the recent window, from differences, never a mean since the start. "
        "Normal: level. A lasting step down is a slow node, the data loader or the network. Without data the log gives neither."
    )
    panel = curve(
        "Throughput",
        {"samples/s": largest("trainer_samples_per_second"), "tokens/s": largest("trainer_tokens_per_second")},
        unit="short",
        about=about,
        absent="not in the log",
    ).min(0)
    broad = [fixed("#5794F266"), option("custom.lineWidth", 5)]  # both have the same shape: the one is drawn behind the other
    return panel.override_by_name("samples/s", broad).override_by_name(
        "tokens/s", [option("custom.axisPlacement", "right"), fixed("yellow")]
    )


def _step_time() -> Any:
    about = (
        "Time a step takes, median of the recent window, and the best this attempt sustained. Saves and evaluations are left out. "
        "Normal: within a few percent of the best. Without data the log tells no times."
    )
    panel = curve(
        "Step time",
        {"as logged": largest("trainer_step_duration_seconds"), "usual": largest("trainer_step_duration_baseline_seconds")},
        unit="s",
        about=about,
        absent="no times in the log",
    ).axis_soft_min(0)
    names = {"as logged": "now", "usual": "best"}
    for name, shown in names.items():
        panel.override_by_name(name, [option("displayName", shown)])
    return with_usual(panel, "green")


def _flops() -> Any:
    about = (
        "Model FLOPs per second and GPU, and their share of the card's dense peak (right axis). Normal: level; 45 to 60 % on A100 for "
        "large models, far less for small ones. Never guessed: without data the trainer logs none and the model's size is not known."
    )
    panel = curve(
        "FLOPs and utilization",
        {"FLOP/s per GPU": f"{largest('trainer_tflops_per_gpu')} * 1e12", "MFU": largest("trainer_mfu_ratio")},
        unit="flops",
        about=about,
        absent="not logged, not derivable",
    ).min(0)
    right = [option("unit", "percentunit"), option("max", 1), option("custom.axisPlacement", "right"), fixed("purple")]
    return panel.override_by_name("MFU", right)


def progress(page: Page) -> None:
    page.row("Does it move?")
    for panel in (_gaps(), _steps_made(), _trouble()):
        page.add(panel, width=8, height=7)


def _gaps() -> Any:
    gap = largest("trainer_progress_gap_seconds", 'quantile="0.95"')
    limit = f"max by (cluster, run) ({recorded('run:source_stall_threshold_seconds:max')})"
    about = (
        "Time since the last step, beside the gap that 95 % of this attempt's steps stayed under, and the silence that counts as a hang; "
        "logarithmic. Normal: a saw below the learned gap, and above it only while evaluating or saving, when the limit rises too. "
        "Without a learned gap fewer than five steps came; without a limit the rules are not loaded."
    )
    panel = curve(
        "Silence and what is normal",
        {
            "since last step": f"min by (cluster, run) ({scraped('trainer_progress_age_seconds')})",
            "learned gap (p95)": gap,
            "hang": limit,
        },
        unit="s",
        about=about,
        absent="no step yet",
    ).scale_distribution(log_scale())
    panel.min(1)
    panel.override_by_name("since last step", [fixed("blue")]).override_by_name("learned gap (p95)", USUAL)
    return panel.override_by_name("hang", LIMIT)


def _steps_made() -> Any:
    about = (
        "Steps done and the target. Normal: a straight line upwards. A step back: a restart went back to its last checkpoint; "
        "level: a hang, or the end. Without a target the trainer does not say where it ends."
    )
    panel = curve(
        "Steps",
        {"step": largest("trainer_step"), "target": largest("trainer_target_steps")},
        unit="locale",
        about=about,
        absent="no step yet",
    ).min(0)
    return panel.override_by_name("target", USUAL)


def _trouble() -> Any:
    told = f"sum by (cluster, run, kind) (increase({scraped('trainer_incidents_total')}[$__rate_interval])) > 0"
    none = f'label_replace({largest("trainer_incidents_total")} * 0, "kind", "none", "", "")'
    new = f"{told} or on (cluster, run) {none}"
    about = (
        "Lines that tell of trouble, by kind. Normal: none; a traceback alone also stands in healthy logs. "
        "Every rank may tell the same trouble, so the number matters less than the kind and the time. Without data no log is read."
    )
    panel = curve("Incidents in the log", {"{{kind}}": new}, unit="none", about=about, absent="no log is read")
    return bars(panel).decimals(0).axis_soft_max(1)


def checkpoints(page: Page) -> None:
    page.row("Are its checkpoints safe?")
    for panel in (_save_times(), _unsaved(), _space()):
        page.add(panel, width=8, height=7)


def _save_times() -> Any:
    total, number = (scraped(f"trainer_checkpoint_duration_seconds_{part}") for part in ("sum", "count"))
    mean = f"max by (cluster, run) ({total}) / (max by (cluster, run) ({number}) > 0)"
    about = (
        "How long the last save took, the mean of all saves of this run, and the age of one in progress. Normal: near the mean; "
        "from half a second to ten minutes, as size and storage have it. A save that grows has a storage that fills or a neighbour. "
        "Without data no save could be timed."
    )
    panel = curve(
        "Time to save",
        {
            "last": largest("trainer_checkpoint_last_duration_seconds"),
            "mean": mean,
            "in progress": f"{largest('trainer_checkpoint_in_progress_seconds')} > 0",
        },
        unit="s",
        about=about,
        absent="no save timed yet",
    ).min(0)
    panel.override_by_name("last", [fixed("purple"), option("custom.lineInterpolation", "stepAfter")])
    panel.override_by_name("mean", USUAL)
    running = [fixed("orange"), option("custom.drawStyle", "points"), option("custom.pointSize", 5), option("custom.showPoints", "always")]
    return panel.override_by_name("in progress", running)


def _unsaved() -> Any:
    age = f"time() - {largest('trainer_checkpoint_timestamp_seconds')}"
    lost = largest("trainer_lost_steps_total")
    about = (
        "Age of the last complete checkpoint: what a crash would cost; and the steps that restarts have already thrown away (right axis). "
        "Normal: a saw of equal teeth, and no lost steps. Without data no checkpoint was ever seen."
    )
    panel = curve(
        "Work at risk",
        {"checkpoint age": age, "lost steps": lost},
        unit="s",
        about=about,
        absent="no checkpoint yet",
    ).min(0)
    right = on_the_right("locale", "red", soft_max=10)
    return panel.override_by_name("checkpoint age", [fixed("blue")]).override_by_name("lost steps", right)


def _space() -> Any:
    avail = f"min by (cluster, run) ({scraped('trainer_checkpoint_filesystem_avail_bytes')})"
    about = (
        "Space left where the run saves to, and the size of its last checkpoint. Normal: room for many more. "
        "A full disk loses the checkpoint and often the run. Without data the output directory is not known."
    )
    panel = curve(
        "Space to save to",
        {
            "left": avail,
            "size of the file system": largest("trainer_checkpoint_filesystem_size_bytes"),
            "last checkpoint": largest("trainer_checkpoint_bytes"),
        },
        unit="bytes",
        about=about,
        absent="output directory unknown",
    ).min(0)
    panel.override_by_name("left", [fixed("green"), option("custom.fillOpacity", 12)])
    return panel.override_by_name("size of the file system", USUAL)

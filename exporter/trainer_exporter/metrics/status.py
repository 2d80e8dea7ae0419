"""The status page: what this node follows and what it makes of it, readable without a script, from a phone or from lynx.

Plain facts beside each other; what is wrong is said in words and only underlined by colour. Everything that comes from a log is escaped.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape

from trainer_exporter.health import HealthSnapshot
from trainer_exporter.model import Evidence, FileStatus, NodeStatus, Phase, RunSnapshot, Suspect
from trainer_exporter.model_gpu import GpuReading
from trainer_exporter.names import sendable

STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --good: #1a7f37; --watch: #9a6700; --bad: #cf222e; --busy: #0969da; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --watch: #d29922; --bad: #ff7b72; --busy: #58a6ff; --quiet: #9a9a9a; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 84rem; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0; } .quiet { color: var(--quiet); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .32rem .7rem .32rem 0; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; font-size: .85rem; } tr + tr td { border-top: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .86rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
.training, .good { color: var(--good); } .evaluating, .checkpointing, .starting { color: var(--busy); }
.failed, .bad { color: var(--bad); font-weight: 600; } .watch { color: var(--watch); } .ended { color: var(--quiet); }
nav a { margin-right: 1rem; }
"""
_UNHEARD_OF = 2.0  # times the longest pause of a run: what it will do is not known
# Nothing but this very style: should markup out of a log ever get through, it loads nothing, runs nothing and sends nothing.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def html(status: NodeStatus) -> str:
    """The page, complete."""
    up = _duration(status.now - status.started_wall)
    state = "ready" if status.ready else "reading what stood in the files already"
    return sendable(
        "\n".join(
            (
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>trainer-exporter</title>',
                '<meta name="viewport" content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="15">',
                f"<style>{STYLE}</style></head><body>",
                f'<h1>trainer-exporter</h1><p class="quiet">version {escape(status.version)}, up {up}, {state}</p>',
                '<nav><a href="/metrics">Metrics</a><a href="/api/v1/runs">Runs as JSON</a><a href="/-/healthy">Healthy</a>',
                '<a href="/-/ready">Ready</a></nav>',
                _section("Runs", _runs(status), "No run yet: no trainer has spoken in the files below."),
                _section("What stalled runs show", _evidence(status.evidence, status.now), "") if status.evidence else "",
                _section("Files", _files(status.files, status.now), "No file is followed. Name files, directories or globs to serve."),
                _section("GPUs", _gpus(status), _no_gpus(status)),
                _section("Troubles of the exporter itself", _errors(status), "None since the start."),
                "</body></html>",
            )
        )
    )


def document(
    runs: Sequence[RunSnapshot],
    now: float,
    files: Sequence[FileStatus] = (),
    *,
    evidence: Sequence[Evidence] = (),
    health: HealthSnapshot | None = None,
) -> Mapping[str, object]:
    """What /api/v1/runs answers: the same runs as data; figures that are not finite are texts, as JSON has no word for them."""
    origins = _origins(files)
    shown = {each.run: each for each in evidence}
    return {
        "runs": [
            {
                "run": run.run,
                "name_origin": origins.get(run.run, ""),
                "files": [{"path": file.path, "why": file.why} for file in files if file.run == run.run],
                "phase": run.phase.value,
                "attempts": run.attempts,
                "info": dict(run.info),
                "labels": dict(run.labels),
                "figures": {name: _number(value) for name, value in run.gauges.items()},
                "progress_age_seconds": None if run.progress_wall is None else round(max(0.0, now - run.progress_wall), 3),
                "nonfinite_steps": dict(run.nonfinite_total),
                "incidents": {kind: count for kind, count in run.incidents.items() if count},
                "writer_alive": run.writer_alive,
                "notes": list(run.notes),
                "evidence": _evidence_document(shown[run.run]) if run.run in shown else None,
            }
            for run in runs
        ],
        "errors": [
            {"site": site, "reason": reason, "count": count, "latest": health.latest.get((site, reason), "")}
            for (site, reason), count in health.errors.items()
        ]
        if health is not None
        else [],
    }


def _evidence_document(evidence: Evidence) -> Mapping[str, object]:
    return {
        "collected": evidence.collected_wall,
        "folder": evidence.folder,
        "suspects": [{"rank": each.rank, "source": each.source, "reason": each.reason} for each in evidence.suspects],
        "notes": {source: list(notes) for source, notes in evidence.notes.items()},
    }


def _evidence(evidence: Sequence[Evidence], now: float) -> str:
    heads = ("Run", "Collected", "Suspects", "What was found", "Files")
    rows = (
        (
            f"<strong>{escape(each.run)}</strong>",
            _duration(max(0.0, now - each.collected_wall)) + " ago",
            "<br>".join(_suspicion(suspect) for suspect in each.suspects) or '<span class="quiet">none</span>',
            "<br>".join(escape(f"{_words(source)}: {note}") for source, notes in each.notes.items() for note in notes),
            f"<code>{escape(each.folder)}</code>",
        )
        for each in evidence
    )
    return _table(heads, rows, numbers=(1,))


def _suspicion(suspect: Suspect) -> str:
    return f'<span class="bad">rank {suspect.rank}</span> {escape(_words(suspect.reason))}, says {escape(_words(suspect.source))}'


def _words(name: str) -> str:
    return {"ras": "NCCL RAS"}.get(name, name.replace("_", " "))


def _runs(status: NodeStatus) -> str:
    heads = ("Run", "Phase", "Step", "Loss", "Grad norm", "Samples/s", "Last step", "Pauses so far", "Remarks")
    origins = _origins(status.files)
    return _table(heads, (_run(run, status.now, origins.get(run.run, "")) for run in status.runs), numbers=(2, 3, 4, 5, 6))


def _origins(files: Sequence[FileStatus]) -> Mapping[str, str]:
    """Where the names of the runs come from."""
    return {file.run: file.run_origin for file in reversed(files) if file.run_origin}


def _run(run: RunSnapshot, now: float, origin: str) -> Sequence[str]:
    figures = run.gauges
    age = "" if run.progress_wall is None else _duration(max(0.0, now - run.progress_wall)) + " ago"
    longest = run.progress_gaps.get(1.0)
    gaps = "" if longest is None else f"usually {_duration(run.progress_gaps[0.5])}, longest {_duration(longest)}"
    beneath = "<br>".join(escape(text) for text in (run.info["format"], f"named {origin}" if origin else "") if text)
    name = f'<strong>{escape(run.run)}</strong><br><span class="quiet">{beneath}</span>'
    return (
        name,
        f'<span class="{run.phase.value}">{run.phase.value}</span>',
        _steps(figures, is_paced=_is_paced(run, now)),
        _figure(figures.get("loss"), bad="loss" in _sick(run)),
        _figure(figures.get("grad_norm"), bad="grad_norm" in _sick(run)),
        _figure(figures.get("samples_per_second")),
        age,
        gaps,
        "<br>".join(_remarks(run)),
    )


def _sick(run: RunSnapshot) -> set[str]:
    return {field for field, streak in run.nonfinite_streak.items() if streak}


def _remarks(run: RunSnapshot) -> Iterable[str]:
    for field, streak in run.nonfinite_streak.items():
        if streak:
            yield f'<span class="bad">{escape(field)} not finite in the last {_count(streak, "record")}</span>'
    if run.phase is Phase.FAILED:
        yield '<span class="bad">stopped without the trainer\'s closing word</span>'
    for kind, count in run.incidents.items():
        if count:
            yield f'<span class="watch">{escape(kind)} x {count}</span>'
    if run.checkpoint_failures:
        yield f'<span class="watch">{_count(run.checkpoint_failures, "checkpoint")} failed</span>'
    if run.attempts > 1:
        yield f"attempt {run.attempts}, {_count(run.lost_steps, 'step')} lost to restarts"
    for note in run.notes:
        yield f'<span class="quiet">{escape(note)}</span>'


def _is_paced(run: RunSnapshot, now: float) -> bool:
    """Whether the pace so far says when the run ends; not while it pauses for far longer than ever before."""
    longest = run.progress_gaps.get(1.0)
    return run.progress_wall is None or longest is None or now - run.progress_wall <= _UNHEARD_OF * longest


def _steps(figures: Mapping[str, float], *, is_paced: bool) -> str:
    if "step" not in figures:
        return f"epoch {figures['epoch']:.4g}" if "epoch" in figures else ""
    step = f"{figures['step']:,.0f}"
    if "target_steps" in figures:
        step += f" / {figures['target_steps']:,.0f}"
    if "progress_ratio" in figures:
        step += f'<br><span class="quiet">{figures["progress_ratio"]:.1%}'
        step += f", {_duration(figures['remaining_seconds'])} to go" if is_paced and figures.get("remaining_seconds") else ""
        step += "</span>"
    return step


def _files(files: Sequence[FileStatus], now: float) -> str:
    heads = ("File", "Run", "Format", "Lines", "Size", "Unread", "Written", "Last line that nobody recognised")
    rows = (
        (
            f"<code>{escape(file.path)}</code>" + (f'<br><span class="quiet">{escape(file.why)}</span>' if file.why else ""),
            escape(file.run),
            escape(file.format) or '<span class="quiet">not known yet</span>',
            f"{file.lines:,}",
            _bytes(file.size_bytes),
            _bytes(file.lag_bytes) if file.lag_bytes else "",
            "" if file.last_written_wall is None else _duration(max(0.0, now - file.last_written_wall)) + " ago",
            f'<span class="bad">{escape(file.error)}</span>'
            if file.error
            else f'<code class="quiet">{escape(file.last_unrecognised)}</code>',
        )
        for file in files
    )
    return _table(heads, rows, numbers=(3, 4, 5, 6))


def _gpus(status: NodeStatus) -> str:
    served = {owner.uuid: owner for owner in status.owners}
    heads = ("GPU", "Model", "Run", "Busy", "Memory", "Power", "Temperature", "State")
    rows = []
    for reading in status.gpus.readings:
        owner = served.get(reading.identity.uuid)
        run = escape(owner.run) + (f", rank {escape(owner.rank)}" if owner.rank else "") if owner else ""
        rows.append(
            (f'{reading.identity.index}<br><code class="quiet">{escape(reading.identity.uuid)}</code>', *_card(reading, run, status))
        )
    return _table(heads, rows, numbers=(3, 4, 5, 6))


def _card(reading: GpuReading, run: str, status: NodeStatus) -> Sequence[str]:
    memory = reading.memory
    if reading.identity.uuid in status.gpus.lost:
        state = '<span class="bad">lost</span>'
    elif not reading.success:
        state = f'<span class="bad">no answer ({escape(reading.error)})</span>'
    else:
        state = '<span class="good">answers</span>'
    return (
        escape(reading.identity.name),
        run,
        "" if reading.utilization_ratio is None else f"{reading.utilization_ratio:.0%}",
        "" if memory is None else f"{_bytes(memory.used_bytes)} of {_bytes(memory.total_bytes - memory.reserved_bytes)}",
        "" if reading.power_watts is None else f"{reading.power_watts:.0f} W",
        "" if reading.temperature_celsius is None else f"{reading.temperature_celsius:.0f} °C",
        state,
    )


def _no_gpus(status: NodeStatus) -> str:
    if not status.gpu_enabled:
        return "Not read: switched off."
    if status.gpus.driver == "absent":
        return "No NVIDIA driver on this machine."
    return "The driver does not answer." if status.gpus.driver else "None found."


def _errors(status: NodeStatus) -> str:
    rows = [
        (escape(site), escape(reason), f"{count:,}", f"<code>{escape(status.latest.get((site, reason), ''))}</code>")
        for (site, reason), count in sorted(status.errors.items())
    ]
    rows += [("bounds", escape(reason), f"{count:,}", "let go by a limit") for reason, count in sorted(status.dropped.items())]
    return _table(("Where", "What", "Times", "Last message"), rows, numbers=(2,))


def _section(title: str, table: str, otherwise: str) -> str:
    return f"<h2>{title}</h2>" + (f'<div class="scroll">{table}</div>' if table else f'<p class="quiet">{otherwise}</p>')


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="number"' if place in numbers else "" for place in range(len(cells)))
        return "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"

    body = "\n".join(row(cells, "td") for cells in rows)
    return f"<table><thead>{row(heads, 'th')}</thead><tbody>{body}</tbody></table>" if body else ""


def _figure(value: float | None, *, bad: bool = False) -> str:
    if value is None:
        return ""
    return f'<span class="bad">{value:.4g}</span>' if bad or not math.isfinite(value) else f"{value:.4g}"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 48 else f"{days:.1f} d"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} TiB"

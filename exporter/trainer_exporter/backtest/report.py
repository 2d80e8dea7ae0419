"""One page about one or more logs, whole in itself: no script, nothing from a network, and everything of the log's own escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from trainer_exporter import version
from trainer_exporter.backtest import doctor
from trainer_exporter.backtest.curves import require_library, svg
from trainer_exporter.backtest.shown import CLOCKS, rfc3339
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.errors import TrainerExporterError

__all__ = ["page", "require_library", "write"]

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #ffffff; --ink: #1d2127; --faint: #68707c; --grid: #e4e6e9; --curve: #2b6cb0;
  --critical: #c0241b; --warning: #b26a00; --info: #4a6f8a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1c2025; --ink: #e6e8eb; --faint: #9aa3af; --grid: #2c3138;
  --curve: #6cb0f5; --critical: #ff6b60; --warning: #f0a83c; --info: #8fb4cf; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 0 0 .3rem; }
h3 { font-size: .9rem; margin: .9rem 0 .2rem; color: var(--faint); }
p { margin: .2rem 0; }
ul, ol { margin: .2rem 0; padding-left: 1.4rem; }
.faint { color: var(--faint); }
section { margin: 1.2rem 0; padding: 1rem 1.2rem; background: var(--card); border: 1px solid var(--grid); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; }
svg a { text-decoration: none; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top; }
th { color: var(--faint); font-weight: 600; font-size: .85rem; }
tr + tr td { border-top: 1px solid var(--grid); }
td.number { white-space: nowrap; }
.critical { color: var(--critical); }
.warning { color: var(--warning); }
.info, .none { color: var(--info); }
b.severity { font-weight: 600; }
.alert { border-left: 4px solid var(--info); }
.alert.is-critical { border-left-color: var(--critical); }
.alert.is-warning { border-left-color: var(--warning); }
pre { white-space: pre-wrap; margin: .2rem 0; font: 13px/1.5 ui-monospace, monospace; }
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def write(path: str, found: Sequence[tuple[Log, Result]]) -> None:
    """Write the page; a TrainerExporterError where that cannot be."""
    try:
        Path(path).write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise TrainerExporterError(f"{path}: cannot be written ({error.strerror})") from error


def page(found: Sequence[tuple[Log, Result]]) -> str:
    """The whole page."""
    title = ", ".join(log.run for log, _ in found) or "no log"
    parts = [part for at, (log, result) in enumerate(found) for part in _log(log, result, key=f"{at}-" if len(found) > 1 else "")]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escape(title)}: backtest</title><style>{_STYLE}</style>'
    foot = f'<p class="faint">trainer-exporter {escape(version())} backtest</p>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join([*parts, foot]) + "\n</body></html>\n"


def _log(log: Log, result: Result, *, key: str) -> Iterator[str]:
    numbered = list(result.firings)
    count = len(numbered)
    said = "no alert would have fired" if not count else f"{count} alert{'s' if count > 1 else ''} would have fired"
    yield f"<h1>{escape(log.run)}</h1>"
    yield f'<p class="faint">{escape(log.path)} · {result.seconds / 3600:.2f} h by {CLOCKS[result.clock]} · {said}</p>'
    if drawing := svg(log, result, numbered):
        yield f"<section>{drawing.replace('#alert-', f'#alert-{key}')}</section>"
    if numbered:
        yield f"<section>{_table(numbered, key)}</section>"
    for diagnosis in doctor.diagnoses(log, result):
        yield _diagnosis(diagnosis)
    rest = "\n".join(line.strip() for line in [*doctor.whole(log, result), *doctor.looked_at(log, result)])
    yield f"<section><h2>The run as a whole</h2><pre>{escape(doctor.printable_lines(rest))}</pre></section>"


def _table(firings: Sequence[Firing], key: str) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("", "alert", "severity", "line", "step", "for", "from", "until"))
    rows = "".join(_row(number, firing, key) for number, firing in enumerate(firings, 1))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(number: int, firing: Firing, key: str) -> str:
    until = "the end" if firing.resolved_wall is None else rfc3339(firing.resolved_wall)
    card = f" <span class='faint'>{escape(firing.labels['uuid'])}</span>" if "uuid" in firing.labels else ""
    step = "" if firing.step is None else f"{firing.step:.0f}"
    cells = [
        f'<td class="number {_word(firing.severity)}" id="alert-{key}{number}"><b>{number}</b></td>',
        f"<td><b>{escape(firing.alert)}</b>{card}</td>",
        f'<td><b class="severity {_word(firing.severity)}">{escape(firing.severity)}</b></td>',
        *(f'<td class="number">{escape(text)}</td>' for text in (str(firing.line), step, firing.pending, rfc3339(firing.wall), until)),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _diagnosis(found: doctor.Diagnosis) -> str:
    severity = _word(found.severity)
    parts = [f'<h2><span class="{severity}">{escape(found.alert)}</span></h2>', f"<p>{escape(found.symptom)}</p>"]
    named = (("Evidence, from the log", found.evidence, "ul"), ("Likely causes", found.causes, "ol"), ("What to try", found.remedies, "ol"))
    for title, items, kind in named:
        if items:
            parts.append(f"<h3>{title}</h3><{kind}>{''.join(f'<li>{escape(item)}</li>' for item in items)}</{kind}>")
    return f'<section class="alert is-{severity}">{"".join(parts)}</section>'


def _word(severity: str) -> str:
    """A class of the style sheet; a rule of somebody's own may have any severity."""
    return severity if severity in {"critical", "warning", "info"} else "none"

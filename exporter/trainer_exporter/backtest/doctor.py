"""The doctor for a finished log: for each alert symptom, evidence, likely causes and what to try; and what the whole run looked like.

The symptom is the page's own text, causes and remedies are the runbook's, the evidence is the log's: nothing is written here twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_exporter.backtest.evidence import Evidence, Trouble, Value, field_of, shown, troubles, values_of
from trainer_exporter.backtest.logs import quoted
from trainer_exporter.backtest.runbooks import runbook
from trainer_exporter.backtest.shown import CLOCKS, entry
from trainer_exporter.backtest.values import Firing, Log, Result
from trainer_exporter.model import Record

_FIGURES: Final = ("loss", "eval_loss", "grad_norm", "learning_rate", "loss_scale")
_SEVERITIES: Final = {"critical": 0, "warning": 1, "info": 2}
_QUOTED: Final = 160  # characters of a line


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What there is to say about one alert, all of its firings together."""

    firings: Sequence[Firing]
    symptom: str
    evidence: Sequence[str]
    causes: Sequence[str]
    remedies: Sequence[str]

    @property
    def alert(self) -> str:
        """Which alert."""
        return self.firings[0].alert

    @property
    def severity(self) -> str:
        """The gravest that it reached."""
        return min((firing.severity for firing in self.firings), key=lambda severity: _SEVERITIES.get(severity, 3))


def diagnoses(log: Log, result: Result) -> list[Diagnosis]:
    """One for each alert, the gravest first, of the same gravity the earliest."""
    evidence = Evidence(log, result)
    by_alert: dict[str, list[Firing]] = {}
    for firing in result.firings:
        by_alert.setdefault(firing.alert, []).append(firing)
    found = [_diagnosis(log, evidence, firings) for firings in by_alert.values()]
    return sorted(found, key=lambda each: (_SEVERITIES.get(each.severity, 3), each.firings[0].at_s))


def _diagnosis(log: Log, evidence: Evidence, firings: Sequence[Firing]) -> Diagnosis:
    first = min(firings, key=lambda firing: (_SEVERITIES.get(firing.severity, 3), firing.at_s))
    book = runbook(first.alert)
    trouble = evidence.trouble(first)
    lines = quoted(log.path, {each.first for each in trouble})
    return Diagnosis(
        firings,
        symptom=_symptom(first) or book.meaning,
        evidence=[*evidence.figures(first, book), *(_told(each, lines) for each in trouble)],
        causes=book.causes,
        remedies=book.remedies_for([each.kind for each in trouble]),
    )


def _symptom(firing: Firing) -> str:
    """What the page would have said."""
    texts = [firing.annotations.get(key, "").strip() for key in ("summary", "description")]
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text).replace("\n", " ")


def _told(trouble: Trouble, lines: dict[int, str]) -> str:
    times = "" if trouble.times == 1 else f", {trouble.times} times"
    text = printable(lines.get(trouble.first, "")).strip()
    return f"{trouble.kind} on line {trouble.first}{times}" + (f": {text[:_QUOTED]}" if text else "")


def printable(text: str) -> str:
    """Text from a log without anything that could command a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def printable_lines(text: str) -> str:
    """The same, line by line."""
    return "\n".join(map(printable, text.split("\n")))


def explanation(log: Log, result: Result) -> str:
    """For a person, in plain text."""
    lines = [
        f"{printable(log.path)}: run {printable(log.run)}, {result.seconds / 3600:.2f} h by {CLOCKS[result.clock]}",
        *whole(log, result),
    ]
    found = diagnoses(log, result)
    for each in found:
        lines += ["", f"{each.alert}", *(f"  {entry(firing)}" for firing in each.firings)]
        lines += [f"  symptom: {printable(each.symptom)}"] if each.symptom else []
        lines += _listed("evidence, from the log", each.evidence)
        lines += _listed("likely causes", each.causes)
        lines += _listed("what to try", each.remedies)
    if not found:
        lines += ["", "no alert would have fired"]
    return "\n".join([*lines, "", *looked_at(log, result)])


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"  {title}:", *(f"    {number}. {item}" for number, item in enumerate(items, 1))] if items else []


def whole(log: Log, result: Result) -> Iterator[str]:
    """What the run as a whole looked like: how far it came, its figures, its trouble, how it ended."""
    records = [event for event in log.events if isinstance(event, Record)]
    steps = values_of(log.events, "step")
    target = values_of(log.events, "target_steps")
    of = f" of {target[-1].value:.0f}" if target else ""
    went = f", steps {steps[0].value:.0f} to {steps[-1].value:.0f}{of}" if steps else ""
    yield f"  {len(records)} records in {log.lines} lines{went}" + (f", {result.attempts} attempts" if result.attempts > 1 else "")
    for field in _FIGURES:
        if values := values_of(log.events, field):
            yield f"  {field}: {_range(values)}"
    if found := troubles(log.events):
        yield "  trouble: " + ", ".join(
            f"{each.kind} (line {each.first}{f', {each.times} times' if each.times > 1 else ''})" for each in found
        )
    if result.phase:
        yield f"  at the end: {result.phase}"


def _range(values: Sequence[Value]) -> str:
    finite = [value for value in values if math.isfinite(value.value)]
    broken = len(values) - len(finite)
    lost = f"; {broken} of {len(values)} are no finite numbers" if broken else ""
    if not finite:
        return f"{shown(values[-1].value)} throughout"
    low, high = (pick(finite, key=lambda value: value.value) for pick in (min, max))
    if low.value == high.value:
        return f"{shown(low.value)} throughout{lost}"
    ends = f"{shown(values[0].value)} to {shown(values[-1].value)}"
    return f"{ends}, lowest {shown(low.value)} ({low.place}), highest {shown(high.value)} ({high.place}){lost}"


def looked_at(log: Log, result: Result) -> Iterator[str]:
    """What could be judged, and what the rules also ask for and the log does not have."""
    told = {field for event in log.events if isinstance(event, Record) for field in event.fields}
    asked = {field for metric in result.asked if (field := field_of(metric))}
    yield f"looked at: {', '.join(sorted(told)) or 'nothing, the log has no record of a trainer'}"
    if missing := asked - told:
        yield f"asked for by rules and not in this log: {', '.join(sorted(missing))}"
    if not any(name.startswith(("gpu_", "DCGM_")) for name in result.seen):
        yield "GPUs: nothing is known of them (--gpu)"
    if result.unjudged:
        yield f"alerts that could not be judged for want of any input: {', '.join(result.unjudged)}"

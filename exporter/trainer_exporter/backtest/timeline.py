"""From evaluations at which alerts fired to episodes: when each began, at which line and step, and when it was over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainer_exporter.backtest.rulebook import Rulebook
from trainer_exporter.backtest.tape import INTERVAL_S
from trainer_exporter.backtest.values import Firing, Mark

Labels = Mapping[str, str]


def firings(found: Iterable[tuple[float, Labels]], marks: Sequence[Mark], *, base: float, rules: Rulebook) -> list[Firing]:
    """The alerts that concern a run or a GPU, in the order of time; ``base`` is the wall time of the log's start."""
    return [
        _firing(labels, (first, last), marks, base=base, rules=rules)
        for labels, first, last in _episodes(found)
        if labels.get("run") or labels.get("uuid")
    ]


def annotated(fired: Sequence[Firing], pages: Iterable[tuple[float, Labels, Labels]]) -> list[Firing]:
    """The same with what the page would have said."""
    said = {(seconds, _key(labels)): texts for seconds, labels, texts in pages}
    return [replace(each, annotations=said.get((each.at_s, _key(each.labels)), {})) for each in fired]


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _episodes(found: Iterable[tuple[float, Labels]]) -> list[tuple[Labels, float, float]]:
    """(labels, first, last evaluation) of each time that an alert fired without a pause."""
    open_: dict[tuple[tuple[str, str], ...], tuple[float, float]] = {}
    done: list[tuple[Labels, float, float]] = []
    for moment, labels in found:
        key = _key(labels)
        ends = open_.get(key)
        if ends is not None and moment - ends[1] <= INTERVAL_S:
            open_[key] = (ends[0], moment)
            continue
        if ends is not None:
            done.append((dict(key), *ends))
        open_[key] = (moment, moment)
    done += [(dict(key), *ends) for key, ends in open_.items()]
    return sorted(done, key=lambda episode: (episode[1], episode[0].get("alertname", "")))


def _firing(labels: Labels, ends: tuple[float, float], marks: Sequence[Mark], *, base: float, rules: Rulebook) -> Firing:
    first, last = ends
    mark = marks[round(first / INTERVAL_S)]
    alert, severity = labels.get("alertname", ""), labels.get("severity", "")
    return Firing(
        alert=alert,
        severity=severity,
        run=labels.get("run", ""),
        line=mark.line,
        step=mark.step,
        wall=base + first,
        resolved_wall=None if last >= marks[-1].at_s else base + last + INTERVAL_S,
        labels={name: value for name, value in labels.items() if name not in {"__name__", "alertstate"}},
        at_s=first,
        pending=rules.pending(alert, severity),
    )

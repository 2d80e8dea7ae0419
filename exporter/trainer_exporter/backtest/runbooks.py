"""What the shipped runbooks say of an alert. They are the only place where causes and remedies are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainer_exporter.backtest.rulebook import SHIPPED

_SECTION: Final = re.compile(r"^## (.+)\n+((?:(?!## ).*\n?)*)", re.MULTILINE)
_BULLET: Final = re.compile(r"^[*-] (.+)$", re.MULTILINE)
_QUERIES: Final = re.compile(r"```promql\n(.*?)```", re.DOTALL)
_COMMAS: Final = re.compile(r"(?:, (?:or )?|(?<=\w)\. )(?![^()]*\))")
_SEMICOLONS: Final = re.compile(r"; (?:or )?|(?<=\w)\. ")  # where the causes themselves hold commas
_KIND: Final = re.compile(r"[a-z]+(?:_[a-z]+)+|killed|cancelled|preempted|traceback")


@dataclass(frozen=True, slots=True)
class Runbook:
    """One alert's page, in its own order: what is likelier stands first."""

    alert: str
    meaning: str = ""
    causes: Sequence[str] = ()
    remedies: Sequence[str] = ()
    metrics: Sequence[str] = field(default=())  # that its diagnosis asks for

    @property
    def first(self) -> str:
        """What to do first; "" of an alert without a runbook."""
        return self.remedies[0] if self.remedies else ""

    def remedies_for(self, seen: Collection[str]) -> list[str]:
        """What to try: first what names a kind of trouble that was seen, last what names only others."""
        return sorted(self.remedies, key=lambda remedy: _rank(remedy, seen))


def runbook(alert: str) -> Runbook:
    """The alert's runbook; an empty one for an alert of somebody's own."""
    if not re.fullmatch(r"\w+", alert):
        return Runbook(alert)
    try:
        text = (SHIPPED / "runbooks" / f"{alert}.md").read_text(encoding="utf-8")
    except OSError:
        return Runbook(alert)
    sections = {title: body.strip() for title, body in _SECTION.findall(text)}
    queries = "".join(_QUERIES.findall(sections.get("Diagnosis", "")))
    return Runbook(
        alert,
        meaning=sections.get("Meaning", ""),
        causes=_causes(sections.get("Causes", "")),
        remedies=_BULLET.findall(sections.get("Mitigation", "")),
        metrics=list(dict.fromkeys(re.findall(r"\b(?:trainer|gpu)_[a-z0-9_]+", queries))),
    )


def _causes(text: str) -> list[str]:
    between = _SEMICOLONS if ";" in text else _COMMAS
    return [_sentence(cause) for cause in between.split(text) if cause.strip(" .")]


def _sentence(cause: str) -> str:
    words = cause.strip().rstrip(".")
    return words[:1].lower() + words[1:] if words[1:2].islower() or words[1:2] == " " else words


def _rank(remedy: str, seen: Collection[str]) -> int:
    head = remedy.partition(":")[0] if ":" in remedy else ""
    kinds = set(_KIND.findall(head))
    if not kinds:
        return 1
    return 0 if kinds & set(seen) else 2

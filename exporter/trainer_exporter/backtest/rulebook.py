"""The rule files: which alerts they hold, and which of their rules can say anything about a log.

Most rules ask for figures that one log does not have (GPUs, other nodes). They are left away, which changes no answer and takes most of the
time off: without input an expression is empty, unless it asks for absence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer_exporter import config
from trainer_exporter.backtest.emptiness import NotUnderstoodError, may_give
from trainer_exporter.errors import TrainerExporterError

SHIPPED: Final = Path(__file__).parents[1] / "alertmanager"

_WORD: Final = re.compile(r"[a-zA-Z_:][\w:]*")
_COMMENT: Final = re.compile(r"#[^\n]*")
_OF_PROMETHEUS: Final = ("ALERTS", "ALERTS_FOR_STATE")  # series that it makes from any alert
# Metrics as this project and dcgm-exporter name them; for people, never to decide what is left away.
_METRIC: Final = re.compile(r"(?:trainer|gpu)_[a-z0-9_]+|DCGM_FI_[A-Z_]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as it stands in its file."""

    group: str
    body: Mapping[str, Any]
    words: frozenset[str] = field(default_factory=frozenset)

    @property
    def alert(self) -> str:
        """Name of the alert; "" of a recording rule."""
        return str(self.body.get("alert", ""))

    @property
    def record(self) -> str:
        """Name of what it records; "" of an alert."""
        return str(self.body.get("record", ""))

    @property
    def severity(self) -> str:
        """The label that routes it."""
        return str((self.body.get("labels") or {}).get("severity", ""))

    @property
    def pending(self) -> str:
        """How long its condition has to hold."""
        return str(self.body.get("for") or "0s")


def rule_files(folder: str | None) -> list[Path]:
    """The shipped rule files, or those in a folder of one's own."""
    place = SHIPPED / "rules" if folder is None else Path(folder)
    found = sorted(place.glob("*.yml"))
    if not found:
        raise TrainerExporterError(f"{place}: no rule files (*.yml) there; name a directory with --rules")
    return found


class Rulebook:
    """The rules of some files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._groups: dict[str, Mapping[str, Any]] = {}
        self.rules: list[Rule] = []
        for path in paths:
            self._load(path)

    def pending(self, alert: str, severity: str) -> str:
        """The ``for`` of an alert."""
        return next((rule.pending for rule in self.rules if rule.alert == alert and rule.severity == severity), "")

    def alerts(self) -> list[str]:
        """Names of all alerts, each once, in the order of the files."""
        return list(dict.fromkeys(rule.alert for rule in self.rules if rule.alert))

    def about(self, metrics: Collection[str]) -> Rulebook:
        """The rules that can say something where only these metrics are there, and that an alert depends on."""
        fed = self._kept(self._fed(metrics))
        needed = fed._behind([rule for rule in fed.rules if rule.alert])
        return self._kept([rule for rule in fed.rules if rule.alert or rule.record in needed])

    def shares(self, count: int) -> list[Rulebook]:
        """The same in at most ``count`` books that can be judged apart, each alert with all that it builds on.

        Records that several alerts build on stand in several books. Rules that ask for alerts stay together.
        """
        if any(not rule.words.isdisjoint(_OF_PROMETHEUS) for rule in self.rules):
            return [self]
        found: list[set[int]] = [set() for _ in range(count)]
        for whole in sorted(map(self._whole, (rule for rule in self.rules if rule.alert)), key=len, reverse=True):
            share = min(found, key=lambda share: len(share | whole))
            share |= whole
        return [self._kept([rule for place, rule in enumerate(self.rules) if place in share]) for share in found if share]

    def metrics(self) -> set[str]:
        """The exporters' metrics that the rules ask for."""
        return {name for rule in self.rules for name in _METRIC.findall(_COMMENT.sub("", str(rule.body.get("expr", ""))))}

    def document(self, *, annotated: bool = True) -> dict[str, Any]:
        """The rules as a rule file has them; without annotations they are judged faster, which changes no answer."""
        left_away = frozenset() if annotated else frozenset({"annotations"})
        return {
            "groups": [
                {**self._groups[name], "rules": [_without(rule.body, left_away) for rule in self._of(name)]} for name in self.order()
            ]
        }

    def order(self) -> list[str]:
        """Names of the groups, each behind those on which it builds where that is possible. promtool takes any order unless told."""
        left = list(dict.fromkeys(rule.group for rule in self.rules))
        makers = {rule.record: rule.group for rule in self.rules if rule.record}
        needs = {name: {makers[word] for rule in self._of(name) for word in rule.words if word in makers} - {name} for name in left}
        ordered: list[str] = []
        while left:
            name = next((name for name in left if needs[name] <= set(ordered)), left[0])
            left.remove(name)
            ordered.append(name)
        return ordered

    def _kept(self, rules: Sequence[Rule]) -> Rulebook:
        kept = Rulebook(())
        kept._groups, kept.rules = self._groups, list(rules)
        return kept

    def _whole(self, alert: Rule) -> set[int]:
        """Places of an alert and of the records that it builds on."""
        needed = self._behind([alert])
        return {place for place, rule in enumerate(self.rules) if rule is alert or (rule.record and rule.record in needed)}

    def _behind(self, alerts: Sequence[Rule]) -> set[str]:
        """All words on which these alerts build, directly or through records."""
        needed: set[str] = set()
        waiting = {word for rule in alerts for word in rule.words | _words_in(rule.body.get("annotations"))}
        while waiting:
            needed |= waiting
            waiting = {word for rule in self.rules if rule.record in waiting for word in rule.words} - needed
        return needed

    def _of(self, group: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.group == group]

    def _fed(self, metrics: Collection[str]) -> list[Rule]:
        known, count = {*metrics, *_OF_PROMETHEUS}, -1
        fed: list[Rule] = []
        while len(fed) != count:
            count = len(fed)
            fed = [rule for rule in self.rules if _may_give(rule, known)]
            known |= {rule.record for rule in fed if rule.record}
        return fed

    def _load(self, path: Path) -> None:
        try:
            for group in config.document(path)["groups"]:
                name = f"{path.name}:{group['name']}"
                self._groups[name] = {**group, "name": name}
                self.rules += [Rule(name, rule, _words_in(rule["expr"])) for rule in group["rules"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise TrainerExporterError(f"{path}: no rule file as Prometheus takes it; promtool check rules says what is wrong") from error


def _without(body: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in keys}


def _may_give(rule: Rule, known: Collection[str]) -> bool:
    """A rule in a language that is not known is kept."""
    try:
        return may_give(str(rule.body["expr"]), known.__contains__)
    except NotUnderstoodError:
        return True


def _words_in(tree: object) -> frozenset[str]:
    """All words in an expression, or in the texts of a mapping. Too many do no harm: labels and functions bear no metric's name."""
    text = " ".join(map(str, tree.values())) if isinstance(tree, dict) else str(tree)
    return frozenset(_WORD.findall(text))

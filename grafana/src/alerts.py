"""What fires, as Alertmanager would tell it: causes without their symptoms, and in the words of the rules.

Read from the shipped rules and inhibitions when the dashboards are built, so that nothing stands in two places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.models.dashboard import ValueMap, ValueMappingResult

SHIPPED = Path(__file__).resolve().parents[2] / "alertmanager"
# On a column of alert names: its raw value, because that of a field would be the words which the column shows.
RUNBOOK = "https://github.com/trainer-exporter/trainer-exporter/blob/main/alertmanager/runbooks/${__value.raw}.md"


def firing(*matchers: str) -> str:
    """Alerts that fire in the chosen clusters."""
    selection = ",".join(('cluster=~"$cluster"', 'alertstate="firing"', *matchers))
    return f"ALERTS{{{selection}}}"


WATCHDOG = firing('alertname="Watchdog"')  # fires while the rules are judged


def causes(*matchers: str) -> str:
    """The alerts that are told: those that no other silences, by the same rules as Alertmanager's."""
    inhibitions = yaml.safe_load((SHIPPED / "alertmanager.yml").read_text(encoding="utf-8"))["inhibit_rules"]
    silenced = [
        f"{firing(*rule['target_matchers'])} and on ({', '.join(rule['equal'])}) {firing(*rule['source_matchers'])}" for rule in inhibitions
    ]
    return f"{firing(*matchers)} unless ({' or '.join(silenced)})"


def alerts() -> Iterator[Mapping[str, Any]]:
    """The shipped alerts."""
    for path in sorted((SHIPPED / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from (rule for rule in group["rules"] if "alert" in rule)


def in_words(annotation: str) -> list[ValueMap]:
    """Alert names replaced by an annotation of theirs (of the severest twin); where that depends on the case, by a hint at the runbook."""
    texts = {rule["alert"]: rule["annotations"].get(annotation, "") for rule in reversed(list(alerts()))}
    plain = {name: "see the runbook" if "{{" in text else re.sub(r"\s+", " ", text).strip() for name, text in texts.items()}
    return [ValueMap({name: ValueMappingResult(text) for name, text in plain.items() if text})]

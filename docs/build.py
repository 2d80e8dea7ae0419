"""Builds the references: docs/metrics.md from what the exporter declares, docs/alerts.md from the rules and the runbooks.

Run it after a change of either; with --check it changes nothing and fails where a page is outdated.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer_exporter.metrics.reference import families

HERE = Path(__file__).resolve().parent
ALERTMANAGER = HERE.parent / "alertmanager"
MADE = "<!-- Made by docs/build.py (make docs); edit what it is made from. -->"

# Whose metrics begin how; the first that fits.
GROUPS = {
    "trainer_exporter_": "The exporter itself",
    "process_": "The exporter's process",
    "python_": "The exporter's process",
    "trainer_": "Runs",
    "gpu_": "GPUs",
    "": "Others",
}


def metrics() -> str:
    """The page of every family."""
    groups: dict[str, list[str]] = {}
    for family in families():
        group = next(name for prefix, name in GROUPS.items() if family.name.startswith(prefix))
        labels = ", ".join(f"`{label}`" for label in family.labels)
        groups.setdefault(group, []).append(f"| `{family.name}` | {family.kind} | {labels} | {cell(family.help)} |")
    lines = [
        "# Metrics",
        "",
        MADE,
        "",
        "What `trainer-exporter metrics` prints. A figure that is not known has no sample: absent is never 0.",
    ]
    for group in sorted(groups, key=list(GROUPS.values()).index):
        lines += ["", f"## {group}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|", *groups[group]]
    return "\n".join(lines) + "\n"


def alerts() -> str:
    """The page of every alert and recording rule, by the file of its concern."""
    lines = [
        "# Alerts",
        "",
        MADE,
        "",
        "`critical` pages, `warning` opens a ticket, `info` is shown. Thresholds stand in the rule files, each with a comment that",
        "says when to change it. The runbooks in short in Chinese: [zh-CN/runbooks.md](zh-CN/runbooks.md).",
    ]
    for path in sorted((ALERTMANAGER / "rules").glob("*.yml")):
        rules = [rule for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
        rows = list(_rows(rules))
        if rows:
            lines += ["", f"## {path.stem.replace('_', ' ').capitalize()}", "", f"[{path.name}](../alertmanager/rules/{path.name})", ""]
            lines += ["| alert | severity (for) | what it says | what it means |", "|---|---|---|---|", *rows]
        recorded = sorted({rule["record"] for rule in rules if "record" in rule})
        if recorded and rows:
            lines += ["", "Records " + ", ".join(f"`{name}`" for name in recorded) + "."]
    return "\n".join(lines) + "\n"


def _rows(rules: list[Mapping[str, Any]]) -> Iterator[str]:
    """A row an alert; rules of one name are one alert in several severities."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for rule in rules:
        if "alert" in rule:
            named.setdefault(rule["alert"], []).append(rule)
    for name, twins in named.items():
        severities = ", ".join(dict.fromkeys(f"{twin['labels']['severity']} ({twin.get('for', '0s')})" for twin in twins))
        summary = " / ".join(dict.fromkeys(twin["annotations"]["summary"] for twin in twins))
        link = f"[{name}](../alertmanager/runbooks/{name}.md)"
        yield f"| {link} | {severities} | {cell(summary)} | {cell(meaning(name))} |"


def meaning(alert: str) -> str:
    """The first section of an alert's runbook."""
    path = ALERTMANAGER / "runbooks" / f"{alert}.md"
    found = re.search(r"(?ms)^## Meaning\n(.*?)(?=^## |\Z)", path.read_text(encoding="utf-8")) if path.exists() else None
    return " ".join(found[1].split("\n\n")[0].split()) if found else ""


def cell(text: str) -> str:
    """A text inside a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


PAGES: Mapping[str, Callable[[], str]] = {"metrics.md": metrics, "alerts.md": alerts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page is outdated")
    check, outdated = parser.parse_args().check, False
    for name, page in PAGES.items():
        path, text = HERE / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        outdated = True
        if check:
            sys.stdout.write(f"docs/{name} is outdated: run docs/build.py\n")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())

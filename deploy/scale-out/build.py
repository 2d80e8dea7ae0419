"""Builds the rules in the forms that other engines want, out of alertmanager/rules: ``python deploy/scale-out/build.py [--check]``,
and ``--interval 30`` for vmalert's at another pace, on standard output.

What vmalert records is seen by queries only seconds later, so that a rule never sees what another one of its group has just said: there a
chain of rules in one group is late by a round for each link. vmalert/rules.yml therefore has the rules by links, each evaluated as soon as
the one before it is seen. MetricsQL's increase() and changes() count the birth of a series too; Prometheus's have names of their own there.
Mimir's ruler evaluates as Prometheus does and wants one file, with a namespace.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "alertmanager" / "rules"
HEAD = "# Built by deploy/scale-out/build.py from alertmanager/rules. Do not edit.\n"
INTERVAL_S = 15
# From link to link: VictoriaMetrics shows what was written after 2 s, on a busy machine after 3.3 s. A part of the round, since fleets
# that need longer rounds need longer for a link as well; one whose results are not seen when the next one begins costs a round.
LINKS_A_ROUND = 5
RECORDED = re.compile(r"\b[a-z]+:[a-z0-9_]+(?::[a-z0-9_]+)?\b")

BIRTHS = re.compile(r"\b(increase|changes)\((?=[^)])")

Rule = Mapping[str, Any]


def groups(folder: Path = RULES) -> list[dict[str, Any]]:
    """All groups of all rule files, in the order of the files' names."""
    return [group for path in sorted(folder.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]


def asked(rule: Rule) -> set[str]:
    """The recorded names that a rule asks for to judge."""
    return set(RECORDED.findall(re.sub(r"#[^\n]*", "", rule["expr"])))


def told(rule: Rule) -> set[str]:
    """The recorded names that an alert asks for to say what it says."""
    return {name for text in rule.get("annotations", {}).values() for name in RECORDED.findall(text)}


def apart(rules: Sequence[Rule]) -> list[list[Rule]]:
    """The rules in their order, cut wherever one asks for what another of the same piece records."""
    pieces: list[list[Rule]] = [[]]
    for rule in rules:
        if (asked(rule) | told(rule)) & {each.get("record") for each in pieces[-1]}:
            pieces.append([])
        pieces[-1].append(rule)
    return pieces


def links(rules: Iterable[Rule]) -> list[list[Rule]]:
    """The rules by how many others must have been evaluated before them; a rule that asks for itself asks for the last round's.

    What an alert only says is left out: suspects and causes are there half a minute before a hang is judged (suspects.yml).
    """
    rules = list(rules)
    makers = {rule["record"]: rule for rule in rules if "record" in rule}
    depth: dict[int, int] = {}

    def depth_of(rule: Rule, above: tuple[int, ...] = ()) -> int:
        if id(rule) in above:
            raise ValueError(f"{rule.get('record')}: its rules ask for one another in a circle")
        if id(rule) not in depth:
            before = (makers[name] for name in asked(rule) if name in makers and makers[name] is not rule)
            depth[id(rule)] = max((depth_of(each, (*above, id(rule))) + 1 for each in before), default=0)
        return depth[id(rule)]

    deepest = max(map(depth_of, rules))
    return [[rule for rule in rules if depth_of(rule) == link] for link in range(deepest + 1)]


def urgent_first(chain: list[list[Rule]]) -> list[list[Rule]]:
    """The links, in each first the rules that the longest way to an alert begins with.

    A link of a large fleet takes seconds to evaluate, and the one after it begins meanwhile.
    """
    ahead: dict[str, int] = {}
    for link in reversed(chain):
        for rule in link:
            for name in asked(rule):
                ahead[name] = max(ahead.get(name, 0), ahead.get(rule.get("record", ""), 0) + 1)
    return [sorted(link, key=lambda rule: -ahead.get(rule.get("record", ""), 0)) for link in chain]


def vmalert(interval_s: int = INTERVAL_S) -> str:
    """The rules for vmalert: a group for each link, at its own moment of the round, its rules side by side; slower groups as they are."""
    every, slow = ([group for group in groups() if ("interval" in group) is is_slow] for is_slow in (False, True))
    chain = urgent_first(links(rule for group in every for rule in group["rules"]))
    pace_s = interval_s // LINKS_A_ROUND
    made = [_group(f"link-{number:02}", f"{interval_s}s", number * pace_s % interval_s, rules) for number, rules in enumerate(chain)]
    return HEAD + _dumped({"groups": made + [_group(group["name"], group["interval"], 0, group["rules"]) for group in slow]})


def in_metricsql(rule: Rule) -> Rule:
    """The rule with the functions that mean in MetricsQL what they mean in PromQL."""
    said = {name: BIRTHS.sub(r"\1_prometheus(", text) for name, text in rule.get("annotations", {}).items()}
    return {**rule, "expr": BIRTHS.sub(r"\1_prometheus(", rule["expr"]), **({"annotations": said} if said else {})}


def _group(name: str, interval: str, offset_s: int, rules: list[Rule]) -> dict[str, Any]:
    return {"name": name, "interval": interval, "eval_offset": f"{offset_s}s", "concurrency": 4, "rules": list(map(in_metricsql, rules))}


def mimir() -> str:
    """The rules as ``mimirtool rules load`` takes them: one file, one namespace, the groups as they are."""
    return HEAD + _dumped({"namespace": "trainer-exporter", "groups": groups()})


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text.rstrip("\n") else None)
)


def _dumped(content: Mapping[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


BUILT = {HERE / "vmalert" / "rules.yml": vmalert, HERE / "mimir" / "rules.yml": mimir}


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the rules for vmalert and for Mimir's ruler.")
    parser.add_argument("--check", action="store_true", help="build nothing, say what is out of date")
    parser.add_argument("--interval", type=int, metavar="SECONDS", help="write vmalert's rules for such rounds to standard output")
    asked_for = parser.parse_args()
    is_check = asked_for.check
    if asked_for.interval:
        sys.stdout.write(vmalert(asked_for.interval))
        return 0
    stale = [path for path, build in BUILT.items() if not path.exists() or path.read_text() != build()]
    for path in stale:
        if is_check:
            sys.stderr.write(f"{path.relative_to(HERE.parents[1])} is out of date: make scale-out\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(BUILT[path]())
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Breaks every rule in every small way, one at a time, and names the breaks that no scene notices. Not in the suite: minutes to an hour.

    .venv/bin/python tests/rules/mutate.py [--more] [FAMILY | NAME ...]

FAMILY is a rule file without its ending, NAME an alert or a record; all of them by default. A break is run against the scenes of the alerts
that are built on the broken rule, with the rules that these need and no others, which is what makes it bearable. Exit status 1: survivors.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

import test_hangs

from rulebook import RULES, metrics_in

TESTS = Path(__file__).parents[1]
SCENES = sorted([*TESTS.glob("rules/*_test.yml"), *TESTS.glob("*/*_figures.yml")])
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is
Document = Mapping[str, Any]

UNTOUCHED = re.compile(r"\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)|\boffset\s+\w+")
NUMBER = re.compile(r"(?<![\w:.])(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w:.])")
COMPARISON = re.compile(r"(?<![=!<>~])(?:>=|<=|==|!=|>|<)(?![=~])")
FLIPPED = {">": "<", ">=": "<", "<": ">", "<=": ">", "==": "!=", "!=": "=="}
SWAPPED = {"and": "unless", "unless": "and"}
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"")
DENIED = {"=": "!=", "!=": "=", "=~": "!~", "!~": "=~"}
# With --more: what no threshold is, and what a second source, a missed scrape or another branch would show.
EXTREMES = {"max by": "min by", "min by": "max by", "max_over_time": "min_over_time", "min_over_time": "max_over_time"}
ASKED = re.compile(r'query \(printf "((?:[^"\\]|\\.)*)"')  # of Prometheus, by an annotation
FACTOR = 1.5
# Bounds that drop DCGM's marks for "no value", which lie at 2e9 or above and more than a thousandfold over any reading: where in between
# makes no difference, only whether there is one. The flipped comparison is a bound too low.
MARKED = re.compile(r"1e\d+|100|200")
EXPECTATIONS = ("alert_rule_test", "promql_expr_test")
TINY, TINY_FACTOR = 1e-4, 100.0  # what stands for "no difference" is no threshold that anybody would tune by halves


@dataclass(frozen=True)
class Mutant:
    """One break of one rule."""

    path: Path
    rule: str  # the name of the alert or record
    place: tuple[int, int]  # group and rule within the file
    what: str
    field: str  # expr or for
    text: str

    def __str__(self) -> str:
        return f"{self.path.stem}: {self.rule}: {self.what}"


def name_of(rule: Mapping[str, Any]) -> str:
    """Of an alert or a record."""
    return str(rule.get("alert") or rule["record"])


def bare(expr: str) -> str:
    """An expression without comments, on one line."""
    return " ".join(re.sub(r"#[^\n]*", "", expr).split())


def spots(pattern: re.Pattern[str], expr: str) -> Iterator[re.Match[str]]:
    """Where a pattern stands outside of labels, ranges and strings."""
    hidden = UNTOUCHED.sub(lambda found: "\0" * len(found[0]), expr)
    return pattern.finditer(hidden)


def replaced(expr: str, found: re.Match[str], by: str, *, group: int = 0) -> tuple[str, str]:
    """(what was done, in its surroundings; the expression after it)."""
    start, end = found.span(group)
    near = expr[max(0, start - 30) : end + 20].strip()
    return f"{expr[start:end]} -> {by} in ...{near}...", expr[:start] + by + expr[end:]


def wrong(value: float) -> tuple[float, float]:
    """What a threshold is not. Small whole numbers count something: their neighbours."""
    if value in {1, 2, 3}:
        return value + 1, value - 1
    factor = TINY_FACTOR if value < TINY else FACTOR
    return value * factor, value / factor


def broken(expr: str, *, more: bool) -> Iterator[tuple[str, str]]:
    """Every break of an expression: (what, expression)."""
    for found in spots(NUMBER, expr):
        value, before = float(found[0]), expr[: found.start()].rstrip()
        compared = before.endswith((">", "<", "=", "bool"))
        if value == 0 or (value == 1 and not compared):
            continue
        if before.endswith(("<", "<=")) and MARKED.fullmatch(found[0]) and "DCGM_" in expr:
            yield replaced(expr, found, "Inf")
            continue
        others = wrong(value)
        yield from (replaced(expr, found, f"{each:.6g}") for each in (others[:1] if value == 1 and before.endswith("==") else others))
    for found in spots(COMPARISON, expr):
        yield replaced(expr, found, FLIPPED[found[0]])
    for found in spots(re.compile(r"\b(?:and|unless)\b"), expr):
        yield replaced(expr, found, SWAPPED[found[0]])
    for labels in re.finditer(r"\{[^}]*\}", expr):
        for found in MATCHER.finditer(expr, *labels.span()):
            yield replaced(expr, found, DENIED[found[2]], group=2)
    if more:
        for found in spots(re.compile(r"\b(?:max by|min by|max_over_time|min_over_time)\b"), expr):
            yield replaced(expr, found, EXTREMES[found[0]])
        for found in spots(re.compile(r"\bor\b"), expr):
            yield replaced(expr, found, "and")
        for found in re.finditer(r"(?<=\[)\w+(?=\])", expr):
            yield replaced(expr, found, "15s")


def mutants(books: Mapping[Path, Document], wanted: Sequence[str], *, more: bool) -> Iterator[Mutant]:
    """All breaks of the rules that are asked for."""
    for path, book in books.items():
        for group_number, group in enumerate(book["groups"]):
            for number, rule in enumerate(group["rules"]):
                name, place = name_of(rule), (group_number, number)
                if wanted and not {path.stem, name} & set(wanted):
                    continue
                shown = f"{name} ({rule['labels']['severity']})" if "alert" in rule else name
                for what, expr in broken(bare(rule["expr"]), more=more):
                    yield Mutant(path, shown, place, what, "expr", expr)
                if rule.get("for", "0s") != "0s":
                    yield Mutant(path, shown, place, f"for: {rule['for']} dropped", "for", "0s")


def needed(names: set[str], books: Mapping[Path, Document]) -> set[str]:
    """These rules and all that they are built on."""
    reads: dict[str, set[str]] = {}
    for book in books.values():
        for rule in (rule for group in book["groups"] for rule in group["rules"]):
            name = name_of(rule)
            asked = ASKED.findall(" ".join(rule.get("annotations", {}).values()))
            reads.setdefault(name, set()).update(*map(metrics_in, [rule["expr"], *asked]))
    found, open_ = set(), set(names)
    while open_:
        name = open_.pop()
        found.add(name)
        open_ |= (reads.get(name, set()) & reads.keys()) - found
    return found


def seconds(duration: str) -> int:
    """Of a moment such as 1h30m."""
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))


def loaded_by(path: Path, document: Document) -> list[Path]:
    """The rule files of a file of scenes."""
    return [(path.parent / each).resolve() for each in document["rule_files"]]


class Scene:
    """One scene of a file, and the rules that it needs."""

    def __init__(self, path: Path, document: Document, number: int, books: Mapping[Path, Document]) -> None:
        scene = document["tests"][number]
        self.name = f"{path.stem}, scene {number + 1}"
        self._files = loaded_by(path, document)
        self._document = {**document, "rule_files": [each.name for each in self._files], "tests": [scene]}
        own = {each: books[each] for each in self._files}
        exprs = [case["expr"] for case in scene.get("promql_expr_test", ())]
        alerts = {case["alertname"] for case in scene.get("alert_rule_test", ())}
        alerts.update(name for expr in exprs for name in re.findall(r'alertname="(\w+)"', expr))
        self.rules = needed(alerts.union(*map(metrics_in, exprs)), own)
        self.given = set().union(*(metrics_in(each["series"]) for each in scene["input_series"]))
        ends = [seconds(case["eval_time"]) for key in EXPECTATIONS for case in scene.get(key, ())]
        self.cost = max(ends) * len(self.rules) * len(scene["input_series"])
        self._sound: bool | None = None

    def fails(self, books: Mapping[Path, Document]) -> bool:
        """Whether promtool notices anything."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            for path in self._files:
                Path(folder, path.name).write_text(json.dumps(self._only_needed(books[path])))
            Path(folder, "scene.yml").write_text(json.dumps(self._document))
            return subprocess.run(["promtool", "test", "rules", "scene.yml"], cwd=folder, capture_output=True, check=False).returncode != 0

    def is_sound(self, books: Mapping[Path, Document]) -> bool:
        """Whether it plays without any break."""
        if self._sound is None:
            self._sound = not self.fails(books)
        return self._sound

    def _only_needed(self, book: Document) -> Document:
        kept = [{**group, "rules": [rule for rule in group["rules"] if name_of(rule) in self.rules]} for group in book["groups"]]
        return {"groups": kept}


class Court:
    """Asks the scenes that concern a mutant: those that caught the last ones of its rule, those that give what it reads, the cheapest."""

    def __init__(self, books: Mapping[Path, Document], scenes: Sequence[Scene]) -> None:
        self._books, self._scenes = books, scenes
        self._caught: dict[str, list[Scene]] = {}
        self.unsound: set[str] = set()

    def survives(self, mutant: Mutant) -> bool:
        """Whether no scene that concerns it fails."""
        changed = copy.deepcopy(dict(self._books))
        rule = changed[mutant.path]["groups"][mutant.place[0]]["rules"][mutant.place[1]]
        rule[mutant.field] = mutant.text
        caught = self._caught.setdefault(name_of(rule), [])
        reads = metrics_in(mutant.text) if mutant.field == "expr" else set()
        concerned = (scene for scene in self._scenes if name_of(rule) in scene.rules)
        others = sorted(concerned, key=lambda scene: (not reads & scene.given, scene.cost))
        for scene in dict.fromkeys([*reversed(caught), *others]):
            if scene.fails(changed):
                if scene.is_sound(self._books):
                    caught.append(scene)
                    return False
                self.unsound.add(scene.name)
        return True


def written(books: Mapping[Path, Document]) -> Iterator[Scene]:
    """The scenes of the alerts, and those of figures."""
    for path in SCENES:
        document = yaml.load(path.read_text(), Loader=LOADER)
        yield from (Scene(path, document, number, books) for number in range(len(document["tests"])))


def hangs(books: Mapping[Path, Document]) -> Iterator[Scene]:
    """Those of a job of many cards. Dear, so only the rules that they are about are tried with them."""
    for name, scene in test_hangs.SICK.items():
        yield Scene(TESTS / "rules" / f"hang {name}", test_hangs.document(scene, test_hangs.told(scene)), 0, books)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the survivors, and how many there were of how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="*", metavar="FAMILY | NAME")
    parser.add_argument("--more", action="store_true", help="also extremes, or, and ranges")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    books = {path.resolve(): yaml.load(path.read_text(), Loader=LOADER) for path in RULES}
    found = list(mutants(books, options.wanted, more=options.more))
    is_about_hangs = any(mutant.path.stem == "suspects" for mutant in found)
    court = Court(books, [*written(books), *(hangs(books) if is_about_hangs else ())])
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, alive in zip(found, pool.map(court.survives, found), strict=True):
            if alive:
                survivors += 1
                sys.stdout.write(f"survives: {mutant}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(found)} mutants, {survivors} survivors\n")
    if court.unsound:
        sys.stdout.write(f"these fail without any break, and were not believed: {'; '.join(sorted(court.unsound))}\n")
        return 2
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Breaks every rule in every small way, one at a time, and names the breaks that no scene notices. Not in the suite: minutes to an hour.

    .venv/bin/python tests/rules/mutate.py [--more] [--fresh] [FAMILY | NAME ...]

FAMILY is a rule file without its ending, NAME an alert or a record; all of them by default. A break is asked of the scenes built on
the broken rule, with the rules that these need and no others, until one notices it. What promtool said of the same files before is
remembered in build/, so that what was stopped goes on where it was, and only what changed is played again. Exit status 1: survivors.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from breaks import Document, Mutant, mutants, name_of

from rulebook import RULES, metrics_in, rules
from stack import REPOSITORY

TESTS = Path(__file__).parents[1]
SCENES = sorted([*TESTS.glob("rules/*_test.yml"), *TESTS.glob("*/*_figures.yml")])
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is
REMEMBERED = REPOSITORY / "build" / "mutants" / "verdicts.txt"
ASKED = re.compile(r'query \(printf "((?:[^"\\]|\\.)*)"')  # of Prometheus, by an annotation
EXPECTATIONS = ("alert_rule_test", "promql_expr_test")


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


class Promtool:
    """Whether promtool fails on a scene and its rules. The same files have the same answer, which is never asked for twice."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        version = subprocess.run(["promtool", "--version"], capture_output=True, check=True).stdout
        self._salt = hashlib.sha256(version.splitlines()[0])
        self._path, self._lock = path, threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {digest: verdict == "fails" for digest, _, verdict in (line.partition(" ") for line in lines)}
        self.is_new = not lines

    def known(self, files: Mapping[str, str]) -> bool | None:
        """What it said before."""
        return self._known.get(self._digest(files))

    def fails(self, files: Mapping[str, str]) -> bool:
        """What it says of a folder with scene.yml in it."""
        before = self.known(files)
        return self._asked(files) if before is None else before

    def _asked(self, files: Mapping[str, str]) -> bool:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            for name, text in files.items():
                Path(folder, name).write_text(text)
            status = subprocess.run(["promtool", "test", "rules", "scene.yml"], cwd=folder, capture_output=True, check=False).returncode
        if status not in {0, 1}:  # killed, and no answer
            raise SystemExit(f"promtool ended with {status}")
        with self._lock, self._path.open("a") as file:
            file.write(f"{self._digest(files)} {'fails' if status else 'plays'}\n")
        self._known[self._digest(files)] = status != 0
        return status != 0

    def _digest(self, files: Mapping[str, str]) -> str:
        found = self._salt.copy()
        for name, text in sorted(files.items()):
            found.update(f"{name}\0{text}\0".encode())
        return found.hexdigest()[:32]


class Scene:
    """One scene of a file, and the rules that it needs."""

    def __init__(self, path: Path, document: Document, number: int, books: Mapping[Path, Document]) -> None:
        scene = document["tests"][number]
        self.name = f"{path.stem}, scene {number + 1}"
        files = loaded_by(path, document)
        own = {each: books[each] for each in files}
        exprs = [case["expr"] for case in scene.get("promql_expr_test", ())]
        alerts = {case["alertname"] for case in scene.get("alert_rule_test", ())}
        alerts.update(name for expr in exprs for name in re.findall(r'alertname="(\w+)"', expr))
        self.rules = needed(alerts.union(*map(metrics_in, exprs)), own)
        self.given = set().union(*(metrics_in(each["series"]) for each in scene["input_series"]))
        ends = [seconds(case["eval_time"]) for key in EXPECTATIONS for case in scene.get(key, ())]
        self.cost = max(ends) * len(self.rules) * len(scene["input_series"])
        text = json.dumps({**document, "rule_files": [each.name for each in files], "tests": [scene]})
        self._unbroken = {"scene.yml": text, **{each.name: self._only_needed(book) for each, book in own.items()}}

    def files(self, path: Path | None = None, book: Document | None = None) -> Mapping[str, str]:
        """What promtool reads: with another book in the place of one, or without a break."""
        return {**self._unbroken, path.name: self._only_needed(book)} if path and book else self._unbroken

    def _only_needed(self, book: Document) -> str:
        kept = [{**group, "rules": [rule for rule in group["rules"] if name_of(rule) in self.rules]} for group in book["groups"]]
        return json.dumps({"groups": kept})


class Court:
    """Asks the scenes that concern a mutant: those that caught the last ones of its rule, those that give what it reads, the cheapest."""

    def __init__(self, books: Mapping[Path, Document], scenes: Sequence[Scene], promtool: Promtool) -> None:
        self._books, self._scenes, self._promtool = books, scenes, promtool
        self._caught: dict[str, list[Scene]] = {}
        self.unsound: set[str] = set()

    def survives(self, mutant: Mutant) -> bool:
        """Whether no scene that concerns it fails."""
        changed = copy.deepcopy(self._books[mutant.path])
        rule = changed["groups"][mutant.place[0]]["rules"][mutant.place[1]]
        rule[mutant.field] = mutant.text
        caught = self._caught.setdefault(name_of(rule), [])
        for scene in self._in_order(mutant, name_of(rule), [*reversed(caught)], changed):
            if self._promtool.fails(scene.files(mutant.path, changed)):
                if not self._promtool.fails(scene.files()):
                    caught.append(scene)
                    return False
                self.unsound.add(scene.name)
        return True

    def _in_order(self, mutant: Mutant, name: str, caught: Sequence[Scene], changed: Document) -> Sequence[Scene]:
        reads = metrics_in(mutant.text) if mutant.field == "expr" else set()
        concerned = [scene for scene in self._scenes if name in scene.rules]
        others = sorted(concerned, key=lambda scene: (not reads & scene.given, scene.cost))
        first = [] if self._promtool.is_new else [each for each in concerned if self._promtool.known(each.files(mutant.path, changed))]
        return list(dict.fromkeys([*first, *caught, *others]))


def written(books: Mapping[Path, Document]) -> Iterator[Scene]:
    """The scenes of the alerts, and those of figures."""
    for path in SCENES:
        document = yaml.load(path.read_text(), Loader=LOADER)
        yield from (Scene(path, document, number, books) for number in range(len(document["tests"])))


@dataclass
class Tally:
    """What became of the mutants of some rules."""

    mutants: int = 0
    survivors: list[Mutant] = field(default_factory=list)
    seconds: float = 0  # of CPU

    def row(self, name: str) -> str:
        """A line of the table."""
        killed = self.mutants - len(self.survivors)
        return f"{name:16}{self.mutants:>10}{killed:>10}{len(self.survivors):>11}{self.seconds:>9.0f}\n"

    def add(self, other: Tally) -> None:
        """Both together."""
        self.mutants += other.mutants
        self.survivors += other.survivors
        self.seconds += other.seconds


HEAD = f"{'rules':16}{'mutants':>10}{'killed':>10}{'survivors':>11}{'CPU s':>9}\n"


def cpu_seconds() -> float:
    """Of this program and all that it has asked: what a busy machine does not change."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def tally(found: Sequence[Mutant], court: Court, jobs: int) -> Tally:
    """Judge them all."""
    began = cpu_seconds()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            alive = list(pool.map(court.survives, found))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    survivors = [mutant for mutant, is_alive in zip(found, alive, strict=True) if is_alive]
    return Tally(len(found), survivors, cpu_seconds() - began)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="*", metavar="FAMILY | NAME")
    parser.add_argument("--more", action="store_true", help="also extremes, or, and ranges")
    parser.add_argument("--fresh", action="store_true", help="forget what was asked before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    asked = parser.parse_args(arguments)
    if unknown := set(asked.wanted) - {path.stem for path in RULES} - {name_of(rule) for _, rule in rules()}:
        parser.error(f"neither a rule file nor a rule: {', '.join(sorted(unknown))}")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each file, then the survivors."""
    asked = options(arguments)
    books = {path.resolve(): yaml.load(path.read_text(), Loader=LOADER) for path in RULES}
    found = list(mutants(books, asked.wanted, more=asked.more))
    court = Court(books, list(written(books)), Promtool(REMEMBERED, fresh=asked.fresh))
    total = Tally()
    sys.stdout.write(HEAD)
    for path in books:
        part = [mutant for mutant in found if mutant.path == path]
        if part or not asked.wanted:
            one = tally(part, court, asked.jobs)
            sys.stdout.write(one.row(path.stem) + "".join(f"  survives: {mutant}\n" for mutant in one.survivors))
            sys.stdout.flush()
            total.add(one)
    sys.stdout.write(total.row("all"))
    if court.unsound:
        sys.stdout.write(f"these fail without any break, and were not believed: {'; '.join(sorted(court.unsound))}\n")
        return 2
    return min(1, len(total.survivors))


if __name__ == "__main__":
    sys.exit(main())

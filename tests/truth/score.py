"""How far the shipped rules can be trusted: precision, recall and delay of every alert on runs whose truth is known.

    .venv/bin/python tests/truth/score.py [NAME ...]

trained.yml and composed.yml say of each run, exporters.yml of each exporter, what must fire, how soon after which line or second, and what
may fire beside it. Any other warning or page is a false one; information is not counted unless it is expected. Exit 1 where anything is not
as the labels say.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)] if str(HERE.parent) not in sys.path else []

from trainer_exporter import backtest  # noqa: E402
from trainer_exporter.backtest.gpus import read_gpus  # noqa: E402
from trainer_exporter.backtest.values import Firing, Log, Result  # noqa: E402
from trainer_exporter.formats import registry  # noqa: E402
from truth import composed, exporters  # noqa: E402 - found by the line above

COUNTED = ("critical", "warning")
TOGETHER = 6  # runs in one promtool; with all in one, the shortest waits as long as the longest


@dataclass(frozen=True)
class Case:
    """A run and its truth."""

    name: str
    kind: str  # trained, composed, exporters
    label: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What the rules made of a run; alerts are (name, severity)."""

    case: Case
    delays: Mapping[tuple[str, str], float] = field(default_factory=dict)  # expected and fired in time
    missed: Sequence[tuple[str, str]] = ()  # expected, and late or never
    known: Sequence[tuple[str, str]] = ()  # what the label says is missed or false
    false: Sequence[tuple[str, str]] = ()
    pages: int = 0
    seen: str = ""

    @property
    def is_right(self) -> bool:
        return {*self.missed, *self.false} == set(self.known)


def cases(names: Iterable[str] = ()) -> list[Case]:
    """All labelled runs, or those of these names."""
    wanted = set(names)
    found = [
        Case(name, kind, label or {})
        for kind in ("trained", "composed", "exporters")
        for name, label in yaml.safe_load((HERE / f"{kind}.yml").read_text()).items()
    ]
    if unknown := wanted - {case.name for case in found}:
        raise SystemExit(f"no such run: {', '.join(sorted(unknown))}")
    return [case for case in found if not wanted or case.name in wanted]


def judged(chosen: Sequence[Case]) -> list[Verdict]:
    """The runs through the shipped rules, held against their labels; those of one kind together."""
    if any(case.kind == "exporters" for case in chosen):
        return _judged_exporters(chosen)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_job(case, Path(folder, case.name)) for case in chosen]
        results = backtest.backtests(jobs, rules=backtest.rule_files(None))
        texts = [Path(job.log.path).read_text(errors="replace").split("\n") for job in jobs]
    return [verdict(case, job.log, result, lines) for case, job, result, lines in zip(chosen, jobs, results, texts, strict=True)]


def _judged_exporters(chosen: Sequence[Case]) -> list[Verdict]:
    found = exporters.fired([case.name for case in chosen])
    return [verdict(case, Log("", case.name, [], 0, 0.0), Result(found[case.name], "", 0.0), ()) for case in chosen]


def _job(case: Case, place: Path) -> backtest.Job:
    place.mkdir()
    path, gpus = place / "train.log", None
    if case.kind == "composed":
        scene = composed.written(case.name)
        path.write_text(composed.text(scene.lines))
        if scene.gpus:
            (place / "gpus.txt").write_text(composed.text(scene.gpus))
            gpus = read_gpus(str(place / "gpus.txt"))
    else:
        path.write_bytes((HERE / "trained" / f"{case.name}.log").read_bytes())
    (log,) = backtest.read([str(path)], registry())
    return backtest.Job(log, case.label.get("after", backtest.AFTER_S), case.label.get("step_seconds"), gpus)


def verdict(case: Case, log: Log, result: Result, lines: Sequence[str]) -> Verdict:
    """What was right, missed and false."""
    expected = {(each["alert"], each["severity"]): each for each in case.label.get("expect", [])}
    allowed = {tuple(each.split(" ")) for each in case.label.get("allow", [])}
    fired: dict[tuple[str, str], list[Firing]] = {}
    for firing in result.firings:
        fired.setdefault((firing.alert, firing.severity), []).append(firing)
    delays: dict[tuple[str, str], float] = {}
    missed: list[tuple[str, str]] = []
    early: list[tuple[str, str]] = []
    for key, each in expected.items():
        fault_s = _fault_s(each.get("fault", case.label.get("fault")), case, log, result, lines)
        after = [firing.at_s - fault_s for firing in fired.get(key, []) if firing.at_s >= fault_s]
        early += [key for firing in fired.get(key, []) if firing.at_s < fault_s]
        if after and min(after) <= each["within"]:
            delays[key] = min(after)
        else:
            missed.append(key)
    others = [key for key in fired if key[1] in COUNTED and key not in expected and key not in allowed]
    seen = ", ".join(f"{alert} {severity} at {firing[0].at_s:.0f} s, line {firing[0].line}" for (alert, severity), firing in fired.items())
    known = [key for key, each in expected.items() if "missed_for" in each]
    known += [(alert, severity) for alert, severity in (each.split(" ") for each in case.label.get("wrongly", {}))]
    return Verdict(case, delays, missed, known, [*early, *others], pages(result.firings), seen)


def _fault_s(pattern: str | float | None, case: Case, log: Log, result: Result, lines: Sequence[str]) -> float:
    """When the line of the fault was written: its own event, or the last one before it."""
    if pattern is None or not isinstance(pattern, str):
        return float(pattern or 0.0)
    number = next((number for number, line in enumerate(lines, 1) if re.search(pattern, line)), None)
    if number is None:
        raise SystemExit(f"{case.name}: no line matches the fault {pattern!r}")
    return max((at_s for event, at_s in zip(log.events, result.times, strict=True) if event.line <= number), default=0.0)


def pages(firings: Iterable[Firing]) -> int:
    """Times that a person would have been called: critical alerts of the run that overlap are one page."""
    count, until = 0, float("-inf")
    for firing in sorted((each for each in firings if each.severity == "critical"), key=lambda each: each.at_s):
        end = float("inf") if firing.resolved_wall is None else firing.at_s + firing.resolved_wall - firing.wall
        if firing.at_s > until + 300:  # Alertmanager's group_interval: what comes so soon after is told with the page before
            count += 1
        until = max(until, end)
    return count


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A row an alert, in Markdown."""
    yield "| alert | severity | runs | precision | recall | delay: median, longest |"
    yield "|---|---|---|---|---|---|"
    keys = {key for each in verdicts for key in (*each.delays, *each.missed, *each.false)}
    for alert, severity in sorted(keys):
        yield _row(alert, severity, verdicts)
    right = sum(len(each.delays) for each in verdicts)
    missed, false = (sum(len(getattr(each, name)) for each in verdicts) for name in ("missed", "false"))
    yield f"| **all** | | {len(verdicts)} | {_share(right, false)} | {_share(right, missed)} | |"


def _row(alert: str, severity: str, verdicts: Sequence[Verdict]) -> str:
    key = (alert, severity)
    delays = [each.delays[key] for each in verdicts if key in each.delays]
    missed, false = (sum(key in getattr(each, name) for each in verdicts) for name in ("missed", "false"))
    told = f"{statistics.median(delays):.0f} s, {max(delays):.0f} s" if delays else ""
    return f"| {alert} | {severity} | {len(delays) + missed} | {_share(len(delays), false)} | {_share(len(delays), missed)} | {told} |"


def _share(right: int, wrong: int) -> str:
    return f"{right / (right + wrong):.2f}" if right + wrong else "-"


def main(arguments: Sequence[str]) -> int:
    """Judge and print."""
    chosen = cases(arguments)
    of_kind = [[case for case in chosen if (case.kind == "exporters") is told] for told in (False, True)]
    parts = [cases_[at : at + TOGETHER] for cases_ in of_kind for at in range(0, len(cases_), TOGETHER)]
    with ThreadPoolExecutor() as pool:
        verdicts = [each for part in pool.map(judged, parts) for each in part]
    for each in verdicts:
        missed, false = (", ".join(map(" ".join, items)) or "nothing" for items in (each.missed, each.false))
        told = "as labelled" if each.is_right else f"missed {missed}; false {false}"
        sys.stderr.write(f"{each.case.kind}/{each.case.name}: {told}\n    fired: {each.seen or 'nothing'}\n")
    say = sys.stdout.write
    healthy = [each for each in verdicts if each.case.name.startswith("healthy")]
    say("\n".join(table(verdicts)) + "\n")
    say(f"\n{len(healthy)} healthy runs: {sum(each.pages for each in healthy)} pages. ")
    paged = [each for each in verdicts if any(severity == "critical" for _, severity in (*each.delays, *each.missed))]
    say(f"{len(paged)} runs that must page: {sum(each.pages for each in paged)} pages.\n")
    return int(any(not each.is_right for each in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

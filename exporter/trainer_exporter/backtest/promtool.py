"""The judge: Prometheus's own promtool evaluates rules over a tape. Nothing of PromQL is written again here.

Its ``test rules`` is the one of Prometheus's programs that runs alerting rules in virtual time; its block builder ignores them. It takes
every alert for a failed expectation and says what it got instead, which is what is read here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainer_exporter.backtest.rulebook import Rulebook
from trainer_exporter.backtest.tape import INTERVAL_S, Tape
from trainer_exporter.errors import TrainerExporterError

Labels = Mapping[str, str]
Waiting = Callable[[float], None]  # seconds since promtool began

MOST_AT_ONCE: Final = 4  # more hardly gain: what most alerts build on is judged by each
LONG: Final = 50_000  # judgements of a rule, some five seconds

_TICK_S: Final = 0.5
_FIRING: Final = 'ALERTS{alertstate="firing",alertname!="Watchdog"}'
_GOT: Final = re.compile(r"(?m), time: (\w+), *\n +exp:.*\n +got:(.*)$")
_ALERT: Final = re.compile(r'\{((?:\w+="(?:[^"\\]|\\.)*"(?:, ?)?)*)\}')
_LABEL: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_CASE: Final = re.compile(r"(?m)^ +alertname: \w+, time: (\w+), *$")
_PAGE: Final = re.compile(r"(?m)^ +Labels:(\{.*\})\n +Annotations:(\{.*\})")
_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def evaluate(
    tapes: Sequence[Tape], rules: Rulebook, *, at_once: int | None = None, waiting: Waiting = lambda _: None
) -> list[tuple[float, Labels]]:
    """(seconds since the start, labels) of every alert that fires at an evaluation, in the order of time; by the real Prometheus.

    ``at_once``: how many promtool may share the rules; as many as are worth it unless given.
    """
    scrapes = max(tape.scrapes for tape in tapes)
    if at_once is None:
        at_once = min(os.cpu_count() or 1, MOST_AT_ONCE) if scrapes * len(rules.rules) > LONG else 1
    asked = [{"expr": _FIRING, "eval_time": f"{number * INTERVAL_S}s"} for number in range(scrapes)]
    said = "\n".join(_ask(tapes, rules.shares(at_once), {"promql_expr_test": asked}, waiting))
    found = [(_seconds(match[1]), _labels(alert)) for match in _GOT.finditer(said) for alert in _ALERT.findall(match[2])]
    return sorted(found, key=lambda each: each[0])


def pages(
    tapes: Sequence[Tape], rules: Rulebook, moments: Collection[tuple[str, float]], *, waiting: Waiting = lambda _: None
) -> list[tuple[float, Labels, Labels]]:
    """(seconds, labels, annotations) of the alerts of these names at these moments, with their templates filled in as for a page."""
    asked = [{"eval_time": f"{seconds:.0f}s", "alertname": alert, "exp_alerts": []} for alert, seconds in sorted(moments)]
    (said,) = _ask(tapes, [rules], {"alert_rule_test": asked}, waiting, annotated=True)
    starts = list(_CASE.finditer(said))
    ends = [*(case.start() for case in starts[1:]), len(said)]
    return [
        (_seconds(case[1]), _labels(labels), _labels(texts))
        for case, end in zip(starts, ends, strict=True)
        for labels, texts in _PAGE.findall(said[case.end() : end])
    ]


def _ask(
    tapes: Sequence[Tape], books: Sequence[Rulebook], questions: Mapping[str, Sequence[Any]], waiting: Waiting, *, annotated: bool = False
) -> list[str]:
    """What promtool says to a test with these questions, for each book."""
    program = shutil.which("promtool")
    if program is None:
        raise TrainerExporterError("promtool is missing: it comes with Prometheus (on Debian: apt-get install prometheus)")
    test = {"interval": f"{INTERVAL_S}s", "input_series": [series for tape in tapes for series in tape.input_series()], **questions}
    with tempfile.TemporaryDirectory(prefix="trainer-exporter-backtest-") as folder:
        commands = []
        for number, book in enumerate(books):
            document = {
                "rule_files": [f"rules-{number}.yml"],
                "evaluation_interval": f"{INTERVAL_S}s",
                "group_eval_order": book.order(),
                "tests": [test],
            }
            Path(folder, f"rules-{number}.yml").write_text(json.dumps(book.document(annotated=annotated)))  # JSON is YAML
            Path(folder, f"backtest-{number}.yml").write_text(json.dumps(document))
            commands.append([program, "test", "rules", f"backtest-{number}.yml"])
        answers = _run(commands, Path(folder), waiting)
    for code, said in answers:
        if code != 0 and "got:" not in said:
            raise TrainerExporterError(f"promtool cannot evaluate the rules: {said.strip()[:500]}")
    return [said for _, said in answers]


def _run(commands: Sequence[Sequence[str]], folder: Path, waiting: Waiting) -> list[tuple[int, str]]:
    """(exit code, what it said) of each; all run at once, and none is left when this is interrupted."""
    outputs = [folder / f"said-{number}" for number in range(len(commands))]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, output in zip(commands, outputs, strict=True):
            with output.open("wb") as said:
                running.append(subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT))
        _wait_for(running, waiting)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [(process.returncode, output.read_text()) for process, output in zip(running, outputs, strict=True)]


def _wait_for(running: Sequence[subprocess.Popen[bytes]], waiting: Waiting) -> None:
    seconds = 0.0
    for process in running:
        while process.poll() is None:
            try:
                process.wait(timeout=_TICK_S)
            except subprocess.TimeoutExpired:
                seconds += _TICK_S
                waiting(seconds)


def _labels(text: str) -> dict[str, str]:
    """Go quotes as Python does, in all that it writes."""
    return {name: str(ast.literal_eval(value)) for name, value in _LABEL.findall(text)}


def _seconds(duration: str) -> float:
    return sum(float(number) * _UNIT_S[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhdwy])", duration))

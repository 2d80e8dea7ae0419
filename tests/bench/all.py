"""Every figure of the exporter's speed, and its peers', in one table: ``python tests/bench/all.py [PART ...]``, or ``make bench``.

Parts: ingest, startup, idle, page, sweep, rules. ``--update FILE`` puts the table into a page of the documentation, between its marks.
Measure on a machine that does nothing else; ``chrt -r 1`` before the command keeps what others do out of the latencies.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import costs  # noqa: E402 - found by the line above
import ingest  # noqa: E402 - idem
import sweep  # noqa: E402 - idem
from figures import Figure, held  # noqa: E402 - idem

TIMES_MTAIL = {"noise": 10.0}
TIMES_MTAIL_ELSE = 3.0
TIMES_GREP = {"noise": 5.0}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Parts = Mapping[str, Callable[[argparse.Namespace], Iterator[Figure]]]


def _ingest(asked: argparse.Namespace) -> Iterator[Figure]:
    os.environ["LC_ALL"] = "C"
    for name in asked.cases or ingest.CASES:
        with tempfile.TemporaryDirectory() as folder:
            row = ingest.measure(name, asked.megabytes, Path(folder), mtails=asked.mtail)
        yield held("ingest", name, "CPU", row.exporter, "s/GB")
        least = TIMES_MTAIL.get(name, TIMES_MTAIL_ELSE)
        for program, cost in row.mtail.items():
            yield held("ingest", name, f"times {ingest.version(program)}", cost / row.exporter, "", least=least)
            times = row.mtail_all[program] / row.exporter
            yield held("ingest", name, f"times {ingest.version(program)}, all fields", times, "", least=least)
        if name in TIMES_GREP:  # of the others so little is made that grep's time is its start's
            yield held("ingest", name, "CPU of grep -c, times", row.times_grep, "", most=TIMES_GREP[name])


def _startup(asked: argparse.Namespace) -> Iterator[Figure]:
    yield from costs.startup(asked.backlog)


def _idle(asked: argparse.Namespace) -> Iterator[Figure]:
    for files in asked.files:
        yield from costs.idle(files)


def _page(asked: argparse.Namespace) -> Iterator[Figure]:
    for number in asked.runs:
        yield from costs.pages(number)


def _rules(asked: argparse.Namespace) -> Iterator[Figure]:
    yield from sweep.judging(asked.nodes)


PARTS: Parts = {
    "ingest": _ingest,
    "startup": _startup,
    "idle": _idle,
    "page": _page,
    "sweep": lambda asked: sweep.sweeps(),
    "rules": _rules,
}


def machine() -> str:
    """The machine, the interpreter and the peers, in a line."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())
    peers = [f"nvitop-exporter {sweep.version()}" if sweep.version() else "", _version("grep"), _version("prometheus")]
    parts = [
        f"{os.cpu_count()} x {model[1] if model else platform.machine()}",
        f"{int(memory[1]) >> 20} GiB" if memory else "",
        f"Linux {platform.release()}, Python {platform.python_version()}",
        *peers,
    ]
    return "; ".join(part for part in parts if part)


def _version(program: str) -> str:
    if shutil.which(program) is None:
        return ""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(?:\.\d+)?", told.stdout + told.stderr)
    return f"{program} {found[0] if found else '?'}"


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def line(figure: Figure) -> str:
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    return f"{figure.part:10} {figure.case:34} {figure.what:52} {shown(figure.value):>8} {figure.unit:20} {figure.goal:>8} {met}".rstrip()


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """As a page of the documentation has it."""
    yield "| part | case | figure | value | goal | met |"
    yield "|---|---|---|---|---|---|"
    for one in figures:
        met = {None: "", True: "yes", False: "**no**"}[one.met]
        yield f"| {one.part} | {one.case} | {one.what} | {shown(one.value)} {one.unit} | {one.goal} | {met} |".replace("  ", " ")


def update(path: Path, figures: Sequence[Figure], how: str) -> None:
    """Put the table between the marks of a page; the rest of it is written by hand."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = "\n".join((f"{BEGIN}\nMeasured {day} on {machine()}{how}.\n", *table(figures), END))
    path.write_text(f"{before}{text}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all by default")
    parser.add_argument("--mtail", action="append", metavar="PATH", help="a program to compare with; several times for several versions")
    parser.add_argument("--cases", nargs="+", choices=list(ingest.CASES), help="of ingest")
    parser.add_argument("--megabytes", type=int, default=200, help="of each log of ingest")
    parser.add_argument("--backlog", type=int, default=1000, help="megabytes that stand there at the start")
    parser.add_argument("--files", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--nodes", type=int, default=125, help="of eight GPUs, for the rules")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="a file of figures: those of the parts measured now are put in place of the older ones")
    parser.add_argument("--update", type=Path, help="a page of the documentation")
    parser.add_argument("--how", default="", help="what to say beside the machine")
    asked = parser.parse_args()
    asked.mtail = asked.mtail or ["mtail"]
    wanted = asked.parts or list(PARTS)
    for name in wanted:
        if name not in PARTS:
            parser.error(f"{name}: found no such part, expected some of {', '.join(PARTS)}")
    if missing := [each for each in asked.mtail if "ingest" in wanted and not shutil.which(each)]:
        parser.error(f"{missing[0]} is missing; on Debian or Ubuntu: sudo apt-get install mtail")
    _measure(asked, wanted)


def _measure(asked: argparse.Namespace, wanted: Sequence[str]) -> None:
    if not asked.json:
        _say(machine())
    figures: list[Figure] = []
    for name in wanted:
        for figure in PARTS[name](asked):
            figures.append(figure)
            _say(json.dumps(figure._asdict()) if asked.json else line(figure))
    if asked.keep is not None:
        figures = _merged(asked.keep, figures)
    if asked.update is not None:
        update(asked.update, figures, f", {asked.how}" if asked.how else "")


def _merged(path: Path, figures: Sequence[Figure]) -> list[Figure]:
    """The figures of the file, with the new ones in the place of those of the same part."""
    old = [Figure(**each) for each in json.loads(path.read_text())] if path.exists() else []
    fresh = {(one.part, one.case.split(",")[0]) for one in figures}
    kept = [one for one in old if (one.part, one.case.split(",")[0]) not in fresh]
    order = ["ingest", "startup", "idle", "page", "NVML sweep", "rules"]
    merged = sorted([*kept, *figures], key=lambda one: order.index(one.part))
    path.write_text(json.dumps([one._asdict() for one in merged], indent=1))
    return merged


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

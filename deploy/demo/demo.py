"""The demo: two recorded training runs, two faults, two pages. ``make demo``; DEMO_SECONDS ends it by itself.

Real: the exporter, Prometheus, Alertmanager, rules, routes, templates, and what the trainers wrote. Played: the trainers
themselves, a few times faster than they ran. The pager is a small web server that prints what it receives.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pages
import player
import stack

RECORDINGS = stack.HERE / "recordings"
OVERFLOWS = "wren-7b-fp16"  # Hugging Face Trainer, float16 weights and a learning rate that rises too far
HANGS = "heron-1b-sft"  # LLaMA-Factory: console and trainer_log.jsonl
HEALTHY_S = 45.0  # played time until the first loss that is not a number
HANG_AT_S = 60.0
HERON_SPEED = 2.0
FOREVER = float("inf")
SILENCE_S = 15.0  # without news there is a sign of life
SAMPLE = re.compile(r'^trainer_(step|target_steps|loss|grad_norm)\{run="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(slots=True)
class Fault:
    """Something that goes wrong in a run, and the page that must follow."""

    run: str
    alert: str
    promise_s: float  # from the fault to the page
    since: str
    happened: float | None = None
    paged: float | None = None

    def is_due(self, now: float) -> bool:
        return self.happened is not None and now >= self.happened + self.promise_s


@dataclass(slots=True)
class Story:
    """What has happened so far, told in the order in which it happens."""

    programs: stack.Stack
    pager: pages.Receiver
    exporter_url: str
    began: float
    pids: dict[str, int]
    told: float = 0.0
    groups: set[str] = field(default_factory=set)  # incidents that have been paged
    nonfinite: Fault = field(default_factory=lambda: Fault(OVERFLOWS, "TrainingLossNotFinite", 60.0, "the first bad line"))
    hang: Fault = field(default_factory=lambda: Fault(HANGS, "TrainingStalled", 90.0 + 60.0, "the last step"))

    @property
    def faults(self) -> Sequence[Fault]:
        return (self.nonfinite, self.hang)

    def tick(self) -> None:
        """Let happen what is due, and tell what is new."""
        now = time.monotonic()
        self.programs.check(["exporter", "prometheus", "alertmanager"])
        if self.nonfinite.happened is None and (line := bad_line(self.programs.directory / "runs" / OVERFLOWS / "train.log")):
            self.nonfinite.happened = now
            self.tell(
                f"{OVERFLOWS} is broken: float16 has overflowed. The Trainer hides that behind a loss of 0 (its default):",
                line,
            )
        if self.hang.happened is None and now >= self.began + HANG_AT_S:
            os.kill(self.pids[HANGS], signal.SIGSTOP)
            self.hang.happened = now
            self.tell(
                f"{HANGS} hangs: its process stands still (SIGSTOP) and says nothing. A healthy run may be silent for a",
                "while too, so the rule waits for 90 s, or for 6 times the gap between steps that is normal for this run.",
            )
        for notice in self.pager.news():
            self.receive(notice, now)
        self.remind(now)

    def receive(self, notice: pages.Notice, now: float) -> None:
        """Show a message; a page is the first of its incident, what follows are news of it."""
        head = "news of an incident that was paged before" if notice.group in self.groups else ""
        if notice.kind == "PAGE" and not head:
            self.groups.add(notice.group)
            for fault in self.faults:
                if fault.paged is None and notice.is_about(fault.alert, fault.run):
                    fault.paged = now
                    head = self.delay(fault)
        self.tell("the pager:", *notice.box(head))

    def delay(self, fault: Fault) -> str:
        if fault.happened is None or fault.paged is None:
            return "not paged yet"
        return f"paged {fault.paged - fault.happened:.0f} s after {fault.since} (promised: {fault.promise_s:.0f} s)"

    def remind(self, now: float) -> None:
        """A sign of life: what the exporter publishes, and what is being waited for."""
        if now - self.told < SILENCE_S or all(fault.paged for fault in self.faults):
            return
        self.tell(*run_lines(self.exporter_url), *(self.waiting(fault, now) for fault in self.faults if self.is_open(fault)))

    def is_open(self, fault: Fault) -> bool:
        return fault.happened is not None and fault.paged is None

    def waiting(self, fault: Fault, now: float) -> str:
        assert fault.happened is not None
        left = max(0.0, fault.happened + fault.promise_s - now)
        return f"waiting for {fault.alert}: {now - fault.happened:.0f} s since {fault.since}, to come within {left:.0f} s"

    def tell(self, *lines: str) -> None:
        self.told = time.monotonic()
        stamp = f"[{self.told - self.began:4.0f} s] "
        for number, line in enumerate(lines):
            say((stamp if number == 0 else " " * len(stamp)) + line)

    def summary(self) -> int:
        """Say what was paged and when; 1 where a page that was due did not come."""
        say("", "Summary")
        for fault in self.faults:
            say(f"  {fault.alert} of {fault.run}: {self.delay(fault) if fault.happened else 'did not happen yet'}")
            say(f"    runbook: alertmanager/runbooks/{fault.alert}.md")
        say(f"  pages in all: {len(self.groups)}", "")
        return int(any(fault.paged is None and fault.is_due(time.monotonic()) for fault in self.faults))


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def bad_line(log: Path) -> str:
    """The first record in the log that holds a NaN, as the trainer printed it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = re.search(r"\{'loss'[^\n}]*'nan'[^\n}]*\}", text)
    return found[0] if found else ""


def run_lines(exporter_url: str) -> list[str]:
    """What the exporter publishes of each run, in a line each."""
    with urllib.request.urlopen(f"{exporter_url}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    runs: dict[str, dict[str, float]] = {}
    for name, run, value in SAMPLE.findall(text):
        runs.setdefault(run, {})[name] = float(value)
    return [
        f"{run:13} step {values.get('step', 0):.0f} of {values.get('target_steps', 0):.0f}"
        + "".join(f", {name} {values[name]:.4g}" for name in ("loss", "grad_norm") if name in values)
        for run, values in sorted(runs.items())
    ]


def trainers(programs: stack.Stack) -> dict[str, int]:
    """Start both runs; the one that overflows slows down to its real pace once it has, so that it does not end too soon."""
    nonfinite_s = next(piece.at_s for piece in player.pieces(RECORDINGS / OVERFLOWS) if b"'nan'" in piece.data)
    tempos = {
        OVERFLOWS: ["--speed", str(nonfinite_s / HEALTHY_S), "--until", str(nonfinite_s)],
        HANGS: ["--speed", str(HERON_SPEED)],
    }
    return {
        run: programs.start(run, [sys.executable, stack.HERE / "player.py", RECORDINGS / run, programs.directory / "runs" / run, *tempo])
        for run, tempo in tempos.items()
    }


def start(programs: stack.Stack, pager: pages.Receiver) -> Story:
    """Start everything and say where to look."""
    prometheus = stack.program(["prometheus"], "prometheus")
    alertmanager = stack.program(stack.ALERTMANAGER_NAMES, "prometheus-alertmanager")
    ports = {name: f"127.0.0.1:{stack.free_port()}" for name in ("exporter", "prometheus", "alertmanager")}
    urls = {name: f"http://{address}" for name, address in ports.items()}
    where = programs.directory
    (where / "runs").mkdir()
    (where / "exporter.yml").touch()
    settings = stack.prometheus_settings(stack.PROMETHEUS_SETTINGS, ports["exporter"], ports["alertmanager"])
    (where / "prometheus.yml").write_text(settings)
    (where / "alertmanager.yml").write_text(pages.alertmanager_settings(stack.ALERTMANAGER_SETTINGS, pager.url, where))
    commands: dict[str, Sequence[str | Path]] = {
        "exporter": [
            Path(sys.executable).parent / "trainer-exporter",
            *("serve", where / "runs", "--no-gpu", "--config.file", where / "exporter.yml"),
            *("--web.listen-address", ports["exporter"]),
        ],
        "alertmanager": [
            alertmanager,
            *("--config.file", where / "alertmanager.yml", "--storage.path", where / "alertmanager"),
            *("--web.listen-address", ports["alertmanager"], "--web.external-url", urls["alertmanager"]),
            "--cluster.listen-address=",
        ],
        "prometheus": [
            prometheus,
            *("--config.file", where / "prometheus.yml", "--storage.tsdb.path", where / "prometheus"),
            *("--web.listen-address", ports["prometheus"], "--web.external-url", urls["prometheus"]),
        ],
    }
    for name, command in commands.items():
        programs.start(name, command)
    for name in commands:
        programs.wait_until_ready(name, f"{urls[name]}/-/ready")
    say(
        "",
        "Where to look",
        f"  status page    {urls['exporter']}/",
        f"  alerts         {urls['prometheus']}/alerts",
        f"  Alertmanager   {urls['alertmanager']}/",
        f"  the logs       {where / 'runs'}",
        *dashboards(urls["prometheus"]),
        "",
    )
    story = Story(programs, pager, urls["exporter"], time.monotonic(), trainers(programs))
    story.tell(f"{OVERFLOWS} (Hugging Face Trainer) and {HANGS} (LLaMA-Factory) train")
    return story


def dashboards(prometheus_url: str) -> Sequence[str]:
    """How to look at the demo through Grafana, which it does not start itself."""
    if shutil.which("docker"):
        return (
            f"  dashboards     PROMETHEUS_URL={prometheus_url} docker compose -f deploy/compose/compose.yml up grafana",
            "                 in another terminal, then http://127.0.0.1:3000/d/trainer-wall",
        )
    return (
        f"  dashboards     python3 grafana/upload.py http://admin:admin@localhost:3000 --prometheus {prometheus_url}",
        "                 into a Grafana of yours on this machine; with Docker, deploy/compose brings one",
    )


INTRODUCTION = (
    "trainer-exporter demo: from a real log to a page",
    "",
    "  Two training runs that were recorded for real are written into log files again, a few times faster. The exporter",
    "  follows the logs, Prometheus scrapes and judges it every 15 s by the shipped rules, Alertmanager routes by the shipped",
    "  configuration; its pager is this terminal. One run will overflow, the other will hang. It takes three minutes.",
    "  Nothing needs a GPU, and nothing of it stays behind.",
)


def run(limit_s: float) -> int:
    """Tell the story until Ctrl-C; with a limit, until both pages have come or the time is over."""
    deadline = time.monotonic() + limit_s
    say(*INTRODUCTION)
    with stack.Stack() as programs, pages.Receiver() as pager:
        story = start(programs, pager)
        try:
            tell_until(story, lambda: time.monotonic() >= deadline or all(fault.paged for fault in story.faults))
            if limit_s == FOREVER:
                say("", "Both pages have come. Everything keeps running, so look around; Ctrl-C ends it.", "")
                tell_until(story, lambda: False)
        except KeyboardInterrupt:
            say("", "Stopping.")
        return story.summary()


def tell_until(story: Story, over: Callable[[], bool]) -> None:
    while not over():
        story.tick()
        time.sleep(0.25)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # what a shell starts in the background begins without the first
        signal.signal(number, interrupt)
    wanted = os.environ.get("DEMO_SECONDS", "")
    try:
        limit_s = float(wanted) if wanted else FOREVER
    except ValueError:
        say(f"DEMO_SECONDS: found {wanted!r}, expected a number of seconds")
        return 2
    try:
        return run(limit_s)
    except stack.DemoError as error:
        say("", f"The demo cannot go on: {error}")
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())

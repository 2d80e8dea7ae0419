"""Why jobs hang, and which node to look at, in real time: ``python tests/hangs/all_at_once.py [--share JOBS] [SCENE ...]``.

Each scene is a job on eight GPUs of each of four nodes, with four real daemons (hang_fleet.py); all are played at once, two minutes of
training first. Prometheus, Alertmanager, their configurations, rules, routes and durations are the shipped ones; only addresses are ours.
It prints a table of what was told and fails where that is wrong: the alert, its cause, its suspect, or a word about a job that is well.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "gpu")]

import hang_watch as watch  # noqa: E402 - found by the line above
from hang_fleet import CARDS, NODES, Job, Library, Node, at_work, started  # noqa: E402 - idem
from hang_scenes import AFTERWARDS_S, SCENES, Scene  # noqa: E402 - idem
from stack import (  # noqa: E402 - idem
    Prometheus,
    Receiver,
    alertmanager,
    alertmanager_config,
    eventually,
    prometheus,
    prometheus_config,
    receiver,
)

CALM_S = 120.0
WATCHED_S = 330.0  # from what happens on, also where all has been said
KNOWN_S = 120.0  # after which the cause of a hang stands, also where something was paged before that
PATIENCE_S = 300.0


@dataclass
class Played:
    """A scene, its job, and what was told of it."""

    scene: Scene
    job: Job
    told: watch.Told = field(default_factory=watch.Told)
    is_over: bool = False


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def made(names: Sequence[str], folder: Path, share: int) -> dict[str, Played]:
    """A job for each scene. Those that are well share no node with those that are not, or an alert of a node could be taken for theirs."""
    library = Library(folder)
    played = {}
    for is_well in (False, True):
        alike = [name for name in names if SCENES[name].is_well is is_well]
        for first in range(0, len(alike), share):
            together = alike[first : first + share]
            nodes = _nodes(10 + len(played), folder / f"nodes-of-{together[0]}", library, cards=CARDS * len(together))
            for place, name in enumerate(together):
                job = Job(name, 4711 + len(played), nodes, folder / name, first=CARDS * place)
                played[name] = Played(SCENES[name], job)
    return played


def _nodes(net: int, folder: Path, library: Library, *, cards: int) -> list[Node]:
    return [Node(f"127.0.{net}.{1 + at}", folder / str(at), library, cards=cards) for at in range(NODES)]


def play(played: Mapping[str, Played], server: Prometheus, pager: Receiver) -> list[str]:
    """From the calm to the end; what was wrong, each with the name of its scene."""
    jobs, nodes = [each.job for each in played.values()], _all_nodes(played)
    eventually(
        lambda: _counts(server) == {job.run: NODES * CARDS for job in jobs},
        within_s=PATIENCE_S,
        every_s=2.0,
        what=f"{NODES * CARDS} GPUs of each run",
        seen=lambda: _counts(server),
    )
    say(f"{len(jobs)} jobs on {len(nodes)} nodes are seen; calm for {CALM_S:.0f} s")
    for each in played.values():
        each.scene.prepare(each.job, CALM_S)
    calm_wall = time.time()
    _wait(CALM_S)
    quiet = {name: each.job for name, each in played.items() if each.job.due_wall is None}
    alerts = watch.alerts_since(server, calm_wall)
    faults = [f"{name}: in the calm {what}" for name, job in quiet.items() for what in watch.fired(alerts, job)]
    faults += [f"in the calm a suspect: {row['metric']}" for row in _suspects_of(server, quiet)]
    happened_wall = time.time()
    for each in played.values():
        each.scene.happens(each.job)
    say("it happens")
    spent = sum(node.daemon.cpu_s() for node in nodes)
    _watch(played, server, pager, happened_wall)
    share = (sum(node.daemon.cpu_s() for node in nodes) - spent) / (time.time() - happened_wall) / len(nodes)
    say(f"a daemon with its reader has used {share:.2%} of a core")
    return faults + _judged(played, server, pager, since_wall=calm_wall, happened_wall=happened_wall)


def _all_nodes(played: Mapping[str, Played]) -> list[Node]:
    return list({node.address: node for each in played.values() for node in each.job.nodes}.values())


def _watch(played: Mapping[str, Played], server: Prometheus, pager: Receiver, happened_wall: float) -> None:
    waiting = {name: each for name, each in played.items() if not each.scene.is_well}
    follow = [each for each in played.values() if each.scene.afterwards is not None]
    while waiting or time.time() < happened_wall + WATCHED_S:
        time.sleep(1.0)
        passed = time.time() - happened_wall
        for each in follow if passed > AFTERWARDS_S else ():
            assert each.scene.afterwards is not None
            each.scene.afterwards(each.job)
            follow = []
        for name, each in list(waiting.items()):
            said = watch.look(each.told, each.scene, each.job, server=server, receiver=pager, happened_wall=happened_wall)
            if said or time.time() > (each.job.due_wall or happened_wall) + each.scene.within_s:
                say(f"{name}: {', '.join(each.told.alerts) or 'nothing'}, {each.told.after_s:.0f} s")
                del waiting[name]


def _judged(played: Mapping[str, Played], server: Prometheus, pager: Receiver, *, since_wall: float, happened_wall: float) -> list[str]:
    rows, faults, fired = [], [], watch.alerts_since(server, since_wall)
    for name, each in played.items():
        job, told, scene = each.job, each.told, each.scene
        alerts = watch.fired(fired, job)
        if scene.is_well:
            found = [f"fired: {alert}" for alert in alerts]
        else:
            found = watch.wrong(told, scene, job, server=server, receiver=pager, known_wall=happened_wall + KNOWN_S)
        faults += [f"{name}: {what}" for what in found]
        first = f"{'page' if scene.page else 'ticket'} {', '.join(told.alerts)}" if told.first is not None else "-"
        after = f"{told.after_s:.0f} s" if told.first is not None else "-"
        suspect = (told.annotation("suspect") or watch.in_short(told.suspects)) if told.first is not None else "-"
        rows.append((name, scene.words, first, after, told.cause or "-", suspect, " ".join(alerts) or "-", "WRONG" if found else "right"))
    _show([("scene", "what happens", "told first", "after", "cause", "suspect", "all that fired", ""), *rows])
    return faults


def _show(rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        sys.stdout.write("| " + " | ".join(row) + " |\n")
        if row is rows[0]:
            sys.stdout.write("|" + "---|" * len(row) + "\n")
    sys.stdout.flush()


def _suspects_of(server: Prometheus, jobs: Mapping[str, Job]) -> list[dict[str, Any]]:
    return server.query(f'run:suspect_gpu{{run=~"{"|".join(job.run for job in jobs.values())}"}}')


def _counts(server: Prometheus) -> dict[str, int]:
    """GPUs of each run whose log is followed."""
    found = server.query('run:gpus:count and on (run) trainer_run_phase{phase="starting"}')
    return {series["metric"]["run"]: int(series["value"][1]) for series in found}


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs that hang, each for its own reason, and some that do not.")
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; all without any")
    parser.add_argument("--share", type=int, default=1, metavar="JOBS", help="on the same four nodes; at most 8")
    asked = parser.parse_args()
    names = asked.scenes or list(SCENES)
    if unknown := set(names) - SCENES.keys():
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with it
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        played = made(names, folder, asked.share)
        nodes = _all_nodes(played)
        for each in played.values():
            each.scene.before(each.job, CALM_S)
        say(f"{len(nodes)} daemons start")
        stack.enter_context(started(nodes))
        stack.enter_context(at_work([each.job for each in played.values()]))
        pager = stack.enter_context(receiver())
        alerts = stack.enter_context(alertmanager(folder / "alertmanager", alertmanager_config(pager.url)))
        targets = [f"{node.address}:{node.daemon.port}" for node in nodes]
        server = stack.enter_context(prometheus(folder / "prometheus", prometheus_config(targets, alertmanager_url=alerts.url)))
        faults = play(played, server, pager)
    sys.stdout.writelines(f"WRONG: {fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

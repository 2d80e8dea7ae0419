"""What Prometheus and the pager say of a job, and whether that is right."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hang_fleet import Job
from hang_scenes import Scene
from stack import Notification, Prometheus, Receiver

Named = Mapping[tuple[str, str], str]  # (instance, GPU) -> reason


@dataclass
class Told:
    """Of one job: what was said first, and what stood behind it at that moment."""

    after_s: float = 0.0
    first: Notification | None = None
    cause: str = ""
    suspects: Named = field(default_factory=dict)

    @property
    def alerts(self) -> Sequence[str]:
        return self.first.alertnames if self.first is not None else []

    def annotation(self, name: str) -> str:
        """Of the alert, or of all that came at once."""
        alerts = self.first.body["alerts"] if self.first is not None else []
        return "; ".join(dict.fromkeys(alert["annotations"][name] for alert in alerts if name in alert["annotations"]))


def cause(server: Prometheus, run: str, *, at: float | None = None) -> str:
    return "+".join(sorted(series["metric"]["cause"] for series in server.query(f'run:stall_cause:info{{run="{run}"}}', at=at)))


def suspects(server: Prometheus, run: str, *, at: float | None = None) -> Named:
    rows = [series["metric"] for series in server.query(f'run:suspect_gpu{{run="{run}"}}', at=at)]
    return {(row["instance"], row["gpu"]): row["reason"] for row in rows}


def of_run(receiver: Receiver, path: str, run: str) -> list[Notification]:
    """All firing notifications that concern a run."""
    firing = (each for each in receiver.at(path) if each.body["status"] == "firing")
    return [each for each in firing if any(alert["labels"].get("run") == run for alert in each.body["alerts"])]


def first_of(receiver: Receiver, path: str, run: str) -> list[Notification]:
    """The first of each group of them."""
    first: dict[str, Notification] = {}
    for each in of_run(receiver, path, run):
        first.setdefault(each.group, each)
    return list(first.values())


def look(told: Told, scene: Scene, job: Job, *, server: Prometheus, receiver: Receiver, happened_wall: float) -> bool:
    """Whether what is due has been said by now; the first page, or that ticket, is kept with its suspects."""
    if told.first is None:
        tickets = (each for each in of_run(receiver, "/ticket", job.run) if _is_one_of(each.alertnames, scene.ticket))
        said = first_of(receiver, "/page", job.run) if scene.page else list(tickets)
        if not said:
            return False
        told.first = said[0]
        told.after_s = said[0].wall - (job.due_wall or happened_wall)
        told.suspects = suspects(server, job.run, at=said[0].wall)
    return True


def wrong(told: Told, scene: Scene, job: Job, *, server: Prometheus, receiver: Receiver, known_wall: float) -> list[str]:
    """What is not as it should be of a job that is sick. Its cause is looked up at the page, or at ``known_wall`` where that was earlier: a
    run that has stood for less than a minute has none yet.
    """
    if told.first is None:
        return ["nothing was said"]
    found = []
    pages, later = first_of(receiver, "/page", job.run), suspects(server, job.run)
    told.cause = cause(server, job.run, at=max(told.first.wall, known_wall))
    expected = scene.page or scene.ticket
    if not (re.fullmatch(expected, ", ".join(told.alerts)) or _is_one_of(told.alerts, scene.ticket)):
        found.append(f"said {', '.join(told.alerts)}, not {expected}")
    if len(pages) != bool(scene.page):
        found.append(f"{len(pages)} pages")
    if scene.cause and told.cause != scene.cause:
        found.append(f"cause {told.cause or 'none'}, not {scene.cause}")
    if not re.search(scene.says, told.annotation("description")):
        found.append(f"does not say {scene.says!r}: {told.annotation('description')}")
    for when, named in (("then", told.suspects), ("at the end", later)):
        if not _is_right(named, scene, job):
            found.append(f"suspects {when}: {_in_words(named)}")
    if (line := told.annotation("suspect")) and not line.startswith(_line(scene, job)):
        found.append(f"suspect as paged: {line!r}, not {_line(scene, job)!r}")
    return found


def _is_one_of(alerts: Sequence[str], ticket: str) -> bool:
    return any(re.fullmatch(ticket, name) for name in alerts)


def _is_right(named: Named, scene: Scene, job: Job) -> bool:
    due = {(job.nodes[node].address, str(job.card(gpu))): reason for (node, gpu), reason in scene.suspects.items()}
    return named.keys() == due.keys() and all(re.fullmatch(due[place], reason) for place, reason in named.items())


def _line(scene: Scene, job: Job) -> str:
    """How the page's line on the suspect begins."""
    if not scene.suspects:
        return "none: no GPU of the run differs from the others"
    ((node, gpu), *more) = scene.suspects
    return f"{job.nodes[node].address}, " + (f"{len(more) + 1} GPUs: " if more else f"GPU {job.card(gpu)}")


def _in_words(named: Named) -> str:
    return ", ".join(f"{instance} GPU {gpu}: {reason}" for (instance, gpu), reason in sorted(named.items())) or "none"


def in_short(named: Named) -> str:
    """Suspects as one line of a table."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for (instance, gpu), reason in sorted(named.items()):
        nodes.setdefault((instance, reason), []).append(gpu)
    parts = (f"{at}, {f'GPU {gpus[0]}' if len(gpus) == 1 else f'{len(gpus)} GPUs'}: {why}" for (at, why), gpus in nodes.items())
    return "; ".join(parts) or "none"


Alerts = Sequence[Mapping[str, str]]


def alerts_since(server: Prometheus, since_wall: float) -> Alerts:
    """The labels of all alerts that have been pending or firing since."""
    span = f"[{time.time() - since_wall + 15:.0f}s]"
    by = "alertname, severity, alertstate, run, instance"
    return [row["metric"] for row in server.query(f'count by ({by}) (count_over_time(ALERTS{{alertname!="Watchdog"}}{span}))')]


def fired(alerts: Alerts, job: Job) -> list[str]:
    """Those of a run or of its nodes that have fired, and what would have paged, had it lasted."""
    addresses = {node.address for node in job.nodes}
    found = set()
    for labels in alerts:
        is_pending = labels["alertstate"] == "pending"
        concerns = labels.get("run") == job.run or ("run" not in labels and labels.get("instance") in addresses)
        if concerns and not (is_pending and labels["severity"] != "critical"):
            found.add(f"{labels['alertname']}({labels['severity']}{', pending' if is_pending else ''})")
    return sorted(found)

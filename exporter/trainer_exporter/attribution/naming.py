"""The name of a run from what a process shows; pure. The order is design.md's, and every rank of a job comes to the same name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainer_exporter.attribution.processes import ProcessFacts
from trainer_exporter.names import sanitise, says_something

# What torchrun calls a rendezvous that nobody named, and the random id that --standalone makes up at each start: no name of a run.
UNNAMED: Final = re.compile(r"none|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# Kubernetes' random letters leave out vowels, 0, 1 and 3.
_ROLE = re.compile(r"-(master|worker|launcher|head|chief|node|replica)s?(-\d+)+(-[a-z0-9]{5})?$")
_HASHED = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}$")
_SUFFIX = re.compile(r"(-\d+)*-[bcdfghjklmnpqrstvwxz2456789]{5}$|(-\d+)+$")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Name:
    """What a run is called, and whence, in words."""

    text: str
    origin: str


def run_name(facts: ProcessFacts, template: str | None = None) -> str:
    """The name of the run that a process serves; "" when it shows none.

    ``template`` is the configuration's, with places such as ``{user}`` or ``{SLURM_JOB_ID}``; it counts only where each has a value.
    """
    found = named(facts, template)
    return found.text if found else ""


def named(facts: ProcessFacts, template: str | None = None) -> Name | None:
    """As ``run_name``, with the reason; None when the process shows no name."""
    return next((Name(sanitise(text), origin) for text, origin in _names(facts, template) if sanitise(text)), None)


def _names(facts: ProcessFacts, template: str | None) -> Iterator[tuple[str, str]]:
    rendezvous = facts.environment.get("TORCHELASTIC_RUN_ID", "")
    yield _filled(template, facts) if template else "", "from the configuration's template"
    yield facts.environment.get("TRAINER_RUN_NAME", ""), "from TRAINER_RUN_NAME"
    job = "-".join(part for part in (facts.job_name or "slurm", facts.job_id) if part) if facts.job_id else ""
    yield job, sanitise(f"from Slurm job {facts.job_id}")
    yield pod_owner(facts.pod) if facts.pod else "", sanitise(f"from pod {facts.pod}")
    yield rendezvous if not UNNAMED.fullmatch(rendezvous) else "", "from TORCHELASTIC_RUN_ID"
    yield _directory_name(facts.run_name) if "/" in facts.run_name else facts.run_name, "from run_name of its command line"
    yield _directory_name(facts.output_dir), "from output_dir of its command line"


def pod_owner(pod: str) -> str:
    """What made a pod, from the pod's name: the role and number of a training operator's replica, the hash of a Deployment, the random
    suffix of a Job and the number of a StatefulSet are taken off.
    """
    for pattern in (_ROLE, _HASHED, _SUFFIX):
        owner = pattern.sub("", pod)
        if owner and owner != pod:
            return owner
    return pod


def _directory_name(path: str) -> str:
    """The last part of a path that says something, with what follows it."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    for start in range(len(parts) - 1, -1, -1):
        if says_something(parts, start):
            return "/".join(parts[start:])
    return ""


def _filled(template: str, facts: ProcessFacts) -> str:
    """The template with its places filled; "" when one of them has no value."""
    values = {
        **facts.environment,
        "user": facts.user,
        "job_id": facts.job_id,
        "job_name": facts.job_name,
        "pod": facts.pod,
        "pod_owner": pod_owner(facts.pod),
        "namespace": facts.namespace,
        "run_name": facts.run_name,
        "output_dir": _directory_name(facts.output_dir),
        "cwd": _directory_name(facts.cwd),
    }
    if not all(values.get(place) for place in _PLACE.findall(template)):
        return ""
    return _PLACE.sub(lambda place: values[place[1]], template)

"""What launchers, loggers and containers wrap around a line, taken off before any format sees it. Pure.

A stamp, a rank and the key of an interleaved stream are kept from what is taken off. The logger's name after LLaMA-Factory's
``[INFO|time] name:line >>`` stays in the text, because it is all that tells its dictionaries from those of the Trainer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from trainer_exporter.model import Line, Stamp
from trainer_exporter.numbers import moment

MAX_TEXT: Final = 65536  # characters of one line that are looked at; the longest metric lines seen are below 4 KiB
_MAX_NESTING: Final = 8
_LABEL_WINDOW: Final = 20
_LABELS_NEEDED: Final = 16
_LABEL_BYTES: Final = 80

_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHMNOZ])")
_TIME: Final = r"\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?"
_ZONE: Final = r" ?(?:Z|[+-]\d\d:?\d\d)(?![\d:])"
_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"

# Each takes one layer off; they are tried again on what is left, because wrappers nest.
_BRACKETED: Final = re.compile(
    rf" *\[(?:"
    rf"(?P<time>{_TIME})(?P<zone>{_ZONE})?\]:?"
    rf"|{_LEVEL} *\|[^\]|:]+:\d+\] (?P<hf>{_TIME}) >>"
    rf"|{_LEVEL}\|(?P<lf>{_TIME})\]"
    rf"| *{_LEVEL}\](?: - )?"
    rf"|(?P<role>[A-Za-z_]+)(?P<local>\d{{1,9}})\]:"
    rf"|Rank (?P<rank>\d{{1,9}})\]"
    rf"|[\w./-]+\.py:\d+:\w+\]"
    rf"|(?:titan|transformers)\]"
    rf"|NeMo [IWEDC] (?P<nemo>{_TIME}) [^\]]+\]"
    rf") ?"
)
_STAMPED: Final = re.compile(
    rf" *(?P<time>{_TIME})(?P<zone>{_ZONE})?"
    rf"(?: - \S+ - {_LEVEL} - | \| {_LEVEL} *\| \S+ - | \[?{_LEVEL}\]?:? +| *[-|:]? +)"
)
_AMERICAN: Final = re.compile(rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) (?P<clock>\d\d:\d\d:\d\d) - {_LEVEL} - \S+ - +")
_LOGGER: Final = re.compile(
    rf"(?:{_LEVEL}:[\w.]+:|[IWEF]\d{{3,4}} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]\s]+:\d+\] |{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \S+:\d+\] )"
)
_RAY: Final = re.compile(r"\((?:[^()]*? )?pid=(?P<pid>\d+)(?:, ip=[^)]+)?\) ")
_LABEL: Final = re.compile(r" {0,5}(?:P\d+ )?(?P<task>\d{1,6}): |(?P<host>[A-Za-z][\w.-]*\d[\w.-]*|localhost): ")
_CRI: Final = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)(?P<zone>Z|[+-]\d\d:\d\d) (?P<stream>stdout|stderr) (?P<tag>[FP])(?: |$)"
)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """One record of a container runtime's log."""

    text: bytes
    stream: str  # stdout or stderr: they are joined apart
    complete: bool  # False: the line goes on in the next record of this stream
    stamp: Stamp | None
    is_closed: bool = False  # the record itself shows that the line ended here, even where it is the last of its file


def without_terminal(text: str) -> str:
    """The text less colours, cursor moves and NUL bytes; both may stand inside a number."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\x00", "") if "\x00" in text else text


def redraws(text: str) -> list[str]:
    """What stood on the terminal's line one after the other, oldest first; blank redraws are left out."""
    return [piece.rstrip() for piece in text.split("\r") if piece and not piece.isspace()]


def unwrapped(text: str, number: int, *, labelled: bool = False, stamp: Stamp | None = None) -> Line:
    """The line inside its wrappers.

    ``labelled`` says that this file's lines begin with a task id or a host (see ``has_labels``); ``stamp`` is the
    container's, and yields to one that the line itself carries only when there is none.
    """
    whole = text
    rank: int | None = None
    stream = ""
    if labelled and (label := _LABEL.match(text)):
        stream = label["task"] or label["host"]
        rank = int(label["task"]) if label["task"] else None
        text = text[label.end() :]
    for _ in range(_MAX_NESTING):
        layer = _layer(text)
        if layer is None:
            break
        text = text[layer.end() :]
        kind = layer.lastgroup
        if kind in {"local", "pid"}:
            part = f"{layer['role']}{layer['local']}" if kind == "local" else layer["pid"]
            stream = f"{stream}/{part}" if stream else part
            rank = int(layer["local"]) if rank is None and kind == "local" and layer["role"] == "rank" else rank
        elif kind == "rank":
            rank = int(layer["rank"])
        elif kind is not None and stamp is None:
            stamp = _stamp_of(layer, kind)
    return Line(text, number, stamp, rank, stream, whole)


def has_labels(lines: Sequence[bytes]) -> bool:
    """Whether the last lines of a file show that each line begins with a task id (``srun -l``) or a host (pdsh).

    16 of the last 20 lines, and not a rising list: gpt-neox prints its layers as ``0: ...``, ``1: ...``. The first lines of
    a file prove nothing, they are the batch script's own.
    """
    texts = [line[:_LABEL_BYTES].decode("utf-8", "replace") for line in lines[-_LABEL_WINDOW:]]
    found = [match["task"] or match["host"] for text in texts if (match := _LABEL.match(text))]
    if len(found) < _LABELS_NEEDED:
        return False
    tasks = [int(label) for label in found if label.isdecimal()]
    return len(tasks) < len(found) or any(a >= b for a, b in pairwise(tasks))


def may_be_labelled(line: bytes) -> bool:
    """Whether a line begins as a labelled one would; cheap, and true of much ordinary text."""
    return _LABEL.match(line[:_LABEL_BYTES].decode("utf-8", "replace")) is not None


def container(line: bytes) -> str:
    """``cri`` or ``docker`` when a file with this first line was written by a container runtime, else nothing."""
    if line.startswith(b'{"log":"'):
        return "docker"
    return "cri" if _CRI.match(line) else ""


def contained(line: bytes, kind: str) -> Wrapped | None:
    """One record of a container runtime's log; None when the line is not of that kind."""
    return _cri(line) if kind == "cri" else _docker(line)


def _layer(text: str) -> re.Match[str] | None:
    first = text.lstrip(" ")[:1]
    if first == "[":
        return _BRACKETED.match(text)
    if first.isdigit():
        return _STAMPED.match(text) or _AMERICAN.match(text)
    if first == "(":
        return _RAY.match(text)
    return _LOGGER.match(text) if first in "TDINSWECF" and first else None


def _stamp_of(layer: re.Match[str], kind: str) -> Stamp | None:
    if kind == "clock":
        return moment(f"{layer['year']}-{layer['month']}-{layer['day']} {layer['clock']}")
    if kind == "zone":
        return moment(layer["time"], layer["zone"])
    return moment(layer[kind])


def _cri(line: bytes) -> Wrapped | None:
    head = _CRI.match(line)
    if head is None:
        return None
    read = moment(head["time"].decode(), head["zone"].decode())
    return Wrapped(line[head.end() :], head["stream"].decode(), head["tag"] == b"F", read)


def _docker(line: bytes) -> Wrapped | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    text = record.get("log") if isinstance(record, dict) else None
    if not isinstance(text, str):
        return None
    time = str(record.get("time", ""))
    read = moment(time.rstrip("Z"), "Z") if re.fullmatch(_TIME + "Z", time) else None
    raw = text.encode("utf-8", "replace")
    complete = raw.endswith(b"\n")
    return Wrapped(raw.rstrip(b"\n"), str(record.get("stream", "")), complete, read, is_closed=complete)

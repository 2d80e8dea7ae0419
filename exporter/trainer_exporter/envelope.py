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
_TYPED: Final = re.compile(r"(\x08*)([^\x08]+)")
_TIME: Final = r"\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?"
_ZONE: Final = r" ?(?:Z|[+-]\d\d:?\d\d)(?![\d:])"
_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_PADDED: Final = r"(?:DEBUG   |INFO    |WARNING |ERROR   |CRITICAL)"  # as rich pads it
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY: Final = rf"(?:{'|'.join(_MONTHS)}) [ \d]\d"
_KEPT: Final = r"(?!train(?:_inner)?\]|valid|fairseq|metaseq)"  # loggers whose names tell what their lines are

# Each takes one layer off; they are tried again on what is left, because wrappers nest. They leave further blanks: continuation lines
# are known by them.
_BRACKETED: Final = re.compile(
    rf" *\[(?:"
    rf"(?P<time>{_TIME})(?P<zone>{_ZONE})?\](?:\[{_KEPT}[\w.-]+\]\[{_LEVEL}\] -|:)?"
    rf"|{_LEVEL} *\|[^\]|:]+:\d+\] (?P<hf>{_TIME}) >>"
    rf"|{_LEVEL}\|(?P<lf>{_TIME})\]"
    rf"| *{_LEVEL}\](?: - )?"
    rf"|(?P<role>[A-Za-z_]+)(?P<local>\d{{1,9}})\]:"
    rf"|R(?:ank|ANK) (?P<rank>\d{{1,9}})\]"
    rf"|\d{{1,9}},(?P<mpi>\d{{1,9}})\]<std(?:out|err)>:"
    rf"|[\w./-]+\.py:\d+:\w+\]"
    rf"|(?:titan|transformers|pod/[\w./-]+)\]"
    rf"|NeMo [IWEDC] (?P<nemo>{_TIME}) [^\]]+\]"
    rf"|(?:[\d/]{{8,10}} )?\d\d:\d\d:\d\d\] (?P<rich>{_PADDED})"
    rf"|[A-Z][a-z]{{2}} (?P<date>{_DAY}) (?P<hour>\d\d:\d\d:\d\d) (?P<ad>\d{{4}})\]"
    rf"| *\d{{1,9}}\.\d{{6}}\]"
    rf")(?(local)(?: (?! ))?| ?)"  # a role's prefix has no blank behind it
)
_STAMPED: Final = re.compile(
    rf" *(?P<time>{_TIME})(?P<zone>{_ZONE})?"
    rf"(?:(?: - \S+ - {_LEVEL} -| - {_LEVEL} -| \| {_LEVEL} *\| \S+ -) ?| \[{_LEVEL}\]:? | {_LEVEL}:? +"
    rf"|(?(zone) | *[-|:]?(?: {{1,3}}(?! )| )))"
)
_AMERICAN: Final = re.compile(rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) (?P<clock>\d\d:\d\d:\d\d) - {_LEVEL} - \S+ - +")
_KMSG: Final = re.compile(r"\d{1,4},\d{1,20},\d{1,20},[-a-z,=\d]{1,40};")
_SYSLOG: Final = re.compile(
    rf"(?:<\d{{1,3}}>)?(?:(?P<time>{_TIME})(?P<zone>{_ZONE})?|{_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,9}})?)"
    r" [\w.-]{1,64} (?:kernel|[\w./@:-]{1,64}\[(?P<pid>\d{1,9})\]): ?"
)
_SYSLOG_5424: Final = re.compile(
    rf"<\d{{1,3}}>1 (?P<time>{_TIME})(?P<zone>{_ZONE})? \S{{1,255}} \S{{1,48}} (?:-|(?P<pid>\d{{1,9}})|\S{{1,128}}) \S{{1,32}}"
    r" (?:-|(?:\[[^\]]{0,1024}\]){1,8})(?: |$)"
)
_LOGGER: Final = re.compile(
    rf"{_LEVEL}:[\w.]+:|[IWEF]\d{{3,4}} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]\s]+:\d+\] |{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \S+:\d+\] "
    rf"|rank(?P<rank>\d{{1,9}})\[\d+\]\[\w+\]: {_LEVEL}: [\w.]+: "
    rf"| {{8,}}(?P<rich>{_PADDED}) "
)
_LOCATION: Final = re.compile(r" {2,}[\w./-]{1,80}\.py:\d{1,6}$")  # rich writes it at the right
_RAY: Final = re.compile(
    r"\((?:(?:[^()]{0,200}? )?pid=(?P<pid>\d{1,9})|raylet|gcs_server|autoscaler(?: \+[\dhms]{1,20})?)(?:, ip=[^)]{1,64})?\) "
)
_REPEATED: Final = re.compile(r" \[repeated \d{1,9}x across [a-z ]{1,20}\]")  # other workers said nearly the same
_RAY_RANK: Final = re.compile(r"\[rank=(\d{1,9})\]")
_LABEL: Final = re.compile(
    r" {0,5}(?:P(?P<part>\d{1,3}) +)?(?P<task>\d{1,6}): "
    r"|(?P<host>(?=[\w.-]{0,63}\d)[A-Za-z][\w.-]{0,63}|localhost|\d{1,3}(?:\.\d{1,3}){3}): "
    r"|(?P<service>[A-Za-z][\w.-]{0,63})(?<=-\d|\d\d) {1,20}\| "
)
_PLACES: Final = frozenset({"local", "pid", "rank", "mpi"})  # groups that tell whose line it is
_TIMES: Final = frozenset({"time", "zone", "pid", "hf", "lf", "nemo", "clock", "ad"})  # groups of layers that hold a time
_INITIALS: Final = frozenset("TDINSWECFJMAOr")  # of levels, months, and Composer's rank
_BARE: Final = frozenset({"", "{", "|", "-", "s", "l"})  # so begin many lines, and no layer
_MICROSECOND_DIGITS: Final = 16  # of a time in our century
_RANK: Final = re.compile(r"\[(?P<role>[A-Za-z_]{1,40})\d{1,9}\]:")
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
    """The text less colours, cursor moves, NUL bytes and what backspaces went over; all may stand inside a number.

    Backspaces to the beginning of what is shown begin a redraw: a carriage return stands for them.
    """
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\x00" in text:
        text = text.replace("\x00", "")
    return "\r".join(map(_typed_over, text.split("\r"))) if "\b" in text else text


def redraws(text: str) -> list[str]:
    """What stood on the terminal's line one after the other, oldest first; blank redraws are left out."""
    return [bare for piece in text.split("\r") if (bare := piece.rstrip())]


def unwrapped(text: str, number: int, *, labelled: bool = False, stamp: Stamp | None = None) -> Line:
    """The line inside its wrappers.

    ``labelled`` says that this file's lines begin with a task id or a host (see ``has_labels``); ``stamp`` is the
    container's, and yields to one that the line itself carries only when there is none.
    """
    if not labelled and text[:1] in _BARE:
        return Line(text, number, stamp, None, "", text)
    whole = text
    rank: int | None = None
    stream = ""
    if labelled and (label := _LABEL.match(text)):
        stream = _labelled(label)
        rank = int(label["task"]) if label["task"] and not label["part"] else None
        text = text[label.end() :]
    for _ in range(_MAX_NESTING):
        layer = _layer(text)
        if layer is None:
            break
        text = text[layer.end() :]
        kind = layer.lastgroup
        if kind in _PLACES:
            part, told = _place(layer, kind)
            stream = f"{stream}/{part}" if stream and part else stream or part
            rank = told if rank is None or kind == "rank" else rank
        if kind in _TIMES and stamp is None:
            stamp = _stamp_of(layer, kind)
        if layer.re is _RAY:
            if " [repeated " in text and (repeated := _REPEATED.search(text)):
                text = text[: repeated.start()]
        elif kind == "rich":
            text = _LOCATION.sub("", text)
    return Line(text, number, stamp, rank, stream, whole)


def ranks_apart(text: str, stream: str) -> list[str]:
    """What a line of this stream holds, cut where another rank's prefix stands inside it; all but the last piece lack their end.

    torchrun passes on what it finds: of a line that is half written the half, without a line end, so that other ranks go on behind
    it. Before the rest of the line it puts the prefix once more, which is taken out here.
    """
    own = f"[{stream.rpartition('/')[2]}]:"
    pieces, piece, at, seen = [], "", 0, 0
    for mark in _RANK.finditer(text):
        is_nested = not text[seen : mark.start()].strip()
        seen = mark.end()
        if is_nested or not (mark["role"] in {"rank", "default"} or own.startswith(f"[{mark['role']}")):
            continue
        piece += text[at : mark.start()]
        if mark[0] == own:
            at = mark.end()
        else:
            pieces.append(piece)
            piece, at, own = "", mark.start(), mark[0]
    return [*pieces, piece + text[at:]]


def has_labels(lines: Sequence[bytes]) -> bool:
    """Whether the last lines of a file show that each line begins with a task id (``srun -l``) or a host (pdsh).

    16 of the last 20 lines, and not a rising list: gpt-neox prints its layers as ``0: ...``, ``1: ...``. The first lines of
    a file prove nothing, they are the batch script's own.
    """
    texts = [line[:_LABEL_BYTES].decode("utf-8", "replace") for line in lines[-_LABEL_WINDOW:]]
    found = [_labelled(match) for text in texts if (match := _LABEL.match(text))]
    if len(found) < _LABELS_NEEDED:
        return False
    tasks = [int(label) for label in found if label.isdecimal()]
    return len(tasks) < len(found) or any(a >= b for a, b in pairwise(tasks))


def may_be_labelled(line: bytes) -> bool:
    """Whether a line begins as a labelled one would; cheap, and true of much ordinary text."""
    return _LABEL.match(line[:_LABEL_BYTES].decode("utf-8", "replace")) is not None


def container(line: bytes) -> str:
    """``cri`` or ``docker`` when a container runtime wrote the file with this first line, ``journal`` for journald's JSON, else nothing."""
    if line.startswith(b'{"log":"'):
        return "docker"
    if line.startswith(b"{") and b'"MESSAGE"' in line and b'"__REALTIME_TIMESTAMP"' in line:
        return "journal"
    return "cri" if _CRI.match(line) else ""


def contained(line: bytes, kind: str) -> Wrapped | None:
    """One record of a container runtime's log; None when the line is not of that kind."""
    if kind == "cri":
        return _cri(line)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    return _docker(record) if kind == "docker" else _journal(record)


def _typed_over(text: str) -> str:
    """Backspaces that nothing follows only move the cursor. What is typed over takes its rest along: it may be the tail of a number."""
    redrawn, shown = [], list[str]()
    for back, typed in _TYPED.findall(text):
        if back and len(back) >= len(shown):
            redrawn.append("".join(shown))
            shown.clear()
        else:
            del shown[len(shown) - len(back) :]
        shown += typed
    return "\r".join([*redrawn, "".join(shown)])


def _labelled(label: re.Match[str]) -> str:
    task = label["task"]
    return f"P{label['part']}.{task}" if label["part"] else task or label["host"] or label["service"]


def _layer(text: str) -> re.Match[str] | None:
    first = text.lstrip(" ")[:1]
    if first == "[":
        return _BRACKETED.match(text)
    if first.isdigit():
        syslog = _SYSLOG.match(text) if text[10:11] == "T" else None
        return syslog or _STAMPED.match(text) or _AMERICAN.match(text) or _KMSG.match(text)
    if first == "(":
        return _RAY.match(text)
    if first == "<":
        return _SYSLOG_5424.match(text) or _SYSLOG.match(text)
    if first not in _INITIALS or not first:
        return None
    return _LOGGER.match(text) or (_SYSLOG.match(text) if text[3:4] == " " else None)


def _place(layer: re.Match[str], kind: str) -> tuple[str, int | None]:
    """Key of the stream, and the global rank where it is told."""
    if kind == "local":
        return f"{layer['role']}{layer['local']}", int(layer["local"]) if layer["role"] == "rank" else None
    if kind == "pid":
        ranked = _RAY_RANK.search(layer[0])
        return layer["pid"], int(ranked[1]) if ranked else None
    return layer[kind] if kind == "mpi" else "", int(layer[kind])


def _stamp_of(layer: re.Match[str], kind: str) -> Stamp | None:
    if kind == "clock":
        return moment(f"{layer['year']}-{layer['month']}-{layer['day']} {layer['clock']}")
    if kind == "ad":
        month = _MONTHS.index(layer["date"][:3]) + 1
        return moment(f"{layer['ad']}-{month:02d}-{layer['date'][4:].strip():>02} {layer['hour']}")
    if kind in {"hf", "lf", "nemo"}:
        return moment(layer[kind])
    time = layer["time"] if "time" in layer.re.groupindex else None
    return moment(time, layer["zone"] or "") if time else None


def _cri(line: bytes) -> Wrapped | None:
    head = _CRI.match(line)
    if head is None:
        return None
    read = moment(head["time"].decode(), head["zone"].decode())
    return Wrapped(line[head.end() :], head["stream"].decode(), head["tag"] == b"F", read)


def _docker(record: dict[str, object]) -> Wrapped | None:
    text = record.get("log")
    if not isinstance(text, str):
        return None
    time = str(record.get("time", ""))
    read = moment(time.rstrip("Z"), "Z") if re.fullmatch(_TIME + "Z", time) else None
    raw = text.encode("utf-8", "replace")
    complete = raw.endswith(b"\n")
    return Wrapped(raw.rstrip(b"\n"), str(record.get("stream", "")), complete, read, is_closed=complete)


def _journal(record: dict[str, object]) -> Wrapped | None:
    """A record of ``journalctl -o json``: a message that is no text stands there as its bytes."""
    said, time = record.get("MESSAGE"), str(record.get("__REALTIME_TIMESTAMP", ""))
    if isinstance(said, list):
        said = bytes(byte for byte in said if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")
    if not isinstance(said, str):
        return None
    read = Stamp(int(time) / 1e6, zoned=True) if time.isdecimal() and len(time) == _MICROSECOND_DIGITS else None
    return Wrapped(said.encode("utf-8", "replace"), str(record.get("_PID", "")), complete=True, stamp=read, is_closed=True)

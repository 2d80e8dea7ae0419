"""What rule files say of themselves: their groups, and in which order these build on each other. Read as text: yaml has another owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_GROUP: Final = re.compile(r"(?m)^\s*- name: *[\"']?([\w.-]+)[\"']?\s*$")
_RECORD: Final = re.compile(r"(?m)^\s*-?\s*record: *[\"']?([\w:]+)[\"']?\s*$")
# Annotations ask whatever they like at the moment of an alert; they order nothing. Neither do comments.
_UNREAD: Final = re.compile(r"(?ms)^\s+annotations:.*?(?=^\s*- (?:alert|record|name):|\Z)|#[^\n]*")
_RECORDED: Final = re.compile(r"\b[a-z_]+:[a-zA-Z0-9_:]+")


def group_order(rules: Sequence[Path]) -> list[str]:
    """All groups, each after those whose records it reads; ALERTS counts as read from every other group.

    Prometheus runs groups side by side and a record is at most an interval old; promtool takes any order unless told, and then a chain of
    groups would lag by as many intervals. Groups that read each other keep the order of the files.
    """
    bodies = _bodies("\n".join(path.read_text(encoding="utf-8") for path in rules))
    maker = {record: name for name, body in bodies.items() for record in _RECORD.findall(body)}
    reads = {name: _read_by(name, body, maker, [*bodies]) for name, body in bodies.items()}
    done: dict[str, None] = {}
    for name in reads:
        _place(name, reads, done, on_the_way=frozenset())
    return list(done)


def _bodies(text: str) -> dict[str, str]:
    """Group -> its text, without what orders nothing."""
    parts = _GROUP.split(text)
    return {name: _UNREAD.sub("", body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _read_by(name: str, body: str, maker: Mapping[str, str], groups: Sequence[str]) -> list[str]:
    told = [maker[record] for record in _RECORDED.findall(body) if record in maker]
    if re.search(r"\bALERTS\b", body):
        told += groups
    return [other for other in dict.fromkeys(told) if other != name]


def _place(name: str, reads: Mapping[str, Sequence[str]], done: dict[str, None], *, on_the_way: frozenset[str]) -> None:
    if name in done or name in on_the_way:
        return
    for other in reads[name]:
        _place(other, reads, done, on_the_way=on_the_way | {name})
    done.setdefault(name)

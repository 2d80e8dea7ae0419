"""A fleet's past in a Prometheus, as if the shipped rules had judged it all along: what the dashboards' pictures are taken of.

``python tests/bench/past.py FOLDER [--hours 3] [--nodes 40]`` fills a data directory, and serves it until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dashboards")]

import fleet  # noqa: E402 - idem

import boards  # noqa: E402 - found by the line above
import stack  # noqa: E402 - idem

STEP_S = 30
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
STALE = struct.pack("<Q", 0x7FF0000000000002)  # Prometheus's mark that a series has ended
CONFIG = "global: {scrape_interval: 15s}\nstorage: {tsdb: {out_of_order_time_window: 3d}}\n"


class Series(NamedTuple):
    """Values by time, one every STEP_S where the series is there."""

    labels: Mapping[str, str]
    values: dict[int, float]


class Span(NamedTuple):
    """The past that is made: seconds since the epoch, both ends included."""

    start: int
    end: int

    def moments(self) -> range:
        return range(self.start, self.end + 1, STEP_S)


# -- what was published


def blocks(seen: fleet.Fleet, span: Span, folder: Path) -> None:
    """What the fleet's exporters published, as Prometheus's own tool writes it down."""
    with tempfile.TemporaryDirectory() as made:
        told = Path(made) / "fleet.txt"
        told.write_text("".join(_text(seen, span)))
        subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", told, folder], check=True, stdout=subprocess.DEVNULL)


def _text(seen: fleet.Fleet, span: Span) -> Iterator[str]:
    families: dict[str, list[str]] = {}
    for node in range(seen.nodes):
        for moment in span.moments():
            for sample in (*seen.samples(node, moment), fleet.Sample("up", {}, 1)):
                job = "dcgm-exporter" if sample.name.startswith("DCGM") else "trainer-exporter"
                written = fleet.line(sample, job=job, instance=seen.instance(node), cluster=seen.cluster(node))
                families.setdefault(sample.name, []).append(f"{written} {moment}\n")
    for name, lines in families.items():
        yield f"# TYPE {name} unknown\n"
        yield from lines
    yield "# EOF\n"


# -- what the rules made of it


def judge(server: stack.Prometheus, span: Span) -> int:
    """Evaluate each rule over the past once all that it reads is there, and write down what it records; the number of series."""
    waiting = list(boards.rules())
    written = 0
    while waiting:
        to_come = {name for rule in waiting for name in _gives(rule)}
        ready = [rule for rule in waiting if not boards.words(rule["expr"]) & to_come - _gives(rule)]
        assert ready, f"these rules read one another: {[rule.get('record', rule.get('alert')) for rule in waiting]}"
        for rule in ready:
            made = list(_judged(rule, _asked(server, rule["expr"], span)))
            _write(server, made, span)
            written += len(made)
        waiting = [rule for rule in waiting if rule not in ready]
    return written


def _gives(rule: Mapping[str, Any]) -> set[str]:
    return {rule["record"]} if "record" in rule else {"ALERTS", "ALERTS_FOR_STATE"}


def _asked(server: stack.Prometheus, expr: str, span: Span) -> Iterator[Series]:
    body = urlencode({"query": expr, "start": span.start, "end": span.end, "step": STEP_S}).encode()
    with urllib.request.urlopen(f"{server.url}/api/v1/query_range", body, timeout=300) as answer:
        for found in json.load(answer)["data"]["result"]:
            labels = {name: value for name, value in found["metric"].items() if name != "__name__"}
            yield Series(labels, {int(moment): float(value) for moment, value in found["values"]})


def _judged(rule: Mapping[str, Any], found: Iterable[Series]) -> Iterator[Series]:
    for labels, values in found:
        told = {**labels, **rule.get("labels", {})}
        if "record" in rule:
            yield Series({**told, "__name__": rule["record"]}, values)
            continue
        since = _since(values)
        patience = _seconds(rule.get("for", "0s"))
        fires = {moment: 1.0 for moment in values if moment - since[moment] >= patience}
        told["alertname"] = rule["alert"]
        yield Series({**told, "__name__": "ALERTS_FOR_STATE"}, since)
        if fires:
            yield Series({**told, "__name__": "ALERTS", "alertstate": "firing"}, fires)


def _since(values: Mapping[int, float]) -> dict[int, float]:
    """When the present spell of each moment began."""
    began: dict[int, float] = {}
    for moment in values:
        began[moment] = began.get(moment - STEP_S, moment)
    return began


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * UNITS[duration[-1]]


# -- Prometheus's remote write, as far as it is needed: protobuf in snappy's frame, nothing compressed


def _write(server: stack.Prometheus, made: list[Series], span: Span) -> None:
    for first in range(0, len(made), 200):
        body = b"".join(_field(1, _encoded(series, span)) for series in made[first : first + 200])
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"}
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/api/v1/write", _snappy(body), headers), timeout=60).close()


def _encoded(series: Series, span: Span) -> bytes:
    labels = (_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in sorted(series.labels.items()) if value)
    ends = [moment + STEP_S for moment in series.values if moment + STEP_S not in series.values and moment < span.end]
    samples = {moment: struct.pack("<d", value) for moment, value in series.values.items()} | dict.fromkeys(ends, STALE)
    told = (_field(2, b"\x09" + value + b"\x10" + _varint(moment * 1000)) for moment, value in sorted(samples.items()))
    return b"".join((*labels, *told))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _snappy(content: bytes) -> bytes:
    pieces = (content[first : first + 60_000] for first in range(0, len(content), 60_000))
    return _varint(len(content)) + b"".join(b"\xf4" + struct.pack("<H", len(piece) - 1) + piece for piece in pieces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--nodes", type=int, default=fleet.TILE)
    asked = parser.parse_args()
    now = int(time.time()) // STEP_S * STEP_S
    span = Span(now - int(3600 * asked.hours) // STEP_S * STEP_S, now)
    asked.folder.mkdir(parents=True, exist_ok=True)
    blocks(fleet.Fleet(asked.nodes, now), span, asked.folder / "data")
    options = ("--web.enable-remote-write-receiver", "--query.max-samples=200000000", "--storage.tsdb.retention.time=60d")
    with stack.prometheus(asked.folder, CONFIG, *options) as server:
        number = judge(server, span)
    # What was written late is not among the values of labels, which variables offer, before the server has been started anew.
    with stack.prometheus(asked.folder, CONFIG, *options) as server:
        sys.stdout.write(f"{server.url} has {number} recorded series from {span.start} to {span.end}; Ctrl-C ends it\n")
        sys.stdout.flush()
        server.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""KellerJordan/modded-nanogpt, and parameter-golf's trainer, which prints the same lines.

    step:125/1750 val_loss:4.3121 train_time:10233ms step_avg:81.87ms
    step:126/1750 train_time:10315ms step_avg:81.87ms

Odd: since the end of 2024 no training loss is printed. ``train_time`` leaves out validation and is in milliseconds or (track 3)
seconds; ``step_avg`` is a mean over the run and ``nanms`` on the first lines. The file begins with the program's own source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Constant
from trainer_exporter.model import Line, Malformed, Record
from trainer_exporter.numbers import NUMBER, number

_STEP: Final = re.compile(rf"^step:(?P<step>\d{{1,15}})/(?P<total>\d{{1,15}}) (?=(?:\w+:{NUMBER}m?s? )*?train_time:\d)")
_BEGUN: Final = re.compile(rf"^step:(?P<step>\d{{1,15}})/(?P<total>\d{{1,15}}) (?=(?:val|train)_loss:{NUMBER} )")
_PAIR: Final = re.compile(rf"(?P<name>[a-z]\w*):(?P<value>{NUMBER})(?P<unit>ms|s)?(?P<end> |$)")
_TOKEN: Final = re.compile(r"[a-z]\w*:[-+\w.]+$")
_LOSS: Final = re.compile(r"\d+\.\d{4}$|[a-z]+$|\d+\.\d$", re.IGNORECASE)
_FIELDS: Final = {"val_loss": "eval_loss", "train_loss": "loss"}
_SECONDS: Final = {"ms": 1e3, "s": 1.0}
_ENDED: Final = re.compile(r"^peak memory allocated: \d+ MiB")


class ModdedNanogpt:
    """The log of one run."""

    def __init__(self) -> None:
        self._total = Constant()
        self._last: tuple[int, float] | None = None  # step, and seconds of training up to it

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        if (found := _STEP.match(line.text) or _BEGUN.match(line.text)) is not None:
            return [self._step(line, found)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(line.text) else None

    def flush(self) -> Reading:
        return NOTHING

    def _step(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        step = int(found["step"])
        fields: dict[str, float] = {"step": step, "target_steps": int(found["total"])}
        metrics: dict[str, float] = {}
        pairs = list(_PAIR.finditer(line.text, found.end()))
        if not self._are_one_writers(line.text, found, pairs):
            return Malformed(line.number, "number")
        for pair in pairs:
            name, unit, value = pair["name"], pair["unit"], number(pair["value"])
            if value is None or (not pair["end"] and not unit):
                continue
            if name in _FIELDS and not unit:
                fields[_FIELDS[name]] = value
            elif name == "val_bpb":
                metrics[name] = value
            elif name == "train_time" and unit:
                fields["elapsed_seconds"] = value / _SECONDS[unit]
        self._measure(step, fields)
        return Record(line.number, fields, metrics, stamp=line.stamp)

    def _are_one_writers(self, text: str, head: re.Match[str], pairs: list[re.Match[str]]) -> bool:
        """Whether one process printed it: pairs and nothing between, losses with their decimals, steps out of as many as before."""
        tokens = text[head.end() :].split(" ")
        losses = [pair for pair in pairs if pair["name"] in _FIELDS]
        if (
            not all(map(_TOKEN.match, tokens[:-1]))
            or len({pair["name"] for pair in pairs}) < len(pairs)
            or int(head["step"]) > int(head["total"])
        ):
            return False
        return self._total.is_known(head["total"]) and all(_LOSS.match(pair["value"]) for pair in losses if pair["end"])

    def _measure(self, step: int, fields: dict[str, float]) -> None:
        """Seconds a step since the last line; early versions set the clock back after ten steps of warming up."""
        elapsed = fields.get("elapsed_seconds")
        if elapsed is None:
            return
        if self._last is not None and step > self._last[0] and elapsed > self._last[1]:
            fields["step_duration_seconds"] = round((elapsed - self._last[1]) / (step - self._last[0]), 6)
        self._last = (step, elapsed)


def _sniff(text: str) -> bool:
    return "oss" in text and _is_step(text)


def _is_step(text: str) -> bool:
    return text.startswith("step:") and _STEP.match(text) is not None


def _opens(lines: Sequence[str]) -> bool:
    """A file cut in the middle may show no loss for hundreds of lines."""
    return _is_step(lines[-1])


FORMAT: Final = Format(
    name="modded_nanogpt",
    summary="modded-nanogpt and parameter-golf",
    hints=(LOSS,),
    details=(b" train_time:", b"peak memory allocated"),
    sniff=_sniff,
    parser=ModdedNanogpt,
    opens=_opens,
)

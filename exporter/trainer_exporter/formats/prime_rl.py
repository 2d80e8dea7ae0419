"""PrimeIntellect's prime-rl, 0.2 to 0.5: step lines of its RL and SFT trainers, and the orchestrator's rewards.

    12:01:33 SUCCESS Step 12 |  14.21s | Loss 0.0123 | Entropy 0.4123 | Grad. Norm 0.2213 | LR 1.00e-06 | Throughput 15321 tokens/s | ...

The time has no date and is no stamp. The orchestrator runs ahead of the trainer, so its lines give rewards and no progress.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import integer, number

_PREFIX: Final = r"^(?:\d\d:\d\d:\d\d +[A-Z]+ +)?(?:\[[\w-]+\] )?"
_STEP: Final = re.compile(
    _PREFIX + r"Step (?P<step>\d{1,15}) \| +(?P<time>(?:\d+d)?(?: ?\d+h)?(?: ?\d+m(?!s))?(?: ?[\d.]+m?s)?) \| (?P<rest>.*)$"
)
# The number of decimals is fixed, or a unit follows: either shows where a line is torn.
_FIXED: Final = r"(?:-?\d+\.\d{4}|-?\d\.\d\de[-+]\d\d|nan|-?inf)"
_PIECE: Final = re.compile(rf"^(?P<name>[A-Z][\w. ]*?) (?:(?P<fixed>{_FIXED})|(?P<value>\d+)(?: tokens/s)|(?P<share>\d+\.\d)%)$")
_NAME: Final = re.compile(r"[A-Z][A-Za-z. /-]*(?= -?\d| nan\b| -?inf\b)")
_GLUED: Final = re.compile(r"\| [A-Z][a-z]*\d+\.\d")  # a number behind half a name
_VALIDATION: Final = re.compile(_PREFIX + rf"Validation \| Step (?P<step>\d{{1,15}}) \| Loss (?P<loss>{_FIXED})$")
_BEGINS: Final = re.compile(_PREFIX + r"Starting training loop \(max_steps=(?P<total>\d{1,15}|infinite|None)\)$")
_RESUMED: Final = re.compile(_PREFIX + r"Resuming training from checkpoint step (?P<step>\d{1,15})$")
_SAVING: Final = re.compile(_PREFIX + r"Saving checkpoint at step (?P<step>\d{1,15})$")
_ENDED: Final = re.compile(_PREFIX + r"(?:RL|SFT) trainer finished!$")
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "Loss": ("loss", 1.0),
    "Grad. Norm": ("grad_norm", 1.0),
    "LR": ("learning_rate", 1.0),
    "Throughput": ("tokens_per_second", 1.0),
    "MFU": ("mfu_ratio", 0.01),
}
_RESULTS: Final = {"Entropy": "entropy", "Mismatch KL": "mismatch_kl", "Reward": "reward"}
_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class PrimeRl:
    """One process's output, or a log that several of them share."""

    def __init__(self) -> None:
        self._target: int | None = None
        self._forms = Forms()

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if "Step " in text and (found := _STEP.match(text)) is not None:
            return self._step(line, found)
        if (found := _VALIDATION.match(text)) is not None:
            fields = {"step": float(found["step"]), "eval_loss": number(found["loss"]) or 0.0}
            return [Record(line.number, fields, stamp=line.stamp)]
        return self._words(line)

    def flush(self) -> Reading:
        return NOTHING

    def _step(self, line: Line, found: re.Match[str]) -> Reading | None:
        names = [name[0] for piece in found["rest"].split(" | ") if (name := _NAME.match(piece)) is not None]
        if len({*names}) < len(names) or _GLUED.search(found["rest"]) is not None:
            return [Malformed(line.number, "number")]  # half of it is another line's
        fields, metrics = _values(found["rest"])
        if "reward" in metrics and "loss" not in fields:
            return [Record(line.number, metrics={"reward": metrics["reward"]}, stamp=line.stamp)]
        if "loss" not in fields:
            return [Malformed(line.number, "truncated")] if found["rest"].startswith("Loss") else None
        if not self._forms.is_whole(found["rest"]):
            return [Malformed(line.number, "truncated")]
        place: dict[str, float] = {"step": int(found["step"])}
        if self._target is not None:
            place["target_steps"] = self._target
        duration = _duration(found["time"])
        if duration:
            place["step_duration_seconds"] = duration
        return [Record(line.number, {**place, **fields}, metrics, stamp=line.stamp)]

    def _words(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _BEGINS.match(text)) is not None:
            self._target = integer(found["total"])
            fields: dict[str, float] = {} if self._target is None else {"target_steps": self._target}
            return [Record(line.number, fields, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if (found := _RESUMED.match(text)) is not None:
            return [Record(line.number, {"step": int(found["step"])}, stamp=line.stamp)]
        if (found := _SAVING.match(text)) is not None:
            news = Checkpoint(CheckpointEvent.STARTED, int(found["step"]))
            return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None


def _values(text: str) -> tuple[dict[str, float], dict[str, float]]:
    fields: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for piece in text.split(" | "):
        found = _PIECE.match(piece)
        value = number(found["fixed"] or found["value"] or found["share"]) if found else None
        if found is None or value is None:
            continue
        if (found["share"] is not None) != (found["name"] == "MFU"):
            continue
        if found["name"] in _FIELDS:
            name, scale = _FIELDS[found["name"]]
            fields[name] = value * scale
        elif found["name"] in _RESULTS:
            metrics[_RESULTS[found["name"]]] = value
    return fields, metrics


def _duration(text: str) -> float:
    """Seconds of ``14.21s``, ``2m 5s``, ``1h 4m``, ``310ms``."""
    return sum(float(value) * _SECONDS[unit] for value, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[dhms])", text))


def _sniff(text: str) -> bool:
    found = _STEP.match(text) if "Step " in text and " | Loss " in text else None
    return found is not None and " | LR " in text and " tokens/s" in text


FORMAT: Final = Format(
    name="prime_rl",
    summary="prime-rl: RL and SFT trainers, the orchestrator's rewards",
    hints=(LOSS,),
    details=(b"(max_steps=", b"checkpoint", b" | Reward ", b"trainer finished!"),
    sniff=_sniff,
    parser=PrimeRl,
)

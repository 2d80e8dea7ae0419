"""fairseq, 0.9 to 0.12, and metaseq: JSON lines and "simple" text, behind either of their two prefixes.

    2023-04-11 10:22:31 | INFO | train_inner | epoch 001:    200 / 48213 loss=11.482, ppl=2860.5, wps=98321.4, num_updates=200, lr=2.4e-05
    [2023-04-11 10:22:31,123][train_inner][INFO] - {"epoch": 1, "loss": "11.482", "wps": "98321.4", "num_updates": "200", "lr": "2.4e-05"}

The logger's name says what a line is: ``train_inner`` within an epoch, ``train`` its mean, ``valid`` an evaluation. Step is
``num_updates``, the numbers with a slash are batches of the epoch. Odd: all values of the JSON are strings, and the loss of a language
model is in bits, not in nats; it is kept as printed.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.json_lines import loaded
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, integer, number

_LOGGER: Final = re.compile(r"train_inner|train|valid[\w/-]*")
# Behind the time, which the envelope has taken off: "LEVEL | logger | ", or hydra's "[logger][LEVEL] - ".
_HEAD: Final = re.compile(r"(?:INFO|WARNING|ERROR) +\| (?P<plain>[\w./-]+) +\| |\[(?P<hydra>[\w./-]+)\]\[(?:INFO|WARNING|ERROR)\] - ")
_INNER: Final = re.compile(r"^epoch (?P<epoch>\d{1,15}): +\d+ / \d+ (?P<pairs>\S.*)$")
_OUTER: Final = re.compile(r"^epoch (?P<epoch>\d{1,15}) \|(?: valid on '(?P<subset>[^']+)' subset \|)? (?P<pairs>loss .*)$")
_INNER_PAIR: Final = re.compile(rf"(?:^|, )([\w./-]+)=({NUMBER})(?=, )")  # what has nothing behind it may be torn
_INNER_WHOLE: Final = re.compile(rf"[\w./-]+={NUMBER}$(?<!e[-+]\d)")
_OUTER_PAIR: Final = re.compile(rf"(?:^| \| )([\w./-]+) ({NUMBER})(?= \| )")
_FIELDS: Final = {
    "loss": "loss",
    "num_updates": "step",
    "lr": "learning_rate",
    "gnorm": "grad_norm",
    "loss_scale": "loss_scale",
    "wps": "tokens_per_second",
    "epoch": "epoch",
}
_NO_RESULT: Final = frozenset(
    {"epoch", "num_updates", "update", "wps", "ups", "wpb", "bsz", "wall", "train_wall", "gb_free", "lr", "best_loss"}
)
_MAINS: Final = ("fairseq_cli.train", "metaseq.cli.train", "metaseq_cli.train")
_CONFIG: Final = re.compile(r"^(?:Namespace\(|\{'_name': |\{'common': )")
_SETTING: Final = re.compile(r"\b'?(?P<name>max_update|save_dir|distributed_world_size)'?(?:=|: )'?(?P<value>[^,'}\s)]+)")
_OVERFLOW: Final = re.compile(
    rf"^NOTE: (?:gradient )?overflow detected,(?: ignoring gradient,)? setting loss scale to: (?P<scale>{NUMBER})$"
)
_PREPARING: Final = re.compile(r"^Preparing to save checkpoint for epoch \d+ @ (?P<step>\d{1,15}) updates")
_SAVED: Final = re.compile(
    rf"^Saved checkpoint (?P<path>\S+) \(epoch \d+ @ (?P<step>\d{{1,15}}) updates(?:, score \S+)?\)"
    rf" \(writing took (?P<s>{NUMBER}) seconds\)"
)
_LOADED: Final = re.compile(r"^Loaded checkpoint (?P<path>\S+) \(epoch \d+ @ (?P<step>\d{1,15}) updates\)")
_ENDED: Final = re.compile(r"^done training in [\d.]+ seconds")
_EVALUATING: Final = re.compile(r"^begin validation on \"[^\"]+\" subset")


class Fairseq:
    """One process's output."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._target: int | None = None

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        head = _HEAD.match(line.text)
        logger = (head["plain"] or head["hydra"]) if head else ""
        text = line.text[head.end() :] if head else line.text
        if _LOGGER.fullmatch(logger) or not logger:
            return self._metrics(line, logger, text)
        return self._words(line, logger, text) if logger.startswith(("fairseq", "metaseq")) else None

    def flush(self) -> Reading:
        return NOTHING

    # Metrics

    def _metrics(self, line: Line, logger: str, text: str) -> Reading | None:
        """Without a logger's name (``--log-file``) the shape tells what a line is."""
        if text.startswith('{"'):
            logger = logger or _kind(text)
            found = _json(text, logger)
            if found is None:
                return [Malformed(line.number, "json")] if logger else None
        elif (inner := _INNER.match(text)) is not None:
            if not all(map(_INNER_WHOLE.match, inner["pairs"].split(", ")[:-1])):
                return [Malformed(line.number, "number")]
            logger = logger or "train_inner"
            found = {"epoch": number(inner["epoch"]), **_numbers(_INNER_PAIR, inner["pairs"])}
        elif (outer := _OUTER.match(text)) is not None:
            logger = logger or outer["subset"] or "train"
            found = {"epoch": number(outer["epoch"]), **_numbers(_OUTER_PAIR, outer["pairs"])}
        else:
            return None
        if logger.startswith("valid"):
            return [self._validation(line, logger, found)]
        return self._training(line, found) if logger == "train_inner" else self._epoch(line, found)

    def _training(self, line: Line, found: Mapping[str, float | None]) -> Reading:
        fields = {name: value for key, name in _FIELDS.items() if (value := found.get(key)) is not None}
        if not math.isfinite(fields.get("step", math.nan)):
            return [Malformed(line.number, "no_step")]
        self._step = int(fields["step"])
        fields |= _speed(found)
        if self._target is not None:
            fields["target_steps"] = self._target
        return [Record(line.number, fields, stamp=line.stamp)]

    def _epoch(self, line: Line, found: Mapping[str, float | None]) -> Reading:
        """The mean over an epoch is no loss of a step; how far it came is news."""
        step = found.get("num_updates")
        if step is None or not math.isfinite(step):
            return NOTHING
        self._step = int(step)
        return [Record(line.number, {"step": self._step}, stamp=line.stamp)]

    def _validation(self, line: Line, logger: str, found: Mapping[str, float | None]) -> Record:
        """``valid`` gives the loss; further sets (``valid/wiki``, ``valid1``) give results named after them."""
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        subset = logger.removeprefix("valid").strip("/_-")
        step = found.get("num_updates", self._step)
        if step is not None and math.isfinite(step):
            fields["step"] = int(step)
        for key, value in found.items():
            if value is None:
                continue
            if key in {"loss", "epoch"} and not subset:
                fields["eval_loss" if key == "loss" else key] = value
            elif key not in _NO_RESULT and len(metrics) < MAX_METRICS:
                metrics[f"{subset}_{key}" if subset else key] = value
        return Record(line.number, fields, metrics, stamp=line.stamp)

    # Words

    def _words(self, line: Line, logger: str, text: str) -> Reading | None:
        if logger.endswith("nan_detector"):
            return _not_finite(line, text)
        if _CONFIG.match(text):
            return [self._configured(line, text)] if logger in _MAINS else None
        if "checkpoint" in text:
            return _checkpoint(line, text)
        if (found := _OVERFLOW.match(text)) is not None:
            return [Record(line.number, {"loss_scale": number(found["scale"]) or 0.0, "skipped_steps": 1}, stamp=line.stamp)]
        if _EVALUATING.match(text):
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None

    def _configured(self, line: Line, text: str) -> Record:
        """The print-out of the configuration is the first line of a start. ``max_update`` 0 means that epochs decide."""
        settings = {found["name"]: found["value"] for found in _SETTING.finditer(text)}
        self._target, self._step = integer(settings.get("max_update", "")) or None, None
        known = {"target_steps": self._target, "world_size": integer(settings.get("distributed_world_size", ""))}
        fields: dict[str, float] = {name: value for name, value in known.items() if value is not None}
        facts = {"output_dir": settings["save_dir"]} if "save_dir" in settings else {}
        return Record(line.number, fields, facts=facts, stamp=line.stamp, phase=Phase.STARTING, starts=True)


def _speed(found: Mapping[str, float | None]) -> dict[str, float]:
    """Seconds an update from its words and words per second: updates per second have 2 decimals, which is one digit for a large model."""
    words, rate, updates, batch = (found.get(key) for key in ("wpb", "wps", "ups", "bsz"))
    if words and rate:
        duration = words / rate
    elif updates:
        duration = 1.0 / updates
    else:
        return {}
    return {"step_duration_seconds": duration, **({"samples_per_second": batch / duration} if batch else {})}


def _not_finite(line: Line, text: str) -> Reading | None:
    """A backward pass had gradients that are not finite; it is made again, only to see where that began."""
    if not text.startswith(("NaN detected in ", "Inf detected in ")):
        return None
    return [Record(line.number, stamp=line.stamp, hidden_nonfinite=frozenset({"grad_norm"}))]


def _checkpoint(line: Line, text: str) -> Reading | None:
    if (found := _SAVED.match(text)) is not None:
        news = Checkpoint(CheckpointEvent.FINISHED, int(found["step"]), found["path"], number(found["s"]))
        facts = {"output_dir": posixpath.dirname(found["path"])}
        return [Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.TRAINING, checkpoint=news)]
    if (found := _PREPARING.match(text)) is not None:
        news = Checkpoint(CheckpointEvent.STARTED, int(found["step"]))
        return [Record(line.number, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)]
    if (found := _LOADED.match(text)) is not None:
        return [Record(line.number, {"step": int(found["step"])}, stamp=line.stamp)]
    return None


def _kind(text: str) -> str:
    if '"num_updates": ' in text:
        return "train_inner"
    if '"train_num_updates": ' in text:
        return "train"
    return "valid" if '"valid_num_updates": ' in text else ""


def _numbers(pattern: re.Pattern[str], text: str) -> dict[str, float | None]:
    return {key: number(value) for key, value in pattern.findall(text)}


def _json(text: str, logger: str) -> dict[str, float | None] | None:
    """Values by key, less the logger's name before it; None when it is no JSON, or not fairseq's."""
    if not text.startswith('{"epoch": '):
        return None
    try:
        found = loaded(text)
    except (ValueError, RecursionError):
        return None
    return {key.removeprefix(f"{logger}_"): _value(value) for key, value in found.items()}


def _value(value: object) -> float | None:
    return number(str(value)) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None


def _sniff(text: str) -> bool:
    head = _HEAD.match(text)
    body = text[head.end() :] if head else text
    logger = (head["plain"] or head["hydra"]) if head else ""
    if logger in _MAINS:
        return _CONFIG.match(body) is not None
    if body.startswith('{"epoch": '):
        return "num_updates" in body and _kind(body) != ""
    if not body.startswith("epoch "):
        return False
    return ("num_updates=" in body and _INNER.match(body) is not None) or ("num_updates " in body and _OUTER.match(body) is not None)


FORMAT: Final = Format(
    name="fairseq",
    summary="fairseq and metaseq: JSON and simple text, started by argparse or by hydra",
    hints=(LOSS,),
    details=(b"_cli.train", b"checkpoint", b"begin validation", b"nan_detector", b"num_updates"),
    sniff=_sniff,
    parser=Fairseq,
)

"""karpathy/nanochat: base, mid and chat training, its reinforcement learning, and autoresearch's train.py with the same line.

    step 00120/21400 (0.56%) | loss: 5.812345 | lrm: 1.00 | dt: 438.91ms | tok/sec: 1,194,540 | bf16_mfu: 47.63 | epoch: 1 | ...

Odd: ``lrm`` is a multiplier of the learning rate, not the rate; mfu is in percent without its sign; validation is bits per byte;
the loss is a running mean. One file holds several trainings one after the other, each from step 0 or 1, some without a total.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import Decimals
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, integer, number

_PADDED: Final = r"(?:\d{5}|[1-9]\d{5,14})"
_SIX: Final = r"(?:-?\d+\.\d{6}|-?(?:nan|inf))"
_STEP: Final = re.compile(rf"^step (?P<step>{_PADDED})(?:/(?P<total>{_PADDED}))? \((?P<percent>\d+\.\d\d?)%\) \| loss: (?P<loss>{_SIX}) \|")
_PIECE: Final = re.compile(
    r"^(?P<name>[a-z][\w/ ]*): (?P<value>\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+|-?(?:nan|inf)|\d(?:\.\d+)?e-\d\d)"
    r"(?P<unit>ms|%|m|s)?(?: pq: \d+ rg: \d+)?$"
)
_WHOLE: Final = re.compile(r"\dms?$|\.\d\d$")  # a rate that ends the line may be half of one
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    "dt": ("step_duration_seconds", 1e3),
    "tok/sec": ("tokens_per_second", 1.0),
    "bf16_mfu": ("mfu_ratio", 1e2),
    "mfu": ("mfu_ratio", 1e2),
    "grad norm": ("grad_norm", 1.0),
    "lr": ("learning_rate", 1.0),
    "epoch": ("epoch", 1.0),
    "eta": ("remaining_seconds", 1 / 60.0),
}
_UNITS: Final = {"dt": "ms", "eta": "m"}
_OLD_CHAT: Final = re.compile(
    rf"^Step (?P<step>{_PADDED})/(?P<total>{_PADDED}) \| Training loss: (?P<loss>{_SIX}) ?\| lrm: {_SIX}\|"
    r" num_tokens: [\d,]+$"
)
_REWARDED: Final = re.compile(
    rf"^Step (?P<step>\d{{1,15}})/(?P<total>\d{{1,15}}) \| Example step \d+ \| Pass \d+ \| loss: (?P<loss>{_SIX}) \|"
)
_NAME: Final = r"[A-Z][\w@ -]*"
_RESULT: Final = re.compile(
    rf"^Step (?P<step>\d{{1,15}})(?:/(?P<total>\d{{1,15}}))? \| (?P<results>{_NAME}: {NUMBER}(?:(?:, | \| ){_NAME}: {NUMBER})*)$"
)
_NAMED: Final = re.compile(rf"({_NAME}): ({NUMBER})")
_LENGTH: Final = re.compile(r"sequence length: \d+\.\d\d$")
_SAVED: Final = re.compile(r"Saved (?:model parameters|model file|optimizer state) to: (?P<path>\S+?(?P<step>\d{6})\S*)$")
_ITERATIONS: Final = re.compile(
    r"^(?:Using user-provided number of iterations|Calculated number of iterations from [^:]+(?::\w+ ratio)?): (?P<total>[\d,]{1,19})$"
)
_ENDED: Final = re.compile(r"^Total training time: [\d.]+m$")
_VOCABULARY: Final = re.compile(r"^Vocab size: (?P<size>[\d,]{1,19})$")


class Nanochat:
    """The output of one training after the other."""

    def __init__(self) -> None:
        self._saved: int | None = None
        self._decimals = Decimals(least=4)

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (found := _STEP.match(text)) is not None:
            return [_step(line, found)]
        if (found := _OLD_CHAT.match(text) or _REWARDED.match(text)) is not None:
            return [_numbered(line, found, {"loss": found["loss"]})]
        if (found := _RESULT.match(text)) is not None:
            return [self._results(line, found)]
        if (found := _SAVED.search(text)) is not None:
            return self._save(line, found)
        return _announced(line)

    def flush(self) -> Reading:
        return NOTHING

    def _save(self, line: Line, found: re.Match[str]) -> Reading:
        """Model and optimizer are two lines; the first one tells of the checkpoint."""
        step = int(found["step"])
        if step == self._saved:
            return NOTHING
        self._saved = step
        directory = posixpath.dirname(found["path"])
        news = Checkpoint(CheckpointEvent.FINISHED, step, directory)
        return [Record(line.number, facts={"output_dir": directory}, stamp=line.stamp, checkpoint=news)]

    def _results(self, line: Line, found: re.Match[str]) -> Record | Malformed:
        named = _NAMED.findall(found["results"])
        if not (self._decimals.are_whole(*named[-1]) or _LENGTH.search(line.text)) or named[0][0] == "Training loss":
            named.pop()
        fields: dict[str, float] = {"step": int(found["step"])}
        if found["total"]:
            fields["target_steps"] = int(found["total"])
        metrics: dict[str, float] = {}
        for name, text in named:
            value = number(text)
            if value is not None and name == "Validation loss":
                fields["eval_loss"] = value
            elif value is not None:
                metrics[name.lower().replace(" ", "_")] = value
        return Record(line.number, fields, metrics, stamp=line.stamp) if named else Malformed(line.number, "truncated")


def _step(line: Line, found: re.Match[str]) -> Record | Malformed:
    record = _numbered(line, found, {"loss": found["loss"]})
    if isinstance(record, Malformed):
        return record
    fields = dict(record.fields)
    pieces = line.text[found.end() :].split("|")
    if not _WHOLE.search(pieces[-1]):
        pieces.pop()
    named = [told for piece in pieces if (told := _PIECE.match(piece.strip())) is not None]
    if len({told["name"] for told in named}) < len(pieces) or not _is_share(found):
        return Malformed(line.number, "number")
    for told in named:
        if (
            told["name"] not in _FIELDS
            or (told["name"] == "epoch" and "," in told["value"])
            or (told["unit"] or "%").replace("%", "") != _UNITS.get(told["name"], "")
        ):
            continue
        name, divisor = _FIELDS[told["name"]]
        if (value := number(told["value"])) is not None:
            fields[name] = value / divisor
    return Record(line.number, fields, stamp=line.stamp)


def _is_share(found: re.Match[str]) -> bool:
    """Whether the percentage is that of the step; else a digit is another process's."""
    return found["total"] is None or abs(100.0 * int(found["step"]) / (int(found["total"]) or 1) - float(found["percent"])) < 0.1


def _numbered(line: Line, found: re.Match[str], values: dict[str, str]) -> Record | Malformed:
    fields: dict[str, float] = {"step": int(found["step"])}
    if found["total"]:
        fields["target_steps"] = int(found["total"])
    for name, text in values.items():
        if (value := number(text)) is None:
            return Malformed(line.number, "number")
        fields[name] = value
    return Record(line.number, fields, stamp=line.stamp)


def _announced(line: Line) -> Reading | None:
    text = line.text
    if (found := _ITERATIONS.match(text)) is not None and (total := integer(found["total"])) is not None:
        return [Record(line.number, {"target_steps": total}, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
    if (found := _VOCABULARY.match(text)) is not None and (size := integer(found["size"])) is not None:
        return [Record(line.number, {"vocabulary_size": size}, stamp=line.stamp)]
    return [Record(line.number, stamp=line.stamp, closes=True)] if _ENDED.match(text) else None


def _sniff(text: str) -> bool:
    if text.startswith("step "):
        return _STEP.match(text) is not None and "| lrm: " in text
    return text.startswith("Step ") and (_OLD_CHAT.match(text) is not None or _REWARDED.match(text) is not None)


FORMAT: Final = Format(
    name="nanochat",
    summary="nanochat: base, mid and chat training, autoresearch",
    hints=(LOSS,),
    details=(b"Step ", b"checkpoint_manager", b"number of iterations", b"Vocab size: ", b"Total training time"),
    sniff=_sniff,
    parser=Nanochat,
)

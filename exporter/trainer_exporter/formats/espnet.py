"""ESPnet, espnet2: what its Trainer and Reporter log, and its trainers of GANs and of other tasks.

    [heron-03:0/2] 2024-03-01 10:00:00,123 (trainer:793) INFO: 2epoch:train:101-200batch: loss=38.911, ..., train_time=0.402
    [heron-03:0/2] 2024-03-01 10:05:00,123 (trainer:372) INFO: 2epoch results: [train] ..., total_count=1240, [valid] loss=31.880, ...

Step is the number of batches, counted on from epoch to epoch. Values are means over the batches of the line, printed as 38.911 or as
1.234e-05: the loss as the model gives it, the learning rate of the first optimizer's first group. What is named ``..._time`` is seconds and
left out: ``train_time`` is that of an update, which is ``accum_grad`` batches, and the log does not say how many those are.

Odd: a line counts within its epoch, and how long an epoch was is told at its end, by ``total_count``. So there is no step in the first
epoch of a file that begins with a resumed run. The means leave out what is not finite: ``loss=nan`` says that no loss of the line was
finite, a single one shows only in ``The grad norm is nan``. Elsewhere nan says that there was no value: no update between two lines. A
GAN's values have the name of their turn in front.
"""

from __future__ import annotations

import math
import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record, Stamp
from trainer_exporter.numbers import moment, number

_PREFIX: Final = re.compile(
    r"(?:\[[\w.-]{1,64}(?::\d{1,6}/(?P<world>\d{1,6}))?\] )?(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) )?"
    r"\((?:\w{0,20}trainer|reporter):\d{1,6}\) (?:INFO|WARNING): "
)
_BATCHES: Final = re.compile(r"(?P<epoch>\d{1,9})epoch:(?P<part>\w{1,20}):(?P<first>\d{1,12})-(?P<last>\d{1,12})batch: ")
_RESULTS: Final = re.compile(r"(?P<epoch>\d{1,9})epoch results: (?=\[)")
_EPOCH: Final = re.compile(r"(?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})epoch started(?:\. Estimated time to finish: (?P<rest>.{1,80}))?$")
_RESUMED: Final = re.compile(r"The training was resumed using (?P<path>\S+)/checkpoint\.pth$")
_SKIPPED: Final = re.compile(r"The grad norm is (?P<norm>nan|-?inf)\. Skipping updating the model\.$")
_SAVED: Final = re.compile(r"(?:There are no improvements in this epoch$|The best model has been updated: \w)")
_REMOVED: Final = re.compile(r"The model files were removed: (?P<path>\S+)/\d+epoch\.pth(?:,|$)")
_FINISHED: Final = re.compile(r"The training was finished at \d+ epochs ?$")
_STOPPED_EARLY: Final = re.compile(r"\[Early stopping\] \S+ has not been improved \d+ epochs .{1,60} was stopped at \d+epoch$")
_GAVE_UP: Final = re.compile(r"The gradients at all steps are invalid in this epoch\. ")

_VALUE: Final = r"-?(?:\d+\.\d{3}(?:e[-+]\d{2,3})?|nan|inf)"
_PART: Final = r"\d+(?:\.\d+)? (?:second|minute|hour|day|week|year)s?"
_SPAN: Final = rf"{_PART}(?:, {_PART})?(?: and {_PART})?"
_PAIR: Final = re.compile(rf"(?P<key>[^\s=,\[\]]+)=(?P<value>{_VALUE}|(?<=time=){_SPAN}|(?<=total_count=)\d+)(?:, |$)")
_SECTION: Final = re.compile(r"\[(?P<name>\w{1,20})\] ")
_MAY_BE_TORN: Final = re.compile(r"-?\d\.\d{3}$")  # behind which an exponent may have stood
_DURATION: Final = re.compile(rf"(?:{_PART}, )?(?:{_PART} and )?{_PART}$")
_ONE_PART: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?) (?P<unit>second|minute|hour|day|week|year)")
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "year": 364 * 86400}  # humanfriendly's
_LARGEST_PARTS: Final = 3  # so many are printed, smaller ones are left out

_FIELDS: Final = {
    "loss": ("loss", "generator_loss"),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("optim0_lr0", "lr_0", "learning_rate"),
    "loss_scale": ("loss_scale",),
}
_READ: Final = frozenset(key for keys in _FIELDS.values() for key in keys)
_NO_RESULT: Final = re.compile(r"(?:.*_)?time$|total_count$|gpu_(?:max_)?cached_mem_GB$")
_MOST_EPOCHS: Final = 1000  # whose counts are kept


class Espnet:
    """The log of one process, which starts anew in the same file where it is resumed there."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # batches up to the end of an epoch
        self._epochs: int | None = None
        self._epoch: int | None = None  # whose results were told last
        self._seen: int | None = None  # the step told last
        self._base: tuple[int, int | None, bool] | None = None  # the present epoch, the batches before it, whether those are certain
        self._directory = ""

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        prefix = _PREFIX.match(line.text)
        if prefix is None:
            return None
        stamp = line.stamp
        if stamp is None and prefix["time"]:
            stamp = moment(prefix["time"])
        text = line.text[prefix.end() :]
        if (head := _BATCHES.match(text)) is not None:
            return self._batches(line, head, text, stamp, world=prefix["world"])
        if (head := _RESULTS.match(text)) is not None:
            return [self._results(line, head, text, stamp)]
        if (found := _EPOCH.match(text)) is not None:
            return [self._epoch_started(line, found, stamp)]
        return self._words(line, text, stamp)

    def flush(self) -> Reading:
        return NOTHING

    # Figures

    def _batches(self, line: Line, head: re.Match[str], text: str, stamp: Stamp | None, *, world: str | None) -> Reading:
        if head["part"] != "train":
            return NOTHING
        pairs = _pairs(text, head.end())
        if pairs is None or _is_doubtful(pairs):
            return [Malformed(line.number, "truncated")]
        epoch = int(head["epoch"])
        before, is_exact = self._before(epoch)
        fields: dict[str, float] = {"epoch": epoch}
        if before is not None:
            self._seen = before + int(head["last"])
            fields["step"] = self._seen
        if world:
            fields["world_size"] = int(world)
        for field, keys in _FIELDS.items():
            printed = next((pairs[key] for key in keys if key in pairs), "")
            if (value := number(printed)) is not None and (field == "loss" or not math.isnan(value)):
                fields[field] = value
        return [Record(line.number, fields, stamp=stamp, step_exact=is_exact)]

    def _before(self, epoch: int) -> tuple[int | None, bool]:
        """The batches of the epochs before this one, and whether that is certain: a line that told them may have been lost."""
        if self._base is None or self._base[0] != epoch:
            self._epoch = None
            if epoch == 1:
                self._counts, self._base = {}, (1, 0, True)
            elif epoch - 1 in self._counts:
                self._base = (epoch, self._counts[epoch - 1], True)
            else:
                self._base = (epoch, self._seen, self._seen is None)
        return self._base[1], self._base[2]

    def _results(self, line: Line, head: re.Match[str], text: str, stamp: Stamp | None) -> Record | Malformed:
        self._epoch = None
        sections = _sections(text, head.end())
        count = number(sections.get("train", {}).get("total_count", ""))
        valid = sections.get("valid", {})
        if count is None or "total_count" not in valid:
            return Malformed(line.number, "truncated")
        epoch = self._epoch = int(head["epoch"])
        self._seen = int(count)
        self._counts.pop(epoch, None)
        self._counts[epoch] = self._seen
        if len(self._counts) > _MOST_EPOCHS:
            del self._counts[next(iter(self._counts))]
        fields: dict[str, float] = {"step": self._seen, "epoch": epoch, **self._target(epoch)}
        metrics: dict[str, float] = {}
        loss = next((key for key in _FIELDS["loss"] if key in valid), "")
        for key, printed in valid.items():
            value = None if _NO_RESULT.match(key) else number(printed)
            if value is not None and key == loss:
                fields["eval_loss"] = value
            elif value is not None and not math.isnan(value) and len(metrics) < MAX_METRICS:
                metrics[key] = value
        return Record(line.number, fields, metrics, stamp=stamp)

    def _target(self, epoch: int) -> dict[str, float]:
        """The last step, where all epochs up to this one had the same number of batches."""
        count = self._counts.get(epoch)
        if self._epochs is None or count is None or epoch < 1 or count % epoch:
            return {}
        return {"target_steps": count // epoch * self._epochs}

    # Words

    def _epoch_started(self, line: Line, found: re.Match[str], stamp: Stamp | None) -> Record:
        epoch, self._epochs = int(found["epoch"]), int(found["epochs"])
        fields: dict[str, float] = {"epochs": self._epochs}
        if epoch == 1:  # later ones begin a process too, which says before that it was resumed
            self._counts = {}
            self._begin()
            return Record(line.number, fields, stamp=stamp, phase=Phase.STARTING, starts=True)
        fields |= self._target(epoch - 1)
        if found["rest"] and (remaining := _duration(found["rest"])) is not None:
            fields["remaining_seconds"] = remaining
        return Record(line.number, fields, stamp=stamp)

    def _begin(self) -> None:
        self._base = self._seen = self._epoch = None

    def _words(self, line: Line, text: str, stamp: Stamp | None) -> Reading | None:
        if (found := _SKIPPED.match(text)) is not None and (norm := number(found["norm"])) is not None:
            return [Record(line.number, {"grad_norm": norm, "skipped_steps": 1}, stamp=stamp)]
        if _SAVED.match(text):
            return [self._saved(line, stamp)]
        if (found := _REMOVED.match(text)) is not None:
            return self._located(line, found["path"], stamp)
        if (found := _RESUMED.match(text)) is not None:
            self._begin()
            self._directory = found["path"]
            facts = {"output_dir": self._directory}
            return [Record(line.number, facts=facts, stamp=stamp, phase=Phase.STARTING, starts=True)]
        if _FINISHED.match(text) or _STOPPED_EARLY.match(text):
            return [Record(line.number, stamp=stamp, closes=True)]
        return NOTHING if _GAVE_UP.match(text) else None

    def _saved(self, line: Line, stamp: Stamp | None) -> Record:
        """Said when the model of an epoch has been written; nothing is said before."""
        step = None if self._epoch is None else self._counts.get(self._epoch)
        path = f"{self._directory}/{self._epoch}epoch.pth" if self._directory and self._epoch is not None else ""
        news = Checkpoint(CheckpointEvent.FINISHED, step, path)
        return Record(line.number, stamp=stamp, phase=Phase.TRAINING, checkpoint=news)

    def _located(self, line: Line, path: str, stamp: Stamp | None) -> Reading:
        if path == self._directory:
            return NOTHING
        self._directory = path
        return [Record(line.number, facts={"output_dir": path}, stamp=stamp)]


def _pairs(text: str, at: int) -> dict[str, str] | None:
    """What stands from there to the end, by name; None where it is not made of pairs alone, or tells of one twice: two lines were glued."""
    pairs: dict[str, str] = {}
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None or found["key"] in pairs:
            return None
        pairs[found["key"]] = found["value"]
        at = found.end()
    return None if not pairs or text.endswith(",") else pairs


def _is_doubtful(pairs: dict[str, str]) -> bool:
    """Whether the value at the end of the line may lack its exponent, and would be read."""
    last = next(reversed(pairs))
    return last in _READ and _MAY_BE_TORN.match(pairs[last]) is not None


def _sections(text: str, at: int) -> dict[str, dict[str, str]]:
    """The results by section and name; nothing where anything else stands among them."""
    sections: dict[str, dict[str, str]] = {}
    name = ""
    while at < len(text):
        if (section := _SECTION.match(text, at)) is not None:
            name, at = section["name"], section.end()
            if name in sections:
                return {}
            sections[name] = {}
        found = _PAIR.match(text, at)
        if found is None or not name or found["key"] in sections[name]:
            return {}
        if found["value"].isdecimal() and found.end() == len(text) and name == "train":
            return {}  # further digits may be missing
        sections[name][found["key"]] = found["value"]
        at = found.end()
    return sections


def _duration(text: str) -> float | None:
    """Seconds of a time in words, ``7 minutes and 58.63 seconds``; None for another text, and where smaller units may be missing."""
    if _DURATION.match(text) is None:
        return None
    parts = [(float(found["count"]), found["unit"]) for found in _ONE_PART.finditer(text)]
    if len(parts) < _LARGEST_PARTS and parts[-1][1] != "second":
        return None
    return sum(count * _SECONDS[unit] for count, unit in parts)


def _sniff(text: str) -> bool:
    prefix = _PREFIX.match(text) if "epoch" in text else None
    if prefix is None:
        return False
    at = prefix.end()
    return any(pattern.match(text, at) is not None for pattern in (_BATCHES, _RESULTS, _EPOCH))


FORMAT: Final = Format(
    name="espnet",
    summary="ESPnet (espnet2): batches of its Trainer, results of epochs, saves",
    hints=(LOSS, b"epoch started"),
    details=(b"grad norm is", b" training was ", b"improvements in", b"best model has been", b"files were removed"),
    sniff=_sniff,
    parser=Espnet,
)

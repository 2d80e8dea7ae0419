"""PyTorch Lightning, 1.5 to 2.6: its bars (tqdm and rich) and what the trainer says in words.

    Epoch 0:  51%|█████     | 512/1000 [00:45<00:43, 11.30it/s, v_num=3, train_loss=0.512]
    Epoch 0, global step 500: 'val_loss' reached 2.34567 (best 2.34567), saving model to '/out/epoch=0-step=500.ckpt' as top 1

Odd: a bar is first redrawn with the new count and the old values, then with the new values, so of the redraws of one count the
last is the right one; a new epoch begins with the values of the old one. A bar counts the batches of its epoch (1.x: those of
validation too), and only what the module logs with ``prog_bar=True`` stands in it. Its rate is a mean over the epoch.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.bars import SIGN
from trainer_exporter.formats.base import LOSS, Format, Reading
from trainer_exporter.formats.decimals import Constant
from trainer_exporter.formats.dicts import MAX_METRICS
from trainer_exporter.formats.titled_bars import LastRedraw, TitledBar, titled_bar, value
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, duration

_EPOCH: Final = re.compile(r"Epoch (?P<epoch>\d{1,15})$")
_NOT_TRAINING: Final = re.compile(r"(?:Sanity Checking|Validation|Validating|Testing|Predicting)\b")
_RICH: Final = re.compile(
    r"^Epoch (?P<epoch>\d{1,15})/(?P<last>\d{1,15}) +[━╸╺ ]+ (?P<done>\d{1,15})/(?P<total>\d{1,15})"
    r" +(?P<elapsed>[\d:]+) • (?P<remaining>[\d:-]+) +[\d.]+it/s *(?P<values>.*)$"
)
_RICH_PAIR: Final = re.compile(r"([^\s:]+): (\S+)(?= |$)")
_MONITORED: Final = re.compile(
    rf"^Epoch (?P<epoch>\d{{1,15}}), global step (?P<step>\d{{1,15}}): '?(?P<monitor>[^' ]+)'? (?:reached (?P<value>{NUMBER}) "
    rf"\(best {NUMBER}\), saving model to ['\"](?P<path>[^'\"]+)['\"] as top \d+|was not in top \d+)"
)
_STOPPED: Final = re.compile(r"`Trainer\.fit` stopped: ")
_SIGNALED: Final = re.compile(
    rf"Monitored metric (?P<monitor>\S+)(?: = (?P<value>{NUMBER}) is not finite| did not improve ).*Signaling Trainer to stop"
)
_RESTORED: Final = re.compile(r"^Restored all states from the checkpoint(?: at| file at)? \S")

_LOSSES: Final = ("train_loss_step", "train/loss_step", "train_loss", "train/loss", "training_loss", "loss_step", "loss")
_FIELDS: Final = {"grad_norm": "grad_norm", "lr": "learning_rate", "learning_rate": "learning_rate", "train/lr": "learning_rate"}
_EVAL_LOSSES: Final = frozenset({"val_loss", "val/loss", "valid_loss", "valid/loss", "validation_loss", "val_loss_epoch", "eval_loss"})
_EVALUATION: Final = re.compile(r"(?:val|valid|validation|eval)[_/](?P<name>\w.*)$")


class Lightning:
    """The output of one trainer."""

    def __init__(self) -> None:
        self._redraws = LastRedraw()
        self._total = Constant()  # of rich's bar
        self._results = ""  # of the last validation, as printed in the bar
        self._announced = ""  # the result of this validation that was told in words
        self._has_bars = False
        self._has_stopped = False
        self._epoch = 0
        self._before = 0  # batches of the epochs before this one, where no bar tells how many one has
        self._epoch_began_s = 0.0
        self._elapsed_s = 0.0
        self._is_evaluating = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        drawn = titled_bar(text) if "%|" in text or "/? [" in text else None
        if drawn is not None:
            return self._bar(line, drawn)
        if "%|" in text:
            self._redraws.torn()
        if "━" in text:
            return self._rich(line)
        said = self._words(line, text)
        return None if said is None else [*self._redraws.given(), *said]

    def flush(self) -> Reading:
        return self._redraws.flushed()

    # Bars

    def _bar(self, line: Line, drawn: TitledBar) -> Reading | None:
        behind = (self._words(line, drawn.rest) if drawn.rest else None) or []
        if _NOT_TRAINING.match(drawn.title):
            return [*self._redraws.given(), *self._evaluating(line), *behind]
        epoch = _EPOCH.match(drawn.title)
        if epoch is None and "Epoch " in drawn.title:
            self._redraws.torn()
        if epoch is None or "reduced_train_loss" in drawn.pairs:
            return [*self._redraws.given(), *behind] if drawn.rest else None
        out = self._drawn(line, int(epoch["epoch"]), drawn)
        return [*out, *self._redraws.given(), *behind] if behind else out

    def _rich(self, line: Line) -> Reading | None:
        found = _RICH.match(line.text)
        if found is None:
            return [*self._redraws.given(), *self._evaluating(line)] if _NOT_TRAINING.match(line.text) else None
        if not self._total.is_known(found["total"]):
            return [*self._redraws.given(), Malformed(line.number, "number")]
        pairs = dict(_RICH_PAIR.findall(found["values"]))
        elapsed = duration(found["elapsed"])
        drawn = TitledBar("", int(found["done"]), int(found["total"]), elapsed, None, found["values"], pairs, "")
        return self._drawn(line, int(found["epoch"]), drawn, epochs=int(found["last"]) + 1)

    def _drawn(self, line: Line, epoch: int, drawn: TitledBar, *, epochs: int | None = None) -> list[Record | Malformed]:
        count = (epoch, drawn.done)
        out: list[Record | Malformed] = [*self._redraws.make_way(count)]
        if drawn.done == 0:
            return out
        self._has_bars = True
        self._follow(count, drawn)
        if count != self._redraws.told:
            self._redraws.hold(self._record(line, epoch, drawn, epochs), count, drawn)
        elif drawn.postfix != self._redraws.postfix:
            self._redraws.postfix = drawn.postfix
            out += self._evaluated(line, self._step(epoch, drawn), drawn)
        return out

    def _follow(self, count: tuple[int, int], drawn: TitledBar) -> None:
        """Keep the time since the first epoch, which a bar counts anew with each."""
        epoch, told = count[0], self._redraws.told
        if told is not None and count < told:
            self._epoch_began_s, self._before = 0.0, 0
            self._has_stopped = False
        elif epoch > self._epoch:
            self._epoch_began_s += self._elapsed_s
            self._before += told[1] if told else 0
        self._epoch, self._elapsed_s = epoch, drawn.elapsed_s or 0.0

    def _step(self, epoch: int, drawn: TitledBar) -> int:
        return drawn.done + (self._before if drawn.total is None else epoch * drawn.total)

    def _record(self, line: Line, epoch: int, drawn: TitledBar, epochs: int | None) -> Record:
        fields: dict[str, float] = {"step": self._step(epoch, drawn), "epoch": epoch}
        if epochs is not None and drawn.total:
            fields |= {"target_steps": epochs * drawn.total, "epochs": epochs}
        if drawn.elapsed_s is not None:
            fields["elapsed_seconds"] = self._epoch_began_s + drawn.elapsed_s
        fields |= _values(drawn)
        # tqdm draws its bar once more when it is closed, after the trainer's last word.
        return Record(line.number, fields, stamp=line.stamp, closes=self._has_stopped and drawn.done == drawn.total)

    # Evaluations

    def _evaluating(self, line: Line) -> list[Record | Malformed]:
        if self._is_evaluating or not self._has_bars:
            return []
        self._is_evaluating, self._announced = True, ""
        starts = "Sanity Checking" in line.text
        if starts:
            self._redraws.begin()
        phase = Phase.STARTING if starts else Phase.EVALUATING
        return [Record(line.number, stamp=line.stamp, phase=phase, starts=starts)]

    def _evaluated(self, line: Line, step: int, drawn: TitledBar) -> list[Record | Malformed]:
        """The results of a validation, which then stay in the bar until the next one."""
        results = {key: printed for key, printed in drawn.pairs.items() if _EVALUATION.match(key) and key != self._announced}
        printed = str(results)
        is_shared = self._redraws.is_shared
        if not results or not (self._is_evaluating or (printed != self._results and not is_shared)):
            return []
        self._results, self._is_evaluating = printed, False
        fields, metrics = _results(results)
        return [Record(line.number, fields if is_shared else {"step": step, **fields}, metrics, stamp=line.stamp)]

    # Words

    def _words(self, line: Line, text: str) -> list[Record | Malformed] | None:
        if (found := _MONITORED.match(text)) is not None:
            return self._monitored(line, found)
        if _STOPPED.search(text):
            self._has_stopped = True
            return [Record(line.number, stamp=line.stamp, closes=True)]
        if (found := _SIGNALED.search(text)) is not None:
            is_shown = found["monitor"] in self._results or found["value"] is None
            fields, metrics = ({}, {}) if is_shown else _results({found["monitor"]: found["value"]})
            self._has_stopped = True
            return [Record(line.number, fields, metrics, stamp=line.stamp, closes=True)]
        if _RESTORED.match(text):
            self._redraws.begin()
            return [Record(line.number, stamp=line.stamp, starts=True)]
        return None

    def _monitored(self, line: Line, found: re.Match[str]) -> list[Record | Malformed]:
        """Where a bar counts batches, the number of optimizer steps beside it would be another clock."""
        fields: dict[str, float] = {} if self._has_bars else {"step": int(found["step"]), "epoch": int(found["epoch"])}
        metrics: dict[str, float] = {}
        if found["value"] and found["monitor"] not in self._results:
            more, metrics = _results({found["monitor"]: found["value"]})
            fields |= more
            self._announced = found["monitor"]
        news = Checkpoint(CheckpointEvent.STARTED, int(found["step"]), found["path"]) if found["path"] else None
        phase = Phase.CHECKPOINTING if news else None
        if not (fields or metrics or news):
            return []
        return [Record(line.number, fields, metrics, stamp=line.stamp, phase=phase, checkpoint=news)]


def _values(drawn: TitledBar) -> dict[str, float]:
    """Loss, learning rate and gradient norm of a bar."""
    fields: dict[str, float] = {}
    name = next((name for name in _LOSSES if name in drawn.pairs), None)
    if name is not None and (loss := value(drawn.pairs[name])) is not None:
        fields["loss"] = loss
    for key, printed in drawn.pairs.items():
        field = "learning_rate" if key.startswith("lr-") else _FIELDS.get(key)
        if field is not None and (read := value(printed)) is not None:
            fields.setdefault(field, read)
    return fields


def _results(printed: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    fields: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for key, text in printed.items():
        if (read := value(text)) is None:
            continue
        named = _EVALUATION.match(key)
        if key in _EVAL_LOSSES:
            fields["eval_loss"] = read
        elif named is not None and len(metrics) < MAX_METRICS:
            metrics[named["name"]] = read
    return fields, metrics


def _sniff(text: str) -> bool:
    if text.startswith("Sanity Checking DataLoader "):
        return titled_bar(text) is not None
    if text.startswith("Epoch ") and "it/s" in text:
        if "━" in text:
            return "oss" in text and _RICH.match(text) is not None
        return "v_num=" in text and "reduced_train_loss" not in text
    # NeMo 2 prints this too, of checkpoints that are directories.
    return text.startswith("Epoch ") and ", global step " in text and ".ckpt" in text and _MONITORED.match(text) is not None


FORMAT: Final = Format(
    name="lightning",
    summary="PyTorch Lightning: progress bars (tqdm, rich) and the trainer's messages",
    hints=(LOSS, SIGN),
    details=(b"Trainer", b"Restored all states", b"global step", "━".encode(), b"/? ["),
    sniff=_sniff,
    parser=Lightning,
)

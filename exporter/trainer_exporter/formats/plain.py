"""Lines written by hand, of any program that no other format knows: ``key: value``, ``key=value``, JSON lines.

    [2023-08-15 14:30:21] Step 500/10000 | Loss: 2.356 → 1.874 (Δ-0.482)
    lr: 5.00e-5 → 4.75e-5 (warmup_steps=500)
    grad_norm: 1.23 | max_grad: 0.56
    GPU-Util: 85% | Mem-Usage: 32GB/40GB | Power: 280W

``A → B`` is previous → current. A line without a step belongs to the last step of its stream. The same words stand in printed
configuration, source code and prose; so a first record needs a step and a loss on one line, and words that belong to no
pair must be few. ``train acc = 0.8750, training loss = 0.0312`` alone may come without a step. The GPU line is claimed and
says nothing: NVML is that source.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.decimals import is_printed
from trainer_exporter.formats.dicts import hidden_nonfinite
from trainer_exporter.formats.json_lines import loaded
from trainer_exporter.model import Line, Record
from trainer_exporter.numbers import NUMBER, integer, number

_ALIASES: Final[dict[str, str]] = {
    "loss": "loss",
    "train_loss": "loss",
    "train/loss": "loss",
    "training_loss": "loss",
    "total_loss": "loss",
    "lm_loss": "loss",
    "eval_loss": "eval_loss",
    "eval/loss": "eval_loss",
    "val_loss": "eval_loss",
    "val/loss": "eval_loss",
    "valid_loss": "eval_loss",
    "validation_loss": "eval_loss",
    "lr": "learning_rate",
    "train/lr": "learning_rate",
    "learning_rate": "learning_rate",
    "train/learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "train/grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "gnorm": "grad_norm",
    "loss_scale": "loss_scale",
    "epoch": "epoch",
    "samples/s": "samples_per_second",
    "samples/sec": "samples_per_second",
    "samples_per_sec": "samples_per_second",
    "samples_per_second": "samples_per_second",
    "tokens/s": "tokens_per_second",
    "tokens/sec": "tokens_per_second",
    "tok/s": "tokens_per_second",
    "tokens_per_sec": "tokens_per_second",
    "tokens_per_second": "tokens_per_second",
}
_STEPS: Final = ("step", "global_step", "iter", "iteration", "iterations", "train/global_step")
_MEASURED: Final = frozenset({"loss", "eval_loss", "grad_norm", "learning_rate"})
_IN_DECIMALS: Final = frozenset({"loss", "eval_loss", "grad_norm", "learning_rate"})  # else a digit of two is another process's
_WITHOUT_STEP: Final = frozenset({"grad_norm", "learning_rate"})

# As a program prints it: digits on both sides of the point.
_VALUE: Final = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?:[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?![A-Za-z]))"
_ARROW: Final = rf"(?: *(?:→|->|=>) *(?P<now>{_VALUE}))?"
_PAIR: Final = re.compile(
    r"(?<![\w/.@+-])['\"]?(?P<key>(?:global|train|training|val|valid|validation|eval|lm|total|grad|gradient|learning|loss)"
    r"[ -][a-z]+|[A-Za-z][\w/]*(?:-[A-Za-z]\w*)*)['\"]?"
    rf"(?: *[:=] *| +(?=\[?[\d.+-]*\d)| +(?=[+-]?(?:nan|inf)\b))['\"]?(?P<open>\[)?(?P<value>{_VALUE}[KM]?){_ARROW}"
    r"(?: */ *(?P<of>\d[\d,]*))?(?(open)\])"
    r"(?P<unit> ?(?:[KMGT]i?B(?:/\d+[KMGT]i?B)?|[munµ]?s|ms|sec(?:ond)?s?|MFU|%|W|it/s|s/it|[A-Za-z]+/s(?:ec)?(?! *[:=])))?"
    r"(?![\w.])['\"]?(?P<end>[^\s,;|)\]}(%/]| *[:=*]| +[-+]?\d)?",
    re.IGNORECASE,
)
_DELTA: Final = re.compile(rf"\((?:Δ|∆|d(?:elta)?) *=? *{NUMBER}\)")
_RATE: Final = re.compile(rf"(?<![\w.])({NUMBER}) ?(samples|tokens|tok)/s(?:ec)?\b(?! *[:=])")
_PATH: Final = re.compile(r"/(?!\w+ *[:=]? *\d)[A-Za-z]")  # behind a number; not "loss=0.5/acc=0.3"
# What stands behind a unit makes it the next name: "loss 2.31 s/it 0.5".
_NAME: Final = re.compile(r"[/\w]* *[:=]? *[-+]?\d")
_NO_LOSS: Final = "-1.00000"  # what torchtitan prints where there is none
_CODE: Final = re.compile(r"[a-z_]\(|\w\{|\{\w")  # a call, a constructor's print-out, a template
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
# One line an epoch or a task, without a number of either: the one shape in which a loss without a step is believed.
_RESULT: Final = re.compile(rf"^train acc = {NUMBER}, training loss = (?P<loss>{NUMBER})$")
_GPU: Final = re.compile(r"^gpu[- ]util(?:ization)? *[:=] *\d", re.IGNORECASE)
_STRAY_WORDS: Final = 3
_MAX_CHARACTERS: Final = 2000


class Plain:
    """One stream of a hand-written program's output."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._raw_step: int | None = None
        self._epoch: int | None = None
        self._first_epoch: int | None = None
        self._counts_within_epochs = False

    @property
    def wants_all(self) -> bool:
        return False

    def parse(self, line: Line) -> Reading | None:
        text = line.text.strip()
        if _GPU.match(text):
            return NOTHING if self._step is not None else None
        if (result := _RESULT.match(text)) is not None:
            return _result(line, result["loss"])
        return self._pairs(line, text)

    def flush(self) -> Reading:
        return NOTHING

    def _pairs(self, line: Line, text: str) -> Reading | None:
        if len(text) > _MAX_CHARACTERS or "%|" in text:  # a progress bar counts what it likes
            return None
        fields = _from_json(text) if text.startswith("{") else _from_pairs(text)
        if fields is None or not fields.keys() & _MEASURED:
            return None
        if "step" not in fields:
            return None if text.startswith("{") else self._attached(line, fields)
        if not fields.keys() & {"loss", "eval_loss"} and self._step is None:
            return None
        self._place(fields)
        return [_record(line, fields)]

    def _attached(self, line: Line, fields: dict[str, float]) -> Reading | None:
        if self._step is None or not fields.keys() & _WITHOUT_STEP or fields.keys() & {"loss", "eval_loss"}:
            return None
        return [_record(line, {"step": self._step, **fields})]

    def _place(self, fields: dict[str, float]) -> None:
        """Turn a step that starts anew with each epoch, ``Epoch 2 step 20/391``, into one that goes on."""
        step, total, epoch = int(fields["step"]), fields.get("target_steps"), fields.get("epoch")
        if epoch is not None and epoch.is_integer() and total:
            number_of_epoch = int(epoch)
            if self._epoch is not None and number_of_epoch == self._epoch + 1 and step < (self._raw_step or 0):
                self._counts_within_epochs = True
            if self._first_epoch is None:
                self._first_epoch = number_of_epoch
            self._raw_step, self._epoch = step, number_of_epoch
            if self._counts_within_epochs:
                step += (number_of_epoch - self._first_epoch) * int(total)
                del fields["target_steps"]
                fields["step"] = step
        self._step = step


def _result(line: Line, text: str) -> Reading | None:
    loss = number(text)
    return None if loss is None else [_record(line, {"loss": loss})]


def _record(line: Line, fields: dict[str, float]) -> Record:
    return Record(line.number, fields, stamp=line.stamp, hidden_nonfinite=hidden_nonfinite(fields))


def _from_json(text: str) -> dict[str, float] | None:
    try:
        found = loaded(text)
    except (ValueError, RecursionError):
        return None
    fields: dict[str, float] = {}
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        read = number(value) if isinstance(value, str) else float(value)
        _put(fields, key, read)
    return fields


def _from_pairs(text: str) -> dict[str, float] | None:
    if _CODE.search(text) or any(text.count(opened) != text.count(closed) for opened, closed in ("()", "[]")):
        return None
    fields: dict[str, float] = {}
    keys: set[str] = set()
    for found in _PAIR.finditer(text):
        key = _named(found["key"])
        if key in keys or not _is_one_writers(found, key):
            return None
        keys.add(key)
        _put(fields, key, number(found["now"] or found["value"]))
        if key in _STEPS and found["of"] and (total := integer(found["of"])):
            fields["target_steps"] = total
    if not fields or _stray_words(text) > (_STRAY_WORDS if "step" in fields else 0):
        return None
    for rate in _RATE.finditer(text):
        name = "samples_per_second" if rate[2] == "samples" else "tokens_per_second"
        if (read := number(rate[1])) is not None:
            fields.setdefault(name, read)
    return fields


def _is_one_writers(found: re.Match[str], key: str) -> bool:
    """Whether a pair ends as pairs do, and its number is one that a program prints of this key; else two processes wrote it."""
    is_place = key in _STEPS or key == "epoch"
    if found["end"] and not (is_place and found["end"] in (":", " -")):
        return False
    if is_place:
        return not found["unit"]
    if _ALIASES.get(key) not in _IN_DECIMALS:
        return True
    has_unit = found["unit"] is not None and _NAME.match(found.string, found.end("unit")) is None
    if has_unit or _PATH.match(found.string, found.end()) or found["value"] == _NO_LOSS:
        return False
    texts = (found["value"], found["now"])
    return all(text is None or (is_printed(text) and text[-1] not in "KM" and (not text.isdigit() or text == "0")) for text in texts)


def _stray_words(text: str) -> int:
    rest = _RATE.sub(" ", _DELTA.sub(" ", _PAIR.sub(" ", text)))
    return len(_WORD.findall(rest))


def _named(key: str) -> str:
    return key.lower().replace(" ", "_").replace("-", "_")


def _put(fields: dict[str, float], key: str, value: float | None) -> None:
    name = _named(key)
    if value is None:
        return
    if name in _STEPS:
        if value >= 0 and value.is_integer():
            fields.setdefault("step", int(value))
    elif name in _ALIASES:
        fields.setdefault(_ALIASES[name], value)


def _sniff(text: str) -> bool:
    return Plain().parse(Line(text, 0)) is not None


FORMAT: Final = Format(
    name="plain",
    summary="hand-written lines: key: value, key=value and JSON lines with the usual names",
    hints=(LOSS,),
    details=(b"lr", b"LR", b"norm", b"earning", b"GPU-Util"),
    sniff=_sniff,
    parser=Plain,
    fallback=True,
)

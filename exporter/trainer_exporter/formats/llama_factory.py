"""LLaMA-Factory's own files, 0.6 to 0.9.5 and its v1 trainer: ``trainer_log.jsonl`` and the web UI's ``running_log.txt``.

    {"current_steps": 40, "total_steps": 2436, "loss": 1.2034, "lr": 4.9e-05, "epoch": 0.05, "percentage": 1.64, ...}
    [INFO|2025-06-01 10:11:12] logging.py:143 >> {'loss': 0.1234, 'learning_rate': 5.0000e-05, 'epoch': 0.12}
    loss: 1.2345, grad_norm: 0.4321, learning_rate: 1e-05, step: 10, total_steps: 100

The console of 0.x is the Trainer's (``hf_trainer``). ``throughput`` is a mean over the session and is not read. Two processes
may write the same file. The last line has no loss; it is the closing word.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from trainer_exporter.formats.announcements import RUNNING, Announcements
from trainer_exporter.formats.base import LOSS, NOTHING, BlockReading, Format, Reading
from trainer_exporter.formats.dicts import hidden_nonfinite, pairs, training_fields
from trainer_exporter.formats.epochs import EpochMark, StepsFromEpochs
from trainer_exporter.formats.wholeness import Always
from trainer_exporter.model import Checkpoint, CheckpointEvent, Column, Line, Malformed, Record, Table
from trainer_exporter.numbers import NUMBER, duration, durations, number

_FIELDS: Final = {
    "current_steps": "step",
    "step": "step",
    "total_steps": "target_steps",
    "loss": "loss",
    "eval_loss": "eval_loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "total_tokens": "total_tokens",
}
_decode: Final = json.JSONDecoder().raw_decode
_OPENING: Final = '{"current_steps": '
_PLACE: Final = frozenset({"learning_rate", "epoch"})
_LOSS: Final = '"loss": '
_NO_OBJECT: Final = re.compile(rf"^(?!{re.escape(_OPENING)}[^{{}}\r\n]*\}}$)", re.MULTILINE)
_TRIES: Final = 3  # to read a block that is not whole
_DURATIONS: Final = {"elapsed_time": "elapsed_seconds", "remaining_time": "remaining_seconds"}
_V1_LINE: Final = re.compile(rf"^(?:[\w/ .()-]+: {NUMBER}, )+step: \d+, total_steps: \d+$")
_V1_PAIR: Final = re.compile(rf"([\w/.()-]+): ({NUMBER})")
_V1_SAVED: Final = re.compile(r"^Checkpoint saved to (?P<path>\S+)$")
_V1_RESUMED: Final = re.compile(r"^Resumed from checkpoint: step=(?P<step>\d+), epoch=\d+")
_LOGGED: Final = re.compile(r"^(?:llamafactory[\w.]*|\w+\.py):\d+ >> ?(?P<text>.*)$")
_PLAIN: Final = frozenset({int, float})  # and no bool
_TRAILING_NUMBER: Final = re.compile(r"-(\d+)$")


class LlamaFactory:
    """One of LLaMA-Factory's files, or the console of its v1 trainer."""

    def __init__(self) -> None:
        self._epochs = StepsFromEpochs()
        self._announcements = Announcements(self._epochs)
        self._time = Always()  # in a line of JSON
        self._place = Always()  # learning rate and epoch, in one with a loss

    @property
    def wants_all(self) -> bool:
        return self._announcements.wants_all

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if text.startswith("{"):
            return self._json_line(line) if _is_json_line(text) else None
        if (logged := _LOGGED.match(text)) is not None:
            return self._logged(line, logged["text"])
        if _V1_LINE.match(text):
            return [_record(line, dict(_V1_PAIR.findall(text)))]
        said = _v1_checkpoint(line)
        return self._announcements.read(line, text) if said is None else said

    def parse_block(self, text: str, first: int) -> tuple[int, BlockReading]:
        if self.wants_all:
            return 0, NOTHING
        columns = _columns(_documents(text))
        count = min(map(len, columns.values()), default=0)
        if not count or not columns.keys() >= {"step", "loss"} or "eval_loss" in columns:
            return 0, NOTHING  # a closing word has no loss
        is_timed, is_placed = "elapsed_seconds" in columns, columns.keys() >= _PLACE
        if (self._time.is_usual and not is_timed) or (self._place.is_usual and not is_placed):
            return 0, NOTHING
        self._time.is_whole(has_it=is_timed)
        self._place.is_whole(has_it=is_placed)
        told = {name: Column(range(count), values[:count]) for name, values in columns.items()}
        return count, [Table(range(first, first + count), told, precise=True)]

    def flush(self) -> Reading:
        return NOTHING

    def _json_line(self, line: Line) -> Reading:
        said = _json_line(line)
        fields = said[0].fields if isinstance(said[0], Record) and line.text.startswith(_OPENING) else {}
        is_whole = not fields or self._time.is_whole(has_it="elapsed_seconds" in fields)
        if "loss" in fields:
            is_whole = self._place.is_whole(has_it=fields.keys() >= _PLACE) and is_whole
        return said if is_whole else [Malformed(line.number, "truncated")]

    def _logged(self, line: Line, text: str) -> Reading | None:
        if not text.startswith("{'loss': "):
            return self._announcements.read(line, text)
        fields = training_fields(pairs(text))
        if "epoch" not in fields or not text.endswith("}"):
            return [Malformed(line.number, "truncated")]
        self._announcements.end_block()
        step, is_exact = self._epochs.steps([EpochMark(fields["epoch"], is_significant=False)])[0]
        if step is not None:
            fields = {"step": step, **fields}
        hidden = hidden_nonfinite(fields)
        return [Record(line.number, fields, stamp=line.stamp, hidden_nonfinite=hidden, step_exact=is_exact or step is None)]


def _is_json_line(text: str) -> bool:
    return text.startswith(_OPENING) or ('"total_steps": ' in text and '"step": ' in text)


def _json_line(line: Line) -> Reading:
    try:
        found, end = _decode(line.text)  # json.loads without its looks at what can surround a document
    except (ValueError, RecursionError):
        return [Malformed(line.number, "json")]
    if end != len(line.text) or line.text.count(_LOSS) > 1:
        return [Malformed(line.number, "json")]
    record = _record(line, found, precise=True)
    return [record] if "step" in record.fields else [Malformed(line.number, "no_step")]


def _documents(text: str) -> list[dict[str, object]]:
    """What the first of these lines hold, as far as all are objects of the same keys."""
    text = _alike(text)
    found = _loaded(text)
    if text.count(_LOSS) != sum("loss" in document for document in found):
        return []  # one has it twice, or some could not be read
    if len({*map(tuple, found)}) > 1:
        keys = tuple(found[0])
        return [*takewhile(lambda document: tuple(document) == keys, found)]
    return found


def _alike(text: str) -> str:
    """The first of these lines, as far as each begins and ends with a brace, and no other opens in it."""
    between = text.count("}\n" + _OPENING)
    is_whole = text.startswith(_OPENING) and text.endswith("}\n") and "\r" not in text
    if is_whole and text.count("\n") == text.count("{") == between + 1:
        return text
    odd = _NO_OBJECT.search(text)
    return text if odd is None else text[: odd.start()]


def _loaded(text: str) -> list[dict[str, object]]:
    """The objects of such lines, or the first of them. No string goes on from one line to the next, because each begins with a name."""
    for _ in range(_TRIES):
        try:
            found: list[dict[str, object]] = json.loads(f"[{text[:-1].replace(chr(10), ',')}]")
        except json.JSONDecodeError as error:
            text = text[: text.rfind("\n", 0, error.pos - 1) + 1]
        except (ValueError, RecursionError):
            break
        else:
            return found
    return []


def _columns(documents: Sequence[dict[str, object]]) -> dict[str, Sequence[float]]:
    """Of each field the values that ``_record`` reads, up to the first line where one is no plain number, or tells more than itself."""
    columns: dict[str, Sequence[float]] = {}
    for key in documents[0] if documents else ():
        name = _FIELDS.get(key) or _DURATIONS.get(key)
        if name in columns:
            return {}
        if name:
            values = [document[key] for document in documents]
            columns[name] = _plain(durations(_texts(values)) if key in _DURATIONS else values)
    norms, losses = columns.get("grad_norm", ()), columns.get("loss", ())
    if not math.isfinite(sum(norms)):
        hidden = (at for at, (loss, norm) in enumerate(zip(losses, norms)) if hidden_nonfinite({"loss": loss, "grad_norm": norm}))  # noqa: B905
        columns["loss"] = losses[: next(hidden, None)]
    return columns


def _texts(values: Sequence[object]) -> Sequence[str]:
    """The values up to the first that is no text."""
    return values if {*map(type, values)} == {str} else [*takewhile(lambda value: type(value) is str, values)]  # type: ignore[return-value,list-item]  # it says so


def _plain(values: Sequence[object]) -> Sequence[float]:
    """The values up to the first that is no plain number."""
    return values if {*map(type, values)} <= _PLAIN else [*takewhile(lambda value: type(value) in _PLAIN, values)]  # type: ignore[return-value,list-item]  # idem


def _record(line: Line, found: dict[str, object], *, precise: bool = False) -> Record:
    fields: dict[str, float] = {}
    for key, value in found.items():
        name = _FIELDS.get(key)
        if name is not None:
            if (read := value if type(value) in _PLAIN else _value(value)) is not None:
                fields[name] = read  # type: ignore[assignment]  # the types say so
        elif key in _DURATIONS and value is not None and (seconds := duration(str(value))) is not None:
            fields[_DURATIONS[key]] = seconds
    hidden = hidden_nonfinite(fields)
    return Record(line.number, fields, stamp=line.stamp, hidden_nonfinite=hidden, closes=_closes(fields), precise=precise)


def _value(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return number(value) if isinstance(value, str) else None


def _closes(fields: dict[str, float]) -> bool:
    is_last = fields.get("step") == fields.get("target_steps") and "epoch" in fields
    return is_last and "loss" not in fields and "eval_loss" not in fields and "learning_rate" not in fields


def _v1_checkpoint(line: Line) -> Reading | None:
    if (saved := _V1_SAVED.match(line.text)) is not None:
        path = saved["path"]
        numbered = _TRAILING_NUMBER.search(path)
        news = Checkpoint(CheckpointEvent.FINISHED, int(numbered[1]) if numbered else None, path)
        facts = {"output_dir": posixpath.dirname(path)} if "/" in path else {}
        return [Record(line.number, facts=facts, stamp=line.stamp, checkpoint=news)]
    if (resumed := _V1_RESUMED.match(line.text)) is not None:
        return [Record(line.number, {"step": int(resumed["step"])}, stamp=line.stamp)]
    return None


def _sniff(text: str) -> bool:
    if text.startswith("{"):
        return "oss" in text and _is_json_line(text)
    if ", total_steps: " in text:
        return _V1_LINE.match(text) is not None
    logged = _LOGGED.match(text)
    return logged is not None and ("***** Running " in text or logged["text"].startswith("{'loss': "))


FORMAT: Final = Format(
    name="llama_factory",
    summary="LLaMA-Factory: trainer_log.jsonl, running_log.txt, and the console of its v1 trainer",
    hints=(LOSS, RUNNING),
    details=(b"current_steps", b"heckpoint"),
    sniff=_sniff,
    parser=LlamaFactory,
)

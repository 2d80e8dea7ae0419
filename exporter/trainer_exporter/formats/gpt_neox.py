"""EleutherAI's gpt-neox, v1 and v2, on DeepSpeed.

     samples/sec: 311.204 | iteration      700/  143000 | elapsed time per iteration (ms): 3290.4 | ... | lm_loss: 3.123400E+00 | ...

Odd: its arguments are printed between the dashes that Megatron v1 used, but each line ends with ``updated`` or ``default``. The engine's
own lines between tell the same steps with fewer digits and are left alone. Rank 0 prints, and a NaN is printed as one. The evaluation
before the first step says ``iteration 0`` after a resume too. The time of a step holds the evaluation and the save in it.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_exporter.formats.base import LOSS, NOTHING, Format, Reading
from trainer_exporter.formats.engine import Engine
from trainer_exporter.formats.wholeness import Forms
from trainer_exporter.model import Line, Malformed, Phase, Record
from trainer_exporter.numbers import NUMBER, moment, number

_HEAD: Final = re.compile(rf" {{0,2}}samples/sec: (?P<rate>{NUMBER}) \| iteration +(?P<step>\d{{1,15}})/ *(?P<total>\d{{1,15}}) \|")
_GLUED: Final = re.compile(_HEAD.pattern.removeprefix(" {0,2}"))
_FIELDS: Final[dict[str, tuple[str, float]]] = {
    " elapsed time per iteration (ms)": ("step_duration_seconds", 1000.0),
    " learning rate": ("learning_rate", 1.0),
    " loss scale": ("loss_scale", 1.0),
    " grad norm": ("grad_norm", 1.0),
    " number of skipped iterations": ("skipped_steps", 1.0),
    " number of nan iterations": ("nonfinite_steps", 1.0),
}
_LOSS: Final = re.compile(r" \w*loss\w*")
_FLOPS: Final = re.compile(r"(?P<value>\d+\.\d)(?P<unit>[KMGTPEZ]?)FLOPS")
_SCALES: Final = {"": 1e-12, "K": 1e-9, "M": 1e-6, "G": 1e-3, "T": 1.0, "P": 1e3, "E": 1e6, "Z": 1e9}
_RESULTS: Final = re.compile(
    r"^ *(?P<set>\w+) results at (?:iteration (?P<step>\d{1,15})|the end of training for (?:val|test) data) \|(?P<fields>.*)$"
)
_RESULT: Final = re.compile(r" (\w+) value: (\S+) \|")
_LOADED: Final = re.compile(r"^ *Loading checkpoint and starting from iteration (?P<step>\d{1,15})")
_EXIT: Final = re.compile(r"^rank: \d+ \| time: (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| exiting the program at iteration \d+")
_PADDED: Final = re.compile(r"^ *> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (?P<size>\d{1,15})\)")

_DUMP_BEGIN: Final = re.compile(r"^-{20} arguments -{20}$")
_DUMP_END: Final = re.compile(r"^-{16} end of arguments -{16}$")
_ARGUMENT: Final = re.compile(r"^  (?P<name>\w+) \.{3,} (?P<value>.*?)\.*(?:updated|default)$")
_OTHERS_ARGUMENT: Final = re.compile(r"^  \w+ \.{3,} ")
_ARGUMENTS: Final = {"seq_length": "sequence_length", "train_batch_size": "global_batch_size", "train_iters": "target_steps"}
_DUMP_LINES: Final = 2000


class GptNeox:
    """The output of rank 0, or of all ranks in one file."""

    def __init__(self) -> None:
        self._wanted = 0  # lines of the dump still to come
        self._constants: dict[str, float] = {}
        self._facts: dict[str, str] = {}
        self._step: int | None = None
        self._is_certain = False  # Megatron v1's dump begins alike
        self._engine = Engine()
        self._forms = Forms()

    @property
    def wants_all(self) -> bool:
        return self._wanted > 0

    def parse(self, line: Line) -> Reading | None:
        text = line.text
        if (head := _HEAD.match(text)) is not None:
            return [self._iteration(line, head)]
        if self._wanted:
            self._wanted -= 1
            if (said := self._argument(line)) is not None:
                return said
        if _DUMP_BEGIN.match(text):
            self._wanted, self._constants, self._facts, self._step = _DUMP_LINES, {}, {}, None
            return NOTHING
        return self._other(line) if self._is_certain else None

    def flush(self) -> Reading:
        return NOTHING

    def _iteration(self, line: Line, head: re.Match[str]) -> Record | Malformed:
        for glued in _GLUED.finditer(line.text, head.end()):
            head, line = glued, line._replace(stamp=None)  # another line has begun behind half of this one
        fields: dict[str, float] = {"step": int(head["step"]), "target_steps": int(head["total"])}
        if (rate := number(head["rate"])) is not None:
            fields["samples_per_second"] = rate
        for piece in line.text[head.end() :].split("|")[:-1]:  # what has no bar behind it is torn
            printed, _, value = piece.rpartition(": ")
            _put(fields, printed, value.strip())
        if len(fields) <= 3 or not self._forms.is_whole(line.text[head.end() :]):
            return Malformed(line.number, "truncated")
        if fields.get("loss") == 0.0 and fields.get("skipped_steps", 0.0) > 0.0:
            del fields["loss"]  # the mean over no iteration at all
        self._wanted, self._step, self._is_certain = 0, int(fields["step"]), True
        return Record(line.number, fields, stamp=line.stamp)

    def _argument(self, line: Line) -> Reading | None:
        if _DUMP_END.match(line.text) and self._is_certain:
            self._wanted = 0
            return [Record(line.number, self._constants, facts=self._facts, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        found = _ARGUMENT.match(line.text)
        if found is None:
            if _OTHERS_ARGUMENT.match(line.text):
                self._wanted = 0  # Megatron v1's dump
            return None
        self._is_certain = True
        name, value = found["name"], found["value"].strip()
        if name in _ARGUMENTS and (read := number(value)) is not None:
            self._constants[_ARGUMENTS[name]] = read
        elif name == "save" and value != "None":
            self._facts = {"output_dir": value}
        return NOTHING

    def _other(self, line: Line) -> Reading | None:
        text = line.text
        if " results at " in text:
            found = _RESULTS.match(text)
            return None if found is None else [self._results(line, found)]
        if (found := _LOADED.match(text)) is not None:
            self._step = int(found["step"])
            return [Record(line.number, {"step": self._step}, stamp=line.stamp)] if self._step else NOTHING
        if (found := _PADDED.match(text)) is not None:
            return [Record(line.number, {"vocabulary_size": int(found["size"])}, stamp=line.stamp)]
        if (found := _EXIT.match(text)) is not None:
            return [Record(line.number, stamp=line.stamp or moment(found["time"]), closes=True)]
        return self._engine.save(line) if "heckpoint" in text else None

    def _results(self, line: Line, found: re.Match[str]) -> Record:
        fields: dict[str, float] = {}
        metrics: dict[str, float] = {}
        step = int(found["step"]) if found["step"] else self._step
        if step and step >= (self._step or 0):
            fields["step"] = step
        for name, value in _RESULT.findall(found["fields"]):
            read = number(value)
            if read is None or name.endswith("_ppl"):
                continue
            if name == "lm_loss" and found["set"] == "validation":
                fields["eval_loss"] = read
            else:
                metrics[name if found["set"] == "validation" else f"{found['set']}_{name}"] = read
        is_last = found["set"] == "test" and not found["step"]
        return Record(line.number, fields, metrics, stamp=line.stamp, closes=is_last)


def _put(fields: dict[str, float], printed: str, value: str) -> None:
    if (known := _FIELDS.get(printed)) is not None:
        if (read := number(value)) is not None:
            fields[known[0]] = read / known[1]
    elif printed == " approx flops per GPU":
        if (flops := _FLOPS.fullmatch(value)) is not None:
            fields["tflops_per_gpu"] = float(flops["value"]) * _SCALES[flops["unit"]]
    elif printed == " MFU":
        if value.endswith("%") and (share := number(value[:-1])) is not None:
            fields["mfu_ratio"] = share / 100
    elif (read := number(value)) is not None and (printed == " lm_loss" or ("loss" not in fields and _LOSS.fullmatch(printed))):
        fields["loss"] = read


def _sniff(text: str) -> bool:
    if " arguments ---" in text:
        return _DUMP_BEGIN.match(text) is not None
    return "samples/sec: " in text and "oss" in text and _HEAD.match(text) is not None


FORMAT: Final = Format(
    name="gpt_neox",
    summary="EleutherAI's gpt-neox",
    hints=(LOSS, b" arguments ---"),
    details=(b"heckpoint ", b" > padded vocab", b"exiting the program"),
    sniff=_sniff,
    parser=GptNeox,
)

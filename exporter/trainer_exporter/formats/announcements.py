"""What the Hugging Face Trainer announces around training, in words (``log_level: info``): counts, checkpoints, phases."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

from trainer_exporter.formats.engine import failed_save
from trainer_exporter.formats.epochs import StepsFromEpochs
from trainer_exporter.model import Checkpoint, CheckpointEvent, Line, Phase, Record
from trainer_exporter.numbers import integer

RUNNING: Final = b"***** Running "
TRAINING: Final = "***** Running training *****"
UNSLOTH: Final = b"((====))"  # the first line of its banner, which stands in the header's place; loading a model prints one too

_COUNT: Final = re.compile(
    r"^ *(?:(?P<examples>Num examples)|(?P<epochs>Num Epochs)|(?P<steps_per_epoch>Num update steps per epoch)"
    r"|(?P<batch>Total train batch size \([^)]*\))|(?P<total>Total optimization steps)"
    r"|Number of trainable parameters|Instantaneous batch size per device|Gradient Accumulation steps|Batch size)"
    r" = (?P<count>[\d,]+)$"
)
_BANNER: Final = re.compile(
    r"[\\/|^ ]+ Num examples = (?P<examples>[\d,]+) \| Num Epochs = (?P<epochs>[\d,]+) \| Total steps = (?P<total>[\d,]+)$"
)
_BANNER_BATCH: Final = re.compile(
    r"[\\/ ]+(?:Data Parallel GPUs = (?P<gpus>\d{1,15}) \| )?Total batch size \([\dx ]+\) = (?P<batch>[\d,]+)$"
)
_RESUMED: Final = re.compile(r"global step (?P<step>\d{1,15})$")
_SAVING: Final = re.compile(r"^ *Saving model checkpoint to (?P<path>\S.*)$")
_NUMBERED: Final = re.compile(r"^checkpoint-(\d{1,15})$")
_BLOCK: Final = re.compile(r"^\*{5} \w+ metrics \*{5}$|^  (?:train|eval|predict)_\w+ +=\s+\S+$")
_UNSLOTH_LINES: Final = 12
_ENDED: Final = ("Training completed. Do not forget to share your model", "Training completed! Saving trained model to ")  # Axolotl's


class Announcements:
    """Reads announcements; counts of steps go to ``epochs`` too. After a header it wants every line of the block."""

    def __init__(self, epochs: StepsFromEpochs) -> None:
        self._epochs = epochs
        self._block_lines = 0
        self.total: int | None = None

    @property
    def wants_all(self) -> bool:
        """Within the block that follows a header: 8 to 10 lines, those of other ranks may stand between them."""
        return self._block_lines > 0

    def read(self, line: Line, text: str) -> list[Record] | None:
        """The records of an announcement, none for one without news; None when the text is no announcement."""
        if self._block_lines:
            self._block_lines -= 1
        if "*****" in text:
            return self._header(line, text)
        if (count := _COUNT.match(text)) is not None:
            return self._count(line, count)
        return self._banner(line, text) if "\\" in text or "((" in text else _in_words(line, text)

    def end_block(self) -> None:
        """The trainer has begun to work: no more counts will come."""
        self._block_lines = 0

    def _banner(self, line: Line, text: str) -> list[Record] | None:
        if is_unsloth(text):
            self._block_lines = _UNSLOTH_LINES
            return []
        if (found := _BANNER.match(text)) is not None:
            self.total = None
            for name in ("examples", "epochs", "total"):
                self._tell(name, integer(found[name]))
            fields = {"target_steps": self.total, "epochs": integer(found["epochs"])}
            return [Record(line.number, _known(fields), stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if (found := _BANNER_BATCH.match(text)) is None:
            return None
        batch = integer(found["batch"])
        self._tell("batch", batch)
        fields = {"global_batch_size": batch, "world_size": integer(found["gpus"] or "")}
        return [Record(line.number, _known(fields), stamp=line.stamp)]

    def _tell(self, name: str, value: int | None) -> None:
        if value is None:
            return
        _TELL[name](self._epochs, value)
        if name == "total":
            self.total = value

    def _header(self, line: Line, text: str) -> list[Record] | None:
        if TRAINING in text:
            self._block_lines = 40
            self.total = None
            return [Record(line.number, stamp=line.stamp, phase=Phase.STARTING, starts=True)]
        if "***** Running " in text and text.rstrip().endswith("*****"):
            return [Record(line.number, stamp=line.stamp, phase=Phase.EVALUATING)]
        return [] if _BLOCK.match(text) else None

    def _count(self, line: Line, found: re.Match[str]) -> list[Record]:
        value = integer(found["count"])
        if value is None:
            return []
        name = next((key for key in _TELL if found[key]), None)
        if name is None:
            return []
        self._tell(name, value)
        field = {"total": "target_steps", "batch": "global_batch_size", "epochs": "epochs"}.get(name)
        return [Record(line.number, {field: value}, stamp=line.stamp)] if field else []


_TELL: Final[dict[str, Callable[[StepsFromEpochs, int], None]]] = {
    "examples": lambda epochs, value: epochs.announce(examples=value),
    "epochs": lambda epochs, value: epochs.announce(epochs=value),
    "steps_per_epoch": lambda epochs, value: epochs.announce(steps_per_epoch=value),
    "batch": lambda epochs, value: epochs.announce(batch=value),
    "total": lambda epochs, value: epochs.announce(total=value),
}


def _in_words(line: Line, text: str) -> list[Record] | None:
    if (saving := _SAVING.match(text)) is not None:
        return [_saved(line, saving["path"].strip())]
    if "global step" in text and (resumed := _RESUMED.search(text)) is not None:
        return [Record(line.number, {"step": int(resumed["step"])}, stamp=line.stamp)]
    if any(words in text for words in _ENDED):
        return [Record(line.number, stamp=line.stamp, closes=True)]
    return [] if _BLOCK.match(text) else failed_save(line._replace(text=text))


def is_unsloth(text: str) -> bool:
    """Whether this is the first line of Unsloth's banner."""
    return text.startswith("==((====))==") and "Unsloth" in text


def _known(values: dict[str, int | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _saved(line: Line, path: str) -> Record:
    """Only the start of a save is printed, never its end. The final save, into output_dir itself, is no checkpoint."""
    numbered = _NUMBERED.match(posixpath.basename(path.rstrip("/")))
    if numbered is None:
        return Record(line.number, facts={"output_dir": path}, stamp=line.stamp)
    news = Checkpoint(CheckpointEvent.STARTED, int(numbered[1]), path)
    facts = {"output_dir": posixpath.dirname(path.rstrip("/"))} if "/" in path else {}
    return Record(line.number, facts=facts, stamp=line.stamp, phase=Phase.CHECKPOINTING, checkpoint=news)

"""mtail's programs for the logs of the bench: short ones, and those that find all that the exporter reads in such a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

NUMBER = r"([-+0-9.eE]+)"
CLOCK = r"(\d+):(\d+):(\d+)"
SECONDS = "$1 * 3600 + $2 * 60 + $3"


class Find(NamedTuple):
    """A pattern, what its groups are, and what is looked for only in a line that it has matched."""

    pattern: str
    gauges: Mapping[str, str]  # what each is set to, by name
    inside: Sequence[Find] = ()

    @property
    def names(self) -> Iterator[str]:
        """Of all gauges that are set in here."""
        yield from self.gauges
        for one in self.inside:
            yield from one.names

    def written(self, indent: str = "") -> str:
        """In mtail's language."""
        said = "".join(f"{indent}  {name} = {value}\n" for name, value in self.gauges.items())
        said += "".join(one.written(f"{indent}  ") for one in self.inside)
        return f"{indent}/{self.pattern}/ {{\n{said}{indent}}}\n"


def program(*finds: Find) -> str:
    """A whole program."""
    return "".join(f"gauge {name}\n" for find in finds for name in find.names) + "".join(find.written() for find in finds)


def each(*patterns: str) -> str:
    """A program that looks for each of these in every line."""
    return program(*(Find(pattern, {f"figure_{place}": "$1"}) for place, pattern in enumerate(patterns)))


def _one(name: str, pattern: str) -> Find:
    return Find(pattern, {name: "$1"})


# What stands only in lines of metrics is looked for in those alone.
ALL_OF_MEGATRON = program(
    Find(
        r"iteration +(\d+)\/ *(\d+) \|",
        {"step": "$1", "target_steps": "$2"},
        [
            _one("samples", r"consumed samples: +(\d+)"),
            _one("milliseconds", rf"elapsed time per iteration \(ms\): {NUMBER}"),
            _one("tflops", rf"throughput per GPU \(TFLOP\/s\/GPU\): {NUMBER}"),
            _one("learning_rate", rf"learning rate: {NUMBER}"),
            _one("batch", r"global batch size: +(\d+)"),
            _one("loss", rf"lm loss: {NUMBER}"),
            _one("loss_scale", rf"loss scale: {NUMBER}"),
            _one("grad_norm", rf"grad norm: {NUMBER}"),
            _one("skipped", r"number of skipped iterations: +(\d+)"),
            _one("not_finite", r"number of nan iterations: +(\d+)"),
        ],
    )
)
ALL_OF_HF_CONSOLE = program(
    Find(  # the last bar of the line is the one that tells the step
        rf".*\| *(\d+)\/(\d+) \[{CLOCK}<{CLOCK}",
        {"step": "$1", "target_steps": "$2", "elapsed": "$3 * 3600 + $4 * 60 + $5", "remaining": "$6 * 3600 + $7 * 60 + $8"},
    ),
    Find(
        rf"\{{'loss': '?{NUMBER}",
        {"loss": "$1"},
        [
            _one("grad_norm", rf"'grad_norm': '?{NUMBER}"),
            _one("learning_rate", rf"'learning_rate': '?{NUMBER}"),
            _one("epoch", rf"'epoch': '?{NUMBER}"),
        ],
    ),
)
ALL_OF_JSONL = program(
    Find(
        r"\"current_steps\": (\d+), \"total_steps\": (\d+)",
        {"step": "$1", "target_steps": "$2"},
        [
            _one("loss", rf"\"loss\": {NUMBER}"),
            _one("learning_rate", rf"\"lr\": {NUMBER}"),
            _one("epoch", rf"\"epoch\": {NUMBER}"),
            Find(rf"\"elapsed_time\": \"{CLOCK}\"", {"elapsed": SECONDS}),
            Find(rf"\"remaining_time\": \"{CLOCK}\"", {"remaining": SECONDS}),
        ],
    )
)
ALL_OF_VERL = program(
    Find(
        r" step:(\d+) - ",
        {"step": "$1"},
        [
            _one("loss", rf"actor\/pg_loss:{NUMBER}"),
            _one("grad_norm", rf"actor\/grad_norm:{NUMBER}"),
            _one("learning_rate", rf"actor\/lr:{NUMBER}"),
        ],
    )
)

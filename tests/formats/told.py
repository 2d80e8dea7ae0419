"""What a file of a few lines says, for tests that write the lines themselves."""

from __future__ import annotations

from trainer_exporter.formats import registry
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Record


def records(*lines: str) -> list[Record]:
    """What a file of these lines says."""
    intake = Intake(registry())
    data = "".join(f"{line}\n" for line in lines).encode()
    said = [*intake.feed(Chunk(data, 1, 0.0, live=False)), *intake.flush()]
    return [one for one in said if isinstance(one, Record)]

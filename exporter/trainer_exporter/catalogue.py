"""All formats that a daemon knows: those of its configuration, then those of the package. Part of the composition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_exporter.config import Config
from trainer_exporter.errors import ConfigError
from trainer_exporter.formats import Format, registry
from trainer_exporter.formats.user import build
from trainer_exporter.intake import Intake
from trainer_exporter.model import Chunk, Record
from trainer_exporter.regular import start_of

_HEAD_BYTES: Final = 64 << 10


def catalogue(config: Config) -> tuple[Format, ...]:
    """The formats in the order in which they are asked; ConfigError where a name is taken, or a source names a format that is not there."""
    known = registry()
    taken = {one.name for one in known}
    for number, spec in enumerate(config.formats):
        if spec.name in taken:
            raise ConfigError(
                config.file, f"formats[{number}].name", found=repr(spec.name), expected="a name that no format of trainer-exporter has"
            )
    found = (*map(build, config.formats), *known)
    for number, source in enumerate(config.sources):
        if source.format:
            chosen(found, source.format, file=config.file, key=f"sources[{number}].format")
    return found


def chosen(formats: Sequence[Format], name: str, *, file: str, key: str) -> tuple[Format, ...]:
    """The one format of this name; ConfigError where there is none."""
    found = tuple(one for one in formats if one.name == name)
    if not found:
        raise ConfigError(file, key, found=repr(name), expected="one of " + ", ".join(sorted(one.name for one in formats)))
    return found


def is_private(path: str, formats: Sequence[Format]) -> bool:
    """Whether a private format reads something at the beginning of this file: then it is a log, whatever it is called."""
    private = [one for one in formats if one.private]
    if not private:
        return False
    chunk = Chunk(_head(path), 1, 0.0, live=False)
    return any(isinstance(event, Record) for event in Intake(private).feed(chunk))


def _head(path: str) -> bytes:
    """The first whole lines of a file; none of what is no file, or cannot be read."""
    try:
        data = start_of(path, _HEAD_BYTES)
    except OSError:
        return b""
    return data[: data.rfind(b"\n") + 1]

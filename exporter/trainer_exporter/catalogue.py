"""All formats that a daemon knows: those of its configuration, then those of the package. Part of the composition."""

from __future__ import annotations

from collections.abc import Sequence

from trainer_exporter.config import Config
from trainer_exporter.errors import ConfigError
from trainer_exporter.formats import Format, registry
from trainer_exporter.formats.user import build


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

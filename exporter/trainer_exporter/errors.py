"""The exceptions of this program; each says what the user can do next."""

from __future__ import annotations


class TrainerExporterError(Exception):
    """Stops the command with its message and exit code 2; never shown with a traceback."""


class ConfigError(TrainerExporterError):
    """A configuration that cannot be used, told in four parts: file, path of the key, found, expected."""

    def __init__(self, file: str, key: str, *, found: str, expected: str) -> None:
        self.file = file
        self.key = key
        self.found = found
        self.expected = expected
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in key)  # a key may hold a line end, and anything else
        where = f"{file}: {shown}" if key else file
        super().__init__(f"{where}: found {found}, expected {expected}")


class GpuError(TrainerExporterError):
    """The driver failed to answer (as opposed to "this card cannot say", which is None)."""

    def __init__(self, call: str, code: int, message: str) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call}: NVML error {code} ({message})")

"""The configuration: frozen values with defaults that work on one machine, and a loader whose errors say what to do. Only importer of yaml.

A loaded configuration is a usable one: everything that can be wrong with it is told here, in four parts (file, key, found, expected).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from trainer_exporter.errors import ConfigError

DEFAULT_PATH = "/etc/trainer-exporter/config.yml"
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
RESERVED_LABELS = frozenset({"run", "job", "instance", "format", "job_id", "user", "output_dir", "quantile", "le"})
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE = re.compile(r"(\d+(?:\.\d+)?)(KiB|MiB|GiB|B)?\Z")
SIZE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
OWNERS = ("auto", "here")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Logs to follow: a file, a directory or a glob, and what is known about their runs."""

    path: str
    run: str = ""  # "" names runs by their place; see the README
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = "auto"  # "here": follow even what no process of this node holds open
    explicit: bool = False  # named on the command line: never too old to be followed


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds; what they make the exporter let go is counted in trainer_exporter_dropped_total."""

    history_bytes: int = 1 << 30
    line_bytes: int = 64 << 10
    files: int = 2048
    max_age_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class RunsConfig:
    """How runs are kept."""

    name: str = ""  # template for runs whose process is known
    latch_s: float = 120.0
    ended_grace_s: float = 3600.0
    failed_grace_s: float = 24 * 3600.0
    maximum: int = 256


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """NVML. ``metrics`` False keeps attribution and Xid for a fleet that has dcgm-exporter."""

    enabled: bool = True
    metrics: bool = True
    interval_s: float = 10.0
    deadline_s: float = 10.0
    devices: int | None = None


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Where to serve."""

    listen_address: str = ":19400"
    enable_lifecycle: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    file: str = ""
    sources: Sequence[SourceConfig] = ()
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    web: WebConfig = field(default_factory=WebConfig)


def load(path: str) -> Config:
    """The configuration in a YAML file; ConfigError where it cannot be used."""
    return parse(_read(path), file=path)


def parse(text: str, *, file: str) -> Config:
    """The configuration in a text; ``file`` stands in messages."""
    root = _Section(file, "", _tree(text, file))
    sections = {name: root.section(name) for name in ("limits", "runs", "gpu", "web")}
    config = Config(
        file=file,
        sources=tuple(_source(item) for item in root.sections("sources")),
        limits=_limits(sections["limits"]),
        runs=_runs(sections["runs"]),
        gpu=_gpu(sections["gpu"]),
        web=_web(sections["web"]),
    )
    root.finish(field.name for field in fields(Config) if field.name != "file")
    return config


def listen_address(text: str, *, file: str, key: str) -> tuple[str, int]:
    """Host ("" = all interfaces) and port of ``host:port``, ``:port`` or ``[v6]:port``."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(file, key, found=repr(text), expected="host:port or :port, with a port of 0 to 65535")
    return match[1] or match[2] or "", int(match[3])


def _source(section: _Section) -> SourceConfig:
    source = SourceConfig(
        path=section.text("path", required=True),
        run=section.text("run"),
        labels=section.labels("labels"),
        owner=section.choice("owner", OWNERS),
    )
    section.finish(("path", "run", "labels", "owner"))
    return source


def _limits(section: _Section) -> LimitsConfig:
    defaults = LimitsConfig()
    limits = LimitsConfig(
        history_bytes=section.size("history", defaults.history_bytes, minimum=1 << 20),
        line_bytes=section.size("line", defaults.line_bytes, minimum=1 << 10),
        files=section.whole("files", defaults.files, minimum=1),
        max_age_s=section.duration("max_age", defaults.max_age_s, minimum=60.0),
    )
    section.finish(("history", "line", "files", "max_age"))
    return limits


def _runs(section: _Section) -> RunsConfig:
    defaults = RunsConfig()
    runs = RunsConfig(
        name=section.text("name"),
        latch_s=section.duration("latch", defaults.latch_s, minimum=15.0),
        ended_grace_s=section.duration("ended_grace", defaults.ended_grace_s, minimum=60.0),
        failed_grace_s=section.duration("failed_grace", defaults.failed_grace_s, minimum=60.0),
        maximum=section.whole("maximum", defaults.maximum, minimum=1),
    )
    section.finish(("name", "latch", "ended_grace", "failed_grace", "maximum"))
    return runs


def _gpu(section: _Section) -> GpuConfig:
    defaults = GpuConfig()
    gpu = GpuConfig(
        enabled=section.boolean("enabled", default=True),
        metrics=section.boolean("metrics", default=True),
        interval_s=section.duration("interval", defaults.interval_s, minimum=1.0),
        deadline_s=section.duration("deadline", defaults.deadline_s, minimum=1.0),
        devices=section.whole("devices", 0, minimum=1) or None,
    )
    section.finish(("enabled", "metrics", "interval", "deadline", "devices"))
    return gpu


def _web(section: _Section) -> WebConfig:
    defaults = WebConfig()
    web = WebConfig(
        listen_address=section.text("listen_address") or defaults.listen_address,
        enable_lifecycle=section.boolean("enable_lifecycle", default=False),
    )
    listen_address(web.listen_address, file=section.file, key="web.listen_address")
    section.finish(("listen_address", "enable_lifecycle"))
    return web


class _Section:
    """One mapping of the file: typed access to its keys, and the place of each for messages."""

    def __init__(self, file: str, key: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._key = key
        self._values = values

    def error(self, name: str, found: Any, expected: str) -> ConfigError:
        return ConfigError(self.file, self._path(name), found=_shown(found), expected=expected)

    def section(self, name: str) -> _Section:
        return self._child(name, self._values.get(name))

    def sections(self, name: str) -> list[_Section]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, value, "a list")
        return [self._child(f"{name}[{number}]", item) for number, item in enumerate(value)]

    def text(self, name: str, *, required: bool = False) -> str:
        value = self._values.get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, value, "a text that is not empty")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            raise self.error(name, value, "one of " + ", ".join(allowed))
        return str(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def whole(self, name: str, default: int, *, minimum: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, value, f"a whole number, {minimum} or more")
        return value

    def duration(self, name: str, default: float, *, minimum: float) -> float:
        expected = f"a duration such as 30s, 5m or 2h, {minimum:g}s or more"
        return self._quantity(name, default, pattern=DURATION, units=DURATION_UNITS, minimum=minimum, expected=expected)

    def size(self, name: str, default: int, *, minimum: int) -> int:
        expected = f"a size such as 64KiB, 10MiB or 1GiB, {minimum} bytes or more"
        return int(self._quantity(name, default, pattern=SIZE, units=SIZE_UNITS, minimum=minimum, expected=expected))

    def labels(self, name: str) -> Mapping[str, str]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping of label names to texts")
        for label, text in value.items():
            if not isinstance(label, str) or not LABEL_NAME.match(label) or label.startswith("__"):
                raise self.error(f"{name}.{label}", label, "a label name: letters, digits and _, not beginning with a digit or __")
            if label in RESERVED_LABELS:
                raise self.error(f"{name}.{label}", label, "a name that the exporter and Prometheus do not use themselves")
            if not isinstance(text, str):
                raise self.error(f"{name}.{label}", text, 'a text (quote it: "yes" and "1" are read as other types otherwise)')
        return dict(value)

    def finish(self, known: Iterable[str]) -> None:
        names = sorted(known)
        for name in self._values:
            if name not in names:
                raise ConfigError(self.file, self._path(str(name)), found="an unknown key", expected="one of " + ", ".join(names))

    def _child(self, name: str, value: Any) -> _Section:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping")
        return _Section(self.file, self._path(name), value)

    def _path(self, name: str) -> str:
        return f"{self._key}.{name}" if self._key else name

    def _quantity(
        self, name: str, default: float, *, pattern: re.Pattern[str], units: Mapping[Any, float], minimum: float, expected: str
    ) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        match = pattern.match(value) if isinstance(value, str) else None
        amount = float(match[1]) * units[match[2]] if match else None
        if amount is None or amount < minimum:
            raise self.error(name, value, expected)
        return amount


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word; here the second one is an error."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool)):
            raise yaml.constructor.ConstructorError(None, None, "a key that is not a text", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(path, "", found=f"bytes that are not UTF-8 at offset {error.start}", expected="a YAML file in UTF-8") from error
    except OSError as error:
        raise ConfigError(path, "", found=error.strerror or str(error), expected="a readable YAML file") from error


def _tree(text: str, file: str) -> Mapping[str, Any]:
    try:
        tree = yaml.load(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        found = error.problem if isinstance(error, yaml.constructor.ConstructorError) else f"broken YAML ({error.problem})"
        raise ConfigError(file, where, found=str(found), expected="valid YAML with each key once") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(file, "", found=str(error).splitlines()[0] or "broken YAML", expected="valid YAML") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(file, "", found=_shown(tree), expected="a mapping at the top level")
    return tree


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

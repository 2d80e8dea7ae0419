"""The configuration: frozen values with defaults that work on one machine, and a loader whose errors say what to do. Only importer of yaml.

A loaded configuration is a usable one: everything that can be wrong with it is told here, in four parts (file, key, found, expected).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from trainer_exporter.config_evidence import EvidenceConfig, evidence
from trainer_exporter.config_formats import formats
from trainer_exporter.config_model import ModelConfig, model
from trainer_exporter.config_section import Section, shown
from trainer_exporter.config_shown import document as effective_document
from trainer_exporter.config_web import security
from trainer_exporter.errors import ConfigError
from trainer_exporter.model import FormatSpec, WebSecurity

DEFAULT_PATH = "/etc/trainer-exporter/config.yml"
OWNERS = ("auto", "here")
_SHOWN_CHARACTERS = 300  # of what PyYAML says, which may quote all of a file


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Logs to follow: a file, a directory or a glob, and what is known about their runs."""

    path: str
    run: str = ""  # "" names runs by their place; see the README
    labels: Mapping[str, str] = field(default_factory=dict)
    format: str = ""  # its files are of this format; "": their content tells
    owner: str = "auto"  # "here": follow even what no process of this node holds open
    explicit: bool = False  # named on the command line: never too old to be followed
    model: ModelConfig = field(default_factory=ModelConfig)


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
    pcie_throughput: bool = False  # takes 40 ms a card and look
    kernel_log: str = "/dev/kmsg"


@dataclass(frozen=True, slots=True)
class ProcessesConfig:
    """Whose logs are looked for. ``discover`` None: those of the processes on the GPUs, where no source is configured.

    ``procfs`` is where the kernel's view of the node's processes is mounted.
    """

    discover: bool | None = None
    pids: Sequence[int] = ()  # each with all that it has started
    cgroups: Sequence[str] = ()
    procfs: str = "/proc"


@dataclass(frozen=True, slots=True)
class AttributionConfig:
    """Who is asked to whom GPUs were given. ``kubelet`` None: where its socket is and the extra is installed."""

    kubelet: bool | None = None
    kubelet_socket: str = ""  # "" is the kubelet's own place
    job_mapping_dir: str = ""  # "" has none read


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Where to serve."""

    listen_address: str = ":19400"
    enable_lifecycle: bool = False
    config_file: str = ""  # in exporter-toolkit's format: TLS, users, headers; "": plain HTTP for everybody


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    file: str = ""
    sources: Sequence[SourceConfig] = ()
    formats: Sequence[FormatSpec] = ()
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    attribution: AttributionConfig = field(default_factory=AttributionConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    web: WebConfig = field(default_factory=WebConfig)


def load(path: str) -> Config:
    """The configuration in a YAML file; ConfigError where it cannot be used."""
    return parse(_read(path), file=path)


def parse(text: str, *, file: str) -> Config:
    """The configuration in a text; ``file`` stands in messages."""
    root = Section(file, "", _tree(text, file))
    sections = {name: root.section(name) for name in ("limits", "runs", "gpu", "web")}
    config = Config(
        file=file,
        sources=tuple(_source(item) for item in root.sections("sources")),
        formats=formats(root.sections("formats")),
        limits=_limits(sections["limits"]),
        runs=_runs(sections["runs"]),
        gpu=_gpu(sections["gpu"]),
        processes=_processes(root.section("processes")),
        attribution=_attribution(root.section("attribution")),
        evidence=evidence(root.section("evidence")),
        web=_web(sections["web"]),
    )
    root.finish(field.name for field in fields(Config) if field.name != "file")
    return config


def effective(config: Config) -> str:
    """The configuration as it takes effect, as a YAML text; private formats are left out."""
    return yaml.safe_dump(effective_document(config), sort_keys=False, allow_unicode=True)


def web_security(path: str) -> WebSecurity:
    """The web configuration in a file of exporter-toolkit's format; ConfigError where it cannot be kept."""
    return security(Section(path, "", _tree(_read(path), path)), directory=Path(path).parent)


def listen_address(text: str, *, file: str, key: str) -> tuple[str, int]:
    """Host ("" = all interfaces) and port of ``host:port``, ``:port`` or ``[v6]:port``."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(file, key, found=repr(text), expected="host:port or :port, with a port of 0 to 65535")
    return match[1] or match[2] or "", int(match[3])


def _source(section: Section) -> SourceConfig:
    section.finish(("path", "run", "labels", "format", "owner", "model"))
    return SourceConfig(
        path=section.text("path", required=True),
        run=section.text("run"),
        labels=section.labels("labels"),
        format=section.text("format"),
        owner=section.choice("owner", OWNERS),
        model=model(section.section("model")),
    )


def _limits(section: Section) -> LimitsConfig:
    defaults = LimitsConfig()
    limits = LimitsConfig(
        history_bytes=section.size("history", defaults.history_bytes, minimum=1 << 20),
        line_bytes=section.size("line", defaults.line_bytes, minimum=1 << 10),
        files=section.whole("files", defaults.files, minimum=1),
        max_age_s=section.duration("max_age", defaults.max_age_s, minimum=60.0),
    )
    section.finish(("history", "line", "files", "max_age"))
    return limits


def _runs(section: Section) -> RunsConfig:
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


def _gpu(section: Section) -> GpuConfig:
    defaults = GpuConfig()
    gpu = GpuConfig(
        enabled=section.boolean("enabled", default=True),
        metrics=section.boolean("metrics", default=True),
        interval_s=section.duration("interval", defaults.interval_s, minimum=1.0),
        deadline_s=section.duration("deadline", defaults.deadline_s, minimum=1.0),
        devices=section.whole("devices", 0, minimum=1) or None,
        pcie_throughput=section.boolean("pcie_throughput", default=False),
        kernel_log=section.text("kernel_log") or defaults.kernel_log,
    )
    section.finish(("enabled", "metrics", "interval", "deadline", "devices", "pcie_throughput", "kernel_log"))
    return gpu


def _processes(section: Section) -> ProcessesConfig:
    processes = ProcessesConfig(
        discover=section.boolean("discover", default=False) if section.has("discover") else None,
        pids=section.wholes("pids", minimum=1),
        cgroups=section.texts("cgroups"),
        procfs=section.text("procfs") or ProcessesConfig().procfs,
    )
    if not processes.procfs.startswith("/"):
        raise section.error("procfs", processes.procfs, "an absolute path, such as /host/proc")
    for at, pattern in enumerate(processes.cgroups):
        if not pattern.startswith(("/", "*")):
            raise section.error(
                f"cgroups[{at}]", pattern, "a pattern of paths in /proc/PID/cgroup, such as /system.slice/train-*.service or */job_*"
            )
    section.finish(("discover", "pids", "cgroups", "procfs"))
    return processes


def _attribution(section: Section) -> AttributionConfig:
    attribution = AttributionConfig(
        kubelet=section.boolean("kubelet", default=False) if section.has("kubelet") else None,
        kubelet_socket=section.text("kubelet_socket"),
        job_mapping_dir=section.text("job_mapping_dir"),
    )
    for key, path in (("kubelet_socket", attribution.kubelet_socket), ("job_mapping_dir", attribution.job_mapping_dir)):
        if path and not path.startswith("/"):
            raise section.error(key, path, "an absolute path")
    section.finish(("kubelet", "kubelet_socket", "job_mapping_dir"))
    return attribution


def _web(section: Section) -> WebConfig:
    defaults = WebConfig()
    web = WebConfig(
        listen_address=section.text("listen_address") or defaults.listen_address,
        enable_lifecycle=section.boolean("enable_lifecycle", default=False),
        config_file=section.text("config_file"),
    )
    listen_address(web.listen_address, file=section.file, key="web.listen_address")
    section.finish(("listen_address", "enable_lifecycle", "config_file"))
    return web


class _Told(yaml.SafeLoader):
    """A scalar that its tag does not fit makes SafeLoader fail with whatever came up; here it is an error with its place."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"a value that is no {kind}", node.start_mark) from error


class _UniqueKeys(_Told):
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


def document(path: str | Path) -> Mapping[str, Any]:
    """A YAML file of somebody else's shape, as it is: Prometheus's rules, which may merge mappings."""
    return _tree(_read(str(path)), str(path), loader=_Told)


def _tree(text: str, file: str, *, loader: type[yaml.SafeLoader] = _UniqueKeys) -> Mapping[str, Any]:
    try:
        tree = yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        found = error.problem if isinstance(error, yaml.constructor.ConstructorError) else f"broken YAML ({error.problem})"
        raise ConfigError(file, where, found=str(found)[:_SHOWN_CHARACTERS], expected="valid YAML with each key once") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        found = str(error).partition("\n")[0][:_SHOWN_CHARACTERS]
        raise ConfigError(file, "", found=found or "broken YAML", expected="valid YAML") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(file, "", found=shown(tree), expected="a mapping at the top level")
    return tree

"""The commands. The only printer; an error that a user can mend ends with its message and exit code 2."""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from trainer_exporter import config, version
from trainer_exporter.errors import ConfigError, TrainerExporterError
from trainer_exporter.model import FormatSpec

LOG_FORMATS = {
    "logfmt": "time=%(asctime)s level=%(levelname)s logger=%(name)s msg=%(message)r",
    "json": '{"time": "%(asctime)s", "level": "%(levelname)s", "logger": "%(name)s", "msg": %(quoted)s}',
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except TrainerExporterError as error:
        print(f"trainer-exporter: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("trainer-exporter: the output cannot be written: no space left on device", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer-exporter", description="Prometheus exporter for LLM training: follows trainers' logs as they are, and NVML."
    )
    parser.add_argument("--version", action="version", version=f"trainer-exporter {version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="follow logs and GPUs, and serve metrics"))

    check = commands.add_parser("check-config", help="say whether a configuration can be used")
    check.add_argument("file", metavar="FILE")
    check.add_argument("--effective", action="store_true", help="show what takes effect, defaults included")
    check.set_defaults(command=_check_config)

    replay = commands.add_parser("replay", help="show what each line of a log is read as")
    replay.add_argument("file", metavar="FILE", help="a log, a tracker's file, or a directory that holds such")
    replay.add_argument("--config.file", dest="config_file", metavar="FILE", help="for its formats; the default is that of serve")
    replay.add_argument("--format", metavar="NAME", help="read the file as of this format alone")
    replay.add_argument("--json", action="store_true", help="one object a record")
    replay.add_argument("--summary", action="store_true", help="counts only")
    replay.set_defaults(command=_replay)

    _add_backtest(commands.add_parser("backtest", help="which alerts would have fired while a log was written"))

    support = commands.add_parser("support", help="what somebody who helps wants to know: versions, configuration, the daemon's state")
    support.add_argument("--config.file", dest="config_file", metavar="FILE", help=f"default: {config.DEFAULT_PATH}, if it is there")
    support.set_defaults(command=_support)

    metrics = commands.add_parser("metrics", help="reference of every metric family")
    metrics.set_defaults(command=_metrics)

    formats = commands.add_parser("formats", help="every log format and tracker that is understood")
    formats.set_defaults(command=_formats)
    return parser


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("paths", nargs="*", metavar="PATH", help="a file, a directory or a glob; none: what the configuration names")
    serve.add_argument("--config.file", dest="config_file", metavar="FILE", help=f"default: {config.DEFAULT_PATH}, if it is there")
    serve.add_argument("--web.listen-address", dest="listen_address", metavar="ADDRESS", help="host:port or :port; default :19400")
    serve.add_argument("--web.config.file", dest="web_config", metavar="FILE", help="TLS and users, in exporter-toolkit's format")
    serve.add_argument("--web.enable-lifecycle", dest="lifecycle", action="store_true", help="allow POST /-/reload")
    serve.add_argument("--no-gpu", dest="gpu", action="store_false", help="leave NVML alone")
    serve.add_argument(
        "--pid",
        dest="pids",
        action="append",
        type=int,
        default=[],
        metavar="PID",
        help="follow the logs of this process and all below it",
    )
    serve.add_argument("--log.level", dest="log_level", default="info", choices=("debug", "info", "warning", "error"))
    serve.add_argument("--log.format", dest="log_format", default="logfmt", choices=tuple(LOG_FORMATS))
    serve.set_defaults(command=_serve)


def _add_backtest(backtest: argparse.ArgumentParser) -> None:
    backtest.add_argument("files", nargs="+", metavar="FILE")
    backtest.add_argument("--json", action="store_true", help="a list of the alerts that concern a run or a GPU")
    backtest.add_argument("--explain", action="store_true", help="for each alert symptom, evidence, likely causes and what to try")
    backtest.add_argument("--html", metavar="FILE", help="write a page with the curves and the alerts on them; needs the extra report")
    backtest.add_argument(
        "--gpu", dest="gpu_file", metavar="FILE", help="what the GPUs showed: samples with times as Prometheus writes them"
    )
    backtest.add_argument("--config.file", dest="config_file", metavar="FILE", help="for its formats; the default is that of serve")
    backtest.add_argument("--rules", metavar="DIR", help="rule files of your own instead of the shipped ones")
    backtest.add_argument("--step-seconds", type=float, metavar="S", help="time of a step, for logs without times")
    backtest.add_argument("--after", type=float, default=60.0, metavar="S", help="how long to go on after the last line; default 60")
    backtest.add_argument("--fail-on", choices=("critical", "warning", "info"), help="exit with 1 when such an alert would have fired")
    backtest.set_defaults(command=_backtest)


def _serve(options: argparse.Namespace) -> int:
    from trainer_exporter import service

    _log_to_stderr(options.log_level, options.log_format)
    chosen = _configuration(options)
    _require_running(options.pids, chosen.processes.procfs)
    service.run(chosen, reload=lambda: _configuration(options))
    return 0


def _require_running(pids: Sequence[int], procfs: str) -> None:
    """A PID that was mistyped is told at once; one that ends later, or stands in a file, is not an error."""
    for pid in pids:
        if pid < 1 or not Path(procfs, str(pid)).exists():
            raise ConfigError("command line", "--pid", found=str(pid), expected="the PID of a process that runs here")


def _configuration(options: argparse.Namespace) -> config.Config:
    """The file's settings, with what the command line says on top."""
    loaded = _loaded(options.config_file, is_needed=not (options.paths or options.pids))
    if options.paths:
        loaded = replace(loaded, sources=tuple(config.SourceConfig(path=path, owner="here", explicit=True) for path in options.paths))
    if options.pids:
        loaded = replace(loaded, processes=replace(loaded.processes, pids=(*loaded.processes.pids, *options.pids)))
    if not options.gpu:
        loaded = replace(loaded, gpu=replace(loaded.gpu, enabled=False))
    web = loaded.web
    if options.listen_address is not None:
        config.listen_address(options.listen_address, file="command line", key="--web.listen-address")
        web = replace(web, listen_address=options.listen_address)
    if options.web_config is not None:
        web = replace(web, config_file=options.web_config)
    if options.lifecycle:
        web = replace(web, enable_lifecycle=True)
    return replace(loaded, web=web)


def _loaded(path: str | None, *, is_needed: bool = False) -> config.Config:
    """The settings of the file that is named, else of the default one if it is there.

    The default one is the daemon's: that another user may not read it matters only where nothing else says what to do.
    """
    if path is not None:
        return config.load(path)
    try:
        Path(config.DEFAULT_PATH).open("rb").close()
    except FileNotFoundError:
        return config.Config()
    except PermissionError:
        if not is_needed:
            print(f"{config.DEFAULT_PATH} may not be read by this user and is left out", file=sys.stderr)
            return config.Config()
    return config.load(config.DEFAULT_PATH)


def _check_config(options: argparse.Namespace) -> int:
    from trainer_exporter.catalogue import catalogue

    loaded = config.load(options.file)
    catalogue(loaded)
    if loaded.web.config_file:
        config.web_security(loaded.web.config_file)
    counts = [(len(loaded.sources), "source"), *([(len(loaded.formats), "format")] if loaded.formats else [])]
    print(f"{options.file}: OK, " + ", ".join(f"{count} {thing}" + ("" if count == 1 else "s") for count, thing in counts))
    for spec in loaded.formats:
        print(f"  {spec.name}: {_searched(spec)}")
    if options.effective:
        print(config.effective(loaded), end="")
    return 0


def _searched(spec: FormatSpec) -> str:
    """Which lines a private format looks at."""
    if spec.line is not None:
        return f"lines with {spec.line.contains!r}, of up to {spec.line.longest} characters"
    if spec.columns:
        return f"files whose first lines are rows of {len(spec.columns)} columns"
    return ("tables whose header has " if spec.kind == "csv" else "lines with ") + " or ".join(map(repr, spec.contains))


def _replay(options: argparse.Namespace) -> int:
    from trainer_exporter import replay
    from trainer_exporter.catalogue import catalogue, chosen

    formats = catalogue(_loaded(options.config_file))
    if options.format is not None:
        formats = chosen(formats, options.format, file="command line", key="--format")
    show: Callable[[str], object] = print
    trackers = options.format is None
    if options.summary:
        counts = replay.summary(options.file, formats, trackers=trackers)
        show(json.dumps(counts, indent=2) if options.json else replay.summary_text(counts))
        return 0
    for item in replay.lines(options.file, formats, trackers=trackers):
        show(json.dumps(item) if options.json else replay.text(item))
    return 0


def _backtest(options: argparse.Namespace) -> int:
    from trainer_exporter import backtest
    from trainer_exporter.backtest import doctor, gpus, report, shown
    from trainer_exporter.catalogue import catalogue

    rules = backtest.rule_files(options.rules)
    if options.html is not None:
        report.require_library()
    cards = None if options.gpu_file is None else gpus.read_gpus(options.gpu_file)
    if cards is not None and len(options.files) > 1:
        raise ConfigError("command line", "--gpu", found=f"{len(options.files)} logs", expected="one log, whose GPUs they are")
    with Progress(sys.stderr) as told:
        logs = backtest.read(options.files, catalogue(_loaded(options.config_file)), told=told)
        jobs = [backtest.Job(log, options.after, options.step_seconds, cards) for log in logs]
        explained = options.explain or options.html is not None
        found = list(zip(logs, backtest.backtests(jobs, rules=rules, explained=explained, told=told), strict=True))
    for log, result in found:
        if result.clock == "steps" and options.step_seconds is None:
            print(f"{log.path}: no times in the log, so a step counts as 1 s; --step-seconds says better", file=sys.stderr)
        if not options.json:
            print(doctor.explanation(log, result) if options.explain else shown.text(log, result))
    fired = [firing for _, result in found for firing in result.firings]
    if options.json:
        print(json.dumps(shown.document(fired), indent=2))
    if options.html is not None:
        report.write(options.html, found)
    return int(any(firing.severity == options.fail_on for firing in fired))


class Progress:
    """What is being done, on one line of a terminal that is overwritten; nothing where stderr is none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, what: str, share: float) -> None:
        line = what if share <= 0 else f"{what}, {share:.0%}"
        if self._is_terminal and line != self._shown:
            self._stream.write(f"\r{line}\x1b[K")
            self._stream.flush()
            self._shown = line


def _support(options: argparse.Namespace) -> int:
    from trainer_exporter import support

    loaded, trouble = config.Config(), ""
    try:
        loaded = _loaded(options.config_file)
    except ConfigError as error:  # which may be why somebody asks for help
        trouble = str(error)
    for line in support.report(loaded, trouble=trouble):
        print(line)
    return 0


def _metrics(options: argparse.Namespace) -> int:
    from trainer_exporter.metrics.reference import families

    for family in families():
        labels = "{" + ",".join(family.labels) + "}" if family.labels else ""
        print(f"{family.name}{labels}  ({family.kind})\n    {family.help}")
    return 0


def _formats(options: argparse.Namespace) -> int:
    from trainer_exporter.formats import registry
    from trainer_exporter.sources import trackers

    for known in registry():
        print(f"{known.name:16} {known.summary}")
    print("\ntrackers")
    for tracker in trackers.registry():
        needs = f"; needs trainer-exporter[{tracker.extra}]" if tracker.extra else ""
        print(f"{tracker.name:16} {tracker.summary}{needs}")
    return 0


class _Quoted(logging.Formatter):
    """Adds the message as a JSON text, so that no message can break the line of a log in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        record.quoted = json.dumps(record.getMessage())
        return super().format(record)


def _log_to_stderr(level: str, form: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Quoted(LOG_FORMATS[form], "%Y-%m-%dT%H:%M:%S%z"))
    logging.basicConfig(level=level.upper(), handlers=[handler])

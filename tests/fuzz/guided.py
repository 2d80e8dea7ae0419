"""Input that is changed towards what it has not yet reached: ``python tests/fuzz/guided.py [--seconds N] [TARGET ...]``.

Coverage-guided by atheris where that is installed (``pip install atheris``), else by chance alone. It begins with the fixtures of this
repository, keeps what it finds in a folder of its own and repeats it with ``--repeat FILE TARGET``. Each target says what it stands:
anything else that it raises is a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "exporter")]

from fuzz import tracked  # noqa: E402 - found by the lines above

LONGEST_BYTES = 4096
SEEDS = 400  # of one target at most
SLOW_S = 25  # for one input; what it stands for here is a pattern that never ends


@dataclass(frozen=True)
class Target:
    """``seeds`` are inputs that mean something; ``once`` reads one, and must come back. ``is_limited``: in little memory."""

    seeds: Callable[[], Iterator[bytes]]
    once: Callable[[], Callable[[bytes], None]]
    is_limited: bool = False


def _lines() -> Iterator[bytes]:
    import hostile

    chance = random.Random(3)
    yield from chance.sample(hostile.LINES, min(SEEDS, len(hostile.LINES)))


def _envelope() -> Callable[[bytes], None]:
    from trainer_exporter import envelope, numbers, torn

    def once(data: bytes) -> None:
        kind = envelope.container(data.split(b"\n", 1)[0])
        for raw in data.split(b"\n"):
            piece = envelope.contained(raw, kind) if kind else None
            text = envelope.without_terminal((piece.text if piece else raw).decode("utf-8", "replace"))
            for shown in envelope.redraws(text):
                line = envelope.unwrapped(shown, 1, labelled=len(data) % 2 == 1)
                assert shown.endswith(line.text) or "\b" in text or line.text in shown, shown
                envelope.ranks_apart(line.text, line.stream)
                torn.is_whole(line.text, [line.text, shown])
                numbers.number(line.text)
                numbers.duration(line.text)
        envelope.has_labels(data.split(b"\n"))

    return once


def _files() -> Iterator[bytes]:
    import hostile

    for case in hostile.CASES:
        yield (case / "input.log").read_bytes()[:LONGEST_BYTES]


def _formats() -> Callable[[bytes], None]:
    import hostile
    from trainer_exporter.formats import registry
    from trainer_exporter.intake import Intake
    from trainer_exporter.model import FIELDS, Malformed, Record
    from trainer_exporter.runs.state import RunState, StateSettings
    from trainer_exporter.runs.timeline import Timeline

    def once(data: bytes) -> None:
        reader, run = Intake(registry()), RunState("run", StateSettings(), daemon_start=0.0)
        times = Timeline(last_stamp=None, mtime=0.0)
        half = len(data) // 2
        events = [event for chunk in hostile.chunks(data, [half]) for event in reader.feed(chunk)] + reader.flush()
        for event in events:
            if isinstance(event, Malformed):
                continue
            if isinstance(event, Record):
                assert event.fields.keys() <= FIELDS
                moment = times.of_record(event, read_wall=1.0, live=True)
            else:
                moment = times.moment(event.stamp, read_wall=1.0, live=True)
            run.fold(event, moment, source="log", format_name=reader.format)
        run.snapshot(2.0)

    return once


def _configs() -> Iterator[bytes]:
    import odd_configs

    yield odd_configs.FULL.encode()
    yield from (f"{line}\n".encode() for line in odd_configs.FULL.strip().splitlines())


def _config() -> Callable[[bytes], None]:
    import odd_configs

    def once(data: bytes) -> None:
        odd_configs.verdict(data.decode("utf-8", "surrogateescape"))

    return once


WEB = """
tls_server_config: {cert_file: a.pem, key_file: b.pem, client_ca_file: c.pem, client_auth_type: RequireAndVerifyClientCert,
  client_allowed_sans: [a.example], min_version: TLS12, max_version: TLS13, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
  prefer_server_cipher_suites: true, curve_preferences: [X25519, CurveP256]}
http_server_config: {http2: false, headers: {X-Frame-Options: deny, Strict-Transport-Security: max-age=1}}
basic_auth_users: {ann: $2y$10$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ012345678}
rate_limit: {interval: 1s, burst: 20}
"""


def _web_configs() -> Iterator[bytes]:
    yield WEB.encode()
    yield from (f"{line}\n".encode() for line in WEB.strip().splitlines() if line.endswith("}"))


def _web_config() -> Callable[[bytes], None]:
    from trainer_exporter import config
    from trainer_exporter.errors import ConfigError

    folder = Path(tempfile.mkdtemp())

    def once(data: bytes) -> None:
        path = folder / "web.yml"
        path.write_bytes(data)
        try:
            config.web_security(str(path))
        except ConfigError as error:
            assert error.found
            assert error.expected

    return once


DUMP = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 7, "last_started_collective": 7, "last_completed_collective": 6}},
    "entries": [
        {
            "collective_seq_id": 7,
            "profiling_name": "nccl:all_reduce",
            "process_group": ("0", "default_pg"),
            "state": "started",
            "input_sizes": [[4, 2]],
            "is_p2p": False,
            "time_created_ns": 1_700_000_000_000_000_000,
            "frames": [{"name": "step", "filename": "train.py", "line": 9}],
        }
    ],
}


def _dumps() -> Iterator[bytes]:
    yield from (pickle.dumps(DUMP, protocol=protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
    yield json.dumps(DUMP).encode()
    yield pickle.dumps(os.getcwd)


def _unpickler() -> Callable[[bytes], None]:
    from trainer_exporter.evidence import dumps

    def once(data: bytes) -> None:
        try:
            read = dumps.read(data)
        except dumps.UnreadableDumpError as error:
            assert error.word in {"hostile", "broken"}
            return
        dumps.groups({0: read, 1: read})
        dumps.absent({0: read}, local=frozenset({0}), size=2)

    return once


TARGETS = {
    "envelope": Target(_lines, _envelope),
    "formats": Target(_files, _formats),
    "config": Target(_configs, _config),
    "web_config": Target(_web_configs, _web_config),
    "unpickler": Target(_dumps, _unpickler, is_limited=True),
    "trackers": Target(tracked.texts, tracked.text),
    "tensorboard": Target(tracked.event_files, tracked.event_file),
    "wandb": Target(tracked.run_files, tracked.run_file),
    "mlflow": Target(tracked.stores, tracked.store),
}


def _guided(name: str, seconds: int, folder: Path) -> None:
    """Does not come back: the fuzzer ends the process itself."""
    import atheris

    target = TARGETS[name]
    with atheris.instrument_imports(include=["trainer_exporter"]):
        once = target.once()
    if target.is_limited:
        _limit()
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for place, data in enumerate(target.seeds()):
        (seeds / str(place)).write_bytes(data[:LONGEST_BYTES])
    options = [f"-max_total_time={seconds}", f"-max_len={LONGEST_BYTES}", f"-timeout={SLOW_S}", f"-artifact_prefix={folder}/found-"]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=2048", "-print_final_stats=1", str(seeds)], once)
    atheris.Fuzz()


def _by_chance(name: str, seconds: int, folder: Path) -> None:
    """Seeds cut, glued, and with bytes changed."""
    target, chance = TARGETS[name], random.Random(time.time_ns())
    seeds, once, tried = list(target.seeds()), target.once(), 0
    if target.is_limited:
        _limit()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = _changed(chance, seeds)
        tried += 1
        try:
            once(data)
        except Exception:
            path = folder / f"found-{tried}"
            path.write_bytes(data)
            raise
    sys.stderr.write(f"{name}: {tried} inputs\n")


def _changed(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    one, other = bytearray(chance.choice(seeds)), chance.choice(seeds)
    for _ in range(chance.randrange(1, 6)):
        at, to = sorted(chance.choices(range(len(one) + 1), k=2))
        kind = chance.randrange(4)
        if kind == 0:
            del one[at:to]
        elif kind == 1:
            one[at:at] = other[chance.randrange(len(other) + 1) :][: chance.randrange(64)]
        elif kind == 2:
            one[at:at] = chance.randbytes(chance.randrange(8))
        elif at < len(one):
            one[at] = chance.randrange(256)
    return bytes(one[:LONGEST_BYTES])


def _limit() -> None:
    """A few bytes of a pickle can ask for gigabytes."""
    from trainer_exporter.evidence import child

    resource.setrlimit(resource.RLIMIT_AS, (child.MEMORY_BYTES, child.MEMORY_BYTES))


def _run(name: str, seconds: int, folder: Path) -> int:
    """One target in a process of its own, because the fuzzer ends the process that it runs in."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, __file__, "--inside", "--seconds", str(seconds), "--folder", str(folder), name], check=False
    ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="of each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "trainer-exporter-fuzz", help="for what is found")
    parser.add_argument("--repeat", type=Path, help="read this one input")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.targets or list(TARGETS)
    if asked.repeat is not None:
        for name in names:
            TARGETS[name].once()(asked.repeat.read_bytes())
        return 0
    if asked.inside:
        try:
            _guided(names[0], asked.seconds, asked.folder)
        except ModuleNotFoundError as error:
            if error.name != "atheris":
                raise
            _by_chance(names[0], asked.seconds, asked.folder)
        return 0
    failed = [name for name in names if _run(name, asked.seconds, asked.folder / name)]
    sys.stderr.write(f"found something in: {', '.join(failed)}; see {asked.folder}\n" if failed else "nothing found\n")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())

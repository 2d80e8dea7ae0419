"""What is remembered of the world has a bound, however long the daemon runs and whatever is written on the node."""

from __future__ import annotations

import gc
import json
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from host import WRITE, Host
from trainer_exporter.attribution import Logs, Processes, Wanted, Watched
from trainer_exporter.health import Health
from trainer_exporter.model import Checkpoint, CheckpointEvent, Record
from trainer_exporter.model_gpu import GpuIdentity, GpuProcess, GpuReading, GpuSnapshot
from trainer_exporter.models import ModelFiles
from trainer_exporter.runs.saving import Saves
from trainer_exporter.runs.series import Streaks
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.saves import SaveWatch
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Spec

_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def objects(thing: object) -> int:
    """How many objects are held by this one: what a leak makes more of."""
    seen: dict[int, object] = {}
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, _SHARED):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
            waiting += one if isinstance(one, dict) else ()  # of texts as keys the collector does not tell
    return len(seen)


def saves(_: Path) -> tuple[object, Callable[[int], None]]:
    made = Saves()

    def step(number: int) -> None:
        made.fold(Checkpoint(CheckpointEvent.STARTED, step=number, blocking=False), float(number))
        made.progressed()

    return made, step


def streaks(_: Path) -> tuple[object, Callable[[int], None]]:
    made = Streaks()
    return made, lambda number: made.nonfinite(f"rank-{number}.log", step=number, wall=float(number))


def model_files(folder: Path) -> tuple[object, Callable[[int], None]]:
    made = ModelFiles(str(folder), Health())

    def step(number: int) -> None:
        place = folder / f"checkpoint-{number}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": number}))
        made.look()
        (place / "config.json").unlink()
        place.rmdir()

    return made, step


def save_watch(folder: Path) -> tuple[object, Callable[[int], None]]:
    host = Host(folder / "host")
    made = SaveWatch(Store(StoreSettings(), clock=host.clock, health=Health()), clock=host.clock, health=Health())
    return made, lambda number: made.look({f"run-{number}": (str(folder),)})


def listed_paths(folder: Path) -> tuple[object, Callable[[int], None]]:
    host = Host(folder / "host")
    limits = DiscoveryLimits(files=5)
    made = Discovery([Spec(str(folder / "logs"))], host.clock, Health(), limits=limits)
    (folder / "logs").mkdir()

    def step(number: int) -> None:
        path = folder / "logs" / f"{number}.log"
        path.touch()
        made.scan(now=True)
        path.unlink()

    return made, step


@pytest.mark.parametrize("make", [saves, streaks, model_files, save_watch, listed_paths])
def test_what_comes_and_goes_leaves_nothing_behind(make: Callable[[Path], tuple[object, Callable[[int], None]]], tmp_path: Path) -> None:
    thing, step = make(tmp_path)
    for number in range(1, 101):
        step(number)
    before = objects(thing)

    for number in range(101, 401):
        step(number)

    assert objects(thing) <= before + 30


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def watched(host: Host, health: Health) -> Watched:
    processes = Processes(host.root / "proc")
    return Watched(processes, Logs(processes, host.clock, host_root=str(host.root)), host.clock, health=health, remembered_s=86_400.0)


def on_card(*pids: int) -> GpuSnapshot:
    processes = tuple(GpuProcess(pid, None) for pid in pids)
    return GpuSnapshot(readings=(GpuReading(GpuIdentity("GPU-a", 0, "card"), success=True, collected_wall=0.0, processes=processes),))


def test_the_loaders_of_a_long_run_are_forgotten_when_they_have_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_exporter.attribution.watched.MOST_WRITERS", 4)
    log = host.file("/data/console.log")
    seen = watched(host, Health())
    host.process(40, {"1": (log, WRITE)})
    for pid in range(100, 120):
        host.process(pid, {"1": (log, WRITE)}, parent=40)
        seen.look(on_card(40, pid), Wanted())
        (host.root / "proc" / str(pid) / "stat").unlink()

    seen.look(on_card(40), Wanted())
    before = objects(seen)
    for pid in range(120, 160):
        host.process(pid, {"1": (log, WRITE)}, parent=40)
        seen.look(on_card(40, pid), Wanted())
        (host.root / "proc" / str(pid) / "stat").unlink()
    seen.look(on_card(40), Wanted())

    assert objects(seen) <= before + 30
    assert seen.is_alive(log)


def test_a_process_that_writes_another_log_each_moment_is_followed_in_the_latest(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_exporter.attribution.watched.MOST_LOGS", 3)
    health = Health()
    seen = watched(host, health)

    for number in range(5):
        host.process(100 + number, {"1": (host.file(f"/data/{number}.log"), WRITE)})
        logs = seen.look(on_card(100 + number), Wanted())
        host.clock.advance(1)

    assert [Path(log.path).name for log in logs] == ["2.log", "3.log", "4.log"]
    assert health.snapshot().dropped == {"process_logs": 2}


def test_paths_that_come_and_go_by_the_thousand_are_forgotten_and_counted(tmp_path: Path) -> None:
    host, health = Host(tmp_path / "host"), Health()
    seen = Discovery([Spec(str(tmp_path / "*.log"))], host.clock, health, limits=DiscoveryLimits(files=2))

    for number in range(12):
        (tmp_path / f"{number}.log").touch()
        seen.scan(now=True)
        (tmp_path / f"{number}.log").unlink()

    assert health.snapshot().dropped == {"remembered_paths": 4}


def told(store: Store, run: str, *, wall: float) -> bool:
    record = Record(line=1, fields={"step": 1, "loss": 2.0})
    known = store.fold(run, [(record, Moment(wall, live=True))], source=f"{run}.log", format_name="plain")
    store.publish()
    return known


def test_the_logs_of_services_keep_no_run_out_of_a_full_store(host: Host) -> None:
    health = Health()
    store = Store(StoreSettings(max_runs=3), clock=host.clock, health=health)
    for number in range(5):
        store.describe(f"service-{number}")

    was_known = told(store, "heron", wall=host.clock.wall())

    assert not was_known
    assert [run.run for run in store.snapshot()] == ["heron"]
    assert health.snapshot().dropped == {}

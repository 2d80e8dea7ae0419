"""To whom GPUs were given: joined to the cards, completed from one another, and never put in the place of what a process says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kubelet as fake
from trainer_exporter.allotment import allocations
from trainer_exporter.attribution import Allocations, Attribution, JobMapping, Kubelet, Processes, believed
from trainer_exporter.clock import ManualClock
from trainer_exporter.config import AttributionConfig, Config, GpuConfig
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.health import Health
from trainer_exporter.metrics import allocations as metrics
from trainer_exporter.model_gpu import GpuAllocation, GpuIdentity, GpuMemory, GpuOwner, GpuProcess, GpuReading, GpuSnapshot

IDLE = GpuMemory(80 << 30, 3 << 20, 500 << 20)
BUSY = GpuMemory(80 << 30, 60 << 30, 500 << 20)


def card(gpu: int, *pids: int, memory: GpuMemory = IDLE, success: bool = True) -> GpuReading:
    identity = GpuIdentity(f"GPU-{gpu}", gpu, "NVIDIA A100-SXM4-80GB")
    return GpuReading(identity, success, 0.0, memory=memory, processes=tuple(GpuProcess(pid, None) for pid in pids))


def part(gpu: int, instance: str) -> GpuReading:
    identity = GpuIdentity(f"MIG-{gpu}{instance}", gpu, "NVIDIA A100 MIG", parent_uuid=f"GPU-{gpu}", gpu_instance=instance)
    return GpuReading(identity, success=True, collected_wall=0.0, memory=IDLE)


def node(*readings: GpuReading) -> GpuSnapshot:
    return GpuSnapshot(readings=readings)


def granted(gpu: int, pod: str = "", *, namespace: str = "ml", container: str = "trainer", job: str = "") -> GpuAllocation:
    if job:
        return GpuAllocation(f"GPU-{gpu}", gpu, "job_mapping", job_id=job)
    return GpuAllocation(f"GPU-{gpu}", gpu, "kubelet", pod=pod, namespace=namespace, container=container)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fake.Kubelet]:
    server = fake.Kubelet(tmp_path / "kubelet.sock")
    yield server
    server.stop()


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., None]:
    """Puts a process into the /proc that ``attribution`` reads."""

    def put(pid: int, cgroup: str = "0::/\n", **environment: str) -> None:
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) S 1 " + "0 " * 17 + "500 0\n")
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))
        (folder / "cgroup").write_text(cgroup)

    return put


@pytest.fixture
def attribution(tmp_path: Path) -> Attribution:
    return Attribution(ManualClock(), Processes(tmp_path / "proc", pods=tmp_path / "pods", user_name=str))


def test_what_the_kubelet_gave_is_known_by_card_and_kept_for_an_hour_while_it_is_silent(server: fake.Kubelet) -> None:
    clock, health = ManualClock(), Health()
    asked = Allocations(clock, kubelet=Kubelet(str(server.socket), health))
    server.pods = [
        fake.pod("ml", "llama-0", trainer={"nvidia.com/gpu": ["GPU-1", "GPU-elsewhere"]}),
        fake.pod("dev", "small", main={"nvidia.com/mig-1g.10gb": ["MIG-07"]}),
    ]
    server.allocatable = ["GPU-1", "MIG-07", "MIG-08"]
    server.start()
    seen = node(card(0), part(0, "7"), part(0, "8"), card(1), card(2))
    assert asked.of(seen) == ()

    asked.look()
    server.stop()
    clock.advance(3600)
    asked.look()

    expected = (granted(1, "llama-0"), GpuAllocation("MIG-07", 0, "kubelet", pod="small", namespace="dev", container="main"))
    assert asked.of(seen) == expected
    assert asked.allocatable(seen) == {("MIG-07", 0): True, ("MIG-08", 0): True, ("GPU-1", 1): True, ("GPU-2", 2): False}
    clock.advance(1)
    assert (asked.of(seen), asked.allocatable(seen)) == ((), {})
    assert health.snapshot().errors


def test_a_kubelet_that_names_device_files_means_the_cards_behind_them(server: fake.Kubelet) -> None:
    asked = Allocations(ManualClock(), kubelet=Kubelet(str(server.socket), Health()))
    server.pods = [fake.pod("ml", "a", main={"nvidia.com/gpu": ["nvidia1", "nvidia0/gi7"]})]
    server.allocatable = ["nvidia0/gi7", "nvidia1"]
    server.start()
    numbers = {"GPU-0": "0", "MIG-07": "0", "GPU-1": "2", "GPU-2": "1", "GPU-3": ""}

    asked.look()

    readings = [card(0), part(0, "7"), card(1), card(2), card(3)]
    seen = node(*(replace(each, identity=replace(each.identity, minor=numbers[each.identity.uuid])) for each in readings))
    assert [each.uuid for each in asked.of(seen)] == ["GPU-2", "MIG-07"]
    assert asked.allocatable(seen) == {("MIG-07", 0): True, ("GPU-1", 1): False, ("GPU-2", 2): True, ("GPU-3", 3): False}


def test_a_directory_of_jobs_is_read_by_gpu_and_by_mig_instance(tmp_path: Path) -> None:
    health = Health()
    asked = Allocations(ManualClock(), mapping=JobMapping(tmp_path, health))
    for name, text in {"0": "8121", "1": "77\n78\n\n77", "2.7": "9_3\n", "2.8": "", "readme": "1", "1.new": "5"}.items():
        (tmp_path / name).write_text(text)

    asked.look()

    found = asked.of(node(card(0), card(1), card(2), part(2, "7"), part(2, "8"), card(3)))
    assert [(each.uuid, each.source, each.job_id) for each in found] == [
        ("GPU-0", "job_mapping", "8121"),
        ("GPU-1", "job_mapping", "77"),
        ("GPU-1", "job_mapping", "78"),
        ("MIG-27", "job_mapping", "9_3"),
    ]
    assert not health.snapshot().errors


def test_a_directory_that_is_missing_is_counted_and_asked_for_again(tmp_path: Path) -> None:
    health = Health()
    asked = Allocations(ManualClock(), mapping=JobMapping(tmp_path / "jobs", health))
    asked.look()

    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("5")
    (tmp_path / "jobs/1").mkdir()
    asked.look()

    assert [each.job_id for each in asked.of(node(card(0)))] == ["5"]
    assert dict(health.snapshot().errors) == {("job_mapping", "directory"): 1, ("job_mapping", "file"): 1}


def test_a_job_is_over_when_another_ones_process_is_on_its_card() -> None:
    given = [granted(0, job="7"), granted(1, job="7"), granted(2, "llama-0"), granted(3, job="9")]
    owners = [GpuOwner("GPU-0", 0, run="new", job_id="8", pid=40), GpuOwner("GPU-3", 3, run="nine", job_id="9", pid=41)]

    assert believed(given, owners) == tuple(given[1:])


POD = "0::/kubepods/burstable/pod0f2c7a1e-5b6d-4c3a-9e8f-112233445566/" + "ab" * 32 + "\n"
COMPLETED = {
    "a pod whose process does not say its name": ({"cgroup": POD}, [granted(0, "llama-0")], ("rdzv", "", "llama-0", "ml", "trainer")),
    "the same pod": ({"cgroup": POD, "POD_NAME": "llama-0"}, [granted(0, "llama-0")], ("llama", "", "llama-0", "ml", "trainer")),
    "another pod than the process says": (
        {"cgroup": POD, "POD_NAME": "bert-0"},
        [granted(0, "llama-0")],
        ("bert", "", "bert-0", "", "ab" * 32),
    ),
    "two pods share the card": ({"cgroup": POD}, [granted(0, "a"), granted(0, "b")], ("rdzv", "", "", "", "ab" * 32)),
    "a job of the directory": ({}, [granted(0, job="8121")], ("rdzv", "8121", "", "", "")),
    "two jobs share the card": ({}, [granted(0, job="1"), granted(0, job="2")], ("rdzv", "", "", "", "")),
    "another job than the process says": ({"SLURM_JOB_ID": "9"}, [granted(0, job="8")], ("slurm-9", "9", "", "", "")),
    "of another card": ({}, [granted(1, "llama-0"), granted(1, job="8")], ("rdzv", "", "", "", "")),
}


@pytest.mark.parametrize(("shown", "given", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_an_allocation_says_what_a_process_does_not(
    shown: dict[str, str],
    given: list[GpuAllocation],
    expected: tuple[str, ...],
    attribution: Attribution,
    process: Callable[..., None],
) -> None:
    process(40, **{"TORCHELASTIC_RUN_ID": "rdzv", "RANK": "3", **shown})

    (owner,) = attribution.owners(node(card(0, 40, memory=BUSY), card(1)), allocations=given)

    assert (owner.run, owner.job_id, owner.pod, owner.namespace, owner.container) == expected
    assert (owner.rank, owner.pid) == ("3", 40)


UNSEEN = {
    "listed, and not to be found": (card(0, 4711, memory=BUSY), [granted(0, "llama-worker-3")], [("llama", "llama-worker-3", "")]),
    "not even listed": (card(0, memory=BUSY), [granted(0, "llama-worker-3")], [("llama", "llama-worker-3", "")]),
    "a job": (card(0, memory=BUSY), [granted(0, job="8121")], [("slurm-8121", "", "8121")]),
    "two pods share the card": (card(0, memory=BUSY), [granted(0, "a-1"), granted(0, "b-1")], [("a", "a-1", ""), ("b", "b-1", "")]),
    "nothing runs": (card(0), [granted(0, "llama-worker-3")], []),
    "an old driver counts what it reserves": (card(0, memory=GpuMemory(80 << 30, 600 << 20, 0)), [granted(0, "llama-worker-3")], []),
    "no answer": (card(0, memory=BUSY, success=False), [granted(0, "llama-worker-3")], []),
    "given to nobody": (card(0, memory=BUSY), [], []),
}


@pytest.mark.parametrize(("reading", "given", "expected"), UNSEEN.values(), ids=UNSEEN)
def test_where_a_process_cannot_be_seen_its_allocation_stands_for_it(
    reading: GpuReading, given: list[GpuAllocation], expected: list[tuple[str, str, str]], attribution: Attribution
) -> None:
    owners = attribution.owners(node(reading), allocations=given)

    assert [(owner.run, owner.pod, owner.job_id) for owner in owners] == expected
    assert all(owner.pid == 0 for owner in owners)


def test_a_process_that_has_just_died_is_not_one_that_cannot_be_seen(
    attribution: Attribution, process: Callable[..., None], tmp_path: Path
) -> None:
    process(40, TRAINER_RUN_NAME="mine", RANK="3")
    attribution.owners(node(card(0, 40, memory=BUSY)), allocations=[granted(0, "llama-0")])

    (tmp_path / "proc/40/stat").unlink()
    dying = attribution.owners(node(card(0, 40, memory=BUSY)), allocations=[granted(0, "llama-0")])
    gone = attribution.owners(node(card(0)), allocations=[granted(0, "llama-0")])

    assert [(owner.run, owner.rank) for owner in dying] == [("mine", "3")]
    assert gone == ()


def test_an_allocation_is_shown_whether_or_not_anything_runs() -> None:
    shown = list(metrics.samples([granted(0, "llama-0"), granted(1, job="8")], {("GPU-0", 0): True, ("GPU-1", 1): False}))

    assert [(sample.family.name, tuple(sample.labels), sample.value) for sample in shown] == [
        ("gpu_allocation_info", ("GPU-0", "0", "kubelet", "", "llama-0", "ml", "trainer"), 1),
        ("gpu_allocation_info", ("GPU-1", "1", "job_mapping", "8", "", "", ""), 1),
        ("gpu_allocatable", ("GPU-0", "0"), 1),
        ("gpu_allocatable", ("GPU-1", "1"), 0),
    ]


ASKED = {
    "nobody is where it is not": (AttributionConfig(), False, False),
    "the kubelet that is there": (AttributionConfig(), True, True),
    "not where it is switched off": (AttributionConfig(kubelet=False), True, False),
    "the kubelet that is wanted": (AttributionConfig(kubelet=True), False, True),
    "the kubelet that has a place": (AttributionConfig(kubelet_socket="/run/kubelet.sock"), False, True),
    "the directory": (AttributionConfig(job_mapping_dir="/run/jobs"), False, True),
}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_kubelet_that_may_not_be_asked_is_left_alone_unless_it_is_wanted(tmp_path: Path) -> None:
    folder = tmp_path / "pod-resources"
    folder.mkdir()
    socket = folder / "kubelet.sock"
    socket.touch(mode=0o400)

    assert not allocations(Config(), clock=ManualClock(), health=Health(), socket=str(socket)).are_known
    assert allocations(
        Config(attribution=AttributionConfig(kubelet=True)), clock=ManualClock(), health=Health(), socket=str(socket)
    ).are_known
    folder.chmod(0)
    assert not allocations(Config(), clock=ManualClock(), health=Health(), socket=str(socket)).are_known
    folder.chmod(0o700)


def test_without_grpc_a_kubelet_that_is_wanted_stops_the_start_and_one_that_is_there_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    monkeypatch.setitem(sys.modules, "grpc", None)

    assert not allocations(Config(), clock=ManualClock(), health=Health(), socket=str(socket)).are_known
    with pytest.raises(TrainerExporterError, match=r"trainer-exporter\[kubernetes\]"):
        allocations(Config(attribution=AttributionConfig(kubelet=True)), clock=ManualClock(), health=Health(), socket=str(socket))


@pytest.mark.parametrize(("told", "is_there", "is_known"), ASKED.values(), ids=ASKED)
def test_who_is_asked(told: AttributionConfig, is_there: bool, is_known: bool, tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    if is_there:
        socket.touch()

    asked = allocations(Config(attribution=told), clock=ManualClock(), health=Health(), socket=str(socket))

    assert asked.are_known == is_known
    off = Config(attribution=told, gpu=GpuConfig(enabled=False))
    assert not allocations(off, clock=ManualClock(), health=Health(), socket=str(socket)).are_known

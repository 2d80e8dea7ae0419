"""Whose GPU is it: from a /proc made by hand to owners, and what is remembered of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from trainer_exporter.attribution import Attribution, Processes, ProcessFacts, attribute, run_name
from trainer_exporter.attribution.naming import pod_owner
from trainer_exporter.clock import ManualClock
from trainer_exporter.model_gpu import GpuIdentity, GpuProcess, GpuReading, GpuSnapshot

POD_UID = "0f2c7a1e-5b6d-4c3a-9e8f-112233445566"
CONTAINER = "ab" * 32


class Proc:
    """A /proc with the processes that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(  # a process has that many sides
        self,
        pid: int,
        environment: Mapping[str, str] | None = None,
        *,
        parent: int = 1,
        state: str = "S",
        start: int = 500,
        command: str = "python train.py",
        cgroup: str = "0::/\n",
        log: Path | None = None,
    ) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (pt) main :) {state} {parent} " + "0 " * 17 + f"{start} 0\n")
        (folder / "status").write_text("Name:\tpython\nUid:\t1007\t1007\t1007\t1007\n")
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in (environment or {}).items()))
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "cgroup").write_text(cgroup)
        self._link(folder / "cwd", "/home/ada/llm")
        self._link(folder / "ns/uts", "uts:[1]" if pid == 1 else "uts:[2]")
        for descriptor in ("1", "2"):
            self._link(folder / "fd" / descriptor, log or "pipe:[777]")

    def processes(self) -> Processes:
        return Processes(self.root, user_name=lambda uid: f"user{uid}")

    def facts(self, pid: int) -> ProcessFacts:
        facts = self.processes().describe(pid)
        assert facts is not None
        return facts

    @staticmethod
    def _link(path: Path, target: Path | str) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def snapshot(*cards: tuple[str, list[int] | None], lost: frozenset[str] = frozenset()) -> GpuSnapshot:
    """Cards with the PIDs on them; None for a card that could not be read."""
    readings = []
    for index, (uuid, pids) in enumerate(cards):
        processes = tuple(GpuProcess(pid, None) for pid in pids or ())
        readings.append(GpuReading(GpuIdentity(uuid, index, "card"), pids is not None, 0.0, processes=processes))
    return GpuSnapshot(readings=tuple(readings), lost=lost)


def test_a_torchrun_worker_under_slurm_shows_its_job_and_rank_but_none_of_its_secrets(proc: Proc, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    environment = {
        "SLURM_JOB_ID": "8121",
        "SLURM_JOB_NAME": "qwen-sft",
        "SLURM_PROCID": "1",
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "16",
        "WANDB_API_KEY": "secret",
        "MASTER_ADDR": "node-1",
    }
    proc.put(40, environment, command="python train.py --output_dir out/qwen --run_name=r1", log=log)

    facts = proc.facts(40)

    assert (facts.rank, facts.local_rank, facts.world_size, facts.job_id) == ("11", "3", "16", "8121")
    assert (facts.user, facts.cwd, facts.output_dir, facts.run_name) == ("user1007", "/home/ada/llm", "/home/ada/llm/out/qwen", "r1")
    assert facts.log_files == (str(log),)
    assert "secret" not in repr(facts)
    assert run_name(facts) == "qwen-sft-8121"


def test_a_process_that_wiped_its_environment_is_known_by_its_ancestors(proc: Proc) -> None:
    proc.put(40, {"SLURM_JOB_ID": "8121", "SLURM_JOB_NAME": "pre", "SLURM_PROCID": "1"})
    proc.put(41, parent=40)
    proc.put(42, parent=41)

    facts = proc.facts(42)

    assert run_name(facts) == "pre-8121"
    assert facts.rank == "", "the launcher's task number is no rank"


@pytest.mark.parametrize(
    ("cgroup", "job_id"),
    [
        ("0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_3\n", "77"),
        ("11:devices:/slurm/uid_1007/job_78/step_batch\n1:cpu:/\n", "78"),
        ("0::/user.slice/user-1007.slice\n", ""),
    ],
    ids=["cgroup v2", "cgroup v1", "not in a job"],
)
def test_a_slurm_job_is_known_by_its_cgroup_where_the_environment_is_silent(proc: Proc, cgroup: str, job_id: str) -> None:
    proc.put(40, cgroup=cgroup)

    assert proc.facts(40).job_id == job_id


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n",
        f"12:memory:/kubepods/burstable/pod{POD_UID}/{CONTAINER}\n1:cpu:/\n",
    ],
    ids=["systemd, v2", "cgroupfs, v1"],
)
def test_a_pod_is_known_by_its_cgroup_and_named_by_its_host_name(proc: Proc, cgroup: str) -> None:
    proc.put(1)
    proc.put(40, {"HOSTNAME": "llama-worker-1", "POD_NAMESPACE": "ml"}, cgroup=cgroup)

    facts = proc.facts(40)

    assert (facts.pod, facts.pod_uid, facts.namespace, facts.container) == ("llama-worker-1", POD_UID, "ml", CONTAINER)
    assert run_name(facts) == "llama"


def test_a_pod_on_the_hosts_network_is_not_named_after_the_node(proc: Proc) -> None:
    proc.put(1)
    proc.put(40, {"HOSTNAME": "node-17"}, cgroup=f"0::/kubepods/pod{POD_UID}/{CONTAINER}\n")
    (proc.root / "40/ns/uts").unlink()
    (proc.root / "40/ns/uts").symlink_to("uts:[1]")

    assert proc.facts(40).pod == ""


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("llama-master-0", "llama"),
        ("llama-worker-13", "llama"),
        ("llama-0-x7kq2", "llama"),
        ("llama-x7kq2", "llama"),
        ("llama-7", "llama"),
        ("llama-6d5f8c9b7d-x7kq2", "llama"),
        ("my-train", "my-train"),
    ],
    ids=["training operator", "its workers", "indexed job", "job", "stateful set", "deployment", "bare pod"],
)
def test_all_pods_of_one_owner_have_one_name(pod: str, owner: str) -> None:
    assert pod_owner(pod) == owner


ALL = ProcessFacts(
    1,
    0,
    user="ada",
    job_id="7",
    job_name="job",
    pod="pod-worker-0",
    output_dir="/data/qwen/sft",
    run_name="named",
    environment={"TRAINER_RUN_NAME": "mine", "TORCHELASTIC_RUN_ID": "rdzv"},
)


@pytest.mark.parametrize(
    ("template", "without", "name"),
    [
        pytest.param("{user}-{job_id}", {}, "ada-7", id="the configuration's template first"),
        pytest.param("{namespace}-{job_id}", {}, "mine", id="a template with a place that is empty does not count"),
        pytest.param(None, {}, "mine", id="then the variable made for it"),
        pytest.param(None, {"environment": {"TORCHELASTIC_RUN_ID": "rdzv"}}, "job-7", id="then Slurm"),
        pytest.param(None, {"environment": {"TORCHELASTIC_RUN_ID": "rdzv"}, "job_id": ""}, "pod", id="then the pod's owner"),
        pytest.param(None, {"environment": {"TORCHELASTIC_RUN_ID": "rdzv"}, "job_id": "", "pod": ""}, "rdzv", id="then the rendezvous"),
        pytest.param(None, {"environment": {"TORCHELASTIC_RUN_ID": "none"}, "job_id": "", "pod": ""}, "named", id="then run_name"),
        pytest.param(
            None,
            {"environment": {"TORCHELASTIC_RUN_ID": POD_UID}, "job_id": "", "pod": "", "run_name": ""},
            "qwen/sft",
            id="then the directory, joined to its parent where it says nothing; a rendezvous made up at each start is no name",
        ),
        pytest.param(None, {"environment": {}, "job_id": "", "pod": "", "run_name": "", "output_dir": ""}, "", id="else none"),
    ],
)
def test_the_name_of_a_run_follows_one_order(template: str | None, without: Mapping[str, object], name: str) -> None:
    facts = ProcessFacts(**{field: getattr(ALL, field) for field in ALL.__slots__} | dict(without))  # type: ignore[arg-type]

    assert run_name(facts, template) == name


@pytest.mark.parametrize(
    ("output_dir", "name"),
    [
        ("/data/saves/llama3-8b/lora/sft", "llama3-8b/lora/sft"),
        ("/home/ada/outputs", ""),
        ("/home/ada/qwen/runs/3", "qwen/runs/3"),
        ("/", ""),
    ],
    ids=["joined up to what says something", "a person is no run", "a number", "the root"],
)
def test_an_output_directory_names_a_run_only_where_it_says_something(output_dir: str, name: str) -> None:
    assert run_name(ProcessFacts(1, 0, output_dir=output_dir)) == name


def test_a_name_is_one_printable_line_of_bounded_length() -> None:
    facts = ProcessFacts(1, 0, environment={"TRAINER_RUN_NAME": "a\nb\x1b[31m " + "x" * 500})

    name = run_name(facts)

    assert name.startswith("a_b_[31m xxx")
    assert len(name) == 200


def test_several_processes_of_one_rank_are_one_owner(proc: Proc) -> None:
    for pid, rank in ((40, "0"), (41, "0"), (42, "1")):
        proc.put(pid, {"TRAINER_RUN_NAME": "qwen", "RANK": rank})
    proc.put(50, {}, command="nvidia-cuda-mps-server")
    proc.put(60, {"TRAINER_RUN_NAME": "gone"}, state="Z")

    owners = attribute(snapshot(("GPU-a", [40, 41, 42, 50, 60, 99])), proc.processes().describe)

    assert [(owner.uuid, owner.run, owner.rank) for owner in owners] == [("GPU-a", "qwen", "0"), ("GPU-a", "qwen", "1")]


def test_a_run_that_is_known_by_its_log_keeps_that_name(proc: Proc, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    proc.put(40, {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job"}, log=log)

    owners = attribute(snapshot(("GPU-a", [40])), proc.processes().describe, {str(log): "configured"})

    assert [(owner.run, owner.job_id) for owner in owners] == [("configured", "7")]


def test_a_process_that_holds_a_runs_log_serves_that_run(proc: Proc) -> None:
    proc.put(40, {"RANK": "3"})

    owners = attribute(snapshot(("GPU-a", [40])), proc.processes().describe, writers={40: "heron"})

    assert [(owner.run, owner.rank) for owner in owners] == [("heron", "3")]


@pytest.mark.parametrize("lost", [frozenset({"GPU-a"}), frozenset[str]()], ids=["lost", "unreadable"])
def test_a_card_that_no_longer_answers_keeps_its_owner_for_an_hour(proc: Proc, lost: frozenset[str]) -> None:
    clock = ManualClock()
    proc.put(40, {"TRAINER_RUN_NAME": "qwen", "RANK": "3"})
    attribution = Attribution(clock, proc.processes())
    attribution.owners(snapshot(("GPU-a", [40]), ("GPU-b", [40])))

    clock.advance(3600)
    dark = snapshot(("GPU-a", None), ("GPU-b", []), lost=lost)
    remembered = attribution.owners(dark)
    clock.advance(1)
    afterwards = attribution.owners(dark)

    assert [(owner.uuid, owner.run, owner.rank) for owner in remembered] == [("GPU-a", "qwen", "3")]
    assert afterwards == ()


def test_a_card_that_answers_without_processes_serves_no_run(proc: Proc) -> None:
    proc.put(40, {"TRAINER_RUN_NAME": "qwen"})
    attribution = Attribution(ManualClock(), proc.processes())
    assert attribution.owners(snapshot(("GPU-a", [40])))

    assert attribution.owners(snapshot(("GPU-a", []))) == ()


def test_a_trainer_that_dies_before_its_card_is_found_lost_is_remembered(proc: Proc) -> None:
    proc.put(40, {"TRAINER_RUN_NAME": "qwen"})
    attribution = Attribution(ManualClock(), proc.processes())
    attribution.owners(snapshot(("GPU-a", [40])))

    proc.put(40, state="Z")
    attribution.owners(snapshot(("GPU-a", [40])))

    owners = attribution.owners(snapshot(("GPU-a", None), lost=frozenset({"GPU-a"})))
    assert [owner.run for owner in owners] == ["qwen"]


def test_a_pid_that_is_used_again_is_read_again(proc: Proc) -> None:
    attribution = Attribution(ManualClock(), proc.processes())
    proc.put(40, {"TRAINER_RUN_NAME": "old"})
    attribution.owners(snapshot(("GPU-a", [40])))

    proc.put(40, {"TRAINER_RUN_NAME": "new"}, start=900)

    assert [owner.run for owner in attribution.owners(snapshot(("GPU-a", [40])))] == ["new"]
    assert [facts.pid for facts in attribution.processes()] == [40]


def test_our_own_process_is_read_from_the_real_proc() -> None:
    facts = Processes().describe(os.getpid())

    assert facts is not None
    assert facts.cwd == str(Path.cwd())
    assert facts.user
    assert facts.start_ticks == Processes().start_ticks(os.getpid())
    assert Processes().describe(2**22 + 1) is None

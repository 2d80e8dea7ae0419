"""From a process to its logs: nodes made by hand, with the /proc and the /var/log that launchers leave there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host import READ, READ_WRITE, WRITE, Host
from trainer_exporter.attribution import Log, Logs, Processes, ProcessFacts, Wanted, Watched
from trainer_exporter.attribution.places import Places
from trainer_exporter.attribution.proc import Proc
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuIdentity, GpuProcess, GpuReading, GpuSnapshot

POD_UID = "3b9d2c40-77aa-4f10-8c1e-5566778899aa"
CONTAINER = "5e" * 32
SECRET = "hunter2-do-not-tell"


class Node(Host):
    """A host, and what is found on it."""

    def processes(self) -> Processes:
        return Processes(self.root / "proc", pods=self.root / "var/log/pods", user_name=lambda uid: f"user{uid}")

    def found(self, pid: int) -> dict[str, str]:
        """Path and reason of each log of a process, the paths as the host has them."""
        facts = self.processes().describe(pid)
        assert facts is not None
        logs = Logs(self.processes(), self.clock, host_root=self.root).of(facts, f"PID {pid} on GPU 0")
        return {log.path.removeprefix(str(self.root)): log.why for log in reversed(list(logs))}

    def watched(self) -> Watched:
        processes = self.processes()
        return Watched(processes, Logs(processes, self.clock, host_root=self.root), self.clock, health=Health(), remembered_s=3600.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def cards(*pids: int) -> GpuSnapshot:
    processes = tuple(GpuProcess(pid, None) for pid in pids)
    return GpuSnapshot(readings=(GpuReading(GpuIdentity("GPU-a", 0, "card"), success=True, collected_wall=0.0, processes=processes),))


def test_files_behind_both_streams_are_logs(node: Node) -> None:
    out, err = node.file("/data/heron/out.log"), node.file("/data/heron/err.log")
    node.process(40, {"1": (out, WRITE), "2": (err, WRITE)})

    assert node.found(40) == {
        "/data/heron/out.log": "standard output of PID 40 on GPU 0",
        "/data/heron/err.log": "standard error of PID 40 on GPU 0",
    }


def test_what_is_no_file_or_no_more_is_no_log(node: Node) -> None:
    deleted = node.file("/data/old.log")
    Path(deleted).unlink()
    node.process(40, {"1": ("/dev/null", WRITE), "2": (f"{deleted} (deleted)", WRITE)})

    assert node.found(40) == {}


def test_a_pipe_into_tee_leads_to_its_file(node: Node) -> None:
    node.process(40, {"1": ("pipe:[900]", WRITE), "2": ("/dev/pts/1", READ_WRITE)})
    node.process(41, {"0": ("pipe:[900]", READ), "1": ("/dev/pts/1", READ_WRITE), "3": (node.file("/data/heron.log"), WRITE)}, name="tee")

    assert node.found(40) == {"/data/heron.log": "tee behind standard output of PID 40 on GPU 0"}


def test_a_chain_of_three_processes_is_followed_and_no_longer_one(node: Node) -> None:
    log = node.file("/data/heron.log")
    node.process(40, {"1": ("pipe:[1]", WRITE)})
    node.process(39, {"1": ("pipe:[0]", WRITE)})
    for pid in (41, 42, 43):
        node.process(pid, {"0": (f"pipe:[{pid - 40}]", READ), "1": (f"pipe:[{pid - 39}]", WRITE)}, name="sed")
    (node.root / "proc/43/fd/3").symlink_to(log)
    (node.root / "proc/43/fdinfo/3").write_text("flags:\t0100001\n")
    node.process(38, {"0": ("pipe:[0]", READ), "1": ("pipe:[1]", WRITE)}, name="sed")

    assert node.found(40) == {"/data/heron.log": "the process behind standard output of PID 40 on GPU 0"}
    assert node.found(39) == {}


@pytest.mark.parametrize(
    ("name", "uid", "opened", "files"),
    [
        ("tee", 0, WRITE, {"/data/heron.log"}),
        ("tee", 1007, READ_WRITE | os.O_APPEND, {"/data/heron.log"}),
        ("tee", 1008, WRITE, set[str]()),
        ("python", 1007, READ_WRITE, set[str]()),
        ("python", 1007, READ, set[str]()),
        ("slurmstepd", 0, WRITE, set[str]()),
        ("containerd-shim", 0, WRITE, set[str]()),
    ],
    ids=["root's", "appended to", "another user's", "a data base", "read only", "a log of slurmd's own", "a log of the runtime's own"],
)
def test_of_the_process_behind_a_pipe_only_what_is_the_trainers_counts(
    node: Node, name: str, uid: int, opened: int, files: set[str]
) -> None:
    node.process(40, {"1": ("pipe:[900]", WRITE)})
    node.process(41, {"0": ("pipe:[900]", READ), "5": (node.file("/data/heron.log"), opened)}, name=name, uid=uid)

    assert node.found(40).keys() == files


def test_a_process_with_many_files_behind_a_pipe_says_nothing(node: Node) -> None:
    node.process(40, {"1": ("pipe:[900]", WRITE)})
    files = {str(at): (node.file(f"/data/{at}.log"), WRITE) for at in range(10, 40)}
    node.process(41, {"0": ("pipe:[900]", READ), **files}, name="supervisord")

    assert node.found(40) == {}


def test_the_other_writers_of_a_pipe_are_not_its_readers(node: Node) -> None:
    node.process(40, {"1": ("pipe:[900]", WRITE)})
    node.process(41, {"1": ("pipe:[900]", WRITE), "3": (node.file("/data/other.log"), WRITE)})

    assert node.found(40) == {}


V1 = "11:devices:/slurm/uid_1007/job_77/step_{step}/task_0\n9:cpuset:/slurm/uid_1007/job_77/step_{step}\n1:cpu:/system.slice\n"
V2 = "0::/system.slice/slurmstepd.scope/job_77/step_{step}/user/task_0\n"


@pytest.mark.parametrize("cgroup", [V1, V2], ids=["cgroup v1", "cgroup v2"])
def test_a_task_of_srun_leads_to_the_file_that_srun_writes(node: Node, cgroup: str) -> None:
    log, other = node.file("/home/ada/slurm-77.out"), node.file("/home/ada/slurm-78.out")
    node.process(30, {"1": (log, WRITE), "2": (log, WRITE)}, name="slurm_script", cgroup=cgroup.format(step="batch"))
    node.process(31, {"1": (log, WRITE), "2": (log, WRITE)}, name="srun", parent=30, cgroup=cgroup.format(step="batch"))
    node.process(32, {"1": (other, WRITE)}, name="srun", environment={"SLURM_JOB_ID": "78"})
    node.process(35, {"7": ("pipe:[900]", READ), "3": (node.file("/var/log/slurmd.log"), WRITE)}, name="slurmstepd", uid=0)
    node.process(40, {"1": ("pipe:[900]", WRITE), "2": ("pipe:[901]", WRITE)}, parent=35, cgroup=cgroup.format(step="0"))

    assert node.found(40) == {"/home/ada/slurm-77.out": "srun of job 77"}


def test_where_srun_does_not_run_its_task_has_no_log(node: Node) -> None:
    node.process(35, {"7": ("pipe:[900]", READ), "3": (node.file("/var/log/slurmd.log"), WRITE)}, name="slurmstepd", uid=0)
    node.process(40, {"1": ("pipe:[900]", WRITE)}, parent=35, cgroup=V2.format(step="0"))

    assert node.found(40) == {}


def test_the_daemon_of_a_job_step_does_not_stand_for_the_job(node: Node) -> None:
    log = node.file("/home/ada/slurm-77.out")
    node.process(30, {"2": (log, WRITE)}, name="slurmstepd", uid=0, cgroup="6:freezer:/slurm/uid_1007/job_77\n")
    script = {"environment": {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "llama"}, "cgroup": V1.format(step="batch")}
    node.process(31, {"1": (log, WRITE), "2": (log, WRITE)}, name="slurm_script", parent=30, **script)
    watched = node.watched()

    (found,) = watched.look(GpuSnapshot(), Wanted(cgroups=("*/job_*",)))

    assert (found.facts.pid, found.facts.job_name, found.why) == (31, "llama", "standard output of PID 31")


SYSTEMD = f"0::/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
CGROUPFS = f"12:memory:/kubepods/burstable/pod{POD_UID}/{CONTAINER}\n1:cpu:/kubepods/burstable/pod{POD_UID}/{CONTAINER}\n"


@pytest.mark.parametrize("cgroup", [SYSTEMD, CGROUPFS], ids=["systemd, v2", "cgroupfs, v1"])
@pytest.mark.parametrize("linked", [True, False], ids=["with /var/log/containers", "without"])
def test_a_container_is_traced_to_the_kubelets_file(node: Node, cgroup: str, linked: bool) -> None:
    folder = f"/var/log/pods/ml_llama-worker-1_{POD_UID}/trainer"
    node.file(f"{folder}/0.log")
    node.file(f"{folder}/1.log")
    if linked:
        link = Path(node.file(f"/var/log/containers/llama-worker-1_ml_trainer-{CONTAINER}.log"))
        link.unlink()
        link.symlink_to(f"{folder}/1.log")
        node.file(f"/var/log/pods/ml_llama-worker-1_{POD_UID}/sidecar/0.log")
    node.process(40, {"1": ("pipe:[900]", WRITE)}, cgroup=cgroup)

    facts = node.processes().describe(40)

    assert node.found(40) == {f"{folder}/1.log": "log of container 5e5e5e5e5e5e"}
    assert facts is not None
    assert (facts.namespace, facts.pod) == ("ml", "llama-worker-1"), "the directory of its logs names a pod on the host's network"


def test_of_two_containers_of_a_pod_none_is_taken_for_the_other(node: Node) -> None:
    for container in ("trainer", "sidecar"):
        node.file(f"/var/log/pods/ml_llama_{POD_UID}/{container}/0.log")
    node.process(40, {"1": ("pipe:[900]", WRITE)}, cgroup=SYSTEMD)

    assert node.found(40) == {}


def test_dockers_own_file_is_found(node: Node) -> None:
    log = f"/var/lib/docker/containers/{CONTAINER}/{CONTAINER}-json.log"
    node.file(log)
    node.process(40, {"1": ("pipe:[900]", WRITE)}, cgroup=f"0::/system.slice/docker-{CONTAINER}.scope\n")

    assert node.found(40) == {log: "log of container 5e5e5e5e5e5e"}


def test_paths_inside_a_container_are_seen_through_its_root(node: Node) -> None:
    node.file("/overlay/workspace/out/llama/trainer_log.jsonl")
    node.process(40, command="python train.py --output_dir /workspace/out/llama")
    node.contain(40, "overlay")

    assert node.found(40) == {"/proc/40/root/workspace/out/llama": "in the output_dir of PID 40 on GPU 0"}


def test_a_path_that_our_own_mounts_show_too_does_not_end_with_the_process(node: Node) -> None:
    node.file("/overlay/workspace/out/llama/trainer_log.jsonl")
    node.file("/overlay/README")
    node.process(40, command="python train.py --output_dir /workspace/out/llama")
    mounts = "99 1 0:55 / / rw - overlay overlay rw\n100 99 8:1 /srv/ada /workspace rw - ext4 /dev/sda1 rw\n"
    node.contain(40, "overlay", mounts)
    (node.root / "srv").mkdir()
    (node.root / "srv/ada").symlink_to(node.root / "overlay/workspace")
    (node.root / "proc/self/mountinfo").write_text(f"20 1 8:1 / {node.root} rw - ext4 /dev/sda1 rw\n")

    assert node.found(40) == {"/srv/ada/out/llama": "in the output_dir of PID 40 on GPU 0"}


def test_a_path_that_means_another_file_here_is_not_taken_for_it(node: Node) -> None:
    here = node.file("/data/console.log")
    node.process(40)
    node.contain(40, "overlay")
    node.file(f"/overlay{here}")
    theirs = (node.root / f"proc/40/root{here}").stat()

    place = Places(Proc(node.root / "proc")).seen(40, here, (theirs.st_dev, theirs.st_ino))

    assert place == f"{node.root}/proc/40/root{here}"


def test_torchruns_directory_is_known_from_the_file_that_it_gives_its_workers(node: Node) -> None:
    error_file = "/data/elastic/none_x1/attempt_0/1/error.json"
    node.process(40, {"1": ("/dev/pts/0", READ_WRITE)}, environment={"TORCHELASTIC_ERROR_FILE": error_file})

    assert node.found(40) == {"/data/elastic/none_x1": "of torchrun's --log-dir, for PID 40 on GPU 0"}


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python /opt/bin/torchrun --log-dir logs/elastic --redirects 3 train.py",
        "python -m torch.distributed.run --log_dir=/home/ada/llm/logs/elastic -r 3 train.py",
    ],
    ids=["torchrun", "as a module"],
)
def test_torchruns_directory_is_known_from_its_command_line(node: Node, command: str) -> None:
    node.process(39, command=command)
    node.process(40, parent=39, environment={"TORCHELASTIC_RUN_ID": "r1"})

    assert node.found(40) == {"/home/ada/llm/logs/elastic/r1*/attempt_*/*/std*.log": "of torchrun's --log-dir, for PID 40 on GPU 0"}


def test_only_a_launchers_word_for_its_directory_counts(node: Node) -> None:
    node.process(39, command="tensorboard --log-dir /data/tensorboard")
    node.process(40, parent=39)

    assert node.found(40) == {}


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        ("python train.py --output_dir out/qwen", "/home/ada/llm/out/qwen"),
        ("python train.py --work-dir=/data/det/r50", "/data/det/r50"),
        ("python -m verl.trainer.main_ppo trainer.default_local_dir=/data/ppo/7b", "/data/ppo/7b"),
        ("python train.py --output_dir /output", "/output"),
        ("python train.py --output_dir .", ""),
        ("python train.py --output_dir ..", ""),
        ("python train.py --output_dir /home/bob", ""),
        ("python train.py --output_dir /tmp", ""),
        ("python train.py --output_dir /", ""),
        ("python train.py --out /data/x", ""),
    ],
    ids=["relative", "mmengine", "hydra", "a container's", "where the code is", "above it", "a home", "everybody's", "all", "unknown"],
)
def test_an_output_directory_is_followed_where_it_can_be_one_runs(node: Node, command: str, directory: str) -> None:
    node.process(40, command=command)

    assert node.found(40) == ({directory: "in the output_dir of PID 40 on GPU 0"} if directory else {})


def test_nothing_but_what_is_allowed_leaves_an_environment_or_a_command_line(node: Node) -> None:
    log = node.file("/data/heron.log")
    environment = {"WANDB_API_KEY": SECRET, "SLURM_JOB_ID": "77", "AWS_SECRET_ACCESS_KEY": SECRET, "RANK": "0"}
    node.process(39, {"0": ("pipe:[9]", READ), "3": (log, WRITE)}, name=SECRET[:15], command=f"tee --token {SECRET}")
    command = f"python train.py --hub_token {SECRET} --api-key={SECRET} --output_dir /data/out"
    node.process(40, {"1": ("pipe:[9]", WRITE)}, command=command, environment=environment)

    logs = node.watched().look(cards(40), Wanted())

    assert {each.path for each in logs} == {log, "/data/out"}
    assert "hunter2" not in repr(logs)


def test_processes_are_found_by_pid_with_all_below_them_and_by_control_group(node: Node) -> None:
    logs = {pid: node.file(f"/data/{pid}.log") for pid in (40, 41, 42, 50)}
    for pid, parent, cgroup in ((40, 1, "/a"), (41, 40, "/a"), (42, 41, "/b/c"), (50, 1, "/system.slice/train-7.service/x"), (60, 1, "/z")):
        node.process(pid, {"1": (logs.get(pid, "/dev/null"), WRITE)}, parent=parent, cgroup=f"0::{cgroup}\n")
    watched = node.watched()

    below = watched.look(cards(), Wanted(pids=(40,)))
    grouped = node.watched().look(cards(), Wanted(cgroups=("/system.slice/train-*.service",)))

    assert [(log.path, log.why) for log in below] == [(logs[pid], f"standard output of PID {pid}") for pid in (40, 41, 42)]
    assert [log.path for log in grouped] == [logs[50]]


def test_a_pid_that_is_used_again_is_no_longer_the_one_that_was_named(node: Node) -> None:
    node.process(40, {"1": (node.file("/data/first.log"), WRITE)}, start=500)
    watched = node.watched()
    watched.look(cards(), Wanted(pids=(40,)))

    (node.root / "proc/40").rename(node.root / "gone")
    node.process(40, {"1": (node.file("/data/second.log"), WRITE)}, start=900)
    node.clock.advance(10)

    assert [log.path for log in watched.look(cards(), Wanted(pids=(40,)))] == [str(node.root / "data/first.log")]


def test_a_log_outlives_its_process_and_is_known_as_unwritten(node: Node) -> None:
    log = node.file("/data/heron.log")
    node.process(40, {"1": (log, WRITE)}, environment={"RANK": "0"})
    watched = node.watched()
    watched.look(cards(40), Wanted())
    alive = watched.is_alive(log)

    (node.root / "proc/40").rename(node.root / "gone")
    kept = watched.look(cards(), Wanted())
    node.clock.advance(3601)
    forgotten = watched.look(cards(), Wanted())

    assert alive
    assert [each.path for each in kept] == [log]
    assert not watched.is_alive(log)
    assert forgotten == []


def test_a_log_with_a_new_writer_is_that_ones(node: Node) -> None:
    log = node.file("/data/heron.log")
    node.process(40, {"1": (log, WRITE)})
    watched = node.watched()
    watched.look(cards(40), Wanted())

    (node.root / "proc/40").rename(node.root / "gone")
    node.process(45, {"1": (log, WRITE)})
    (found,) = watched.look(cards(45), Wanted())

    assert found.why == "standard output of PID 45 on GPU 0"
    assert watched.is_alive(log)


@pytest.mark.parametrize(
    ("ranks", "first"),
    [(("0", "1"), True), (("8", "9"), False), (("",), True), (("", "8"), False)],
    ids=["first node", "second", "alone", "its launcher"],
)
def test_a_trainers_own_files_belong_to_the_node_of_the_first_rank(node: Node, ranks: tuple[str, ...], first: bool) -> None:
    pids = range(40, 40 + len(ranks))
    for pid, rank in zip(pids, ranks, strict=True):
        node.process(
            pid, command="python train.py --output_dir /shared/out/llama", environment={"RANK": rank} if rank else {"HOSTNAME": "n"}
        )
    watched = node.watched()

    watched.look(cards(*pids), Wanted())

    assert watched.is_of_first_rank("/shared/out/llama") is first


def test_a_search_for_a_reader_is_not_repeated_at_each_look(node: Node) -> None:
    node.process(40, {"1": ("pipe:[900]", WRITE)})
    facts = node.processes().describe(40)
    assert facts is not None
    logs = Logs(node.processes(), node.clock, host_root=node.root)
    assert not paths(logs, facts)

    log = node.file("/data/heron.log")
    node.process(41, {"0": ("pipe:[900]", READ), "3": (log, WRITE)}, name="tee")
    soon = paths(logs, facts)
    node.clock.advance(30)

    assert not soon
    assert paths(logs, facts) == [log]


def paths(logs: Logs, facts: ProcessFacts) -> list[str]:
    found: list[Log] = list(logs.of(facts, "PID 40"))
    return [log.path for log in found]

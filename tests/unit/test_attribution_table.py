"""Whose process is it, launcher by launcher: what /proc of each shows, and what the labels of gpu_run_info become.

``python tests/unit/test_attribution_table.py`` prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]  # when it is not pytest that starts it

from host import Host  # noqa: E402 - found by the line above
from trainer_exporter.attribution import Attribution, Processes  # noqa: E402 - idem
from trainer_exporter.clock import ManualClock  # noqa: E402 - idem
from trainer_exporter.model_gpu import GpuAllocation, GpuIdentity, GpuOwner, GpuProcess, GpuReading, GpuSnapshot  # noqa: E402 - idem

UID = "0f2c7a1e-5b6d-4c3a-9e8f-112233445566"
UNDERSCORED = UID.replace("-", "_")
ID = "ab" * 32
STATIC = "9f" * 16  # a static pod's UID is a hash
SLURM = {"SLURM_JOB_ID": "8121", "SLURM_JOB_NAME": "qwen-sft", "SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
TORCHRUN = {"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none"}
IN_POD = {"RANK": "11", "LOCAL_RANK": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-worker-1"}

Labels = tuple[str, str, str, str, str, str, str]  # run, rank, local_rank, job_id, pod, namespace, container
HEADS = ("run", "rank", "local_rank", "job_id", "pod", "namespace", "container")


@dataclass(frozen=True)
class Case:
    """What a process on a GPU shows, and whose it is."""

    cgroup: str
    environment: Mapping[str, str]
    expected: Labels
    command: str = "python train.py"
    parents: Sequence[Mapping[str, str]] = ()  # environments of its ancestors, the nearest first
    logged: str = ""  # the directory of its pod's logs
    allocation: GpuAllocation | None = None
    own_host_name: bool = True
    lines: Sequence[str] = field(default=())  # of /proc/PID/cgroup before the one that tells


def pod(cgroup: str, **changes: object) -> Case:
    """A trainer in a pod that shows what the training operator sets."""
    case = Case(cgroup, IN_POD, ("llama", "11", "3", "", "llama-worker-1", "ml", ID), logged=f"ml_llama-worker-1_{UID}")
    return replace(case, **changes)  # type: ignore[arg-type]


WITH_JOB: Labels = ("qwen-sft-8121", "11", "3", "8121", "", "", "")
BY_CGROUP: Labels = ("slurm-8121", "", "", "8121", "", "", "")
V1 = ("12:cpuset:/slurm/uid_1007/job_8121/step_0", "11:memory:/slurm/uid_1007/job_8121/step_0/task_3")

TABLE = {
    # Slurm before cgroup v2: /slurm, or /slurm_NODE where several slurmd share a machine.
    "slurm, cgroup v1, srun task": Case("10:devices:/slurm/uid_1007/job_8121/step_0/task_3", SLURM, WITH_JOB, lines=V1),
    "slurm, cgroup v1, environment gone": Case("10:devices:/slurm/uid_1007/job_8121/step_batch", {}, BY_CGROUP),
    "slurm, cgroup v1, several slurmd": Case("10:devices:/slurm_node17/uid_1007/job_8121/step_0/task_3", {}, BY_CGROUP),
    # Slurm 22.05 to 23.02.
    "slurm, cgroup v2, srun task": Case("0::/system.slice/slurmstepd.scope/job_8121/step_0/user/task_3", SLURM, WITH_JOB),
    "slurm, cgroup v2, torchrun in a step": Case(
        "0::/system.slice/slurmstepd.scope/job_8121/step_0/user/task_0", {**SLURM, **TORCHRUN, "SLURM_PROCID": "1"}, WITH_JOB
    ),
    "slurm, cgroup v2, environment gone": Case("0::/system.slice/slurmstepd.scope/job_8121/step_batch/user/task_0", {}, BY_CGROUP),
    # From 23.11 on the scope bears the node's name.
    "slurm, cgroup v2, node's scope": Case("0::/system.slice/node17_slurmstepd.scope/job_8121/step_0/user/task_3", SLURM, WITH_JOB),
    "slurm, node's scope, environment gone": Case("0::/system.slice/node17_slurmstepd.scope/job_8121/step_0/user/task_3", {}, BY_CGROUP),
    "slurm, title set, srun above": Case(
        "0::/system.slice/node17_slurmstepd.scope/job_8121/step_0/user/task_3",
        {},
        ("qwen-sft-8121", "", "", "8121", "", "", ""),
        parents=[{}, SLURM],
    ),
    "slurm, older variable": Case("0::/", {"SLURM_JOBID": "8121", "SLURM_JOB_NAME": "pre"}, ("pre-8121", "", "", "8121", "", "", "")),
    "slurm in pods": Case(
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_8121/step_0/user/task_3",
        SLURM,
        ("qwen-sft-8121", "11", "3", "8121", "worker-0", "soperator", ID),
        logged=f"soperator_worker-0_{UID}",
    ),
    # Kubernetes: driver and version of cgroups, class of service, container runtime.
    "pod, cgroupfs v1, guaranteed": pod(f"11:devices:/kubepods/pod{UID}/{ID}"),
    "pod, cgroupfs v1, burstable": pod(f"11:devices:/kubepods/burstable/pod{UID}/{ID}"),
    "pod, cgroupfs v1, best effort": pod(f"11:devices:/kubepods/besteffort/pod{UID}/{ID}"),
    "pod, cgroupfs v2, burstable": pod(f"0::/kubepods/burstable/pod{UID}/{ID}"),
    "pod, systemd v1, docker": pod(
        f"11:devices:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/docker-{ID}.scope"
    ),
    "pod, systemd v2, guaranteed, containerd": pod(f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"),
    "pod, systemd v2, burstable, containerd": pod(
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    ),
    "pod, systemd v2, burstable, cri-o": pod(
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-{ID}.scope/container"
    ),
    "pod, below another kubelet (kind)": pod(
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    ),
    "static pod": pod(
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope",
        logged=f"ml_llama-worker-1_{STATIC}",
    ),
    "pod on the host's network": pod(
        f"0::/kubepods/burstable/pod{UID}/{ID}", environment={**IN_POD, "HOSTNAME": "node17"}, own_host_name=False
    ),
    "pod, environment gone": pod(
        f"0::/kubepods/burstable/pod{UID}/{ID}", environment={}, expected=("llama", "", "", "", "llama-worker-1", "ml", ID)
    ),
    "pod, no logs to see, kubelet asked": pod(
        f"0::/kubepods/burstable/pod{UID}/{ID}",
        logged="",
        allocation=GpuAllocation("GPU-0", 0, "kubelet", pod="llama-worker-1", namespace="ml", container="trainer"),
        expected=("llama", "11", "3", "", "llama-worker-1", "ml", "trainer"),
    ),
    # Nobody but the trainer itself.
    "docker, cgroup v1": Case(
        f"11:devices:/docker/{ID}", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "llama"}, ("llama", "11", "3", "", "", "", ID)
    ),
    "docker, cgroup v2": Case(
        f"0::/system.slice/docker-{ID}.scope", TORCHRUN, ("r1", "11", "3", "", "", "", ID), command="python train.py --run_name r1"
    ),
    "podman": Case(f"0::/machine.slice/libpod-{ID}.scope/container", {"TRAINER_RUN_NAME": "r2"}, ("r2", "", "", "", "", "", ID)),
    "torchrun": Case(
        "0::/user.slice/user-1007.slice/session-4.scope", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "llama"}, ("llama", "11", "3", "", "", "", "")
    ),
    "torchrun, rendezvous without a name": Case(
        "0::/user.slice/user-1007.slice",
        TORCHRUN,
        ("qwen/lora/sft", "11", "3", "", "", "", ""),
        command="python train.py --output_dir saves/qwen/lora/sft",
    ),
    "mpirun": Case(
        "0::/user.slice",
        {"OMPI_COMM_WORLD_RANK": "11", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "TRAINER_RUN_NAME": "r3"},
        ("r3", "11", "3", "", "", "", ""),
    ),
    "torchrun, job mapping directory": Case(
        "0::/user.slice",
        {**TORCHRUN, "TORCHELASTIC_RUN_ID": "llama"},
        ("llama", "11", "3", "8121", "", "", ""),
        allocation=GpuAllocation("GPU-0", 0, "job_mapping", job_id="8121"),
    ),
}


def owner(case: Case, root: Path) -> GpuOwner:
    """Whom the process is found to serve, on a host made for it below ``root``."""
    host = Host(root)
    host.process(1)
    pids = [40 + place for place in range(len(case.parents) + 1)]
    shown = {"uid": 1007, "cgroup": "".join(f"{line}\n" for line in (*case.lines, case.cgroup, "1:name=systemd:/"))}
    host.process(40, environment=case.environment, command=case.command, parent=(*pids, 1)[1], **shown)  # type: ignore[arg-type]
    for place, environment in enumerate(case.parents, 1):
        host.process(pids[place], environment=environment, parent=(*pids, 1)[place + 1])
    for pid, name in ((1, "uts:[1]"), (40, "uts:[2]" if case.own_host_name else "uts:[1]")):
        (root / f"proc/{pid}/ns/uts").symlink_to(name)
    if case.logged:
        (root / "var/log/pods" / case.logged).mkdir(parents=True)
    attribution = Attribution(ManualClock(), Processes(root / "proc", pods=root / "var/log/pods", user_name=str))
    reading = GpuReading(GpuIdentity("GPU-0", 0, "card"), success=True, collected_wall=0.0, processes=(GpuProcess(40, None),))
    (found,) = attribution.owners(GpuSnapshot(readings=(reading,)), allocations=[case.allocation] if case.allocation else [])
    return found


def labels(found: GpuOwner) -> Labels:
    return found.run, found.rank, found.local_rank, found.job_id, found.pod, found.namespace, found.container


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_a_process_shows_whose_its_gpu_is(case: Case, tmp_path: Path) -> None:
    assert labels(owner(case, tmp_path / "host")) == case.expected


def main() -> None:
    """Print what is found, not what is expected."""
    lines = [("launcher and cgroups", *HEADS)]
    with tempfile.TemporaryDirectory() as made:
        for number, (name, case) in enumerate(TABLE.items()):
            *others, container = labels(owner(case, Path(made, str(number))))
            lines.append((name, *others, f"{container[:6]}..." if len(container) == len(ID) else container))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        sys.stdout.write(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


if __name__ == "__main__":
    main()

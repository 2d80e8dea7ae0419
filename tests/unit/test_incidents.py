"""Trouble by its real shapes, and the same words where they are none."""

from __future__ import annotations

import timeit

import pytest

from trainer_exporter.incidents import KINDS, TROUBLES, Trouble, incident, words
from trainer_exporter.model import Line

SLURM = "slurmstepd: error: *** JOB 812 ON gpu-17 CANCELLED AT 2026-03-01T12:00:00"
TORCH = "torch.distributed.DistBackendError: "
NCCL = "node1:4711:4890 [3] transport/net_ib.cc:1432 NCCL WARN "

SHAPES = [
    (
        "nccl_timeout",
        "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
    ),
    ("nccl_timeout", "[E ProcessGroupNCCL.cpp:1300] [PG ID 0 Rank 3] Heartbeat monitor timed out! Process will be terminated"),
    ("nccl_timeout", "[E compiler_depend.ts:444] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=5, OpType=ALLREDUCE)"),
    ("nccl_timeout", "[E1218 20:27:30.1 ProcessGroupNCCL.cpp:1473] [PG ID 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds"),
    ("nccl_timeout", "[rank3]:[E ProcessGroupNCCL.cpp:1240] [Rank 3] Received a dump signal due to a collective timeout from  rank 1 and"),
    ("nccl_timeout", "EI0006: [PID: 812] 2026-03-01-12:00:00.1 Getting socket times out. Reason: a rank is stuck"),
    ("nccl_error", TORCH + "NCCL error in: x.cpp:3699, remote process exited, NCCL version 2.27.3"),
    ("nccl_error", "ncclSystemError: System call (e.g. socket, malloc) failed."),
    ("nccl_error", "RuntimeError: NCCL communicator was aborted on rank 3. "),
    (
        "nccl_error",
        "[E ProcessGroupNCCL.cpp:915] [Rank 1] NCCL watchdog thread terminated with exception: NCCL error: remote exited",
    ),
    ("nccl_error", "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:48772"),
    ("nccl_error", "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0"),
    ("nccl_error", "RuntimeError: create:x.ts:89 HCCL function error: HcclCommInitRootInfo(n, &info), error code is 6"),
    ("nccl_error", "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64"),
    ("nccl_error", "RuntimeError: InnerRun: OPS function error: HcclAllreduce, error code is 6"),
    ("nccl_error", NCCL + "NET/IB : Got completion from peer 10.0.0.2<47534> with status=12 opcode=0"),
    ("nccl_error", NCCL + "NET/IB : Got completion with error 12, opcode 0"),
    ("nccl_error", "[2026-03-01 12:00:00] " + NCCL + "progress: Connection closed by remote peer node2<48000>"),
    ("nccl_error", NCCL + "Call to recv from 10.0.0.2<48000> failed : Connection reset by peer"),
    ("nccl_error", NCCL.replace("WARN", "INFO") + "NET/IB : mlx5_0:1 async fatal event : local catastrophic error"),
    ("nccl_error", "DDP bucket allreduce failed"),
    ("nccl_error", "nccl: all_reduce failed on rank 3"),
    ("cuda_oom", "RuntimeError: CUDA out of memory. Tried to allocate 376.00 MiB (GPU 0; 3.95 GiB total capacity)"),
    ("cuda_oom", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has"),
    ("cuda_oom", "RuntimeError: CUDA error: out of memory"),
    ("cuda_oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes."),
    ("cuda_oom", NCCL + "Cuda failure 2 'out of memory'"),
    ("cuda_oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuda_oom", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile error. Ran out of memory in memory space hbm."),
    ("cuda_oom", "lm loss: 2.3RuntimeError: CUDA error: out of memory"),
    ("cuda_error", NCCL + "Cuda failure 719 'unspecified launch failure'"),
    ("cuda_error", "[E ProcessGroupNCCL.cpp:1895] Process group watchdog thread terminated with exception: CUDA error: an illegal"),
    ("cuda_error", "RuntimeError: copy:x.cpp:29 NPU function error: c10_npu::acl::Synchronize, error code is 507011"),
    ("cuda_error", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("traceback", "Traceback (most recent call last):"),
    ("traceback", " 50%|#####     | 1/2 [00:01<00:01]Traceback (most recent call last):"),
    ("disk_full", "OSError: [Errno 28] No space left on device: './out/optimizer.pt'"),
    ("disk_full", "OSError: [Errno 122] Disk quota exceeded"),
    ("disk_full", "SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)"),
    (
        "disk_full",
        'SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ),
    (
        "disk_full",
        "RuntimeError: [enforce fail at inline_container.cc:588] . PytorchStreamWriter failed writing file data/12: file write failed",
    ),
    ("disk_full", "RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 56833600 vs 56833492"),
    ("disk_full", "cat: write error: No space left on device"),
    ("killed", "E0725 06:36:18.2 1402 torch/elastic/api.py:874] failed (exitcode: -9) local_rank: 3 (pid: 1234) of binary: python"),
    ("killed", "  exitcode  : -9 (pid: 1234)"),
    ("killed", "[launch.py:325:sigkill_handler] ['python'] exits with return code = -9"),
    ("killed", "train.sh: line 12: 4711 Killed                  python train.py"),
    ("killed", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.0. Some of your processes"),
    ("killed", "srun: error: node01: task 3: Out Of Memory"),
    ("killed", "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:812kB"),
    ("killed", "slurmstepd: error: Job 812 exceeded memory limit (4200 > 4000), being killed"),
    ("killed", "srun: error: node01: task 3: Exited with exit code 137"),
    ("killed", "RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. "),
    ("rank_failed", "RuntimeError: DataLoader worker (pid(s) 812, 813) exited unexpectedly"),
    ("rank_failed", "terminate called after throwing an instance of 'c10::DistBackendError'"),
    ("rank_failed", "Fatal Python error: Segmentation fault"),
    ("rank_failed", "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot"),
    ("rank_failed", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
    ("killed", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("rank_failed", "train.sh: line 12: 4711 Segmentation fault      (core dumped) python train.py"),
    ("xid", "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("xid", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error"),
    ("nan_abort", "FloatingPointError: Loss became infinite or NaN at iteration=120!"),
    ("nan_abort", "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    ("nan_abort", "ValueError: nan loss encountered"),
    ("nan_abort", "ValueError: The loss returned in `training_step` is nan."),
    ("nan_abort", "RuntimeError: Train loss contains a NaN."),
    ("nan_abort", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    ("nan_abort", "AssertionError: Rank 3: found NaN in local forward loss calculation. Device: 3, node: gpu-17"),
    ("nan_abort", "RuntimeError: Rank 0, node gpu-17, device 3, iteration 10: Unexpected result nan (message='found NaN in loss')"),
    ("nan_abort", "Loss is nan, stopping training"),
    ("nan_abort", "Aborting training due to NaN loss."),
    ("nan_abort", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    (
        "nan_abort",
        "Inf detected in output of encoder.layers.3.fc2, shape: torch.Size([512, 8, 256]), forward input max: 61440.0, input min: -9.5",
    ),
    ("cancelled", "KeyboardInterrupt"),
    ("cancelled", "Detected KeyboardInterrupt, attempting graceful shutdown ..."),
    (
        "node_fail",
        "slurmstepd: error: *** STEP 8.0 STEPD TERMINATED ON g17 AT 2026-03-01T12:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***",
    ),
    ("rank_failed", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    ("rank_failed", "failed (exitcode: 1) local_rank: 0 (pid: 1234) of binary: /usr/bin/python3"),
    ("rank_failed", "srun: error: node01: tasks 0-7: Exited with exit code 1"),
    ("time_limit", SLURM + " DUE TO TIME LIMIT ***"),
    ("preempted", SLURM + " DUE TO PREEMPTION ***"),
    ("node_fail", SLURM + " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("cancelled", SLURM + " ***"),
    ("cancelled", SLURM + " DUE to SIGNAL Terminated ***"),
    ("cancelled", SLURM.replace("slurmstepd:", "slurmstepd   0x155552843640:") + " ***"),
    ("cancelled", SLURM.replace("slurmstepd:", "slurmstepd-gpu-17:") + " ***"),
    ("time_limit", SLURM.replace("slurmstepd:", "slurmstepd-gpu-17:") + " DUE TO TIME LIMIT ***"),
    ("killed", "slurmstepd-gpu-17: error: Job 812 exceeded memory limit (4200 > 4000), being killed"),
]

INNOCENT = [
    "tests/test_memory.py::test_cuda_out_of_memory_is_caught PASSED",
    "CUDA out of memory is the most common of errors; try a smaller batch",
    "If you see NCCL errors or a watchdog timeout, raise ddp_timeout",
    "[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess GPU 0 to perform barrier",
    "destroy_process_group() was not called: ProcessGroupNCCL leaks",
    "number of nan iterations: 0 | number of skipped iterations: 0",
    "[INFO] [launch.py:315] Killing subprocess 4711",
    "    raise ChildFailedError(",
    "except OSError as error:  # No space left on device",
    "wandb: Waiting for W&B process to finish... (exitcode: 0)",
    "exits with return code = 0",
    "print_traceback: Traceback (most recent call last) is shown on errors",
    "node failure rate: 0.01",
    "When you see `OSError: [Errno 28] No space left on device`, remove old checkpoints",
    "a 'RuntimeError: CUDA error: device-side assert triggered' hides the line that made it",
    '        raise RuntimeError("CUDA error: no device")',
    NCCL.replace("WARN", "INFO") + "Bootstrap : Using eth0:10.0.0.1<0>",
    NCCL + "NET/Plugin: no plugin found, using internal",
    "except KeyboardInterrupt:",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
    "loss is nan when the learning rate is too high, see the FAQ",
    "nan_policy: abort, min_loss_scale: 0.0001",
    "scale: 1 | found NaN in 0 of 8 gradients",
    "the job was CANCELLED by its user",
]


@pytest.mark.parametrize(("kind", "text"), SHAPES, ids=[f"{kind}-{number}" for number, (kind, _) in enumerate(SHAPES)])
def test_trouble_is_named(kind: str, text: str) -> None:
    found = incident(Line(text, 12, rank=3))

    assert found is not None
    assert (found.kind, found.line, found.rank) == (kind, 12, 3)


@pytest.mark.parametrize("text", INNOCENT)
def test_the_same_words_elsewhere_are_no_trouble(text: str) -> None:
    assert incident(Line(text, 1)) is None


def test_a_traceback_alone_ends_no_run() -> None:
    found = incident(Line("Traceback (most recent call last):", 1))

    assert found is not None
    assert not found.fatal


@pytest.mark.parametrize("text", [text for _, text in SHAPES])
def test_a_line_that_tells_of_trouble_holds_a_word_of_the_search(text: str) -> None:
    assert any(word in text.encode() for word in words())


def test_every_kind_has_a_shape_here() -> None:
    assert {kind for kind, _ in SHAPES} == set(KINDS)


def test_trouble_is_found_at_the_end_of_a_long_line() -> None:
    found = incident(Line("x" * 60_000 + " RuntimeError: CUDA error: device-side assert triggered", 1))

    assert found is not None
    assert found.kind == "cuda_error"


@pytest.mark.parametrize("row", TROUBLES, ids=lambda row: f"{row.name}-{row.word}")
def test_no_pattern_goes_through_a_line_again_and_again(row: Trouble) -> None:
    text = ("Error: " * 60 + "srun: error: slurmstepd: error: *** JOB " * 20 + "NCCL WARN Call to x " * 40 + "a.Error" * 40)[:4096] * 2

    seconds = min(timeit.repeat(lambda: row.pattern.search(text), number=1, repeat=3))

    assert seconds < 0.02

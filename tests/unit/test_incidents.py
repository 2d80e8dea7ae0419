"""Trouble by its real shapes, and the same words where they are none."""

from __future__ import annotations

import timeit

import pytest

from trainer_exporter.incidents import KINDS, TROUBLES, Trouble, incident, words
from trainer_exporter.model import Line

SLURM = "slurmstepd: error: *** JOB 812 ON gpu-17 CANCELLED AT 2026-03-01T12:00:00"
TORCH = "torch.distributed.DistBackendError: "

SHAPES = [
    (
        "nccl_timeout",
        "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
    ),
    ("nccl_timeout", "[E ProcessGroupNCCL.cpp:1300] [PG ID 0 Rank 3] Heartbeat monitor timed out! Process will be terminated"),
    ("nccl_error", TORCH + "NCCL error in: x.cpp:3699, remote process exited, NCCL version 2.27.3"),
    ("nccl_error", "ncclSystemError: System call (e.g. socket, malloc) failed."),
    ("nccl_error", "DDP bucket allreduce failed"),
    ("nccl_error", "nccl: all_reduce failed on rank 3"),
    ("cuda_oom", "RuntimeError: CUDA out of memory. Tried to allocate 376.00 MiB (GPU 0; 3.95 GiB total capacity)"),
    ("cuda_oom", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has"),
    ("cuda_oom", "RuntimeError: CUDA error: out of memory"),
    ("cuda_oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes."),
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
    ("rank_failed", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    ("rank_failed", "failed (exitcode: 1) local_rank: 0 (pid: 1234) of binary: /usr/bin/python3"),
    ("rank_failed", "srun: error: node01: tasks 0-7: Exited with exit code 1"),
    ("time_limit", SLURM + " DUE TO TIME LIMIT ***"),
    ("preempted", SLURM + " DUE TO PREEMPTION ***"),
    ("node_fail", SLURM + " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("cancelled", SLURM + " ***"),
    ("cancelled", SLURM + " DUE to SIGNAL Terminated ***"),
    ("cancelled", SLURM.replace("slurmstepd:", "slurmstepd   0x155552843640:") + " ***"),
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
    text = ("Error: " * 60 + "srun: error: slurmstepd: error: *** JOB " * 20 + "[Errno 28] : " * 40)[:4096] * 2

    seconds = min(timeit.repeat(lambda: row.pattern.search(text), number=1, repeat=3))

    assert seconds < 0.02

"""From a log without a word on throughput to TFLOPS and MFU: the model saved beside it, the cards that the process uses, and one line of
configuration for what nobody but the user knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon
from stack import eventually

sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "gpu"))
import fake

pytestmark = pytest.mark.e2e

TRAINER = "import time\nfor step in range(1, 99999):\n    print(f'step: {step}, loss: 2.5', flush=True)\n    time.sleep(0.2)\n"
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
WEIGHTS = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) + 2048 * 128256
PER_TOKEN = 6 * WEIGHTS + 12 * 16 * 2048 * 1024


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "heron").mkdir()
    with (tmp_path / "heron" / "console.log").open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=output)
    yield process
    process.kill()
    process.wait()


def test_a_run_that_prints_no_throughput_has_one(tmp_path: Path, trainer: subprocess.Popen[bytes]) -> None:
    driver = fake.FakeDriver(fake.build(tmp_path), tmp_path, gpus=4)
    driver.set(processes=f"{trainer.pid}:60000000000")
    config = tmp_path / "config.yml"
    config.write_text(
        f"sources: [{{path: {tmp_path}/heron, model: {{global_batch_size: 8, sequence_length: 1024}}}}]\ngpu: {{interval: 1s}}\n"
    )
    with Daemon(f"--config.file={config}", log=tmp_path / "log", env=driver.env()) as daemon:
        eventually(lambda: daemon.value("trainer_tokens_per_second", run="heron") is not None, within_s=20, what="tokens per second")
        assert daemon.value("trainer_tflops_per_gpu", run="heron") is None  # no model has been saved yet

        (tmp_path / "heron" / "checkpoint-10").mkdir()
        (tmp_path / "heron" / "checkpoint-10" / "config.json").write_text(json.dumps(MODEL))
        eventually(lambda: daemon.value("trainer_mfu_ratio", run="heron") is not None, within_s=30, what="MFU")

        samples = daemon.samples()
        tokens = samples['trainer_tokens_per_second{run="heron"}']
        assert samples['trainer_samples_per_second{run="heron"}'] * 1024 == pytest.approx(tokens)
        assert samples['trainer_tflops_per_gpu{run="heron"}'] == pytest.approx(tokens * PER_TOKEN / 4 / 1e12)
        assert samples['trainer_mfu_ratio{run="heron"}'] == pytest.approx(samples['trainer_tflops_per_gpu{run="heron"}'] / 312)

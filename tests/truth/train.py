"""Trains tiny models that really go wrong, and keeps their logs: what the labels in trained.yml are about. Needs torch and a root's tmpfs.

    .venv-live/bin/python tests/truth/train.py [NAME ...]

Nothing is composed here: the loss is the loss, a dead rank is dead, a full disk is full. Runs about numbers print no times (their labels
say how long a step is to count); runs about processes print the real ones and take as long as they took.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
LOGS = HERE / "trained"
VOCABULARY = 64
CONTEXT = 4


class Next(nn.Module):
    """Predicts the next token from the last four."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(CONTEXT * width, 64)
        self.gate = nn.Linear(64, 64, bias=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = torch.tanh(self.hidden(self.embedding(tokens).flatten(1)))
        return self.head(seen + 0 * self.gate(seen))  # the gate is part of the graph and changes nothing


class Text:
    """Sequences in which each token makes a few others likely; ``topic`` picks another such language."""

    def __init__(self, topics: int = 1) -> None:
        self._likely = [torch.softmax(3 * torch.randn(VOCABULARY, VOCABULARY), dim=1) for _ in range(topics)]

    def batch(self, size: int, topic: int | None) -> tuple[Tensor, Tensor]:
        """Some sequences and what follows each; of all topics at once where none is named."""
        likely = torch.stack(self._likely)
        topics = torch.randint(len(likely), (size,)) if topic is None else torch.full((size,), topic)
        tokens = torch.randint(VOCABULARY, (size, 1))
        for _ in range(CONTEXT):
            following = torch.multinomial(likely[topics, tokens[:, -1]], 1)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens[:, :-1], tokens[:, -1]


@dataclass
class Trainer:
    """A training loop as people write it. ``say`` gets one line for every ``every`` steps."""

    say: Callable[[str], None]
    steps: int
    every: int = 2
    batch: int = 64
    lr: Callable[[int], float] = lambda _: 0.05
    clip: float | None = 1.0
    topic: Callable[[int], int | None] = lambda _: None
    text: Text = field(default_factory=Text)
    model: nn.Module = field(default_factory=Next)
    momentum: float = 0.0
    after: Callable[[int], None] = lambda _: None
    first: int = 1

    def run(self) -> None:
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=self.lr(1), momentum=self.momentum)
        for step in range(self.first, self.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = self.lr(step)
            tokens, following = self.text.batch(self.batch, self.topic(step))
            loss = nn.functional.cross_entropy(self.model(tokens), following)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(trained, self.clip or math.inf)
            optimizer.step()
            if step % self.every == 0 or step == self.first:
                self.say(f"step: {step}/{self.steps} | loss: {loss.item():.4f} | grad_norm: {norm.item():.4f} | lr: {self.lr(step):.3e}")
            self.after(step)


def warmed_up(peak: float, *, warmup: int, steps: int) -> Callable[[int], float]:
    """Linear up, cosine down to a tenth."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * step / warmup
        return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / (steps - warmup)))

    return rate


def healthy(say: Callable[[str], None]) -> None:
    """Warm-up, cosine, clipping."""
    Trainer(say, 1600, lr=warmed_up(0.15, warmup=100, steps=1600), batch=128).run()


def healthy_small_batch(say: Callable[[str], None]) -> None:
    """Eight samples a step: as noisy as training gets while it learns."""
    Trainer(say, 1600, lr=warmed_up(0.1, warmup=100, steps=1600), batch=8).run()


def healthy_constant_rate(say: Callable[[str], None]) -> None:
    """A fixed learning rate on purpose."""
    Trainer(say, 1600, lr=lambda _: 0.08, batch=128).run()


def rate_too_high(say: Callable[[str], None]) -> None:
    """The rate climbs to where plain gradient descent without clipping cannot hold; the squares of a linear model show it purest."""
    torch.manual_seed(3)
    model, true = nn.Linear(32, 1), torch.randn(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 1001):
        rate = 0.01 if step <= 600 else 1.3
        optimizer.param_groups[0]["lr"] = rate
        inputs = torch.randn(64, 32)
        loss = ((model(inputs) - inputs @ true - torch.randn(64, 1) * 0.7) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        optimizer.step()
        if step % 2 == 0:
            say(f"step: {step}/2000 | loss: {loss.item():.4f} | grad_norm: {norm.item():.4f} | lr: {rate:.3e}")


def rate_too_high_clipped(say: Callable[[str], None]) -> None:
    """From step 600 on a hundred times the rate, with clipping: the loss jumps, stays up, and does not become NaN."""
    Trainer(say, 1000, lr=lambda step: 0.2 if step < 600 else 40.0, batch=128).run()


def frozen_wrong_modules(say: Callable[[str], None]) -> None:
    """Only what changes nothing is trained, as an adapter on the wrong modules."""
    _frozen(say, batch=256)


def frozen_small_batch(say: Callable[[str], None]) -> None:
    """The same with 64 samples a step, a record each four steps: the noise of the means is as large as what counts as flat."""
    _frozen(say, batch=64)


def _frozen(say: Callable[[str], None], *, batch: int) -> None:
    model = Next()
    for name, weight in model.named_parameters():
        weight.requires_grad = name.startswith("gate")
    Trainer(say, 1600, model=model, every=4, batch=batch).run()


def not_shuffled(say: Callable[[str], None]) -> None:
    """Four languages, mixed until step 800, then in blocks of 40 steps: each block unlearns the one before."""
    Trainer(say, 1600, text=Text(topics=4), topic=lambda step: None if step < 800 else step // 40 % 4, lr=lambda _: 3.0, batch=128).run()


def fp16_overflow(say: Callable[[str], None]) -> None:
    """Half precision with a dynamic loss scale; from step 500 on the inputs are too large for it, and no scale is small enough."""
    torch.manual_seed(5)
    model, true = nn.Linear(32, 1), torch.randn(32, 1)
    scale, good = 65536.0, 0
    for step in range(1, 901):
        inputs = torch.randn(64, 32) * (1.0 if step < 500 else 3e4)
        targets = inputs @ true
        half = nn.functional.linear(inputs.half(), model.weight.half(), model.bias.half())
        loss = ((half.float() - targets) ** 2).mean()
        model.zero_grad()
        (loss * scale).backward()
        finite = all(bool(torch.isfinite(weight.grad.half()).all()) for weight in model.parameters())
        norm = torch.sqrt(sum((weight.grad / scale).square().sum() for weight in model.parameters()))
        if finite:
            good += 1
            with torch.no_grad():
                for weight in model.parameters():
                    weight.sub_(0.01 * weight.grad / scale)
        scale = scale * 2 if finite and good % 200 == 0 else scale if finite else max(1.0, scale / 2)
        if step % 2 == 0:
            shown = f"grad_norm: {norm.item():.4f} | " if finite else ""
            say(f"step: {step}/2000 | loss: {loss.item():.4f} | {shown}loss_scale: {scale:.0f} | lr: 1.000e-02")


def _stamped(line: str) -> str:
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}"


def _out(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def healthy_pauses(say: Callable[[str], None]) -> None:
    """A long first step, evaluations, saves, in real time, and a proper end."""
    say(_stamped("building the index of the data set"))
    time.sleep(45)

    def after(step: int) -> None:
        time.sleep(0.5)
        if step % 100 == 0:
            time.sleep(30)

    Trainer(lambda line: say(_stamped(line)), 320, lr=lambda _: 0.1, every=5, after=after).run()
    say(_stamped("training done"))


# The runs of two ranks are started by torchrun, as people start theirs. The script is this file with the name of the rank's part.
def _ranks(part: str, say: Callable[[str], None], *, meddle: Callable[[list[int]], None]) -> None:
    """Run a part on two ranks and keep what they print; ``meddle`` gets the PIDs once step 100 is there."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29617", __file__, f"rank:{part}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    pids: list[int] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("pid "):
            pids.append(int(line.split()[1]))
            continue
        say(_masked(line.rstrip()))
        if "step: 100/" in line:
            meddle(pids)
    process.wait()


def _masked(line: str) -> str:
    return line.replace(str(HERE.parents[1]), "/home/ada/trainer").replace(sys.prefix, "/venv").replace(os.uname().nodename, "node-1")


def killed_rank(say: Callable[[str], None]) -> None:
    """One of two ranks is killed, as by the kernel when memory runs out."""
    _ranks("train", say, meddle=lambda pids: os.kill(pids[-1], signal.SIGKILL))


def stopped_rank(say: Callable[[str], None]) -> None:
    """One of two ranks stands still for four minutes, the other waits for it; then it goes on."""

    def meddle(pids: list[int]) -> None:
        os.kill(pids[-1], signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 240; kill -CONT {pids[-1]}"])

    _ranks("train", say, meddle=meddle)


def interrupted(say: Callable[[str], None]) -> None:
    """Its user presses Ctrl-C."""
    _ranks("train", say, meddle=lambda pids: [os.kill(pid, signal.SIGINT) for pid in pids] and None)


def full_disk(say: Callable[[str], None]) -> None:
    """Each save is kept, and the disk holds two of them."""
    with _small_disk() as place:
        command = [sys.executable, __file__, "rank:saving", place]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    for line in process.stdout.splitlines():
        if not line.startswith("pid "):
            say(_masked(line))


@contextlib.contextmanager
def _small_disk() -> Iterator[str]:
    place = "/tmp/trainer-exporter-small-disk"
    Path(place).mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def _rank_train() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    _out(f"pid {os.getpid()}" if rank else "")

    def after(_: int) -> None:
        torch.distributed.all_reduce(torch.ones(1))
        time.sleep(0.3)

    def say(line: str) -> None:
        if rank == 0:
            _out(_stamped(line))

    Trainer(say, 200, lr=lambda _: 0.1, every=2, after=after).run()


def _rank_saving() -> None:
    model = Next()

    def after(step: int) -> None:
        time.sleep(0.2)
        if step % 60 == 0:
            _out(_stamped(f"saving step {step}"))
            torch.save(model.state_dict(), f"{sys.argv[2]}/step-{step}.pt")

    Trainer(lambda line: _out(_stamped(line)), 400, lr=lambda _: 0.1, every=2, model=model, after=after).run()


RUNS = (
    healthy,
    healthy_small_batch,
    healthy_constant_rate,
    rate_too_high,
    rate_too_high_clipped,
    frozen_wrong_modules,
    frozen_small_batch,
    not_shuffled,
    fp16_overflow,
    full_disk,
    killed_rank,
    interrupted,
    healthy_pauses,
    stopped_rank,
)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if sys.argv[1:2] and sys.argv[1].startswith("rank:"):
        {"train": _rank_train, "saving": _rank_saving}[sys.argv[1].removeprefix("rank:")]()
        return
    LOGS.mkdir(exist_ok=True)
    for run in RUNS:
        if sys.argv[1:] and run.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(1)
        with (LOGS / f"{run.__name__}.log").open("w") as log:
            run(lambda line, log=log: print(line, file=log, flush=True))


if __name__ == "__main__":
    main()

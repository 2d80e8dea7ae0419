"""A trainer that writes a line a second into its log until it is told to break (a signal), and says on standard output when it did.

python tests/delays/trainer.py LOG KIND
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

RECORD_S = 1.0
TARGET = 5000
RESTS_S = 20.0  # of one that catches its error: cleaning up, and the batch once more
TRACEBACK = 'Traceback (most recent call last):\n  File "/opt/train/pretrain.py", line 212, in train_step\n    loss = model(batch)\n'
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
LAST_WORDS = {
    "oom": TRACEBACK + OUT_OF_MEMORY,
    "unseen": TRACEBACK + OUT_OF_MEMORY,
    "error": TRACEBACK + "RuntimeError: shape '[8, 4096]' is invalid for input of size 32767\n",
    "caught": TRACEBACK + OUT_OF_MEMORY,
}


class Trainer:
    """One run. What its kind does when told is all that differs; ``unseen`` holds its log open for moments only."""

    def __init__(self, log: Path, kind: str) -> None:
        log.parent.mkdir(parents=True)
        self._path = log
        self._log = log.open("a", buffering=1)
        self._kind = kind
        self._step = 0
        self._told = False
        self._broken = False

    def told(self, *_: object) -> None:
        self._told = True

    def train(self) -> None:
        """Until it dies; one that hangs stays."""
        due = time.monotonic()
        while True:
            due += RECORD_S
            time.sleep(max(0.0, due - time.monotonic()))
            if self._told and not self._broken:
                self._broken = True
                self._break()
            if not (self._broken and self._kind == "stall"):
                self._step += 1
                self._write(self._line())

    def _write(self, text: str) -> None:
        if self._log.closed:
            self._log = self._path.open("a")
        self._log.write(text)
        if self._kind == "unseen":
            self._log.close()

    def _break(self) -> None:
        self._write(LAST_WORDS.get(self._kind, ""))
        if self._kind == "nan":
            self._step += 1
            self._write(self._line())
        sys.stdout.write(f"{time.time()}\n")
        sys.stdout.flush()
        if self._kind in {"oom", "error", "unseen"}:
            sys.exit(1)
        if self._kind == "caught":
            time.sleep(RESTS_S)

    def _line(self) -> str:
        loss = "nan" if self._broken and self._kind == "nan" else f"{6.5 - self._step * 1e-4:.6E}"
        return (
            f" iteration {self._step:8d}/{TARGET:8d} | consumed samples: {self._step * 256:12d} | elapsed time per iteration (ms): 1000.0 |"
            f" learning rate: 1.500000E-04 | global batch size:   256 | lm loss: {loss} | loss scale: 1.0 |"
            f" grad norm: 0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


if __name__ == "__main__":
    trainer = Trainer(Path(sys.argv[1]), sys.argv[2])
    signal.signal(signal.SIGUSR1, trainer.told)
    trainer.train()

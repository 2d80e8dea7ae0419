"""A process that the kernel shows as uninterruptible: one that waits for the child of its vfork()."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = r"""
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep(300);
        _exit(0);
    }
    return 0;
}
"""


def build(folder: Path) -> Path:
    """The program; it ends with whoever started it, and its child with it."""
    (folder / "wait.c").write_text(SOURCE)
    subprocess.run(["gcc", "-o", folder / "wait", folder / "wait.c"], check=True)
    return folder / "wait"

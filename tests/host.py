"""A host made by hand, for tests: the /proc and the /var/log that launchers leave there, below a folder of the test's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainer_exporter.clock import ManualClock

READ, WRITE, READ_WRITE = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
Descriptor = tuple[str, int]  # what it leads to, and how it was opened


class Host:
    """A host with the processes and files that a test puts there; users are numbered, 0 is root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        (root / "proc").mkdir(parents=True)

    def file(self, path: str, text: str = "step: 1, loss: 2.5\n") -> str:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return str(place)

    def process(  # it has that many sides
        self,
        pid: int,
        descriptors: Mapping[str, Descriptor] | None = None,
        *,
        name: str = "python",
        parent: int = 1,
        uid: int = 1007,
        command: str = "python train.py",
        environment: Mapping[str, str] | None = None,
        cgroup: str = "0::/user.slice\n",
        cwd: str = "/home/ada/llm",
        start: int = 500,
    ) -> None:
        folder = self.root / "proc" / str(pid)
        for part in ("fd", "fdinfo", "ns"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 17 + f"{start} 0\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (environment or {}).items()))
        (folder / "cwd").symlink_to(cwd)
        for descriptor, (target, flags) in (descriptors or {}).items():
            (folder / "fd" / descriptor).symlink_to(target)
            (folder / "fdinfo" / descriptor).write_text(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t25\n")

    def turn(self, pid: int, state: str, *, wchan: str = "0") -> None:
        """Let a process go on in another state, as the letter of the kernel has it; ``wchan`` is the function that it waits in."""
        folder = self.root / "proc" / str(pid)
        (folder / "wchan").write_text(wchan)
        name, _, fields = (folder / "stat").read_text().rpartition(") ")
        fresh = folder / "stat.new"  # nobody may see it half written
        fresh.write_text(f"{name}) {state}{fields[1:]}")
        fresh.replace(folder / "stat")

    def start_below(self, pid: int, *children: int) -> None:
        """Processes that ``pid`` has started, such as loaders of its data."""
        for child in children:
            self.process(child, parent=pid)
        folder = self.root / "proc" / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "children").write_text("".join(f"{child} " for child in children))

    def end(self, pid: int) -> None:
        """Nothing is left of a process."""
        folder = self.root / "proc" / str(pid)
        folder.rename(folder.with_name(f"gone-{pid}"))

    def contain(self, pid: int, root: str, mounts: str = "") -> None:
        """Give a process mounts of its own, with ``root`` as its root directory."""
        for who, namespace in (("self", "mnt:[1]"), (str(pid), "mnt:[2]")):
            folder = self.root / "proc" / who
            (folder / "ns").mkdir(parents=True, exist_ok=True)
            (folder / "ns/mnt").symlink_to(namespace)
        (self.root / "proc" / str(pid) / "root").symlink_to(self.root / root)
        (self.root / "proc" / str(pid) / "mountinfo").write_text(mounts)

"""The process that collects: all that may take long, hang or eat memory happens here, and the daemon's threads only wait for its lines.

The file system may hang, so what touches the trainer's comes last. A dump is foreign data of any size: memory is limited before the first.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from trainer_exporter.evidence import ras, ras_report, stacks
from trainer_exporter.evidence.found import Search
from trainer_exporter.evidence.keep import Keeper
from trainer_exporter.evidence.request import RAS, STACKS, Answer, Request

MEMORY_BYTES: Final = 768 << 20  # the daemon's unit has 1 GiB
NICENESS: Final = 10


def main() -> None:
    """Read a request from standard input, answer on standard output."""
    os.nice(NICENESS)
    gc.disable()  # a dump is a million small containers and none of them a cycle
    request = Request.decode(sys.stdin.buffer.read())
    keeper = Keeper(request.directory, request.folder, maximum_bytes=request.maximum_bytes)
    for answer in answers(request, keeper):
        sys.stdout.buffer.write(answer.encode())
        sys.stdout.buffer.flush()


def answers(request: Request, keeper: Keeper) -> Iterator[Answer]:
    """Of each source that is asked, in turn."""
    if request.ras is not None:
        yield _ras(request, request.ras, keeper)
    if request.stacks:
        yield _stacks(request, keeper)
    if request.dumps:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        yield Search(request, keeper).answer()


def _ras(request: Request, address: tuple[str, int], keeper: Keeper) -> Answer:
    limits = ras.RasLimits()
    try:
        first = ras.ask(address, limits)
        time.sleep(request.ras_pause_s)
        second = ras.ask(address, limits)
    except ras.RasError as error:
        return _silent(error.word, address)
    words = _kept(keeper, {"ras-1": first, "ras-2": second})
    reports = ras_report.parse(first), ras_report.parse(second)
    if reports[0] is None or reports[1] is None:
        return Answer(RAS, notes=("its answer could not be read; it is kept",), words=(*words, "ras_unreadable"))
    finding = ras_report.compare(reports[0], reports[1])
    if not _is_of_run(request, reports[1].pids):
        note = "this may be another run's report, since several train here and no process is known in it: no rank is suspected"
        return Answer(RAS, notes=(note, *finding.notes), words=words)
    return Answer(RAS, finding.suspects, finding.notes or ("nothing odd",), words)


def _silent(word: str, address: tuple[str, int]) -> Answer:
    if word == "refused":
        return Answer(RAS, notes=(f"nobody listens at {address[0]}:{address[1]}",))
    return Answer(RAS, notes=(f"no answer from {address[0]}:{address[1]}: {word}",), words=(f"ras_{word}",))


def _is_of_run(request: Request, pids: frozenset[int]) -> bool:
    own = {pid for trainer in request.trainers for pid in (trainer.pid, trainer.inner_pid) if pid}
    return request.is_alone or bool(own & pids)


def _stacks(request: Request, keeper: Keeper) -> Answer:
    program = stacks.program()
    if not program:
        return Answer(STACKS, notes=("py-spy is not installed",))
    taken, words, outcomes = {}, [], {"denied": 0, "timeout": 0}
    for trainer in request.trainers[: request.stacks]:
        stack = stacks.take(trainer.pid, program)
        if stack.word == "taken":
            rank = "" if trainer.rank is None else f"-rank-{trainer.rank}"
            taken[f"stack{rank}-pid-{trainer.pid}"] = stack.text
        elif stack.word in outcomes:
            outcomes[stack.word] += 1
            words.append(f"stack_{stack.word}")
    notes = [f"taken of {len(taken)} processes"]
    notes += [
        f"{word} by {number}: py-spy needs root or CAP_SYS_PTRACE" for word, number in outcomes.items() if number and word == "denied"
    ]
    return Answer(STACKS, notes=notes, words=(*words, *_kept(keeper, taken)))


def _kept(keeper: Keeper, files: dict[str, bytes]) -> Sequence[str]:
    """Keep files; a word for each that could not be."""
    words = []
    for name, data in files.items():
        ending = "json" if data[:1] == b"{" else "txt"
        try:
            if not keeper.write(f"{name}.{ending}", data):
                words.append("no_room")
        except OSError:
            words.append("not_kept")
    return words


if __name__ == "__main__":
    main()

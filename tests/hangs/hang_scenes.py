"""What befalls the jobs, and what must be told of each: the alert, the cause, and the GPUs to look at first.

And jobs that look like it and are well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import fake
from hang_fleet import CARDS, Job, compiles, computes, evaluates, idles, is_starved, spins, waits

Suspects = Mapping[tuple[int, int], str]  # (node, GPU) -> its reasons, as a pattern

IDLE = "idle_among_spinning"
HOUR_S = 3600.0
AFTERWARDS_S = 240.0
SICK, LOST_CARD = (1, 7), (2, 4)
STUCK_NODE = 2


@dataclass(frozen=True)
class Scene:
    """``happens`` is what changes in mid-run. ``prepare`` is told the seconds until then; ``before`` comes before the daemons."""

    words: str
    happens: Callable[[Job], None] = lambda job: None
    prepare: Callable[[Job, float], None] = lambda job, calm_s: healthy(job)
    before: Callable[[Job, float], None] = lambda job, calm_s: None
    page: str = ""  # the alert of the only page, as a pattern; "" where nobody may be woken
    ticket: str = ""  # of the first ticket; looked at where no page is due
    cause: str = ""
    suspects: Suspects = field(default_factory=dict)
    says: str = ""  # stands in the description, as a pattern
    within_s: float = 150.0  # from what happens to the page or ticket
    afterwards: Callable[[Job], None] | None = None  # after AFTERWARDS_S

    @property
    def is_well(self) -> bool:
        return not self.page and not self.ticket


def healthy(job: Job) -> None:
    job.do(computes)
    job.train()


# -- (a), (d): somebody waits for somebody


def all_wait_in_a_collective(job: Job) -> None:
    job.stop()
    job.do(spins)


def a_node_stays_outside(job: Job) -> None:
    all_wait_in_a_collective(job)
    job.do(idles, node=STUCK_NODE)


def a_rank_dies(job: Job) -> None:
    all_wait_in_a_collective(job)
    job.end_rank(STUCK_NODE, 5)


# -- (b): data


def data_do_not_come(job: Job) -> None:
    job.stop()
    job.do(waits)


def data_come_late(job: Job) -> None:
    job.train(slower=3.0)
    job.do(is_starved)


# -- (c): checkpoints and storage


def often_saved(job: Job, calm_s: float) -> None:
    """Four quick saves, so that it is known how long one takes."""
    healthy(job)
    job.save_every(calm_s / 6, times=4)


def a_save_does_not_end(job: Job) -> None:
    job.begin_save()
    job.do(spins)
    job.do(idles, node=0, gpu=0)


def saves_for_an_hour(job: Job, calm_s: float) -> None:
    """The daemon is started some 55 minutes after the save; the hour that a save may take is over a while after the calm."""
    begun = time.time() - HOUR_S + 1.5 * calm_s + 60
    job.train_before(begun, every_s=2.0, steps=900)
    a_save_does_not_end(job)
    job.due_wall = begun + HOUR_S
    job.date_log(begun)


def a_node_waits_for_the_file_server(job: Job) -> None:
    a_node_stays_outside(job)
    job.block(STUCK_NODE, "rpc_wait_bit_killable")


def the_loaders_of_a_node_wait_for_the_disk(job: Job) -> None:
    data_do_not_come(job)
    job.block(STUCK_NODE, "folio_wait_bit_common", loaders=True)


def the_disk_of_a_node_is_full(job: Job) -> None:
    """Neither its log nor its checkpoint can be written any more."""
    all_wait_in_a_collective(job)
    job.do(idles, node=0, gpu=0)
    job.nodes[0].fill_disk(job.saves)


def the_log_tells_of_a_full_disk(job: Job) -> None:
    the_disk_of_a_node_is_full(job)
    job.say("[rank0]: OSError: [Errno 28] No space left on device: '/ckpt/iter_0000100/__0_0.distcp'")


# -- (e): sick cards


def a_card_falls_off_the_bus(job: Job) -> None:
    all_wait_in_a_collective(job)
    node, gpu = SICK
    _xid(job, node, gpu, 79, "GPU has fallen off the bus.")
    job.nodes[node].driver.set(job.card(gpu), error=fake.GPU_IS_LOST)


def an_uncontained_memory_error(job: Job) -> None:
    all_wait_in_a_collective(job)
    _xid(job, *SICK, 95, "Uncontained: SM (0x1). RST: Yes, D-RST: No")


def a_contained_memory_error(job: Job) -> None:
    """It ends the process that used the memory, and no other."""
    all_wait_in_a_collective(job)
    _xid(job, *SICK, 94, "Contained: SM (0x1). RST: No, D-RST: No")
    job.end_rank(*SICK)


def memory_is_spoilt(job: Job) -> None:
    all_wait_in_a_collective(job)
    node, gpu = SICK
    job.nodes[node].driver.set(job.card(gpu), ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=1)


def _xid(job: Job, node: int, gpu: int, xid: int, words: str) -> None:
    """The driver tells its clients, and the kernel its log."""
    driver, card = job.nodes[node].driver, job.card(gpu)
    driver.xid(card, xid)
    driver.say(f"NVRM: Xid (PCI:0000:{0x10 + card:02x}:00): {xid}, pid={job.pid(node, gpu)}, name=python, {words}")


# -- what looks like it and is none


def evaluates_for_long(job: Job) -> None:
    job.evaluate()
    job.do(evaluates)


def is_saved(job: Job) -> None:
    job.end_save()
    job.do(computes)


def is_still_compiling(job: Job, calm_s: float) -> None:
    del calm_s
    job.do(compiles)
    job.do(idles, node=0, gpu=0)


ANY_OF_NODE = {(STUCK_NODE, gpu): IDLE for gpu in range(CARDS)}
FIRST_RANK = {(0, 0): IDLE}

SCENES: Mapping[str, Scene] = {
    "collective": Scene(
        "(a) all ranks wait in a collective, all cards look alike",
        all_wait_in_a_collective,
        page="TrainingNcclStall",
        cause="collective",
        says="All of its GPUs look alike",
    ),
    "node_outside": Scene(
        "(a) a node does not take part, the others spin",
        a_node_stays_outside,
        page="TrainingNcclStall",
        cause="dead_rank",
        suspects=ANY_OF_NODE,
        says="One rank does not take part",
    ),
    "data_stop": Scene(
        "(b) no data come any more", data_do_not_come, page="TrainingStalled", cause="data", says="It looks like data that does not come"
    ),
    "data_late": Scene(
        "(b) data come too late: steps take three times as long",
        data_come_late,
        ticket="TrainingThroughputLow|TrainingDataStarved",  # whichever is first; the second silences the first, and says it again
        says="as they are when data come too late|its data loader is the bottleneck",
        within_s=1500.0,
    ),
    "save_stuck": Scene(
        "(c) a save that was announced does not end",
        a_save_does_not_end,
        prepare=often_saved,
        ticket="TrainingCheckpointSlow",
        cause="storage",
        suspects=FIRST_RANK,
        says="A checkpoint of run",
        within_s=240.0,
    ),
    "save_of_an_hour": Scene(
        "(c) the same, for an hour; the daemon came in its 55th minute",
        before=saves_for_an_hour,
        prepare=lambda job, calm_s: None,
        page="TrainingNcclStall",
        cause="storage",
        suspects=FIRST_RANK,
        says="It saves, waits for a disk or a file server, or its disk is full",
    ),
    "file_server": Scene(
        "(c) the ranks of a node wait for a file server (D), the others spin",
        a_node_waits_for_the_file_server,
        page="TrainingNcclStall",
        cause="storage",
        suspects=ANY_OF_NODE,
        says="It saves, waits for a disk or a file server, or its disk is full",
    ),
    "loaders": Scene(
        "(c) the loaders of a node wait for a disk (D), and all cards for them",
        the_loaders_of_a_node_wait_for_the_disk,
        page="TrainingStalled",
        cause="storage",
        suspects={(STUCK_NODE, gpu): "waits_for_storage" for gpu in range(CARDS)},
        says="It looks like storage",
    ),
    "disk_full": Scene(
        "(c) the disk of the first node is full, its log stops, the others spin",
        the_disk_of_a_node_is_full,
        page="TrainingNcclStall",
        cause="storage",
        suspects=FIRST_RANK,
        says="or its disk is full",
    ),
    "disk_full_said": Scene(
        "(c) the same, and the log says so",
        the_log_tells_of_a_full_disk,
        page="TrainingCrashed",
        suspects=FIRST_RANK,
        says="Last trouble in its log: disk_full",
    ),
    "rank_dead": Scene(
        "(d) a rank dies, the others spin",
        a_rank_dies,
        page="TrainingNcclStall",
        cause="dead_rank",
        suspects={(STUCK_NODE, 5): f"{IDLE}|process_gone"},
        says="One rank does not take part",
    ),
    "xid_79": Scene(
        "(e) Xid 79: a card falls off the bus",
        a_card_falls_off_the_bus,
        page="GpuXidError|GpuLost",  # whichever Alertmanager hears of first
        cause="sick_gpu",
        suspects={SICK: "lost|xid_79"},
        says="Xid 79|is lost",
        within_s=90.0,
    ),
    "xid_95": Scene(
        "(e) Xid 95: an uncontained memory error, the card spins like the others",
        an_uncontained_memory_error,
        page="GpuXidError",
        cause="sick_gpu",
        suspects={SICK: "xid_95"},
        says="Xid 95",
        within_s=90.0,
    ),
    "xid_94": Scene(
        "(e) Xid 94: a contained one ends a rank, the others spin",
        a_contained_memory_error,
        page="TrainingNcclStall",
        cause="sick_gpu",
        suspects={SICK: "xid_94"},
        says="A sick GPU or node holds it up",
    ),
    "ecc": Scene(
        "(e) an uncorrected memory error, the card spins like the others",
        memory_is_spoilt,
        page="GpuEccUncorrected",
        cause="sick_gpu",
        suspects={SICK: "ecc_uncorrected"},
        says="uncorrected memory error",
        within_s=90.0,
    ),
    "well": Scene("trains"),
    "evaluating": Scene("evaluates until the end", evaluates_for_long),
    "saving": Scene("saves for four minutes, the others spin meanwhile", a_save_does_not_end, afterwards=is_saved),
    "compiling": Scene("compiles, and makes its first step minutes later", prepare=is_still_compiling, afterwards=healthy),
}

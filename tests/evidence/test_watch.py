"""Which runs are looked at, whose processes and dumps are theirs, and how long what was found stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host import Host
from snapshots import NOW, a_run
from trainer_exporter.config_evidence import EvidenceConfig
from trainer_exporter.evidence import Answer, Collector, Request, Trainer
from trainer_exporter.hangs import HangWatch, Sight
from trainer_exporter.health import Health
from trainer_exporter.model import Phase, RunSnapshot, Suspect

BEHIND = Answer("flight_recorder", {3: "behind"}, ("rank 3 at 11",), mark="a")
UNRESPONSIVE = Answer("ras", {5: "unresponsive"}, ("rank 5 is unresponsive",))


class Told(Collector):
    """Answers as it was told to, and remembers what it was asked."""

    def __init__(self, *answers: Answer, is_done: bool = True) -> None:
        super().__init__(Health())
        self.asked: list[Request] = []
        self.answers: Sequence[Answer] = answers
        self._is_done = is_done

    def collect(self, request: Request, take: Callable[[Answer], None]) -> bool:
        self.asked.append(request)
        for answer in self.answers:
            take(answer)
        return self._is_done


class Node:
    """A node on which runs train."""

    def __init__(self, root: Path, *runs: RunSnapshot, collector: Told | None = None, **config: Any) -> None:
        self.host = Host(root)
        self.runs: Sequence[RunSnapshot] = runs
        self.pids: Mapping[int, str] = {}
        self.collector = collector or Told()
        self.watch = HangWatch(
            replace(EvidenceConfig(enabled=True, directory="/evidence"), **config),
            Sight(lambda: self.runs, lambda: self.pids),
            clock=self.host.clock,
            health=Health(),
            collector=self.collector,
            proc_root=str(self.host.root / "proc"),
        )

    def suspects(self) -> list[Suspect]:
        return [suspect for each in self.watch.evidence(self.runs) for suspect in each.suspects]


def test_a_run_that_is_well_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(5))

    node.watch.look()

    assert not node.collector.asked


def test_a_stalled_run_is_asked_for_with_all_that_is_configured(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500, info={"job_id": "77"}), flight_recorder=("/scratch/{run}/{job_id}/trace_rank_*",), processes=4)

    node.watch.look()

    (request,) = node.collector.asked
    assert (request.directory, request.folder) == ("/evidence", "20231114T221320Z-llama")
    assert (request.ras, request.stacks, request.dumps) == (("localhost", 28028), 4, ("/scratch/llama/77/trace_rank_*",))
    assert request.newer_than == NOW - 505


def test_what_is_found_stands_until_the_run_makes_a_step(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500), collector=Told(UNRESPONSIVE, BEHIND))
    node.watch.look()
    found = node.suspects()

    node.runs = [a_run(-1)]

    assert found == [Suspect(5, "ras", "unresponsive"), Suspect(3, "flight_recorder", "behind")]
    assert not node.suspects()


def test_what_is_found_stands_though_the_trainer_gives_up_but_not_when_it_ends(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500), collector=Told(BEHIND))
    node.watch.look()

    node.runs = [a_run(500, phase=Phase.FAILED, writer_alive=False)]
    failed = node.suspects()
    node.runs = [a_run(500, phase=Phase.ENDED)]

    assert failed == [Suspect(3, "flight_recorder", "behind")]
    assert not node.suspects()


def test_dumps_that_come_later_join_what_was_found(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500), collector=Told(UNRESPONSIVE, Answer("flight_recorder", notes=("no dump yet",), mark="-")))
    node.watch.look()

    node.collector.answers = [BEHIND]
    node.host.clock.advance(60)
    node.watch.look()
    node.collector.answers = [Answer("flight_recorder", mark="a")]  # nothing new
    node.host.clock.advance(60)
    node.watch.look()

    assert node.suspects() == [Suspect(5, "ras", "unresponsive"), Suspect(3, "flight_recorder", "behind")]
    assert [(each.ras is None, each.stacks, each.known) for each in node.collector.asked] == [
        (False, 16, ""),
        (True, 0, "-"),
        (True, 0, "a"),
    ]


def test_a_collection_that_did_not_come_to_an_end_is_not_begun_anew(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500), collector=Told(UNRESPONSIVE, is_done=False))
    node.watch.look()

    node.host.clock.advance(61)
    node.watch.look()

    assert len(node.collector.asked) == 1
    assert node.suspects() == [Suspect(5, "ras", "unresponsive")]


def test_its_processes_are_those_of_the_run_with_the_ranks_first(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500))
    node.host.process(40, name="tee", command="tee train.log")
    node.host.process(52, environment={"RANK": "1", "WORLD_SIZE": "16"})
    node.host.process(51, environment={"RANK": "0", "WORLD_SIZE": "16"})
    node.host.process(60, environment={"RANK": "0"})
    node.pids = {40: "llama", 51: "llama", 52: "llama", 60: "other", 99: "llama"}

    node.watch.look()

    (request,) = node.collector.asked
    assert [(each.pid, each.rank) for each in request.trainers] == [(51, 0), (52, 1), (40, None)]
    assert request.world_size == 16


def test_a_process_in_a_container_is_known_by_its_number_in_there_too(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500))
    node.host.process(51, environment={"RANK": "0"})
    with (node.host.root / "proc/51/status").open("a") as status:
        status.write("NSpid:\t51\t7\n")
    node.pids = {51: "llama"}

    node.watch.look()

    assert list(node.collector.asked[0].trainers) == [Trainer(51, 0, 7)]


PLACES = {
    "newer_variable": ({"TORCH_FR_DUMP_TEMP_FILE": "/scratch/fr_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/old_"}, ["/scratch/fr_[0-9]*"]),
    "older_variable": ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/fr_"}, ["/scratch/fr_[0-9]*"]),
    "relative": ({"TORCH_FR_DUMP_TEMP_FILE": "fr_"}, ["/home/ada/llm/fr_[0-9]*"]),
    "wildcards_of_the_trainer_s": ({"TORCH_FR_DUMP_TEMP_FILE": "/a*/fr["}, ["/a[*]/fr[[][0-9]*"]),
    "none": ({}, ["/tmp/nccl_trace_rank_[0-9]*"]),
}


@pytest.mark.parametrize(("environment", "patterns"), PLACES.values(), ids=PLACES)
def test_dumps_are_looked_for_where_the_trainer_s_environment_says(
    environment: Mapping[str, str], patterns: Sequence[str], tmp_path: Path
) -> None:
    node = Node(tmp_path, a_run(500))
    node.host.process(51, environment=environment, uid=4_000_123)
    node.pids = {51: "llama"}

    node.watch.look()

    assert list(node.collector.asked[0].dumps) == patterns


ALONE = {
    "the_only_run": ([a_run(500)], {}, True),
    "beside_one_that_has_failed": ([a_run(500), a_run(500, run="old", phase=Phase.FAILED)], {}, True),
    "beside_another": ([a_run(500), a_run(5, run="other")], {}, False),
    "beside_processes_of_another": ([a_run(500)], {60: "other"}, False),
}


@pytest.mark.parametrize(("runs", "pids", "alone"), ALONE.values(), ids=ALONE)
def test_what_names_no_run_counts_where_one_run_trains(
    runs: Sequence[RunSnapshot], pids: Mapping[int, str], alone: bool, tmp_path: Path
) -> None:
    node = Node(tmp_path, *runs, flight_recorder=("/any/trace_*", "/own/{run}/trace_*"))
    node.pids = pids

    node.watch.look()

    (request,) = node.collector.asked
    assert request.is_alone is alone
    assert list(request.dumps) == ["/any/trace_*", "/own/llama/trace_*"][0 if alone else 1 :]


def test_a_run_s_name_in_a_pattern_is_a_name_and_no_path(tmp_path: Path) -> None:
    node = Node(tmp_path, a_run(500, run="../*"), flight_recorder=("/own/{run}/trace_*",))

    node.watch.look()

    assert list(node.collector.asked[0].dumps) == ["/own/.._[*]/trace_*"]

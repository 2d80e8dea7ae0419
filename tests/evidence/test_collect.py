"""The process that collects: what it finds, and what it must not be able to do to the daemon that waits for it."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ras_server import communicator, ras_server, report
from trainer_exporter.evidence import Answer, Collector, Request, Trainer, stacks
from trainer_exporter.health import Health

DUMPS = Path(__file__).parent / "dumps"
MEMO_BOMB = b"\x80\x02}r\xff\xff\xff\x3f."  # reserves 16 GiB for a number of the memo


def a_request(tmp_path: Path, *, maximum_bytes: int = 10 << 20) -> Request:
    return Request(str(tmp_path / "evidence"), "20261130T120000Z-llama", maximum_bytes, ras_pause_s=0.0)


def collected(request: Request, health: Health | None = None) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    Collector(health or Health()).collect(request, lambda answer: answers.update({answer.source: answer}))
    return answers


def kept(tmp_path: Path) -> list[str]:
    return sorted(each.name for each in tmp_path.glob("evidence/*/*"))


def lying_in(directory: Path, ranks: Sequence[int]) -> str:
    directory.mkdir(exist_ok=True)
    for rank in ranks:
        shutil.copy(DUMPS / f"trace_rank_{rank}", directory)
    return f"{directory}/trace_rank_[0-9]*"


def test_each_source_answers_and_leaves_its_files(tmp_path: Path) -> None:
    pattern = lying_in(tmp_path / "dumps", range(4))
    hung = report(communicator({0: 12, 1: 12, 2: 12, 3: 11}))

    with ras_server([hung]) as address:
        answers = collected(replace(a_request(tmp_path), ras=address, dumps=(pattern,)))

    assert answers["ras"].suspects == {3: "behind"}
    assert answers["flight_recorder"].suspects == {3: "behind"}
    assert kept(tmp_path) == [*(f"flight-recorder-rank-{rank}" for rank in range(4)), "ras-1.json", "ras-2.json"]
    assert (tmp_path / "evidence/20261130T120000Z-llama/flight-recorder-rank-3").read_bytes() == (DUMPS / "trace_rank_3").read_bytes()


def test_the_notes_say_who_waits_for_whom(tmp_path: Path) -> None:
    pattern = lying_in(tmp_path / "dumps", range(4))

    notes = collected(replace(a_request(tmp_path), dumps=(pattern,)))["flight_recorder"].notes

    assert notes == [
        "dumps of 4 ranks",
        "group 0 (default_pg): others are at collective 12 (gloo:all_reduce), rank 2 at 11, rank 3 at 11",
        "group 2: others are at collective 12 (gloo:all_reduce), rank 3 at 11",
    ]


def test_a_rank_of_this_node_without_a_dump_is_named(tmp_path: Path) -> None:
    pattern = lying_in(tmp_path / "dumps", [0, 1])
    trainers = tuple(Trainer(1000 + rank, rank) for rank in range(3))

    answer = collected(replace(a_request(tmp_path), dumps=(pattern,), trainers=trainers))["flight_recorder"]

    assert answer.suspects == {2: "no_dump"}
    assert "no dump of rank 2" in answer.notes


def test_dumps_of_an_earlier_hang_are_left_alone(tmp_path: Path) -> None:
    pattern = lying_in(tmp_path / "dumps", range(4))

    answer = collected(replace(a_request(tmp_path), dumps=(pattern,), newer_than=4e9))["flight_recorder"]

    assert (answer.suspects, answer.notes) == ({}, ["no dump yet"])


def test_dumps_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    request = replace(a_request(tmp_path), dumps=(lying_in(tmp_path / "dumps", range(4)),))
    first = collected(request)["flight_recorder"]

    second = collected(replace(request, known=first.mark))["flight_recorder"]

    assert (second.mark, second.notes) == (first.mark, [])


def test_a_dump_that_eats_memory_costs_itself_alone(tmp_path: Path) -> None:
    health = Health()
    pattern = lying_in(tmp_path / "dumps", [0, 1, 2, 3])
    (tmp_path / "dumps" / "trace_rank_4").write_bytes(MEMO_BOMB)

    answer = collected(replace(a_request(tmp_path), dumps=(pattern,)), health)["flight_recorder"]

    assert answer.suspects == {3: "behind"}
    assert health.snapshot().errors == {("evidence", "dump_broken"): 1}


def test_hostile_links_and_oversized_files_are_counted_and_not_kept(tmp_path: Path) -> None:
    health = Health()
    pattern = lying_in(tmp_path / "dumps", [0, 1])
    (tmp_path / "dumps" / "trace_rank_2").write_bytes(pickle.dumps(print))
    (tmp_path / "dumps" / "trace_rank_3").symlink_to("/etc/passwd")
    with (tmp_path / "dumps" / "trace_rank_4").open("wb") as file:
        file.truncate(33 << 20)

    collected(replace(a_request(tmp_path), dumps=(pattern,)), health)

    assert health.snapshot().errors == {("evidence", "dump_hostile"): 1, ("evidence", "dump_too_large"): 1}
    assert kept(tmp_path) == ["flight-recorder-rank-0", "flight-recorder-rank-1"]


def test_what_exceeds_the_room_is_counted(tmp_path: Path) -> None:
    health = Health()
    pattern = lying_in(tmp_path / "dumps", range(4))

    answer = collected(replace(a_request(tmp_path, maximum_bytes=4000), dumps=(pattern,)), health)["flight_recorder"]

    assert kept(tmp_path) == ["flight-recorder-rank-3"]
    assert answer.suspects == {3: "behind"}
    assert health.snapshot().errors == {("evidence", "no_room"): 1}


def test_a_directory_that_cannot_be_written_costs_the_files_alone(tmp_path: Path) -> None:
    health = Health()
    (tmp_path / "evidence").write_text("a file stands there")
    pattern = lying_in(tmp_path / "dumps", range(4))

    answers = collected(replace(a_request(tmp_path), dumps=(pattern,)), health)

    assert answers["flight_recorder"].suspects == {3: "behind"}
    assert health.snapshot().errors == {("evidence", "not_kept"): 1}


@pytest.mark.parametrize(
    ("is_alone", "pids", "suspects"),
    [(True, (), {3: "behind"}), (False, (), {}), (False, (103,), {3: "behind"}), (False, (9,), {})],
    ids=["nobody_else_trains_here", "others_do", "and_a_process_is_known", "and_it_is_of_another_job"],
)
def test_a_report_counts_for_the_run_that_it_is_of(tmp_path: Path, is_alone: bool, pids: Sequence[int], suspects: dict[int, str]) -> None:
    trainers = tuple(Trainer(50, 0, inner_pid=pid) for pid in pids)

    with ras_server([report(communicator({0: 12, 1: 12, 2: 12, 3: 11}))]) as address:
        answers = collected(replace(a_request(tmp_path), ras=address, is_alone=is_alone, trainers=trainers))

    assert answers["ras"].suspects == suspects


def test_suspects_are_bounded(tmp_path: Path) -> None:
    health = Health()
    missing = dict.fromkeys(range(100, 140), "unresponsive")

    with ras_server([report(communicator(dict.fromkeys(range(100), 7), missing=missing))]) as address:
        answers = collected(replace(a_request(tmp_path), ras=address), health)

    assert sorted(answers["ras"].suspects) == list(range(100, 132))
    assert health.snapshot().dropped == {"hang_suspects": 8}


SLOW = (sys.executable, "-c", 'import sys, time; print(\'{"source": "ras", "suspects": [[3, "behind"]]}\', flush=True); time.sleep(300)')


def test_a_collection_that_takes_too_long_is_ended_and_keeps_what_it_had(tmp_path: Path) -> None:
    health, answers = Health(), []

    Collector(health, words=SLOW, seconds=2.0).collect(a_request(tmp_path), answers.append)

    assert [answer.suspects for answer in answers] == [{3: "behind"}]
    assert health.snapshot().errors == {("evidence", "timeout"): 1}


def test_a_collection_that_dies_is_counted(tmp_path: Path) -> None:
    health, answers = Health(), []

    Collector(health, words=(sys.executable, "-c", "raise SystemExit(3)")).collect(a_request(tmp_path), answers.append)

    assert (answers, health.snapshot().errors) == ([], {("evidence", "died"): 1})


def test_a_collection_ends_when_the_daemon_does(tmp_path: Path) -> None:
    collector, spoke = Collector(Health(), words=SLOW), threading.Event()
    thread = threading.Thread(target=collector.collect, args=(a_request(tmp_path), lambda _: spoke.set()), daemon=True)
    thread.start()
    assert spoke.wait(60)

    collector.stop()

    thread.join(60)
    assert not thread.is_alive()


TRAINER = """
import sys
def waits_for_a_peer():
    print("here", flush=True)
    print(sys.stdin.readline(), end="", flush=True)
waits_for_a_peer()
"""


@pytest.mark.skipif(not stacks.program(), reason="py-spy is not installed")
def test_stacks_are_taken_of_a_real_process_that_goes_on_undisturbed(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", TRAINER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "here\n"

        answers = collected(replace(a_request(tmp_path), stacks=4, trainers=(Trainer(trainer.pid, 3),)))

        trainer.stdin.write("goes on\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "goes on\n"
    assert answers["stacks"].notes == ["taken of 1 processes"]
    assert "waits_for_a_peer" in (tmp_path / f"evidence/20261130T120000Z-llama/stack-rank-3-pid-{trainer.pid}.txt").read_text()

"""NCCL RAS: the talk with it, and what its reports say."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import pytest

from ras_server import communicator, ras_server, report
from trainer_exporter.evidence.ras import RasError, RasLimits, ask
from trainer_exporter.evidence.ras_report import Finding, compare, parse

SOON = RasLimits(seconds=1.0, size_bytes=1 << 20)
LATER = RasLimits(seconds=60.0, size_bytes=1 << 20)

TEXT = """NCCL version 2.27.5+cuda12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {errors}
    1         4         4         2         8        32   RUNNING  OK

{body}
"""
MISMATCH = """Warnings
========

#0-0 (a1b2c3d4e5f60718) MISMATCH
  Communicator ranks have different AllReduce operation counts
"""


def text(body: str, errors: str = "MISMATCH") -> bytes:
    return TEXT.format(body=body, errors=errors).encode()


def found(first: bytes, second: bytes | None = None) -> Finding:
    before, after = parse(first), parse(first if second is None else second)
    assert before is not None
    assert after is not None
    return compare(before, after)


@pytest.mark.parametrize("manner", ["json", "text"])
def test_it_is_asked_in_its_own_words(manner: str) -> None:
    with ras_server([b"a report"], manner=manner) as address:
        answer = ask(address, LATER)

    assert answer == b"a report"


WAYS = {"stranger": "not_ras", "silent": "timeout", "stuck": "timeout", "flood": "too_long", "rude": "broken"}


@pytest.mark.parametrize(("manner", "word"), WAYS.items(), ids=WAYS)
def test_a_server_that_misbehaves_is_left(manner: str, word: str) -> None:
    limits = SOON if word == "timeout" else LATER

    with ras_server([b"x" * 100], manner=manner) as address, pytest.raises(RasError) as caught:
        ask(address, limits)

    assert caught.value.word == word


def test_a_port_on_which_nobody_listens_is_no_trouble() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()

    with pytest.raises(RasError) as caught:
        ask(address, LATER)

    assert caught.value.word == "refused"


WORLD = dict.fromkeys(range(8), 100)
REPORTS: Mapping[str, tuple[bytes, Mapping[int, str]]] = {
    "nobody_is_odd": (report(communicator(WORLD)), {}),
    "one_has_launched_less": (report(communicator({**WORLD, 5: 99})), {5: "behind"}),
    "one_alone_has_launched_more": (report(communicator({**WORLD, 0: 101})), {}),
    "one_does_not_answer": (report(communicator(dict.fromkeys(range(7), 100), missing={7: "unresponsive"})), {7: "unresponsive"}),
    "one_is_dead": (report(communicator(dict.fromkeys(range(7), 100), missing={7: "dead"})), {7: "dead"}),
    "most_do_not_answer": (report(communicator({0: 100}, missing=dict.fromkeys(range(1, 8), "unresponsive"))), {}),
    "a_victim_waits_in_its_pair": (
        report(
            communicator({**WORLD, 4: 99, 5: 99}),
            communicator({0: 40, 1: 39}, name="0xb2", ranks={0: 4, 1: 5}),
        ),
        {5: "behind"},
    ),
    "a_rank_of_a_pair_is_named_by_its_rank_in_the_job": (
        report(communicator(WORLD), communicator({0: 40, 1: 39}, name="0xb2", ranks={0: 6, 1: 3})),
        {3: "behind"},
    ),
    "a_communicator_of_processes_that_are_in_no_other": (
        report(communicator(WORLD), communicator({0: 40, 1: 39}, name="0xb2", ranks={0: 60, 1: 30})),
        {},
    ),
    "text_nobody_is_odd": (text("Warnings\n========\n\n", "OK"), {}),
    "text_one_has_launched_less": (
        text(
            MISMATCH + "  31 ranks have launched up to operation 100\n"
            "  Rank 5 has launched up to operation 99 -- GPU 5 managed by process 105 on node 10.0.0.1\n"
        ),
        {5: "behind"},
    ),
    "text_two_have_launched_less": (
        text(
            MISMATCH + "  30 ranks have launched up to operation 100\n  2 ranks have launched up to operation 99\n"
            "  Rank 5 -- GPU 5 managed by process 105 on node 10.0.0.1\n  Rank 6 -- [process information not found]\n"
        ),
        {5: "behind", 6: "behind"},
    ),
    "text_one_has_launched_none": (
        text(
            MISMATCH + "  31 ranks have launched up to operation 1\n"
            "  Rank 31 has not launched any operations -- GPU 7 managed by process 131 on node 10.0.0.4\n"
        ),
        {31: "behind"},
    ),
    "text_one_has_launched_more": (
        text(
            MISMATCH + "  31 ranks have launched up to operation 100\n"
            "  Rank 0 has launched up to operation 101 -- GPU 0 managed by process 100 on node 10.0.0.1\n"
        ),
        {},
    ),
    "text_one_does_not_answer": (
        text(
            "Errors\n======\n\n#0-0 (a1b2c3d4e5f60718) INCOMPLETE\n  Missing communicator data from 1 rank\n"
            "  Rank 9 -- GPU 1 managed by process 109 on node 10.0.0.2\n",
            "INCOMPLETE",
        ),
        {9: "missing"},
    ),
    "text_ranks_of_other_communicators_are_not_those_of_the_job": (
        text(
            "#1-2 (a1b2c3d4e5f60718) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
            "  7 ranks have launched up to operation 100\n"
            "  Rank 5 has launched up to operation 99 -- GPU 5 managed by process 105 on node 10.0.0.1\n",
        ),
        {},
    ),
}


@pytest.mark.parametrize(("data", "suspects"), REPORTS.values(), ids=REPORTS)
def test_a_report_names_the_ranks_that_hold_the_others_up(data: bytes, suspects: Mapping[int, str]) -> None:
    assert found(data).suspects == suspects


def test_a_communicator_that_goes_on_is_well() -> None:
    first = report(communicator({**WORLD, 5: 99}))
    second = report(communicator({rank: count + 1 for rank, count in {**WORLD, 5: 99}.items()}))

    assert found(first, second).suspects == {}


def test_processes_of_the_job_are_known_by_their_own_numbers() -> None:
    read = parse(report(communicator(WORLD)))

    assert read is not None
    assert read.pids == set(range(100, 108))


GARBAGE: Sequence[bytes] = [
    b"",
    b"{",
    b"[]",
    b"ERROR: Unknown command VERBOSE STATUS\n",
    b"\xff\xfe\x00" * 50,
    b'{"a":' * 50_000,
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_report_is_none(data: bytes) -> None:
    assert parse(data) is None


STRANGE: Sequence[bytes] = [
    b"{}",
    b'{"communicators": 3}',
    b'{"communicators": [3, null, {}, {"ranks": 4, "missing_ranks": [1]}]}',
    b'{"communicators": [{"hash": [], "ranks": [{"rank": "0"}, {"rank": true}, {"rank": -1}, {"rank": 1, "collective_counts": [1]}]}]}',
    b'{"communicators": [{"ranks": [{"rank": 1, "pid": "x", "host": null, "collective_counts": {"AllReduce": "9"}}]}]}',
]


@pytest.mark.parametrize("data", STRANGE, ids=range(len(STRANGE)))
def test_parts_of_another_kind_are_passed_over(data: bytes) -> None:
    assert found(data).suspects == {}


def test_a_report_that_is_cut_anywhere_is_read_or_none() -> None:
    whole = REPORTS["text_two_have_launched_less"][0]

    for length in range(len(whole)):
        if (read := parse(whole[:length])) is not None:
            compare(read, read)

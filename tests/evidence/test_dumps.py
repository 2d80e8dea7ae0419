"""Dumps of flight recorders: real ones, those of other versions, and files that want more than to be read."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainer_exporter.evidence import dumps
from trainer_exporter.evidence.dumps import Dump, UnreadableDumpError
from trainer_exporter.evidence.judge import Place, culprits

REAL = Path(__file__).parent / "dumps"
Tree = dict[str, Any]


def nccl_dump(enqueued: int, completed: int, *, operation: str = "nccl:_all_gather_base", ranks: Any = "[0, 1, 2, 3]") -> Tree:
    """As ProcessGroupNCCL writes it, its format of version 2.10."""
    entry = {
        "frames": [{"name": "train", "filename": "train.py", "line": 12}],
        "record_id": 3,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": enqueued,
        "p2p_seq_id": 0,
        "op_id": enqueued,
        "profiling_name": operation,
        "time_created_ns": 1_796_042_733_441_808_785,
        "input_sizes": [[4096, 4096]],
        "state": "started" if enqueued > completed else "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    status = {"last_enqueued_collective": enqueued, "last_started_collective": enqueued, "last_completed_collective": completed}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.30.7", "pg_status": {"0": status}, "entries": [entry]}


def pickled(tree: object) -> bytes:
    return pickle.dumps(tree, protocol=2)


def real() -> dict[int, Dump]:
    return {rank: dumps.read((REAL / f"trace_rank_{rank}").read_bytes()) for rank in range(4)}


class Code:
    """Runs something when it is unpickled by Python's own means."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def test_real_dumps_name_the_rank_that_three_others_wait_for() -> None:
    read = real()

    groups = dumps.groups(read)

    assert {group.name: sorted(group.behind) for group in groups} == {"0": [2, 3], "1": [], "2": [3]}
    assert read[2].groups["2"].place == Place(12, 11)
    assert read[3].groups["0"].operations[11] == "gloo:all_reduce"
    assert culprits(groups) == {3}


FORMS = {
    "pickle": pickled(nccl_dump(12, 11)),
    "newer_pickle": pickle.dumps(nccl_dump(12, 11), protocol=5),
    "json": json.dumps(nccl_dump(12, 11)).encode(),
    "json_with_numbers_as_texts": json.dumps(
        {**nccl_dump(12, 11), "pg_status": {"0": {"last_enqueued_collective": "12", "last_completed_collective": "11"}}}
    ).encode(),
    "ranks_as_a_list": pickled(nccl_dump(12, 11, ranks=[0, 1, 2, 3])),
    "without_a_status": pickled(
        {**nccl_dump(12, 11), "pg_status": {}, "entries": [*nccl_dump(11, 11)["entries"], *nccl_dump(12, 11)["entries"]]}
    ),
    "status_by_number": pickled({**nccl_dump(12, 11), "pg_status": {0: nccl_dump(12, 11)["pg_status"]["0"]}}),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_every_form_of_a_dump_says_the_same(data: bytes) -> None:
    group = dumps.read(data).groups["0"]

    assert (group.place, group.members) == (Place(12, 11), {0, 1, 2, 3})
    assert group.description == "default_pg"


def test_what_one_rank_sends_to_another_is_no_collective() -> None:
    sent = {**nccl_dump(12, 11)["entries"][0], "is_p2p": True, "process_group": ("7", "pipeline")}

    read = dumps.read(pickled({**nccl_dump(12, 11), "entries": [sent]}))

    assert read.groups == {}


def test_a_hostile_dump_executes_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    bombs = {
        "reduce": pickled({**nccl_dump(1, 1), "x": Code(os.mkdir, str(made))}),
        "newer_reduce": pickle.dumps(Code(os.mkdir, str(made)), protocol=4),
        "builtin": pickled(Code(eval, f"__import__('os').mkdir({str(made)!r})")),
        "old_reduce": b"cos\nmkdir\n(S'" + str(made).encode() + b"'\ntR.",
        "instance": b"(S'" + str(made).encode() + b"'\nios\nmkdir\n.",
        "object": b"(cos\nmkdir\nS'" + str(made).encode() + b"'\no.",
        "extension": b"\x80\x02\x82\x01.",
        "container_of_the_library": pickled(Code(Path, "/")),
        "persistent": b"P1\n.",
    }

    words = {name: refused(data).word for name, data in bombs.items()}

    assert words == {**dict.fromkeys(bombs, "hostile"), "extension": "broken"}
    assert not made.exists()


def refused(data: bytes) -> UnreadableDumpError:
    with pytest.raises(UnreadableDumpError) as caught:
        dumps.read(data)
    return caught.value


WHOLE = (REAL / "trace_rank_0").read_bytes()
BROKEN = {
    "empty": b"",
    "text": b"#!/bin/sh\necho hello\n",
    "a_number": pickled(7),
    "a_list": pickled([1, 2]),
    "entries_that_are_none": pickled({"entries": 3}),
    "call_of_a_text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "state_of_a_list": b"\x80\x02]}b.",
    "an_item_that_cannot_be_a_key": b"\x80\x02}]Ns.",
    "length_of_exabytes": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0fabc.",
    "memo_far_out": b"\x80\x02j\xff\xff\xff\x7f.",
    "deep_json": b'{"a":' * 100_000,
    "frame_longer_than_the_file": b"\x80\x04\x95\xff\xff\x00\x00\x00\x00\x00\x00}.",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    assert refused(data).word == "broken"


def test_a_dump_that_is_cut_anywhere_is_refused() -> None:
    for length in range(len(WHOLE)):
        assert refused(WHOLE[:length]).word == "broken", length


# One byte more or less makes a number of the memo out of a length, and pickle reserves room for that many: hence the limit, which the
# process has that reads dumps.
CHANGED = """
import resource, sys
from trainer_exporter.evidence.dumps import UnreadableDumpError, read
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
whole = open(sys.argv[1], "rb").read()
for place in range(len(whole)):
    for other in (0x28, 0x52, 0x81):
        try:
            read(whole[:place] + bytes([other]) + whole[place + 1 :])
        except UnreadableDumpError:
            continue
print("done")
"""


def test_a_dump_with_any_byte_changed_is_read_or_refused() -> None:
    words = (sys.executable, "-c", CHANGED, str(REAL / "trace_rank_0"))

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


STRANGE: Mapping[str, Tree] = {
    "no_entries": {"version": "2.10"},
    "entries_of_anything": {"entries": [None, 3, "x", [], {}, {"process_group": None}, {"process_group": ()}, {"process_group": (1, 2)}]},
    "numbers_out_of_reach": {"entries": [{"process_group": ("0",), "pg_id": 0, "collective_seq_id": 1 << 80}], "pg_status": {"0": 4}},
    "truth_as_a_number": {"entries": [{"process_group": ("0",), "pg_id": 0, "collective_seq_id": True}], "pg_config": [1]},
    "ranks_of_anything": {"entries": nccl_dump(1, 1)["entries"], "pg_config": {"0": {"ranks": {"a": 1}}}},
}


@pytest.mark.parametrize("tree", STRANGE.values(), ids=STRANGE)
def test_values_of_another_kind_are_passed_over(tree: Tree) -> None:
    for group in dumps.read(pickled(tree)).groups.values():
        assert group.place.enqueued < 1 << 62


def test_a_name_from_a_dump_is_short_and_printable() -> None:
    read = dumps.read(pickled({"entries": [{"process_group": ("\x1b[31m" + "x" * 500, "d\ne"), "collective_seq_id": 1}]}))

    (name,) = read.groups

    assert name == "_[31m" + "x" * 75
    assert read.groups[name].description == "d_e"


RANKS = {
    "nccl_trace_rank_3": 3,
    "comm_lib_trace_rank_12": 12,
    "rank_0007": 7,
    "trace_rank_4.pickle": 4,
    "5": 5,
    "trace_rank_4.t": None,
    "trace_rank_": None,
    "trace_rank_99999999999": 9999999,
}


@pytest.mark.parametrize(("name", "rank"), RANKS.items(), ids=RANKS)
def test_the_rank_stands_at_the_end_of_the_file_s_name(name: str, rank: int | None) -> None:
    assert dumps.rank_of(name) == rank


def seen(*ranks: int) -> dict[int, Dump]:
    return {rank: dumps.read(pickled(nccl_dump(12, 11))) for rank in ranks}


MISSED = {
    "all_are_here": (seen(0, 1, 2, 3), {0, 1, 2, 3}, set()),
    "one_of_this_node_s": (seen(0, 1), {0, 1, 2}, {2}),
    "those_of_other_nodes_lie_there": (seen(0, 1), {0, 1}, set()),
    "a_shared_directory_has_them_all": (seen(0, 1, 2), {0, 1}, {3}),
    "none_at_all_says_nothing": (seen(), {0, 1}, set()),
}


@pytest.mark.parametrize(("read", "local", "missed"), MISSED.values(), ids=MISSED)
def test_a_rank_is_missed_where_its_dump_would_lie(read: dict[int, Dump], local: set[int], missed: set[int]) -> None:
    assert dumps.absent(read, local=frozenset(local), size=4) == missed

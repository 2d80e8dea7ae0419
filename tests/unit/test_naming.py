"""What a run is called when only the paths of its files are known, and which files are one run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_exporter.names import sanitise
from trainer_exporter.sources.naming import Named, run_names, tracker_of


def names_of(*paths: str) -> list[str]:
    named = run_names(paths, {})
    return [named[path].run for path in paths]


@pytest.mark.parametrize(
    ("path", "run"),
    [
        pytest.param("/data/exp7/train.log", "exp7", id="directory"),
        pytest.param("/data/exp7/logs/train.log", "exp7/logs", id="parent_of_logs"),
        pytest.param("/w/qwen/lora/sft/trainer_log.jsonl", "qwen/lora/sft", id="all_that_say_nothing_are_joined"),
        pytest.param("/w/qwen/3/train.log", "qwen/3", id="number"),
        pytest.param("/data/logs/a.log", "a", id="no_directory_says_anything"),
        pytest.param("/home/alice/logs/llama-8b.out", "llama-8b", id="a_person_is_no_run"),
        pytest.param("/tmp/train.log", "train", id="stem_that_says_little"),
        pytest.param("/tmp/stdout.log", "stdout", id="nothing_left_but_the_stream"),
        pytest.param("/train.log", "train", id="root"),
        pytest.param("/scratch/exp/slurm-123.out", "exp", id="slurm"),
        pytest.param("/w/exp/none_ab12/attempt_0/3/stderr.log", "exp/none_ab12", id="torchrun"),
        pytest.param("/w/exp/runs/Jan01_10-00-00_n1/events.out.tfevents.1700000000.n1.7.0", "exp", id="tensorboard"),
        pytest.param("/w/runs/heron/trainer_log.jsonl", "heron", id="runs_of_a_fleet_are_not_a_library's"),
        pytest.param("/w/exp/a\udcff\nb/x.log", "a__b", id="unprintable"),
    ],
)
def test_a_lone_file_gives_its_run_the_name_of_the_nearest_directory_that_says_something(path: str, run: str) -> None:
    assert names_of(path) == [run]


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param(["/w/exp/job.123.out", "/w/exp/job.123.err"], id="slurm_streams"),
        pytest.param(["/w/exp/stdout.log", "/w/exp/stderr.log"], id="streams"),
        pytest.param(["/w/exp/rank0.log", "/w/exp/rank13.log"], id="ranks"),
        pytest.param(["/w/exp/train_rank_0.log", "/w/exp/train_rank_1.log", "/w/exp/train.log"], id="ranks_and_main"),
        pytest.param(["/w/exp/train-node0.out", "/w/exp/train-node1.err"], id="nodes"),
        pytest.param(["/w/exp/local_rank0.log", "/w/exp/local_rank1.log"], id="local_ranks"),
        pytest.param(
            ["/w/exp/j_x1/attempt_0/0/stdout.log", "/w/exp/j_x1/attempt_0/7/stderr.log", "/w/exp/j_x1/attempt_1/0/stdout.log"],
            id="torchrun",
        ),
        pytest.param(["/w/exp/train.log", "/w/exp/trainer_log.jsonl"], id="llama_factory"),
        pytest.param(["/w/exp/train.log", "/w/exp/lightning_logs/version_3/metrics.csv"], id="lightning"),
        pytest.param(["/w/exp/train.out", "/w/exp/train.err", "/w/exp/running_log.txt"], id="web_ui"),
    ],
)
def test_files_of_one_run_share_group_and_name(paths: list[str]) -> None:
    named = run_names(paths, {})

    assert len(set(named.values())) == 1


@pytest.mark.parametrize(
    ("paths", "runs"),
    [
        pytest.param(["/w/exp/a.log", "/w/exp/b.log"], ["exp/a", "exp/b"], id="consoles"),
        pytest.param(["/w/exp/slurm-1.out", "/w/exp/slurm-2.out"], ["exp/slurm-1", "exp/slurm-2"], id="jobs"),
        pytest.param(["/w/exp/a.log", "/w/exp/b.log", "/w/exp/trainer_log.jsonl"], ["exp/a", "exp/b", "exp"], id="whose"),
        pytest.param(["/data/logs/a.log", "/data/logs/b.log"], ["a", "b"], id="no_directory_says_anything"),
        pytest.param(["/w/x/exp/t.log", "/w/y/exp/t.log"], ["x/exp", "y/exp"], id="parents_until_they_differ"),
        pytest.param(["/w/exp/frank1.log", "/w/exp/frank2.log"], ["exp/frank1", "exp/frank2"], id="no_rank_but_a_name"),
        pytest.param(["/mnt/logs/a.log", "/data/logs/a.log"], ["mnt/logs/a", "data/logs/a"], id="parents_of_a_stem"),
    ],
)
def test_files_of_different_runs_get_different_names(paths: list[str], runs: list[str]) -> None:
    assert names_of(*paths) == runs


def test_a_run_keeps_its_name_and_the_newcomer_gets_the_longer_one() -> None:
    first = run_names(["/w/x/exp/t.log"], {})
    assert first["/w/x/exp/t.log"].run == "exp"

    both = run_names(["/w/x/exp/t.log", "/w/y/exp/t.log"], first)

    assert [both[path].run for path in ("/w/x/exp/t.log", "/w/y/exp/t.log")] == ["exp", "y/exp"]


def test_a_second_console_in_a_directory_leaves_the_first_run_alone() -> None:
    first = run_names(["/w/exp/train.log"], {})

    both = run_names(["/w/exp/train.log", "/w/exp/eval.log"], first)

    assert [both[path].run for path in ("/w/exp/train.log", "/w/exp/eval.log")] == ["exp", "exp/eval"]


@pytest.mark.parametrize(
    "order",
    [["/w/exp/trainer_log.jsonl", "/w/exp/train.log"], ["/w/exp/train.log", "/w/exp/trainer_log.jsonl"]],
    ids=["trainers_file_first", "console_first"],
)
def test_a_trainers_file_and_the_only_console_are_one_run_whichever_comes_first(order: list[str]) -> None:
    first = run_names(order[:1], {})

    both = run_names(order, first)

    assert set(both.values()) == set(first.values())


def test_a_console_that_came_later_does_not_part_a_run_that_was_joined() -> None:
    joined = run_names(["/w/exp/trainer_log.jsonl"], {})
    joined = run_names(["/w/exp/trainer_log.jsonl", "/w/exp/train.log"], joined)

    named = run_names(["/w/exp/trainer_log.jsonl", "/w/exp/train.log", "/w/exp/eval.log"], joined)

    assert [named[path].run for path in ("/w/exp/trainer_log.jsonl", "/w/exp/train.log", "/w/exp/eval.log")] == [
        "exp",
        "exp",
        "exp/eval",
    ]


def test_a_reserved_name_is_left_to_its_owner() -> None:
    named = run_names(["/w/exp/train.log"], {}, reserved=["exp"])

    assert named["/w/exp/train.log"].run == "w/exp"


def test_names_stay_different_when_no_parents_are_left() -> None:
    taken = {"/other/file": Named("exp", "/somewhere"), "/another/file": Named("exp#2", "/elsewhere")}

    named = run_names(["/exp/t.log"], taken)

    assert named["/exp/t.log"].run == "exp#3"


PATHS = st.lists(
    st.builds(
        lambda parts, name: "/" + "/".join([*parts, name]),
        st.lists(st.sampled_from(["a", "b", "logs", "7", "sft", "attempt_0"]), max_size=4),
        st.sampled_from(["a.log", "b.log", "stdout.log", "rank0.log", "trainer_log.jsonl", "x.out", "x.err"]),
    ),
    unique=True,
    max_size=12,
)


@given(PATHS, st.integers(0, 12))
def test_two_groups_never_share_a_name_and_a_name_never_changes(paths: list[str], first: int) -> None:
    before = run_names(paths[:first], {})

    after = run_names(paths, before)

    assert {path: after[path] for path in before} == dict(before)
    assert_one_to_one(after)


def assert_one_to_one(named: Mapping[str, Named]) -> None:
    pairs = set(named.values())
    assert len({each.run for each in pairs}) == len({each.group for each in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("output_dir", "tracker", "console", "cwd", "same"),
    [
        pytest.param("/w/out", "/w/out/", "/logs", "", True, id="absolute"),
        pytest.param("/w/out", "/v/out", "/w", "", False, id="absolute_elsewhere"),
        pytest.param("saves/x/sft", "/w/lf/saves/x/sft", "/w/lf", "", True, id="beside_the_console"),
        pytest.param("./out", "/w/lf/out", "/w/lf/logs/today", "", True, id="above_the_console"),
        pytest.param("../out", "/w/out", "/w/logs", "", True, id="one_up"),
        pytest.param("saves/x/sft", "/w/lf/saves/x/sft", "/var/log", "", True, id="by_its_last_parts"),
        pytest.param("out", "/w/lf/out", "/var/log", "", False, id="one_part_is_too_little"),
        pytest.param("saves/x", "/a/saves/x", "/logs", "/a", True, id="from_the_writers_directory"),
        pytest.param("saves/x", "/b/saves/x", "/logs", "/a", False, id="another_writers_directory"),
        pytest.param("", "/w", "/w", "", False, id="no_fact"),
    ],
)
def test_a_console_belongs_to_the_trainers_files_in_its_output_dir(
    output_dir: str, tracker: str, console: str, cwd: str, same: bool
) -> None:
    found = tracker_of(output_dir, [tracker], console_directory=console, cwd=cwd)

    assert (found is not None) is same


def test_of_two_directories_that_end_alike_none_is_guessed() -> None:
    trackers = ["/a/saves/x", "/b/saves/x"]

    assert tracker_of("saves/x", trackers, console_directory="/logs") is None
    assert tracker_of("saves/x", trackers, console_directory="/b/logs") == "/b/saves/x"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain-name_1", "plain-name_1"),
        ("  spaced out  ", "spaced out"),
        ("a\nb\x00c\x1b[0m", "a_b_c_[0m"),
        ("\udcff", "_"),
        ("名前/実験", "名前/実験"),
        ("x" * 500, "x" * 200),
        (" \n ", ""),
    ],
)
def test_a_name_from_outside_is_made_printable_and_bounded(text: str, name: str) -> None:
    assert sanitise(text) == name


def test_a_path_through_proc_does_not_put_a_pid_into_a_name() -> None:
    path = "/proc/4711/root/workspace/console.log"

    assert run_names([path], {})[path].run == "console"

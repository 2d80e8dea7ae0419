"""Saves as they look from outside: stories of each trainer's directories, in a real file system with a clock moved by hand.

A test sets modification times where a story needs a duration; ctime cannot be set, so it is always the real present.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainer_exporter.checkpoints.layouts import layout_of
from trainer_exporter.checkpoints.tree import beginning
from unit.saving import FINISHED, STARTED, TRACKER, Story, state, torch_file


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """An empty output directory that is being watched already."""
    story = Story(tmp_path / "run")
    story.root.mkdir()
    assert story.poll() == []
    return story


# -- each layout as it is written


def test_a_hugging_face_checkpoint_is_finished_when_its_trainer_state_is_whole(story: Story) -> None:
    story.write("checkpoint-500/model.safetensors", b"w" * 1000)

    assert story.poll() == [(STARTED, 500)]
    story.write("checkpoint-500/trainer_state.json", state(500)[:-20])
    assert story.poll() == []
    whole = state(500)
    story.write("checkpoint-500/trainer_state.json", whole, later=7)
    assert story.poll() == []
    (news,) = story.news()

    assert (news.event, news.step, news.size_bytes) == (FINISHED, 500, 1000 + len(whole))
    assert news.path == str(story.root / "checkpoint-500")
    assert news.duration_seconds == pytest.approx(7, abs=1)
    assert news.wall == pytest.approx(time.time() + 7, abs=1)
    assert story.watcher.in_progress == ()


def test_a_trainer_state_that_ends_with_an_inner_brace_is_not_whole(story: Story) -> None:
    text = state(500)
    story.write("checkpoint-500/trainer_state.json", text[: text.rindex("}", 0, -2) + 1])

    told = [story.poll(), story.poll(), story.poll()]

    assert told == [[(STARTED, 500)], [], []]


def test_a_save_is_not_over_while_another_rank_still_writes(story: Story) -> None:
    story.write("checkpoint-40/trainer_state.json", state(40))
    story.poll()

    story.write("checkpoint-40/rng_state_7.pth", b"r" * 10)
    growing = story.poll()
    still = story.poll()

    assert growing == []
    assert still == [(FINISHED, 40)]


def test_a_checkpoint_renamed_from_its_temporary_name_is_one_save(story: Story) -> None:
    story.write("tmp-checkpoint-80/model.safetensors")
    assert story.poll() == [(STARTED, 80)]
    story.write("tmp-checkpoint-80/trainer_state.json", state(80))
    assert [story.poll(), story.poll()] == [[], []]

    (story.root / "tmp-checkpoint-80").rename(story.root / "checkpoint-80")
    told = story.poll() + story.poll()

    assert told == [(FINISHED, 80)]


def test_a_megatron_checkpoint_is_finished_when_the_tracker_names_it(story: Story) -> None:
    story.write(TRACKER, "2000")
    story.write("iter_0003000/mp_rank_00/model_optim_rng.pt")
    assert story.poll() == [(STARTED, 3000)]
    assert story.poll() == []

    story.write(TRACKER, "3000", later=12)
    told = [story.news(), story.news()]

    assert told[0] == ()
    assert (told[1][0].event, told[1][0].step) == (FINISHED, 3000)
    assert told[1][0].duration_seconds == pytest.approx(12, abs=1)


def test_a_deepspeed_checkpoint_is_finished_when_latest_names_it(story: Story) -> None:
    story.write("global_step100/mp_rank_00_model_states.pt")
    assert story.poll() == [(STARTED, 100)]

    story.write("latest", "global_step100")
    told = story.poll() + story.poll()

    assert told == [(FINISHED, 100)]


@pytest.mark.parametrize("folder", ["", "checkpoint/", "checkpoints/"], ids=["at the top", "in checkpoint", "in checkpoints"])
def test_a_distributed_checkpoint_is_finished_when_its_metadata_is_there(story: Story, folder: str) -> None:
    story.write(f"{folder}step-200/__0_0.distcp")
    assert story.poll() == [(STARTED, 200)]

    story.write(f"{folder}step-200/.metadata")
    told = story.poll() + story.poll()

    assert told == [(FINISHED, 200)]


def test_a_lightning_file_is_finished_when_its_archive_is_closed(story: Story) -> None:
    data = torch_file()
    story.write("epoch=1-step=500.ckpt", data[:2000])
    assert [story.poll(), story.poll()] == [[(STARTED, 500)], []]

    story.write("epoch=1-step=500.ckpt", data)
    told = [story.poll(), story.poll()]

    assert told == [[], [(FINISHED, 500)]]


def test_a_lightning_file_of_the_old_kind_is_finished_when_it_has_been_quiet(story: Story) -> None:
    story.write("step=7.ckpt", b"\x80\x02legacy pickle")
    story.poll()

    early, late = story.poll(after=20), story.poll(after=20)

    assert early == []
    assert late == [(FINISHED, 7)]


def test_a_verl_checkpoint_goes_by_the_tracker_beside_it(story: Story) -> None:
    story.write(TRACKER, "10")
    story.write("global_step_20/actor/model_world_size_8_rank_0.pt")
    assert [story.poll(), story.poll()] == [[(STARTED, 20)], []]

    story.write(TRACKER, "20")
    told = story.poll() + story.poll()

    assert told == [(FINISHED, 20)]


# -- names


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("tmp-checkpoint-500", 500),
        ("iter_0003000", 3000),
        ("global_step100", 100),
        ("global_step_20", 20),
        ("step-200", 200),
        ("step1000", 1000),
        ("epoch=1-step=500.ckpt", 500),
        ("gpt-step=500-val=2.1.ckpt", 500),
        ("epoch=3.ckpt", None),
    ],
)
def test_the_name_is_a_checkpoint(name: str, step: int | None) -> None:
    found = layout_of(name)

    assert found is not None
    assert found[1] == step


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-best",
        "checkpoint-500-merged",
        "checkpoint-500.tar",
        "iter_12",
        "release",
        "global_steps",
        "step1000-unsharded",
        "steps",
        "last.ckpt",
        "last-v1.ckpt",
        ".epoch=1.ckpt",
        "model.safetensors",
        "runs",
    ],
)
def test_the_name_is_left_alone(name: str) -> None:
    found = layout_of(name)

    assert found is None


def test_what_only_looks_like_a_checkpoint_is_left_alone(story: Story) -> None:
    story.write("step_1000/sample_0.png")
    story.write("checkpoint-3", b"a file where a directory belongs")
    (story.root / "checkpoint-9").symlink_to(story.root / "step_1000")

    told = [story.poll(), story.poll(), story.poll(after=700)]

    assert told == [[], [], []]
    assert story.watcher.in_progress == ()


def test_a_directory_without_any_known_mark_stops_being_a_save_without_being_a_failure(story: Story) -> None:
    story.write("checkpoint-5/unknown.bin")
    assert story.poll() == [(STARTED, 5)]

    told = [story.poll(after=300), story.poll(after=400)]

    assert told == [[], []]
    assert story.watcher.in_progress == ()


# -- durations from moments


@pytest.mark.parametrize(
    ("times", "options", "start"),
    [
        ([(100.0, 100.0), (108.0, 108.0)], {}, 100.0),
        ([(108.0, 108.0)], {}, None),
        ([], {}, None),
        ([(108.0, 108.0)], {"seen": 99.0}, 99.0),
        ([(5.0, 104.0), (108.0, 108.0)], {}, 104.0),
        ([(100.0, 9000.0), (108.0, 9000.0)], {}, 100.0),
        ([(100.0, 100.0), (5000.0, 5000.0), (5008.0, 5008.0)], {"end": 5008.0}, 5000.0),
        ([(100.0, 100.0), (104.0, 104.0), (108.0, 108.0)], {"after": 100.0}, 104.0),
        ([(100.0, 100.0), (108.0, 108.0), (120.0, 120.0)], {}, 100.0),
    ],
    ids=[
        "first to last",
        "a single moment is no interval",
        "nothing",
        "the watched start",
        "a file copied with its old time counts from its copying",
        "a chmod afterwards moves ctime only",
        "an earlier attempt in the same directory",
        "what an earlier save left",
        "what was added later",
    ],
)
def test_a_save_began(times: list[tuple[float, float]], options: dict[str, float], start: float | None) -> None:
    options = {"end": 108.0, **options}

    began = beginning(times, options.pop("end"), **options)

    assert began == start

"""Which files are followed, on a real file system; only time stands still."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer_exporter.clock import ManualClock
from trainer_exporter.health import Health
from trainer_exporter.sources.discovery import Discovery, DiscoveryLimits, Spec
from trainer_exporter.sources.files import identity_of

NOW = 1_700_000_000.0


class Scene:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(NOW)
        self.health = Health()
        self.discovery = self.looking_for(".")

    def looking_for(self, *patterns: str, files: int = 2000) -> Discovery:
        specs = [Spec(str(self.root / pattern)) for pattern in patterns]
        self.discovery = Discovery(specs, self.clock, self.health, limits=DiscoveryLimits(files=files))
        return self.discovery

    def file(self, name: str, *, age_s: float = 0) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (NOW - age_s, NOW - age_s))
        return path

    def found(self) -> list[str]:
        return [str(Path(each.path).relative_to(self.root)) for each in self.discovery.scan(now=True)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# -- what a directory means


@pytest.mark.parametrize(
    "name",
    [
        "train.log",
        "exp/slurm-123.out",
        "exp/slurm-123.err",
        "exp/trainer_log.jsonl",
        "exp/running_log.txt",
        "exp/attempt_0/0/stdout.log",
        "exp/checkpoints/train.log",
        "a/b/c/d/e/f/g/h.log",
    ],
)
def test_a_directory_means_the_logs_in_and_below_it(scene: Scene, name: str) -> None:
    scene.file(name)

    assert scene.found() == [name]


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "exp/train.py",
        "exp/requirements.txt",
        "exp/merges.txt",
        "exp/train.log.gz",
        "exp/.hidden.log",
        ".git/x.log",
        "exp/checkpoint-500/trainer.log",
        "exp/iter_0000100/x.log",
        "exp/global_step7/x.log",
        "wandb/run-1/files/output.log",
        "exp/latest_checkpointed_iteration.txt",
        "1/2/3/4/5/6/7/8/9/too_deep.log",
    ],
)
def test_what_is_no_log_of_a_run_is_left_alone(scene: Scene, name: str) -> None:
    scene.file(name)

    assert scene.found() == []


# -- globs and files


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        pytest.param("*.log", ["top.log"], id="star"),
        pytest.param("**/*.log", ["a/one.log", "a/b/two.log", "top.log"], id="any_depth"),
        pytest.param("a/**", ["a/b/two.log", "a/one.log"], id="everything_below"),
        pytest.param("a/*/*.log", ["a/b/two.log"], id="one_level"),
        pytest.param("?/one.lo[g]", ["a/one.log"], id="other_magic"),
        pytest.param("*/one.log", ["a/one.log"], id="magic_directory"),
        pytest.param("nowhere/*.log", [], id="no_such_directory"),
        pytest.param("a/one.log", ["a/one.log"], id="file"),
        pytest.param("a/later.log", [], id="file_to_come"),
    ],
)
def test_a_pattern_means_what_it_says(scene: Scene, pattern: str, found: list[str]) -> None:
    for name in ("top.log", "a/one.log", "a/b/two.log", "a/.git/x.log"):
        scene.file(name)

    scene.looking_for(pattern)

    assert sorted(scene.found()) == sorted(found)


def test_a_name_with_brackets_is_a_name_if_there_is_such_a_file(scene: Scene) -> None:
    scene.file("run[1].log")

    scene.looking_for("run[1].log")

    assert scene.found() == ["run[1].log"]


def test_a_file_that_the_user_named_is_taken_whatever_its_name_and_age(scene: Scene) -> None:
    scene.file("odd.bin", age_s=10**7)

    scene.looking_for("odd.bin")

    assert scene.found() == ["odd.bin"]


# -- age


def test_a_run_that_ended_last_month_is_not_picked_up(scene: Scene) -> None:
    scene.file("old.log", age_s=30 * 86400)
    scene.file("new.log", age_s=3600)

    assert scene.found() == ["new.log"]


def test_a_hung_run_stays_found_however_old_its_log_grows(scene: Scene) -> None:
    scene.file("train.log")
    assert scene.found() == ["train.log"]

    scene.clock.advance(10 * 86400)

    assert scene.found() == ["train.log"]


def test_an_old_log_that_a_process_still_holds_is_picked_up(scene: Scene) -> None:
    held = scene.file("hung.log", age_s=3 * 86400)
    scene.file("ended.log", age_s=3 * 86400)
    asked: list[int] = []

    found = scene.discovery.scan(now=True, held=lambda identities: (asked.append(len(identities)), [identity_of(held.stat())])[1])

    assert [each.path for each in found] == [str(held)]
    assert asked == [2]


# -- one file, many paths


def test_a_file_with_two_names_is_found_once(scene: Scene) -> None:
    path = scene.file("a/train.log")
    (scene.root / "b").mkdir()
    os.link(path, scene.root / "b" / "train.log")
    (scene.root / "latest.log").symlink_to(path)

    assert scene.found() == ["a/train.log"]


def test_the_name_that_the_user_gave_is_preferred(scene: Scene) -> None:
    path = scene.file("a/train.log")
    (scene.root / "latest.log").symlink_to(path)

    scene.looking_for("a", "latest.log")

    assert scene.found() == ["latest.log"]


def test_a_name_that_appears_later_does_not_change_the_path(scene: Scene) -> None:
    path = scene.file("z/train.log")
    assert scene.found() == ["z/train.log"]

    (scene.root / "a").mkdir()
    os.link(path, scene.root / "a" / "train.log")

    assert scene.found() == ["z/train.log"]


def test_loops_of_symbolic_links_end(scene: Scene) -> None:
    scene.file("a/train.log")
    (scene.root / "a" / "again").symlink_to(scene.root, target_is_directory=True)
    (scene.root / "a" / "self.log").symlink_to(scene.root / "a" / "self.log")

    scene.looking_for(".", "**/*.log", "*/*/*.log")

    assert scene.found() == ["a/train.log"]


# -- rotation


@pytest.mark.parametrize("rotated", ["x.log.1", "x.log.2.gz", "x.log-20250101", "x.log.2025-01-01_10-00-00", "x.log.old"])
def test_a_rotated_file_is_not_a_log_of_its_own(scene: Scene, rotated: str) -> None:
    scene.file("x.log")
    scene.file(rotated)

    scene.looking_for("x.log*", ".")

    assert scene.found() == ["x.log"]


def test_a_rotated_file_is_not_picked_up_in_the_middle_of_a_rotation(scene: Scene) -> None:
    path = scene.file("x.log")
    scene.looking_for("x.log*")
    assert scene.found() == ["x.log"]

    path.rename(scene.root / "x.log.1")

    assert scene.found() == []


def test_numbered_logs_without_a_log_before_them_are_logs(scene: Scene) -> None:
    scene.file("log.0")
    scene.file("log.1")

    scene.looking_for("log.*")

    assert scene.found() == ["log.0", "log.1"]


# -- cost and bounds


def test_nothing_is_looked_at_between_two_looks(scene: Scene) -> None:
    scene.file("a.log")
    assert len(scene.discovery.scan()) == 1
    scene.file("b.log")

    between = scene.discovery.scan()
    scene.clock.advance(10)

    assert (len(between), len(scene.discovery.scan())) == (1, 2)


def test_a_directory_that_did_not_change_is_not_listed_again(scene: Scene) -> None:
    scene.file("a/x.log")
    for directory in (scene.root / "a", scene.root):
        os.utime(directory, (NOW - 60, NOW - 60))
    scene.found()
    lists_made = scene.discovery._walk.lists_made

    scene.found()
    scene.file("a/y.log")

    assert scene.found() == ["a/x.log", "a/y.log"]
    assert scene.discovery._walk.lists_made == lists_made + 1


def test_of_too_many_files_those_found_first_stay(scene: Scene) -> None:
    scene.looking_for(".", files=2)
    scene.file("m.log")
    scene.file("n.log")
    assert scene.found() == ["m.log", "n.log"]

    scene.file("a.log")

    assert scene.found() == ["m.log", "n.log"]
    assert scene.found() == ["m.log", "n.log"]
    assert scene.health.snapshot().dropped == {"files": 1}


def test_old_logs_that_nobody_holds_make_room_for_new_ones(scene: Scene) -> None:
    for name in ("a.log", "b.log", "c.log"):
        scene.file(name)
    scene.looking_for(".", files=3)
    assert scene.found() == ["a.log", "b.log", "c.log"]
    scene.clock.advance(2 * 86_400)
    new = scene.file("new.log")
    os.utime(new, (scene.clock.wall(), scene.clock.wall()))
    hung = identity_of((scene.root / "a.log").stat())

    found = scene.discovery.scan(now=True, held=lambda asked: asked & {hung})

    assert [Path(each.path).name for each in found] == ["a.log", "new.log", "b.log"]
    assert scene.health.snapshot().dropped == {}


def test_a_file_carries_the_first_spec_that_led_to_it(scene: Scene) -> None:
    scene.file("a/x.log")
    specs = [Spec(str(scene.root / "a"), run="mine", labels={"team": "t"}), Spec(str(scene.root))]

    (found,) = Discovery(specs, scene.clock, scene.health).scan()

    assert (found.spec.run, found.spec.labels) == ("mine", {"team": "t"})


def test_the_directories_searched_are_known_to_the_waker(scene: Scene) -> None:
    scene.file("a/x.log")
    scene.found()

    assert set(scene.discovery.directories) == {str(scene.root), str(scene.root / "a")}

"""The wait between two looks: what ends it early, and what does not matter."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from watchdog.events import FileCreatedEvent, FileSystemEvent, FileSystemEventHandler

from trainer_exporter.clock import ManualClock, SystemClock
from trainer_exporter.health import Health
from trainer_exporter.sources.waker import Waker


class FakeObserver:
    """Watches nothing, remembers what it should, and fails where a test wants it."""

    def __init__(self, *, start_error: Exception | None = None, schedule_error: Exception | None = None) -> None:
        self.start_error = start_error
        self.schedule_error = schedule_error
        self.watched: list[str] = []

    def start(self) -> None:
        if self.start_error:
            raise self.start_error

    def stop(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def schedule(
        self,
        event_handler: FileSystemEventHandler,
        path: str,
        *,
        recursive: bool = False,
        event_filter: list[type[FileSystemEvent]] | None = None,
    ) -> object:
        if self.schedule_error:
            raise self.schedule_error
        self.watched.append(path)
        return path

    def unschedule(self, watch: object) -> None:
        self.watched.remove(str(watch))


def waker_of(observer: FakeObserver, *, most: int = 256) -> tuple[Waker, Health, ManualClock]:
    clock, health = ManualClock(), Health()
    return Waker(clock, health, observer=lambda: observer, most_directories=most), health, clock


def test_a_wait_ends_when_its_time_is_over() -> None:
    waker, _, _ = waker_of(FakeObserver())

    assert waker.wait(0) is False


def test_a_wake_before_the_wait_is_not_lost_and_ends_only_one_wait() -> None:
    waker, _, _ = waker_of(FakeObserver())

    waker.wake()

    assert waker.wait(0) is True
    assert waker.wait(0) is False


def test_a_wait_ends_at_once_when_another_thread_wakes() -> None:
    waker, _, _ = waker_of(FakeObserver())
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (waker.wait(60), ended.set()))
    waiting.start()

    waker.wake()

    assert ended.wait(10)
    waiting.join()


def test_many_events_in_a_moment_are_one_reason_to_look() -> None:
    waker, _, clock = waker_of(FakeObserver())
    waker.dispatch(FileCreatedEvent("/runs/a"))
    assert waker.wait(0) is True

    waker.dispatch(FileCreatedEvent("/runs/b"))
    at_once = waker.wait(0)
    clock.advance(1)
    waker.dispatch(FileCreatedEvent("/runs/c"))

    assert (at_once, waker.wait(0)) == (False, True)


def test_only_the_directories_asked_for_last_are_watched() -> None:
    observer = FakeObserver()
    waker, _, _ = waker_of(observer)
    waker.watch(["/a", "/b"])

    waker.watch(["/b", "/c"])

    assert observer.watched == ["/b", "/c"]


def test_watches_are_bounded_and_what_is_beyond_is_counted_once() -> None:
    observer = FakeObserver()
    waker, health, _ = waker_of(observer, most=2)

    for _ in range(3):
        waker.watch(["/a", "/b", "/c"])

    assert observer.watched == ["/a", "/b"]
    assert health.snapshot().dropped == {"watches": 1}
    assert health.snapshot().errors == {}


@pytest.mark.parametrize(
    ("observer", "counted"),
    [
        pytest.param(FakeObserver(start_error=OSError("no instances left")), ("waker", "start"), id="inotify_instances"),
        pytest.param(FakeObserver(start_error=RuntimeError("no thread")), ("waker", "start"), id="no_thread"),
        pytest.param(FakeObserver(schedule_error=OSError("no watches left")), ("waker", "watch"), id="inotify_watches"),
    ],
)
def test_a_failure_of_watchdog_is_counted_and_the_waiting_goes_on(observer: FakeObserver, counted: tuple[str, str]) -> None:
    waker, health, _ = waker_of(observer)

    waker.watch(["/a"])
    waker.watch(["/a"])
    waker.wake()

    assert waker.wait(0) is True
    assert health.snapshot().errors == {counted: 1}
    waker.close()


def test_a_new_file_in_a_watched_directory_ends_the_wait(tmp_path: Path) -> None:
    waker = Waker(SystemClock(), Health())
    waker.watch([str(tmp_path)])

    (tmp_path / "train.log").touch()

    assert waker.wait(10) is True
    waker.close()

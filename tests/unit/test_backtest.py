"""Recorded logs against the shipped rules, judged by the real promtool in virtual time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer_exporter import backtest, cli
from trainer_exporter.backtest import Log, rule_files
from trainer_exporter.backtest.tape import Tape
from trainer_exporter.backtest.virtual_time import VirtualTime
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.model import Incident, Record, Stamp

NAN = float("nan")
RULES = rule_files(None)


def records(*losses: float, every_s: float = 10.0, start: int = 1) -> list[Record]:
    """A record each ``every_s`` seconds of the trainer's own clock."""
    return [
        Record(step, {"step": step, "target_steps": 1000, "loss": loss, "elapsed_seconds": step * every_s})
        for step, loss in enumerate(losses, start)
    ]


def judged(events: Sequence[Record | Incident], *, after_s: float = 60.0) -> list[tuple[str, str, int]]:
    log = Log("train.log", "heron", events, events[-1].line, ended_wall=1_700_000_000.0)
    return [(firing.alert, firing.severity, firing.line) for firing in backtest.backtest(log, rules=RULES, after_s=after_s).firings]


def test_a_healthy_run_is_silent_in_all_that_time() -> None:
    assert judged(records(*(2.0 - step * 0.002 for step in range(600)))) == []


def test_a_loss_that_turns_into_nan_pages_within_a_minute_of_its_second_record() -> None:
    fired = judged(records(*[2.0] * 50, NAN, NAN, *[NAN] * 20))

    ((alert, _, line),) = [firing for firing in fired if firing[1] == "critical"]
    assert alert == "TrainingLossNotFinite"
    assert 52 <= line <= 55


def test_a_run_that_ends_in_an_out_of_memory_error_is_a_crash() -> None:
    events = [*records(*[2.0] * 50), Incident(51, "cuda_oom", fatal=True)]

    assert ("TrainingCrashed", "critical", 51) in judged(events)


def test_the_end_of_a_log_is_no_stall_until_it_is_waited_for() -> None:
    events = records(*[2.0 - step * 0.002 for step in range(50)])

    assert judged(events) == []
    assert ("TrainingStalled", "critical", 50) in judged(events, after_s=300)


def test_a_gap_in_the_log_is_a_stall_that_resolves() -> None:
    before = records(*[2.0 - step * 0.01 for step in range(50)])
    after = [Record(step, {"step": step, "loss": 1.4, "elapsed_seconds": 990.0 + step * 10}) for step in range(51, 61)]
    log = Log("train.log", "heron", [*before, *after], 60, ended_wall=1_700_000_000.0)

    (stalled,) = [firing for firing in backtest.backtest(log, rules=RULES).firings if firing.alert == "TrainingStalled"]

    assert stalled.line == 50
    assert stalled.resolved_wall is not None
    assert 90 <= stalled.wall - (log.ended_wall - 1590 + 500) <= 135


@pytest.mark.parametrize(
    ("events", "kind", "last_s"),
    [
        ([Record(n, {"step": n, "loss": 1.0}, stamp=Stamp(1e9 + 60 * n, zoned=False)) for n in range(1, 5)], "stamps", 180.0),
        (records(1.0, 1.0, 1.0), "elapsed", 20.0),
        ([Record(n, {"step": 10 * n, "step_duration_seconds": 2.0}) for n in range(1, 4)], "durations", 42.0),
        ([Record(n, {"step": n, "loss": 1.0}) for n in range(1, 4)], "steps", 3.0),
        ([Record(n, {"loss": 1.0}) for n in range(1, 4)], "steps", 3.0),
    ],
    ids=["stamps", "elapsed", "durations", "steps", "no_steps"],
)
def test_time_comes_from_the_best_clock_that_the_log_has(events: list[Record], kind: str, last_s: float) -> None:
    time = VirtualTime(events)

    moments = [time.at(event) for event in events]

    assert time.kind == kind
    assert moments[-1] == last_s
    assert moments == sorted(moments)


def test_a_clock_that_starts_over_does_not_turn_time_back() -> None:
    events = [*records(1.0, 1.0, 1.0), *records(1.0, 1.0)]
    time = VirtualTime(events)

    assert [time.at(event) for event in events] == [0.0, 10.0, 20.0, 20.0, 30.0]


def test_a_series_that_ends_goes_stale_and_one_that_begins_later_is_padded() -> None:
    tape = Tape()
    for samples in ({"a": 1.0}, {"a": 1.0, "b": NAN}, {"b": 2.0}, {"b": 2.0}, {"b": 2.0}):
        tape.scrape(samples)

    assert tape.input_series() == [{"series": "a", "values": "1.0+0x1 stale _x2"}, {"series": "b", "values": "_ NaN 2.0+0x2"}]


def test_without_promtool_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(TrainerExporterError, match="promtool is missing: it comes with Prometheus"):
        judged(records(1.0))


def log_of(tmp_path: Path, *losses: str) -> Path:
    log = tmp_path / "heron" / "trainer_log.jsonl"
    log.parent.mkdir()
    lines = (
        f'{{"current_steps": {step}, "total_steps": 1000, "loss": {loss}, "lr": 1e-4, "epoch": 0.1, "elapsed_time": "0:{step:02d}:00"}}\n'
        for step, loss in enumerate(losses, 1)
    )
    log.write_text("".join(lines))
    return log


def test_the_command_prints_the_shape_that_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path, *["2.0"] * 10, *["NaN"] * 5)

    assert cli.main(["backtest", "--json", str(log)]) == 0
    fired = json.loads(capsys.readouterr().out)

    assert {firing["alert"] for firing in fired} == {"TrainingLossNotFinite"}
    assert all(set(firing) == {"alert", "severity", "run", "line", "step", "time", "resolved_time"} for firing in fired)
    assert {firing["run"] for firing in fired} == {"heron"}
    assert cli.main(["backtest", "--fail-on", "critical", str(log)]) == 1


@pytest.mark.parametrize("content", ["", "hello\nworld\n"], ids=["empty", "prose"])
def test_a_log_without_a_record_gives_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    log = tmp_path / "x.log"
    log.write_text(content)

    assert cli.main(["backtest", "--json", str(log)]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_an_unreadable_file_or_rule_folder_is_an_error_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path, "2.0")

    assert cli.main(["backtest", str(tmp_path / "none.log")]) == 2
    assert cli.main(["backtest", "--rules", str(tmp_path / "none"), str(log)]) == 2
    assert "no rule files" in capsys.readouterr().err

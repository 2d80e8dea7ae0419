"""Samples, tokens and FLOPs per second of a run: of the recent window, from what steps add and how long they take."""

from __future__ import annotations

import pytest

from trainer_exporter.model import Checkpoint, CheckpointEvent, ModelShape, Record, Workload
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment
from trainer_exporter.runs.windows import PerStep

START = 1_700_000_000.0
SHAPE = ModelShape(weights=1e9, layers=10, attention_width=1000)


class Run:
    """A run that logs every ten steps, two seconds a step unless said otherwise."""

    def __init__(self, workload: Workload | None = None) -> None:
        self.state = RunState("demo", StateSettings(), daemon_start=START)
        self.state.note_workload(workload or Workload())
        self.now, self.step, self.line = START, 0, 0

    def constants(self, **fields: float) -> None:
        self.state.fold(Record(line=0, fields=fields), Moment(self.now, live=True), source="a")

    def logs(self, records: int = 1, *, seconds_a_step: float = 2.0, live: bool = True, pause: float = 0.0, **per_step: float) -> None:
        for _ in range(records):
            self.now += 10 * seconds_a_step + pause
            self.step += 10
            self.line += 1
            totals = {name: amount * self.step for name, amount in per_step.items() if name.startswith("total_")}
            others = {name: value for name, value in per_step.items() if name not in totals}
            moment = Moment(self.now, live=True, tick=self.now, clock="arrival") if live else Moment(None, live=False)
            record = Record(line=self.line, fields={"step": self.step, "loss": 2.0, **totals, **others})
            self.state.fold(record, moment, source="a")

    def gauge(self, name: str) -> float | None:
        return self.state.snapshot(self.now).gauges.get(name)


def test_samples_follow_from_the_batch_and_the_duration_of_a_step() -> None:
    run = Run()
    run.constants(global_batch_size=64)

    run.logs(5)

    assert run.gauge("samples_per_second") == pytest.approx(32.0)
    assert run.gauge("tokens_per_second") is None


def test_a_run_that_slows_down_shows_its_present_rate_and_no_mean_since_its_start() -> None:
    run = Run()
    run.constants(global_batch_size=64)
    run.logs(1000)

    run.logs(20, seconds_a_step=8.0)

    assert run.gauge("samples_per_second") == pytest.approx(8.0)


def test_a_save_between_two_steps_is_no_slower_step() -> None:
    run = Run()
    run.constants(global_batch_size=64)
    run.logs(5)

    run.state.fold(Record(line=9, checkpoint=Checkpoint(CheckpointEvent.STARTED, step=run.step)), Moment(run.now, live=True), source="a")
    run.logs(pause=500.0)
    run.logs(3)

    assert run.gauge("samples_per_second") == pytest.approx(32.0)


@pytest.mark.parametrize("live", [True, False], ids=["by the clock", "by the durations that an old log without times has"])
def test_totals_give_rates(live: bool) -> None:
    run = Run()

    run.logs(5, live=live, total_tokens=4096.0, total_samples=8.0, **({} if live else {"step_duration_seconds": 2.0}))

    assert run.gauge("tokens_per_second") == pytest.approx(2048.0)
    assert run.gauge("samples_per_second") == pytest.approx(4.0)


def test_a_trainer_may_say_how_many_tokens_a_step_has() -> None:
    run = Run()
    run.constants(tokens_per_step=4096)

    run.logs(5)

    assert run.gauge("tokens_per_second") == pytest.approx(2048.0)
    assert run.gauge("samples_per_second") is None


def test_the_configuration_is_believed_before_the_log() -> None:
    run = Run(Workload(global_batch_size=100, sequence_length=1000))
    run.constants(global_batch_size=64, sequence_length=500)

    run.logs(5)

    assert run.gauge("samples_per_second") == pytest.approx(50.0)
    assert run.gauge("tokens_per_second") == pytest.approx(50_000.0)


def test_what_the_trainer_prints_is_believed_before_what_is_derived() -> None:
    run = Run(Workload(shape=SHAPE, gpus=8, sequence_length=1000, peak_tflops=100.0))
    run.constants(global_batch_size=64)

    run.logs(5, samples_per_second=30.0, tokens_per_second=29_000.0, tflops_per_gpu=25.0)

    assert [run.gauge(name) for name in ("samples_per_second", "tokens_per_second", "tflops_per_gpu")] == [30.0, 29_000.0, 25.0]
    assert run.gauge("mfu_ratio") == pytest.approx(0.25)


def test_flops_follow_from_tokens_and_the_shape_of_the_model() -> None:
    run = Run(Workload(shape=SHAPE, gpus=8, sequence_length=1000, peak_tflops=100.0))

    run.logs(5, total_tokens=320_000.0)

    expected = 160_000 * (6e9 + 12 * 10 * 1000 * 1000) / 8 / 1e12
    assert run.gauge("tflops_per_gpu") == pytest.approx(expected)
    assert run.gauge("mfu_ratio") == pytest.approx(expected / 100.0)


def test_the_ranks_that_the_log_names_are_the_gpus_and_tokens_a_sample_the_length() -> None:
    run = Run(Workload(shape=SHAPE))
    run.constants(world_size=16, global_batch_size=64)

    run.logs(5, total_tokens=64_000.0)

    assert run.gauge("tflops_per_gpu") == pytest.approx(32_000 * (6e9 + 12 * 10 * 1000 * 1000) / 16 / 1e12)
    assert run.gauge("mfu_ratio") is None


TOKENS = {"total_tokens": 64_000.0}
UNKNOWN = {  # case: (what is known, what each step adds, a word of the remark on the status page)
    "how many GPUs": (Workload(shape=SHAPE, sequence_length=1000), TOKENS, "how many GPUs"),
    "how long the sequences": (Workload(shape=SHAPE, gpus=8), TOKENS, "length of the sequences"),
    "how many tokens": (Workload(shape=SHAPE, gpus=8, sequence_length=1000), {}, "neither tokens nor batch"),
    "which model": (Workload(gpus=8, sequence_length=1000), TOKENS, ""),
}


@pytest.mark.parametrize(("workload", "per_step", "remark"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_nobody_guesses_and_what_is_missing_is_said(workload: Workload, per_step: dict[str, float], remark: str) -> None:
    run = Run(workload)
    run.constants(parameters=1e9)

    run.logs(5, **per_step)

    assert run.gauge("tflops_per_gpu") is None
    notes = run.state.snapshot(run.now).notes
    assert (remark in notes[0]) if remark else notes == ()


def test_where_there_is_a_figure_there_is_no_remark() -> None:
    run = Run(Workload(shape=SHAPE, gpus=8, sequence_length=1000))

    run.logs(5, **TOKENS)

    assert run.state.snapshot(run.now).notes == ()


def test_a_total_that_goes_back_counts_anew() -> None:
    tokens = PerStep()
    for step, total in ((1, 100), (2, 200), (3, 300), (2, 90), (3, 140), (3, 150), (4, 190)):
        tokens.seen(step, total)

    assert tokens.median() == 75  # of 100, 100, 50 and 50


def test_one_total_says_nothing() -> None:
    tokens = PerStep()

    tokens.seen(10, 1000)

    assert tokens.median() is None

"""A fleet of any size as its exporters publish it at any moment: twelve runs on forty nodes of eight cards, again and again.

All of it is computed from the moment alone, so a page of now and the page of two hours ago come from the same place. Two runs are sick:
one hangs, because a rank of it is stuck and its card idle; one is slow, because a card of it is held down by heat. A fleet may have other
runs and other fates: one that has lost a card, one that evaluates for long. Names of metrics are the exporter's.
"""

from __future__ import annotations

import contextlib
import http.server
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_cards import Sample, card_samples, noise, reading

CARDS = 8
TILE = 40  # nodes that the twelve runs take; a larger fleet has them again under other names
PHASES = ("starting", "training", "evaluating", "checkpointing", "ended", "failed")
PEAK_FLOPS = 989e12
SICK_S = {"hung": 1080.0, "slow": 2700.0}  # how long runs have had their fate
EVAL_EVERY_S, EVAL_S = 2400.0, 60.0
SAVE_EVERY_S, SAVE_S = 1800.0, 48.0
LONG_AGO_S = 40_000.0
DCGM = frozenset({35})  # nodes of the tile whose cards dcgm-exporter reads


@dataclass(frozen=True)
class Run:
    """A run as it is meant to be; ``step_s`` is what a step of it takes, ``done`` how far it is."""

    name: str
    team: str
    first: int  # node, counted from 0 within the tile
    nodes: int
    step_s: float
    loss: float
    mfu: float
    done: float
    fate: str = ""

    @property
    def target(self) -> float:
        return 60_000.0


RUNS = (
    Run("pretrain-70b", "llm", 0, 8, 11.4, 1.92, 0.47, 0.31),
    Run("llama-70b-cpt", "llm", 8, 4, 5.8, 1.78, 0.44, 0.18, "hung"),
    Run("moe-8x7b-stage2", "llm", 12, 4, 6.3, 2.05, 0.42, 0.62, "slow"),
    Run("qwen-72b-sft", "align", 16, 4, 8.2, 1.31, 0.43, 0.49),
    Run("reward-34b", "align", 20, 3, 4.1, 0.62, 0.46, 0.77),
    Run("vit-g-clip", "vision", 23, 3, 1.1, 2.43, 0.51, 0.32),
    Run("whisper-xl", "speech", 26, 2, 0.9, 0.88, 0.39, 0.86),
    Run("gemma-9b-grpo", "align", 28, 2, 9.6, 0.34, 0.33, 0.30),
    Run("mistral-7b-sft", "align", 30, 2, 2.2, 1.24, 0.52, 0.55),
    Run("phi-4-dpo", "align", 32, 2, 3.1, 0.51, 0.48, 0.41),
    Run("olmo-7b", "llm", 34, 2, 2.6, 2.31, 0.50, 0.29),
    Run("qwen-7b-lora", "align", 36, 1, 1.7, 1.12, 0.45, 0.94),
)
STUCK_CARD, HOT_CARD = (10, 3), (13, 6)  # node of the tile, card
LOST_CARD = (1, 5)  # node of the run, card
STANDING = frozenset({"hung", "lost"})  # fates in which no step is made


@dataclass(frozen=True)
class Fleet:
    """``nodes`` nodes, seen from ``now``: what went wrong did so some time before it.

    ``runs`` are those of ``tile`` nodes, ``sick_s`` says for how long each fate has been at work (below 0: it comes later), ``end`` when
    all runs come to their end and every card is well again.
    """

    nodes: int
    now: float
    runs: Sequence[Run] = RUNS
    tile: int = TILE
    sick_s: Mapping[str, float] = field(default_factory=lambda: SICK_S)
    end: float = math.inf

    def instance(self, node: int) -> str:
        return f"node{node + 1:0{max(2, len(str(self.nodes)))}d}"

    def cluster(self, node: int) -> str:
        return "alpha" if node % TILE < 28 else "beta"

    def samples(self, node: int, moment: float) -> Iterator[Sample]:
        """All that is published on a node, by trainer-exporter and where it is there by dcgm-exporter."""
        yield from self.of_run(node, moment)
        yield from self.of_node(node, moment)

    def of_run(self, node: int, moment: float) -> Iterator[Sample]:
        """What the node tells of the run whose log is there, if one is."""
        run = self.run_on(node)
        if run is not None and node % self.tile == run.first:
            yield from self._of_run(run, self._named(run, node), moment)

    def of_node(self, node: int, moment: float) -> Iterator[Sample]:
        """What the node tells of its cards and of its exporter."""
        place, here = node % self.tile, self.run_on(node)
        run = here if moment < self.end else None
        for card in range(CARDS):
            labels = {"gpu": str(card), "uuid": f"GPU-{node:05d}-{card}"}
            if run is not None:
                rank = (place - run.first) * CARDS + card
                yield Sample("gpu_run_info", {**labels, "run": self._named(run, node), "rank": str(rank), "local_rank": str(card)}, 1)
            if run is not None and self._is_lost(run, place, card, moment):
                yield from (Sample(name, labels, value) for name, value in (("gpu_lost", 1), ("gpu_collect_success", 0)))
            else:
                yield from card_samples(labels, self._readings(run, place, card, moment), node=node, is_dcgm=place in DCGM)
        yield from _daemon(node, has_run=here is not None and place == here.first, moment=moment, now=self.now)

    def run_on(self, node: int) -> Run | None:
        """The run that the node serves."""
        place = node % self.tile
        return next((run for run in self.runs if run.first <= place < run.first + run.nodes), None)

    def sick_for_s(self, run: Run, moment: float) -> float:
        """Seconds that the run has had its fate; below 0 it has not yet."""
        return moment - self.now + self.sick_s.get(run.fate, -LONG_AGO_S)

    def _named(self, run: Run, node: int) -> str:
        return run.name if node < self.tile else f"{run.name}-{node // self.tile}"

    def _is_lost(self, run: Run, place: int, card: int, moment: float) -> bool:
        return run.fate == "lost" and (place - run.first, card) == LOST_CARD and self.sick_for_s(run, moment) > 0

    def _is_stuck(self, run: Run, place: int, card: int, moment: float) -> bool:
        return run.fate == "hung" and (place, card) == STUCK_CARD and self.sick_for_s(run, moment) > 0

    def _of_run(self, run: Run, name: str, moment: float) -> Iterator[Sample]:
        state = _state(run, min(moment, self.end), now=self.now, sick_s=self.sick_for_s(run, min(moment, self.end)))
        if moment >= self.end:
            state = replace(state, phase="ended")
        told = {"format": "megatron", "job_id": str(4000 + run.first), "user": "lin", "output_dir": f"/data/{run.name}", "team": run.team}
        yield Sample("trainer_run_info", {"run": name, **told, "owner": "ada", "page": "yes"}, 1)
        for phase in PHASES:
            yield Sample("trainer_run_phase", {"run": name, "phase": phase}, phase == state.phase)
        for metric, value in _figures(run, state, moment, is_over=moment >= self.end).items():
            yield Sample(f"trainer_{metric}", {"run": name}, value)
        for quantile, gap in (("0.5", run.step_s), ("0.95", 1.3 * run.step_s), ("1", SAVE_S + EVAL_S)):
            yield Sample("trainer_progress_gap_seconds", {"run": name, "quantile": quantile}, gap)
        for window in ("100", "1000"):
            change = -0.007 - 0.006 * (1 - run.done) + noise(run.name, window, moment) * 0.001
            yield Sample("trainer_loss_change_ratio", {"run": name, "window": window}, change)
            yield Sample("trainer_loss_oscillation_ratio", {"run": name, "window": window}, 0.05)
        for figure in ("loss", "grad_norm"):
            yield Sample("trainer_nonfinite_steps_total", {"run": name, "field": figure}, 0)
            yield Sample("trainer_nonfinite_streak_records", {"run": name, "field": figure}, 0)
        for kind in ("cuda_oom", "nccl_timeout", "traceback", "disk_full"):
            yield Sample("trainer_incidents_total", {"run": name, "kind": kind}, 0)
        for process_state, number in (("running", CARDS), ("sleeping", 5 * CARDS), ("uninterruptible", 0), ("zombie", 0)):
            yield Sample("trainer_processes", {"run": name, "state": process_state}, number)
        yield Sample("trainer_eval_metric", {"run": name, "name": "perplexity"}, math.exp(state.evaluated))

    def _readings(self, run: Run | None, place: int, card: int, moment: float) -> dict[str, float]:
        """What a card reads: it works, idles, spins in a hung collective, or is held down by heat."""
        wobble = noise("card", f"{place}.{card}", moment)
        hung = run is not None and run.fate in STANDING and self.sick_for_s(run, moment) > 0
        hot = run is not None and run.fate == "slow" and self.sick_for_s(run, moment) > 0 and (place, card) == HOT_CARD
        if run is None or self._is_stuck(run, place, card, moment):
            return reading(busy=0, traffic=0, power=68 + card, celsius=33 + card, clock=345, used=0.01)
        if hung:
            return reading(busy=1, traffic=0.01, power=128 + card + 3 * wobble, celsius=47 + card, clock=1980, used=0.88)
        heat = 88 if hot else 62
        clock = 1290 if hot else 1755
        return reading(
            busy=min(1, 0.97 + 0.02 * wobble),
            traffic=0.58 + 0.03 * wobble,
            power=(455 if hot else 620) + 18 * wobble,
            celsius=heat + 0.7 * card + wobble,
            clock=clock,
            used=0.86,
            throttled=hot,
        )


@dataclass(frozen=True)
class _State:
    phase: str
    step: float
    progress: float  # moment of the last step
    saved: float  # moment of the last complete save
    evaluated: float
    loss: float
    pace: float  # 1 is the run's own


def _state(run: Run, moment: float, *, now: float, sick_s: float) -> _State:
    """A hung run stands where it stood, and logs nothing any more; nor does one that evaluates for long."""
    stands = sick_s > 0 and run.fate in {*STANDING, "evaluating"}
    seen = moment - sick_s if stands else moment
    shift = 97.0 * run.first
    in_save, in_eval = (seen + shift) % SAVE_EVERY_S, (seen + shift + 700) % EVAL_EVERY_S
    phase = "checkpointing" if in_save < SAVE_S else "evaluating" if in_eval < EVAL_S else "training"
    if stands:  # within its steps, or in what it is known for
        phase = "training" if run.fate in STANDING else run.fate
    aside = min(in_save if phase == "checkpointing" else in_eval if phase == "evaluating" else 0.0, 90.0)
    pace = 0.88 if run.fate == "slow" and sick_s > 0 else 1.0
    hours = seen % 1e6 / 3600
    falling = run.loss * (1 + 0.02 * math.exp(-run.done) - 0.004 * (hours % 24))
    return _State(
        phase=phase,
        step=run.done * run.target + (seen - now) / run.step_s,
        progress=seen - aside - (seen % run.step_s),
        saved=seen - (in_save - SAVE_S if in_save >= SAVE_S else in_save + SAVE_EVERY_S - SAVE_S),
        evaluated=falling * 1.04,
        loss=falling * (1 + 0.012 * noise(run.name, "loss", seen)),
        pace=pace,
    )


def _figures(run: Run, state: _State, moment: float, *, is_over: bool) -> dict[str, float]:
    step_s = run.step_s / state.pace * (1 + 0.004 * abs(noise(run.name, "step", state.progress)))
    norm = 0.8 * math.exp(0.15 * noise(run.name, "norm", state.progress))
    gpus = run.nodes * CARDS
    mfu = run.mfu * state.pace
    return {
        "run_attempts_total": 1,
        "step": int(state.step),
        "target_steps": run.target,
        "progress_ratio": state.step / run.target,
        "remaining_seconds": (run.target - state.step) * step_s,
        "step_timestamp_seconds": state.progress,
        "progress_age_seconds": max(0.0, moment - state.progress),
        "writer_alive": not is_over,
        "loss": state.loss,
        "eval_loss": state.evaluated,
        "grad_norm": norm,
        "loss_baseline": run.loss,
        "grad_norm_baseline": 0.8,
        "loss_spike_ratio": 1.02,
        "grad_norm_spike_ratio": max(1.1, norm / 0.8),
        "learning_rate": 3e-4 * (0.5 + 0.5 * math.cos(math.pi * state.step / run.target)),
        "loss_scale": 65536,
        "skipped_steps_total": 0,
        "step_duration_seconds": step_s,
        "step_duration_baseline_seconds": run.step_s,
        "samples_per_second": 0.95 * gpus * state.pace,
        "tokens_per_second": 3900 * gpus * state.pace,
        "tflops_per_gpu": mfu * PEAK_FLOPS / 1e12,
        "mfu_ratio": mfu,
        "checkpoint_last_duration_seconds": SAVE_S,
        "checkpoint_duration_seconds_count": (moment % 1e6) // SAVE_EVERY_S,
        "checkpoint_duration_seconds_sum": (moment % 1e6) // SAVE_EVERY_S * SAVE_S,
        "checkpoint_timestamp_seconds": state.saved,
        "checkpoint_step": state.step // 100 * 100,
        "checkpoint_bytes": 98e9,
        "checkpoint_in_progress_seconds": 20 if state.phase == "checkpointing" else 0,
        "checkpoint_failures_total": 0,
        "checkpoint_filesystem_avail_bytes": 30e12,
        "checkpoint_filesystem_size_bytes": 40e12,
        "goodput_ratio": 0.96,
        "lost_steps_total": 0,
        "world_size": gpus,
    }


def _daemon(node: int, *, has_run: bool, moment: float, now: float) -> Iterator[Sample]:
    """What an exporter says of itself."""
    age = moment - now + LONG_AGO_S
    files = 2 * has_run
    yield Sample("trainer_exporter_build_info", {"version": "0.1.0"}, 1)
    for result, pace in (("parsed", 0.5), ("unmatched", 0.02), ("incident", 0)):
        yield Sample("trainer_exporter_lines_total", {"result": result}, int(age * pace * files))
    yield Sample("trainer_exporter_errors_total", {"site": "gpu", "reason": "child_died"}, 0)
    for collector, took in (("runs", 0.003), ("gpu", 0.006), ("daemon", 0.0005)):
        yield Sample(
            "trainer_exporter_collector_duration_seconds", {"collector": collector}, took * (1 + 0.1 * noise(node, collector, moment))
        )
        yield Sample("trainer_exporter_collector_success", {"collector": collector}, 1)
    figures = {
        "trainer_exporter_files_followed": files,
        "trainer_exporter_read_lag_bytes": 200 * (node % 3) * has_run,
        "trainer_exporter_read_bytes_total": age * 90 * files,
        "trainer_exporter_series": 380 + 110 * has_run,
        "trainer_exporter_config_last_reload_successful": 1,
        "process_cpu_seconds_total": age * (0.006 + 0.001 * (node % 5)),
        "process_resident_memory_bytes": (52 + node % 7) * 2.0**20,
        "process_start_time_seconds": now - LONG_AGO_S,
        "process_open_fds": 20,
    }
    for name, value in figures.items():
        yield Sample(name, {}, value)


def line(sample: Sample, **more: str) -> str:
    """As a page has it."""
    labels = ",".join(f'{name}="{value}"' for name, value in {**more, **sample.labels}.items())
    return f"{sample.name}{{{labels}}} {float(sample.value)!r}"


@contextlib.contextmanager
def pages(fleet: Fleet) -> Iterator[int]:
    """The port on which /NODE is the page of a node, as it is at the fleet's moment."""
    texts = [text(fleet.samples(node, fleet.now)) for node in range(fleet.nodes)]
    with served(texts.__getitem__) as port:
        yield port


def text(samples: Iterable[Sample]) -> bytes:
    """Of a page, or of a part of one."""
    return "".join(f"{line(sample)}\n" for sample in samples).encode()


@contextlib.contextmanager
def served(page: Callable[[int], bytes]) -> Iterator[int]:
    """The port on which /NODE is what ``page`` says of a node."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = page(int(self.path.strip("/")))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 2048  # all nodes may be asked at once

        def handle_error(self, request: object, client_address: object) -> None:
            """Whoever asked has gone."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

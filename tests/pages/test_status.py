"""The status page: what it says of a healthy and of a sick run, and that no log can put markup or a script into it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

from trainer_exporter.metrics import status
from trainer_exporter.model import FileStatus, NodeStatus, Phase, Record, RunSnapshot
from trainer_exporter.model_gpu import GpuIdentity, GpuMemory, GpuOwner, GpuReading, GpuSnapshot
from trainer_exporter.runs.state import RunState, StateSettings
from trainer_exporter.runs.timeline import Moment

NOW = 1_700_000_000.0
HOSTILE = '<script>alert("x")</script>'


def run(name: str, *, loss: float = 1.25, steps: int = 30) -> RunSnapshot:
    state = RunState(name, StateSettings(), daemon_start=NOW - 1000)
    for step in range(1, steps + 1):
        value = loss if step == steps else 1.25
        fields = {"step": step, "target_steps": 100, "loss": value, "remaining_seconds": 100.0 - step}
        record = Record(line=step, fields=fields)
        state.fold(record, Moment(NOW - steps + step, live=True), source="a", format_name="plain")
    return state.snapshot(NOW)


def node(*runs: RunSnapshot, **about: object) -> NodeStatus:
    known: dict[str, object] = {"version": "1", "now": NOW, "started_wall": NOW - 3600, "ready": True, "runs": runs, "files": ()}
    known |= {"gpus": GpuSnapshot(), "owners": (), "errors": {}, "latest": {}, "dropped": {}}
    return NodeStatus(**{**known, **about})  # type: ignore[arg-type]


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def read(page: str) -> Texts:
    texts = Texts()
    texts.feed(page)
    return texts


def test_a_healthy_run_stands_there_with_phase_step_and_loss() -> None:
    texts = read(status.html(node(run("llama-sft")))).texts

    assert {"llama-sft", "training", "30 / 100", "1.25"} <= set(texts)


def test_a_run_that_hangs_is_not_said_to_end_soon() -> None:
    page, later = (status.html(node(run("llama-sft"), now=now)) for now in (NOW, NOW + 600))

    assert "30.0%, 70 s to go" in page
    assert "30 / 100" in later
    assert "to go" not in later


def test_a_run_that_is_nan_says_so_in_words() -> None:
    page = status.html(node(run("llama-sft", loss=math.nan)))

    assert "loss not finite in the last 1 record" in page


def test_an_empty_node_says_what_to_do() -> None:
    page = status.html(node(gpus=GpuSnapshot(driver="absent")))

    assert "No run yet" in page
    assert "Name files, directories or globs" in page
    assert "No NVIDIA driver" in page


def test_no_log_can_put_markup_into_the_page() -> None:
    file = FileStatus(HOSTILE, HOSTILE, HOSTILE, 1, 0, 1, NOW, last_unrecognised=HOSTILE, error=HOSTILE, why=HOSTILE, run_origin=HOSTILE)
    identity = GpuIdentity(HOSTILE, 0, HOSTILE)
    reading = GpuReading(identity, success=True, collected_wall=NOW, memory=GpuMemory(100, 50, 10))
    gpus = GpuSnapshot(readings=(reading,), devices=1)
    hostile = node(
        run(HOSTILE),
        files=(file,),
        gpus=gpus,
        owners=(GpuOwner(HOSTILE, 0, run=HOSTILE, rank=HOSTILE),),
        errors={(HOSTILE, HOSTILE): 1},
        latest={(HOSTILE, HOSTILE): HOSTILE},
        dropped={HOSTILE: 1},
    )

    assert "script" not in read(status.html(hostile)).tags


def test_a_name_that_utf_8_cannot_carry_does_not_cost_the_page() -> None:
    page = status.html(node(run("llama-\udcff"))).encode()

    assert rb"llama-\udcff" in page


def test_a_file_says_why_it_is_followed_and_a_run_where_its_name_comes_from() -> None:
    file = FileStatus(
        "/a/console.log", "heron", "plain", 1, 0, 1, NOW, why="tee behind standard output of PID 7", run_origin="from Slurm job 77"
    )

    texts = read(status.html(node(run("heron"), files=(file,)))).texts
    (document,) = json.loads(json.dumps(status.document([run("heron")], NOW, [file])))["runs"]

    assert {"tee behind standard output of PID 7", "named from Slurm job 77"} <= set(texts)
    assert document["name_origin"] == "from Slurm job 77"
    assert document["files"] == [{"path": "/a/console.log", "why": "tee behind standard output of PID 7"}]


def test_the_page_needs_no_script() -> None:
    assert "script" not in read(status.html(node(run("a")))).tags


def test_the_policy_of_the_page_allows_its_style_and_nothing_else() -> None:
    page = status.html(node(run("a")))
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

    assert f"default-src 'none'; style-src 'sha256-{digest}';" in status.CONTENT_SECURITY_POLICY
    assert "unsafe" not in status.CONTENT_SECURITY_POLICY
    assert "style=" not in page.replace("<style>", "")


def test_the_same_runs_are_there_as_json_that_every_parser_takes() -> None:
    document = status.document([run("a", loss=math.nan)], NOW)

    parsed = json.loads(json.dumps(document, allow_nan=False))
    assert parsed["runs"][0]["figures"]["loss"] == "NaN"
    assert parsed["runs"][0]["phase"] == Phase.TRAINING.value

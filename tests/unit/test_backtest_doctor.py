"""What a backtest says of its findings: the explanation, the page, and the GPUs that were given beside the log."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_exporter import backtest, cli
from trainer_exporter.backtest import Log, curves, doctor, promtool, report, rule_files
from trainer_exporter.backtest.evidence import values_of
from trainer_exporter.backtest.gpus import read_gpus
from trainer_exporter.backtest.rulebook import SHIPPED, Rulebook
from trainer_exporter.backtest.runbooks import runbook
from trainer_exporter.backtest.tape import Tape
from trainer_exporter.backtest.values import Firing, Mark, Result
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.model import Incident, Record

NAN = float("nan")
RUNBOOKS = sorted(path.stem for path in (SHIPPED / "runbooks").glob("*.md"))
START = 1_700_000_000.0


def records(*losses: float, grad_norm: float = 1.0) -> list[Record]:
    return [Record(n, {"step": n, "target_steps": 1000, "loss": loss, "grad_norm": grad_norm}) for n, loss in enumerate(losses, 1)]


def found(events: Sequence[Record | Incident], *firings: Firing) -> tuple[Log, Result]:
    """A log, 10 s a record, in which these alerts fired."""
    times = [10.0 * number for number in range(len(events))]
    marks = [Mark(at_s, event.line, None, {"tokens_per_second": 50.0}) for event, at_s in zip(events, times, strict=True)]
    log = Log("/nonexistent/train.log", "heron", events, events[-1].line, ended_wall=START)
    return log, Result(firings, "stamps", times[-1], times=times, marks=marks, phase="training")


def firing(alert: str, line: int, *, severity: str = "critical") -> Firing:
    return Firing(alert, severity, "heron", line, float(line), START, None, {"run": "heron"}, at_s=10.0 * (line - 1), pending="0s")


@pytest.mark.parametrize("alert", RUNBOOKS)
def test_every_runbook_can_be_taken_apart(alert: str) -> None:
    book = runbook(alert)

    assert book.meaning
    assert len(book.causes) >= 2
    assert len(book.remedies) >= 2
    assert book.first == book.remedies[0]
    assert all(3 < len(cause) < 250 for cause in book.causes), book.causes


def test_an_alert_of_ones_own_has_no_runbook_and_is_no_error() -> None:
    assert runbook("MyOwn").first == ""
    assert runbook("../alertmanager").meaning == ""


def test_what_was_seen_in_the_log_leads_the_remedies_and_what_was_not_ends_them() -> None:
    remedies = runbook("TrainingCrashed").remedies_for(["disk_full", "traceback"])

    assert remedies[0].startswith("disk_full:")
    assert remedies[1].startswith("Nothing named")
    assert sorted(remedies) == sorted(runbook("TrainingCrashed").remedies)


def test_a_loss_that_is_no_number_is_evidence_from_its_first_line_on() -> None:
    log, result = found(records(*[2.0] * 30, 2.5, NAN, NAN, NAN), firing("TrainingLossNotFinite", 34))

    (diagnosis,) = doctor.diagnoses(log, result)

    assert "loss: NaN from line 32, step 32 on, 3 records in a row; the last number is 2.5 on line 31, step 31" in diagnosis.evidence
    assert diagnosis.causes == runbook("TrainingLossNotFinite").causes
    assert diagnosis.remedies == runbook("TrainingLossNotFinite").remedies


def test_trouble_in_the_log_is_told_with_its_line_and_its_text(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step: 1 loss: 2.0\n\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\n")
    log, result = found([*records(2.0), Incident(2, "cuda_oom", fatal=True)], firing("TrainingCrashed", 2))
    log = Log(str(path), log.run, log.events, log.lines, log.ended_wall)

    (diagnosis,) = doctor.diagnoses(log, result)

    assert diagnosis.evidence[-1] == "cuda_oom on line 2: [31mtorch.OutOfMemoryError: CUDA out of memory."
    assert diagnosis.remedies[0].startswith("cuda_oom:")


def test_the_gravest_alert_comes_first_with_all_of_its_firings() -> None:
    events = records(*[2.0] * 40)
    log, result = found(
        events,
        firing("TrainingLossSpike", 10, severity="warning"),
        firing("TrainingStalled", 20),
        firing("TrainingLossSpike", 30, severity="warning"),
    )

    assert [(each.alert, len(each.firings)) for each in doctor.diagnoses(log, result)] == [("TrainingStalled", 1), ("TrainingLossSpike", 2)]


def test_where_nothing_fired_it_says_so_and_what_it_looked_at() -> None:
    log, result = found(records(2.0, 1.9, 1.8))

    said = doctor.explanation(log, result)

    assert "no alert would have fired" in said
    assert "looked at: grad_norm, loss, step, target_steps" in said
    assert "loss: 2 to 1.8, lowest 1.8 (line 3, step 3), highest 2 (line 1, step 1)" in said
    assert "GPUs: nothing is known of them (--gpu)" in said


def test_the_command_explains_a_log_in_the_words_of_page_and_runbook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "heron" / "train.log"
    log.parent.mkdir()
    log.write_text("".join(f"step: {n}/100 | loss: {'nan' if n > 30 else 2.0}\n" for n in range(1, 50)))

    assert cli.main(["backtest", "--explain", "--step-seconds", "5", str(log)]) == 0
    said = capsys.readouterr().out

    assert "symptom: The loss is not a finite number. The loss of run heron is NaN or infinite" in said
    assert "loss: NaN from line 31, step 31 on" in said
    assert runbook("TrainingLossNotFinite").first in said


def test_a_page_draws_the_curves_and_marks_the_alerts() -> None:
    log, result = found(records(*[2.0] * 30, NAN, NAN), firing("TrainingLossNotFinite", 32))

    page = report.page([(log, result)])

    assert page.count("<svg") == 1
    for text in (">loss<", ">grad norm<", ">tokens / s<", ">step<", 'href="#alert-1"', 'id="alert-1"', "not finite", "var(--critical)"):
        assert text in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "<script" not in page
    assert re.search(r"#0a0b0\d", page) is None


def test_hostile_text_of_a_log_stays_text() -> None:
    log, result = found([*records(2.0), Incident(1, "cuda_oom", fatal=True)], firing("TrainingCrashed", 1))
    hostile = "</title><script>alert(1)</script>"
    log = Log(hostile, hostile, log.events, log.lines, log.ended_wall)

    page = report.page([(log, result)])

    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page


def test_a_log_without_a_record_makes_a_page_without_curves() -> None:
    log, result = found([Incident(1, "traceback", fatal=False)])

    page = report.page([(log, replace(result, marks=()))])

    assert "<svg" not in page
    assert "no alert would have fired" in page


def test_each_attempt_is_a_curve_and_a_nan_a_gap() -> None:
    pieces = curves.attempts([(1, 2.0), (2, NAN), (3, 1.0), (2, 1.5), (3, 1.2)])

    assert [[place for place, _ in piece] for piece in pieces] == [[1, 2, 3], [2, 3]]
    assert str(pieces[0][1][1]) == "nan"


def test_thinning_keeps_every_spike() -> None:
    points = [(float(n), 9.0 if n == 1234 else 2.0 - n * 1e-5) for n in range(10_000)]

    thin = curves.thinned(points, 100)

    assert len(thin) <= 200
    assert (1234.0, 9.0) in thin
    assert thin == sorted(thin)


def test_without_matplotlib_the_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert cli.main(["backtest", "--html", str(tmp_path / "x.html"), str(tmp_path / "none.log")]) == 2
    assert "pip install 'trainer-exporter[report]'" in capsys.readouterr().err


def spinning(tmp_path: Path, *, start: float = 0.0) -> Path:
    """Two cards that train for 300 s and spin from then on, in milliseconds."""
    lines = []
    for at in range(0, 700, 10):
        for uuid in ("GPU-a", "GPU-b"):
            hangs = at >= 300
            figures = {
                "gpu_utilization_ratio": 1.0 if hangs else 0.97,
                "gpu_memory_bandwidth_utilization_ratio": 0.01 if hangs else 0.5,
                "gpu_power_watts": 95 if hangs else 380,
                "gpu_power_limit_watts": 400,
            }
            lines += [f'{name}{{uuid="{uuid}",gpu="0"}} {value} {(start + at) * 1000:.0f}' for name, value in figures.items()]
    path = tmp_path / "gpus.txt"
    path.write_text("# HELP gpu_power_watts Power.\n" + "\n".join(lines) + "\n")
    return path


def test_a_stall_of_spinning_gpus_is_a_hang_in_a_collective(tmp_path: Path) -> None:
    events = [Record(n, {"step": n, "loss": 2.0 - n * 0.01, "elapsed_seconds": n * 10.0}) for n in range(1, 31)]
    log = Log("train.log", "heron", events, 30, ended_wall=START)

    cards = read_gpus(str(spinning(tmp_path)))
    result = backtest.backtest(log, rules=rule_files(None), after_s=240, gpus=cards)

    assert "TrainingNcclStall" in {each.alert for each in result.firings}, result.firings


@pytest.mark.parametrize("hours", [0, 8, -5.5], ids=["utc", "shanghai", "newfoundland"])
def test_a_local_time_is_laid_beside_the_gpus_by_quarter_hours(tmp_path: Path, hours: float) -> None:
    cards = read_gpus(str(spinning(tmp_path, start=START)))

    placed = cards.placed(START + hours * 3600 + 20, 650, zoned=False)

    assert placed.span == pytest.approx((-20, 670))


def test_gpus_of_another_day_are_an_error_that_names_both_times(tmp_path: Path) -> None:
    cards = read_gpus(str(spinning(tmp_path, start=START)))

    with pytest.raises(TrainerExporterError, match=r"found times from 2023-11-14 .*, expected those of the log, 2023-11-17 "):
        cards.placed(START + 3 * 86400, 600, zoned=True)


def test_samples_are_read_as_promtool_dumps_them_and_hold_for_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_text('{__name__="gpu_lost", cluster="a", gpu="0", instance="n1", job="x", uuid="GPU-a"} 1 5000\n')

    cards = read_gpus(str(path))

    assert cards.at(10, run="heron")['gpu_lost{gpu="0",instance="n1",uuid="GPU-a"}'] == 1.0
    assert not [series for series in cards.at(66, run="heron") if series.startswith("gpu_lost")]
    assert cards.at(66, run="heron") == {'gpu_run_info{gpu="0",instance="n1",run="heron",uuid="GPU-a"}': 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu_power_watts 5 1000\n", r":1: found 'gpu_power_watts 5 1000', expected name"),
        ('gpu_power_watts{uuid="a"} 5\n', r":1: found"),
        ('up{instance="a"} 1 1000\n', "no sample of a GPU"),
    ],
    ids=["no_labels", "no_time", "nothing_of_a_gpu"],
)
def test_what_is_no_sample_of_a_gpu_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gpus.txt"
    path.write_text(text)

    with pytest.raises(TrainerExporterError, match=said):
        read_gpus(str(path))


def rule_file(tmp_path: Path, *rules: str) -> Rulebook:
    path = tmp_path / "rules.yml"
    path.write_text("groups:\n- name: one\n  rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules))
    return Rulebook([path])


def test_rules_without_input_and_records_without_a_reader_are_left_away(tmp_path: Path) -> None:
    book = rule_file(
        tmp_path,
        "record: 'a:x', expr: loss",
        "record: 'b:x', expr: loss",
        "record: 'c:x', expr: gpu_x",
        "alert: Fed, expr: 'a:x > 1 or c:x'",
        "alert: Starved, expr: 'c:x > 1'",
        "alert: Absent, expr: 'absent(gpu_x)'",
        "alert: Unnamed, expr: '{uuid=\"a\"}'",
        "alert: Joined, expr: 'c:x * on (run) group_left () a:x'",
        "alert: Building, expr: 'a:x and on (run) ALERTS{alertname=\"Fed\"}'",
        "alert: Foreign, expr: 'of a language | unknown'",
    ).about({"loss"})

    assert [rule.alert or rule.record for rule in book.rules] == ["a:x", "Fed", "Absent", "Unnamed", "Building", "Foreign"]


def test_shares_of_the_rules_hold_each_alert_once_with_all_that_it_builds_on(tmp_path: Path) -> None:
    rules = (
        "record: 'a:x', expr: loss",
        "record: 'a:y', expr: 'a:x > 1'",
        "record: 'b:x', expr: loss",
        "alert: One, expr: 'a:y'",
        "alert: Two, expr: 'b:x'",
        "alert: Three, expr: 'a:x and b:x'",
    )

    shares = rule_file(tmp_path, *rules).shares(2)

    assert [[rule.alert or rule.record for rule in share.rules] for share in shares] == [
        ["a:x", "a:y", "One"],
        ["a:x", "b:x", "Two", "Three"],
    ]
    assert [share.order() for share in shares] == [["rules.yml:one"]] * 2
    assert len(rule_file(tmp_path, *rules).shares(9)) == 3
    assert len(rule_file(tmp_path, *rules, "alert: Asking, expr: 'ALERTS{alertname=\"One\"}'").shares(2)) == 1


def test_rules_that_are_judged_apart_say_the_same(tmp_path: Path) -> None:
    book = rule_file(
        tmp_path,
        "record: 'a:x', expr: loss > 1",
        "alert: High, expr: 'a:x', labels: {severity: critical}",
        "alert: Higher, expr: 'a:x > 2', for: 30s, labels: {severity: warning}",
        "alert: Low, expr: 'loss < 1', labels: {severity: info}",
    )
    tape = Tape()
    for value in (0.5, 2.0, 3.0, 3.0, 3.0, 3.0, 0.5):
        tape.scrape({'loss{run="heron"}': value})

    apart = promtool.evaluate([tape], book, at_once=3)

    def told(found: list[tuple[float, Mapping[str, str]]]) -> list[tuple[float, str]]:
        return sorted((at_s, labels["alertname"]) for at_s, labels in found)

    assert told(apart) == told(promtool.evaluate([tape], book, at_once=1))
    assert {(0.0, "Low"), (15.0, "High"), (60.0, "Higher")} <= set(told(apart))


def test_a_file_that_is_no_rule_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerExporterError, match=r"rules\.yml: no rule file"):
        rule_file(tmp_path, "expr: 1, alert: A", "alert: B")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_alone_and_leaves_nothing_behind() -> None:
    terminal, file = Terminal(), io.StringIO()

    for stream in (terminal, file):
        with cli.Progress(stream) as told:
            told("reading x", 0.25)
            told("reading x", 0.25)

    assert terminal.getvalue() == "\rreading x, 25%\x1b[K\r\x1b[K"
    assert file.getvalue() == ""


def test_a_hidden_nan_is_one(tmp_path: Path) -> None:
    record = Record(1, {"step": 1, "loss": 0.0}, hidden_nonfinite=frozenset({"loss"}))

    assert str(values_of([record], "loss")[0].value) == "nan"

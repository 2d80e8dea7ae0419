"""Each tracker's reader on its own: what it tells of a file, and that it tells it once, while the file grows, is rewritten or replaced."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from trackers.reading import RECORDED, STATE, everything, reader, steps, told
from trackers.writers import Events, trainer_state
from trainer_exporter.model import Record
from trainer_exporter.sources import trackers
from trainer_exporter.sources.trackers import tracker_for


class TestTensorBoard:
    def test_a_recorded_run_says_what_the_trainers_own_state_says(self) -> None:
        (path,) = (RECORDED / "llama_factory" / "runs").rglob("*.0")

        records = everything(path)

        expected = [entry for entry in STATE["log_history"] if "loss" in entry]
        for field in ("step", "loss", "grad_norm", "learning_rate", "epoch"):
            found = [record.fields[field] for record in records]
            assert found == pytest.approx([entry[field] for entry in expected], rel=1e-6), field
        assert [record.closes for record in records] == [*[False] * (len(expected) - 1), True]
        assert records[0].stamp is not None and records[0].stamp.zoned

    def test_a_file_that_grows_is_told_once(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        events.step(10, {"train/loss": 2.0, "train/grad_norm": 0.5})
        growing = reader(events.path)
        assert steps(told(growing)) == [10]
        assert told(growing) == []

        events.step(20, {"train/loss": 1.5})

        assert steps(told(growing)) == [20]

    def test_cut_at_any_byte_it_tells_the_same(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        for step in (1, 2, 3):
            events.step(step, {"train/loss": 1.0 / step, "train/grad_norm": float(step)})
        data, whole_file = events.path.read_bytes(), everything(events.path)
        values = [(record.fields["step"], name, record.fields[name]) for record in whole_file for name in ("loss", "grad_norm")]

        for cut in range(len(data)):
            half = tmp_path / "half" / events.path.name
            half.parent.mkdir(exist_ok=True)
            half.write_bytes(data[:cut])
            cutting = reader(half)
            records = list(cutting.poll().records)
            with half.open("ab") as file:
                file.write(data[cut:])
            records += told(cutting)
            found = [
                (record.fields["step"], name, record.fields[name])
                for record in records
                for name in ("loss", "grad_norm")
                if name in record.fields
            ]
            assert found == values, cut

    def test_values_come_as_plain_numbers_or_as_tensors(self, tmp_path: Path) -> None:
        events = Events(tmp_path)

        events.step(1, {"loss": 2.5}, as_tensor=True)
        events.step(2, {"loss": 2.25})

        assert [record.fields["loss"] for record in everything(events.path)] == [2.5, 2.25]

    def test_a_picture_is_passed_over_without_being_held(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        events.step(1, {"loss": 2.5})
        events.picture(3 << 20)
        events.step(2, {"loss": 2.25})

        assert steps(everything(events.path)) == [1, 2]

    def test_nan_behind_a_filtered_loss_is_seen(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        events.step(5, {"train/loss": 0.0, "train/grad_norm": math.nan})

        (record,) = everything(events.path)

        assert record.hidden_nonfinite == {"loss"}
        assert math.isnan(record.fields["grad_norm"])

    def test_bytes_that_arrive_late_are_waited_for(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        events.step(1, {"loss": 2.5})
        good = events.path.read_bytes()
        events.step(2, {"loss": 2.25})
        data = events.path.read_bytes()
        late = tmp_path / "nfs" / events.path.name
        late.parent.mkdir()
        late.write_bytes(good + b"\0" * (len(data) - len(good)))
        waiting = reader(late)
        assert steps(waiting.poll().records) == [1]

        late.write_bytes(data)

        assert steps(told(waiting)) == [2]

    def test_a_broken_file_is_given_up_and_said_so_once(self, tmp_path: Path) -> None:
        events = Events(tmp_path)
        events.step(1, {"loss": 2.5})
        data = bytearray(events.path.read_bytes())
        events.step(2, {"loss": 2.25})
        broken = tmp_path / "broken" / events.path.name
        broken.parent.mkdir()
        broken.write_bytes(bytes(data) + b"\xff" * 100)

        batches = [polled for by in [reader(broken)] for polled in [by.poll() for _ in range(20)]]

        assert steps([record for batch in batches for record in batch.records]) == [1]
        assert sum(batch.malformed for batch in batches) == 1

    def test_another_file_at_the_path_is_told_from_its_beginning(self, tmp_path: Path) -> None:
        first, second = Events(tmp_path / "a"), Events(tmp_path / "b")
        first.step(1, {"loss": 2.5})
        first.step(2, {"loss": 2.5})
        second.step(1, {"loss": 9.5})
        path = tmp_path / "events.out.tfevents.1700000000.n1.7.0"
        shutil.copy(first.path, path)
        following = reader(path)
        assert len(told(following)) == 2
        path.unlink()
        assert told(following) == []

        shutil.copy(second.path, path)

        assert [record.fields["loss"] for record in told(following)] == [9.5]

    def test_a_directory_for_a_split_says_whose_values_they_are(self, tmp_path: Path) -> None:
        events = Events(tmp_path / "valid")
        events.step(10, {"loss": 2.5})

        (record,) = everything(events.path)

        assert record.fields == {"eval_loss": 2.5, "step": 10}


class TestTrainerState:
    def test_a_recorded_one_says_all_of_its_history(self) -> None:
        records = everything(RECORDED / "llama_factory" / "trainer_state.json")

        assert steps(records) == [entry["step"] for entry in STATE["log_history"]]
        assert {record.fields["target_steps"] for record in records} == {60}
        assert all(record.late and record.precise for record in records)

    def test_only_what_a_newer_checkpoint_adds_is_told(self, tmp_path: Path) -> None:
        trainer_state(tmp_path / "checkpoint-20" / "trainer_state.json", 10, 20)
        following = reader(tmp_path / "trainer_state.json")
        assert steps(told(following)) == [10, 20]

        trainer_state(tmp_path / "checkpoint-40" / "trainer_state.json", 10, 20, 30, 40)
        assert steps(told(following)) == [30, 40]

        trainer_state(tmp_path / "trainer_state.json", 10, 20, 30, 40)
        assert told(following) == []

    def test_after_a_restart_from_an_earlier_checkpoint_its_steps_are_told_again(self, tmp_path: Path) -> None:
        state = trainer_state(tmp_path / "trainer_state.json", 10, 20, 30, 40)
        following = reader(state)
        assert len(told(following)) == 4

        document = json.loads(state.read_text())
        for entry in document["log_history"][2:]:
            entry["loss"] = 1.75
        state.write_text(json.dumps(document))

        assert [(record.fields["step"], record.fields["loss"]) for record in told(following)] == [(30, 1.75), (40, 1.75)]

    def test_a_half_written_one_is_waited_for(self, tmp_path: Path) -> None:
        state = trainer_state(tmp_path / "trainer_state.json", 10, 20)
        text = state.read_text()
        state.write_text(text[: len(text) // 2])
        following = reader(state)
        assert following.poll().records == ()

        state.write_text(text)

        assert steps(told(following)) == [10, 20]

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("", id="empty"),
            pytest.param("[1, 2]", id="a_list"),
            pytest.param('{"log_history": 5}', id="no_history"),
            pytest.param('{"log_history": [5, null, {"step": "x", "loss": "y"}, {"loss": true}]}', id="no_entries"),
            pytest.param('{"log_history": [{"step": 1, "loss": 1' + "0" * 400 + "}]}", id="a_number_beyond_all"),
            pytest.param("[" * 100_000, id="deep"),
            pytest.param("\0" * 1000, id="a_hole"),
        ],
    )
    def test_what_is_no_state_says_nothing(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "trainer_state.json").write_text(text)

        assert everything(tmp_path / "trainer_state.json") == []


class TestMetricsCsv:
    def test_sparse_rows_are_steps_evaluations_and_nothing(self, tmp_path: Path) -> None:
        table = tmp_path / "metrics.csv"
        table.write_bytes(b"epoch,step,train_loss_step,val_loss,val_acc\r\n0,49,7.5,,\r\n0,99,nan,,\r\n0,99,,7.25,0.5\r\n0,99,,,\r\n")

        first, second, evaluation = everything(table)

        assert (first.fields["step"], first.fields["loss"]) == (49, 7.5)
        assert math.isnan(second.fields["loss"])
        assert (evaluation.fields["eval_loss"], evaluation.metrics) == (7.25, {"acc": 0.5})
        assert not evaluation.step_exact

    def test_a_column_more_rewrites_the_file_and_tells_only_new_rows(self, tmp_path: Path) -> None:
        table = tmp_path / "metrics.csv"
        table.write_text("epoch,step,train_loss\n0,49,7.5\n0,99,7.25\n")
        following = reader(table)
        assert steps(told(following)) == [49, 99]

        table.write_text("epoch,step,train_loss,val_loss\n0,49,7.5,\n0,99,7.25,\n0,99,,7.0\n1,149,6.5,\n")

        assert [record.fields.get("loss", record.fields.get("eval_loss")) for record in told(following)] == [7.0, 6.5]

    def test_a_row_is_told_when_its_line_is_complete(self, tmp_path: Path) -> None:
        table = tmp_path / "metrics.csv"
        table.write_text("step,train_loss\n49,7.5\n99,7.2")
        following = reader(table)
        assert steps(told(following)) == [49]

        with table.open("a") as file:
            file.write("5\n")

        assert [record.fields["loss"] for record in told(following)] == [7.25]

    def test_rows_that_do_not_fit_are_counted(self, tmp_path: Path) -> None:
        table = tmp_path / "metrics.csv"
        table.write_text("step,train_loss\n49,7.5,8,9\n\n99,7.25\n")

        batch = reader(table).poll()

        assert (steps(batch.records), batch.malformed) == ([99], 2)


class TestScalarsJson:
    def test_a_validation_that_counts_epochs_does_not_send_the_steps_back(self, tmp_path: Path) -> None:
        scalars = tmp_path / "scalars.json"
        rows = [
            {"lr": 0.01, "data_time": 0.005, "loss": 1.5, "time": 0.25, "epoch": 1, "memory": 4000, "step": 50},
            {"lr": 0.01, "data_time": 0.005, "loss": 1.25, "time": 0.25, "epoch": 1, "memory": 4000, "step": 100},
            {"coco/bbox_mAP": 0.25, "data_time": 0.02, "time": 0.5, "step": 1},
        ]
        scalars.write_text("".join(json.dumps(row) + "\n" for row in rows))

        first, second, evaluation = everything(scalars)

        assert (first.fields["loss"], first.fields["learning_rate"], first.fields["step_duration_seconds"]) == (1.5, 0.01, 0.25)
        assert second.fields["step"] == 100
        assert (evaluation.fields, evaluation.metrics) == ({"step": 100}, {"coco/bbox_mAP": 0.25})

    def test_detectron2_counts_iterations(self, tmp_path: Path) -> None:
        metrics = tmp_path / "metrics.json"
        metrics.write_text('{"data_time": 0.01, "eta_seconds": 54.5, "iteration": 39, "loss_cls": 0.5, "lr": 0.002, "total_loss": 1.25}\n')

        (record,) = everything(metrics)

        assert record.fields == {"step": 39, "loss": 1.25, "learning_rate": 0.002, "remaining_seconds": 54.5}


class TestMetricsJson:
    def test_columns_become_steps_in_their_numbers_order(self, tmp_path: Path) -> None:
        metrics = tmp_path / "metrics.json"
        columns = {
            "train/loss": {"2": 0.5, "10": 0.25, "1": 0.75},
            "train/grad_norm": {"10": 1.5},
            "validation/accuracy": {"10": 0.5},
            "ray/node.0.gpu.0.util": {"0": 3.0, "55": 9.0},
        }
        metrics.write_text(json.dumps(columns))

        records = everything(metrics)

        assert [(record.fields["step"], record.fields["loss"]) for record in records] == [(1, 0.75), (2, 0.5), (10, 0.25)]
        assert (records[-1].fields["grad_norm"], records[-1].metrics) == (1.5, {"accuracy": 0.5})

    def test_rewritten_it_tells_what_is_new(self, tmp_path: Path) -> None:
        metrics = tmp_path / "metrics.json"
        metrics.write_text(json.dumps({"train/loss": {"1": 0.75}}))
        following = reader(metrics)
        assert steps(told(following)) == [1]

        metrics.write_text(json.dumps({"train/loss": {"1": 0.75, "2": 0.5}}))

        assert steps(told(following)) == [2]

    def test_results_of_an_evaluation_are_no_such_file(self, tmp_path: Path) -> None:
        metrics = tmp_path / "metrics.json"
        metrics.write_text('{"accuracy": 0.5, "f1": 0.25}')

        assert tracker_for(str(metrics)) is None


class TestWandb:
    LOG = next((RECORDED / "wandb").rglob("*.wandb"))

    def test_a_recorded_run_is_told_by_the_trainers_steps(self) -> None:
        records = everything(self.LOG)

        training = [record for record in records if "loss" in record.fields]
        assert steps(training) == list(range(2, 201, 2))
        assert [record.fields["loss"] for record in training] == pytest.approx([3.0 / step for step in range(2, 201, 2)])
        assert math.isnan(training[59].fields["grad_norm"])
        assert [record.metrics for record in records if record.metrics] == [{"accuracy": step / 200} for step in range(40, 201, 40)]
        facts = {key: value for record in records for key, value in record.facts.items()}
        assert facts == {"run_name": "heron", "output_dir": "/data/heron"}
        assert records[-1].closes

    def test_in_pieces_it_tells_the_same(self, tmp_path: Path) -> None:
        data, expected = self.LOG.read_bytes(), everything(self.LOG)
        path = tmp_path / self.LOG.name

        for size in (1, 4093, 32_768, 40_000):
            path.write_bytes(b"")
            following = reader(path)
            records: list[Record] = []
            for at in range(0, len(data), max(size, len(data) // 500)):
                with path.open("ab") as file:
                    file.write(data[at : at + max(size, len(data) // 500)])
                records += following.poll().records
            assert repr([record.fields for record in records]) == repr([record.fields for record in expected])
            path.unlink()

    def test_an_older_versions_history_is_lines_of_json(self, tmp_path: Path) -> None:
        history = tmp_path / "wandb-history.jsonl"
        history.write_text('{"train/loss": 2.5, "train/grad_norm": "NaN", "_step": 4, "_timestamp": 1700000000.5}\n{"_step": 5}\nbroken\n')

        (record,) = everything(history)

        assert (record.fields["step"], record.fields["loss"]) == (4, 2.5)
        assert math.isnan(record.fields["grad_norm"])


def test_a_file_can_be_read_whole_at_any_time() -> None:
    trackers.registry()

    assert callable(trackers.whole), "a module of that name has taken the place of the function"

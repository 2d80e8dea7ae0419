"""MLflow's file store and its database, each read on its own."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from trackers.reading import RECORDED, everything, reader, steps, told
from trainer_exporter.sources.trackers import holder_named, mlflow_db


class TestMlflow:
    def test_a_recorded_run_is_told_by_calls(self) -> None:
        (meta,) = (RECORDED / "mlflow").rglob("*/*/*/meta.yaml")

        records = [record for record in everything(meta) if record.fields]

        training = [record for record in records if "loss" in record.fields]
        assert steps(training) == list(range(2, 201, 2))
        assert all({"loss", "grad_norm", "learning_rate", "epoch"} <= record.fields.keys() for record in training)
        assert math.isnan(training[59].fields["grad_norm"])
        assert [record.fields["step"] for record in records if "eval_loss" in record.fields] == [40, 80, 120, 160, 200]

    def test_its_name_and_its_end_stand_beside_the_metrics(self) -> None:
        (meta,) = (RECORDED / "mlflow").rglob("*/*/*/meta.yaml")

        last = everything(meta)[-1]

        assert (last.facts, last.closes) == ({"run_name": "heron"}, True)

    def test_lines_of_a_call_that_is_being_written_are_told_when_they_are_there(self, tmp_path: Path) -> None:
        run = tmp_path / "mlruns" / "0" / ("ab" * 16)
        (run / "metrics").mkdir(parents=True)
        (run / "meta.yaml").write_text("run_name: heron\nstatus: 1\nend_time: null\n")
        loss = run / "metrics" / "loss"
        loss.write_text("1700000000123 2.5 10\n1700000010123 2.2")
        following = reader(run / "meta.yaml")
        assert steps([record for record in told(following) if record.fields]) == [10]

        with loss.open("a") as file:
            file.write("5 20\n")
        (run / "metrics" / "grad_norm").write_text("1700000010123 0.5 20\n")

        (record,) = told(following)
        assert (record.fields["loss"], record.fields["grad_norm"]) == (2.25, 0.5)

    def test_a_lone_metric_is_named_by_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "test_accuracy").write_text("1700000000123 0.875 3\n1700000000123 broken 4\n")

        (record,) = everything(tmp_path / "test_accuracy")

        assert record.metrics == {"test_accuracy": 0.875}


class TestMlflowDatabase:
    SCHEMA = """
        CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), status VARCHAR(9), start_time BIGINT, end_time BIGINT,
            lifecycle_stage VARCHAR(20));
        CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT, run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN);
        CREATE TABLE latest_metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT, run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN);
    """
    RUN = "ab" * 16

    @pytest.fixture
    def database(self, tmp_path: Path) -> Path:
        path = tmp_path / "mlflow.db"
        self.execute(path, self.SCHEMA)
        self.execute(path, f"INSERT INTO runs VALUES ('{self.RUN}', 'heron', 'RUNNING', 1700000000000, NULL, 'active')")
        return path

    def execute(self, path: Path, script: str) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)

    def report(self, path: Path, step: int, *, is_nan: int = 0, **values: float) -> None:
        for name, value in values.items():
            row = f"('{name}', {value!r}, {1_700_000_000_000 + step}, '{self.RUN}', {step}, {is_nan})"
            self.execute(path, f"INSERT INTO metrics VALUES {row}; INSERT INTO latest_metrics VALUES {row};")

    def test_what_is_reported_is_told_once(self, database: Path) -> None:
        self.report(database, 10, loss=2.5, grad_norm=0.5, cpu=99.0)
        following = reader(Path(f"{database}#{self.RUN}"))
        first, about = told(following)
        assert dict(first.fields) == {"step": 10, "loss": 2.5, "grad_norm": 0.5}
        assert about.facts == {"run_name": "heron"}

        self.report(database, 20, loss=2.25)

        assert steps(told(following)) == [20]

    def test_numbers_that_are_none_come_back_as_they_were_reported(self, database: Path) -> None:
        self.report(database, 10, grad_norm=0.0, is_nan=1)
        self.report(database, 20, grad_norm=1.7976931348623157e308)

        first, second, _ = told(reader(Path(f"{database}#{self.RUN}")))

        assert math.isnan(first.fields["grad_norm"])
        assert second.fields["grad_norm"] == math.inf

    def test_its_runs_are_listed_while_they_are_of_interest(self, database: Path) -> None:
        ended = "INSERT INTO runs VALUES ('%s', 'old', 'FINISHED', 1600000000000, 1600000100000, 'active')"
        self.execute(database, ended % ("cd" * 16))
        holder = holder_named(str(database))
        assert holder is not None and holder.lister is not None

        lister = holder.lister(str(database))

        assert lister.sources(1_650_000_000.0) == [f"{database}#{self.RUN}"]
        assert len(lister.sources(0.0)) == 2

    def test_rows_of_other_types_than_mlflow_writes_are_left_out(self, database: Path) -> None:
        self.report(database, 10, loss=2.5)
        self.execute(
            database, "INSERT INTO runs VALUES (NULL, 'x', 'RUNNING', 1, NULL, 'active'), (x'ab', 'x', 'RUNNING', 1, NULL, 'active')"
        )
        self.execute(database, f"UPDATE runs SET end_time = 'soon', status = 'FINISHED' WHERE run_uuid = '{self.RUN}'")
        for value, time, step in (
            ("'x'", "5", "5"),
            ("x'00'", "5", "5"),
            ("1.5", "'x'", "5"),
            ("1.5", "9e999", "5"),
            ("1.5", "5", "9e999"),
        ):
            self.execute(database, f"INSERT INTO metrics VALUES ('loss', {value}, {time}, '{self.RUN}', {step}, 0)")

        runs, (record, about) = mlflow_db.Runs(str(database)).sources(0.0), told(reader(Path(f"{database}#{self.RUN}")))

        assert runs == [f"{database}#{self.RUN}"]
        assert dict(record.fields) == {"step": 10, "loss": 2.5}
        assert (about.facts, about.stamp, about.closes) == ({"run_name": "heron"}, None, False)

    def test_a_table_that_never_ends_is_given_up(self, tmp_path: Path) -> None:
        path = tmp_path / "mlflow.db"
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'x' AS run_uuid, 'active' AS lifecycle_stage"
        self.execute(path, f"CREATE VIEW runs AS {endless}, NULL AS end_time, i AS start_time FROM n")

        with pytest.raises(OSError, match="interrupted"):
            mlflow_db.Runs(str(path), most_s=0.2).sources(0.0)

    def test_a_pipe_in_its_place_blocks_nobody(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "mlflow.db")

        with pytest.raises(OSError, match="no regular file"):
            mlflow_db.Runs(str(tmp_path / "mlflow.db")).sources(0.0)

    def test_a_database_of_something_else_is_an_error_that_can_be_counted(self, tmp_path: Path) -> None:
        (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
        holder = holder_named(str(tmp_path / "mlflow.db"))
        assert holder is not None and holder.lister is not None

        with pytest.raises(OSError, match="database"):
            holder.lister(str(tmp_path / "mlflow.db")).sources(0.0)

"""An MLflow server, asked through its own client: a small client with the real one's methods stands in for the package."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stack import eventually
from trainer_exporter.model import Record
from trainer_exporter.sources.trackers import MissingExtraError, holder_named, mlflow_server, tracker_for

ADDRESS = "http://mlflow:5000"
RUN = "ab" * 16


class MlflowException(Exception):  # noqa: N818 - its name in the package
    pass


@dataclass
class Tracked:
    """What the server knows: one run."""

    points: dict[str, list[tuple[int, float, int]]] = field(default_factory=dict)
    status: str = "RUNNING"
    end_time: int | None = None
    down: bool = False
    asked: threading.Event = field(default_factory=threading.Event)

    def client(self, tracking_uri: str) -> Any:
        assert tracking_uri == ADDRESS
        return self

    @property
    def _info(self) -> Any:
        return SimpleNamespace(run_id=RUN, experiment_id="3", run_name="heron", status=self.status, end_time=self.end_time)

    def search_experiments(self) -> list[Any]:
        return [SimpleNamespace(experiment_id="3")]

    def search_runs(self, experiments: list[str], *, max_results: int, order_by: list[str]) -> list[Any]:
        assert experiments == ["3"]
        return [SimpleNamespace(info=self._info)]

    def get_run(self, run_id: str) -> Any:
        if self.down:
            raise MlflowException("connection refused")
        return SimpleNamespace(info=self._info, data=SimpleNamespace(metrics={name: points[-1][1] for name, points in self.points.items()}))

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(timestamp=at, value=value, step=step) for at, value, step in self.points[key]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Tracked:
    tracked = Tracked()
    package, exceptions, tracking = ModuleType("mlflow"), ModuleType("mlflow.exceptions"), ModuleType("mlflow.tracking")
    exceptions.MlflowException = MlflowException  # type: ignore[attr-defined]
    tracking.MlflowClient = tracked.client  # type: ignore[attr-defined]
    for name, module in (("mlflow", package), ("mlflow.exceptions", exceptions), ("mlflow.tracking", tracking)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mlflow_server, "_ASK_S", 0.05)
    return tracked


def test_a_server_lists_its_runs_by_the_address_that_a_browser_shows(server: Tracked) -> None:
    holder = holder_named(ADDRESS)
    assert holder is not None and holder.lister is not None
    lister = holder.lister(ADDRESS)

    eventually(lambda: bool(lister.sources(0.0)), within_s=10, what="the answer")

    (address,) = lister.sources(0.0)
    assert address == f"{ADDRESS}/#/experiments/3/runs/{RUN}"
    found = tracker_for(address)
    assert found is not None and found.name == "mlflow_server"


def test_what_a_run_reports_is_told_once_and_its_end_too(server: Tracked) -> None:
    server.points = {"loss": [(1000, 2.5, 10), (2000, 2.25, 20)], "grad_norm": [(1000, 0.5, 10)], "cpu": [(1000, 99.0, 10)]}
    run = mlflow_server.Run(f"{ADDRESS}/#/experiments/3/runs/{RUN}")
    records: list[Record] = []

    def come(number: int) -> bool:
        records.extend(run.poll().records)
        return len(records) >= number

    eventually(lambda: come(3), within_s=10, what="what was reported")
    assert [dict(record.fields) for record in records[:2]] == [{"step": 10, "loss": 2.5, "grad_norm": 0.5}, {"step": 20, "loss": 2.25}]
    assert records[2].facts == {"run_name": "heron"}

    server.points["loss"].append((3000, 2.0, 30))
    server.status, server.end_time = "FINISHED", 3500
    eventually(lambda: come(5), within_s=10, what="the rest")

    assert (records[3].fields["step"], records[4].closes) == (30, True)


def test_a_server_that_does_not_answer_is_an_error_until_it_does(server: Tracked) -> None:
    server.points, server.down = {"loss": [(1000, 2.5, 10)]}, True
    run = mlflow_server.Run(f"{ADDRESS}/#/experiments/3/runs/{RUN}")

    def comes() -> str:
        try:
            return "records" if run.poll().records else ""
        except OSError as error:
            return str(error)

    eventually(lambda: "connection refused" in comes(), within_s=10, what="an error")
    server.down = False

    eventually(lambda: comes() == "records", within_s=10, what="the answer")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    holder = holder_named(ADDRESS)
    assert holder is not None and holder.lister is not None

    with pytest.raises(MissingExtraError, match=r"pip install 'trainer-exporter\[mlflow\]'"):
        holder.lister(ADDRESS).sources(0.0)

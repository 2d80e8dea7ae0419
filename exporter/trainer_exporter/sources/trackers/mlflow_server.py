"""MLflow's tracking server, by its address: ``http://mlflow:5000``, or as a browser shows it ``http://mlflow:5000/#/experiments/3``.

Its own client asks, so that whatever MLflow reads from the environment (user, password, token) holds here too. It can wait for long, so
each run has a thread that asks and a reader that takes what has come. A run on the server has the address that a browser shows for it.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from trainer_exporter.model import Record
from trainer_exporter.sources.trackers.base import Batch, Extent, MissingExtraError, Tracker
from trainer_exporter.sources.trackers.calls import Calls

_ASK_S: Final = 15.0
_PATIENCE: Final = 20  # a server is left alone for so many times what an answer took
_MOST_RUNS: Final = 32
_MOST_NAMES: Final = 64
_MOST_WAITING: Final = 100_000  # records that nobody has taken yet
_ADDRESS: Final = re.compile(r"(?P<server>https?://[^#]+?)/?(?:#/experiments/(?P<experiment>\d+)(?:/runs/(?P<run>[0-9a-f]{32}))?)?")
# Of the client: a daemon asks again by itself.
_CLIENT: Final = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class _Asking:
    """A thread that asks again and again, for as long as somebody wants the answer."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.error = ""
        self._ask = ask
        self._wanted_mono = 0.0
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """Go on; raises what went wrong when it was asked last."""
        self._wanted_mono = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="mlflow")
            self._thread.start()
        if self.error:
            raise OSError(errno.EIO, self.error)

    def _run(self) -> None:
        failures = (OSError, ValueError, ImportError, _client_error())
        while time.monotonic() - self._wanted_mono < 10 * _ASK_S:
            began = time.monotonic()
            try:
                self._ask()
                self.error = ""
            except failures as error:
                self.error = str(error)[:300]
            time.sleep(max(_ASK_S, _PATIENCE * (time.monotonic() - began)))


class Server:
    """The runs of a server, or of one experiment there."""

    def __init__(self, address: str) -> None:
        self._server, self._experiment, self._run = _parts(address)
        self._since_ms = 0.0
        self._addresses: tuple[str, ...] = ()
        self._asking = _Asking(self._ask)

    def sources(self, since_wall: float) -> Sequence[str]:
        _require()
        self._since_ms = max(0.0, since_wall * 1000)
        self._asking.want()
        return self._addresses

    def _ask(self) -> None:
        client = _client(self._server)
        if self._run:
            self._addresses = (f"{self._server}/#/experiments/{self._experiment}/runs/{self._run}",)
            return
        experiments = [self._experiment] if self._experiment else [each.experiment_id for each in client.search_experiments()]
        runs = client.search_runs(experiments, max_results=_MOST_RUNS, order_by=["attributes.start_time DESC"])
        wanted = [run.info for run in runs if run.info.end_time is None or run.info.end_time >= self._since_ms]
        self._addresses = tuple(f"{self._server}/#/experiments/{info.experiment_id}/runs/{info.run_id}" for info in wanted)


class Run:
    """The metrics of one run on a server."""

    def __init__(self, address: str) -> None:
        self._server, _, self._run = _parts(address)
        self._calls = Calls()
        self._told: dict[str, tuple[int, int]] = {}  # by name: time and step of the last number
        self._about: tuple[object, ...] | None = None
        self._waiting: deque[Record] = deque(maxlen=_MOST_WAITING)
        self._asking = _Asking(self._ask)
        self._taken = 0
        self._ended = False
        self.extent = Extent()

    def poll(self) -> Batch:
        _require()
        if not self._ended:
            self._asking.want()
        records = tuple(self._waiting.popleft() for _ in range(len(self._waiting)))
        if records:
            self._taken += len(records)
            self.extent = Extent(self._taken, self._taken, records[-1].stamp.seconds if records[-1].stamp else None)
        return Batch(records)

    def _ask(self) -> None:
        client = _client(self._server)
        run = client.get_run(self._run)
        for name in [name for name in run.data.metrics if self._calls.knows(name)][:_MOST_NAMES]:
            self._read(client, name)
        self._waiting.extend(self._calls.records())
        self._waiting.extend(self._news_of(run.info))

    def _read(self, client: Any, name: str) -> None:
        told = self._told.get(name, (-1, -1))
        for point in client.get_metric_history(self._run, name):
            at = (int(point.timestamp), int(point.step))
            if at > told:
                self._calls.add(name, milliseconds=at[0], step=at[1], value=float(point.value))
                self._told[name] = max(self._told.get(name, at), at)

    def _news_of(self, info: Any) -> Iterator[Record]:
        about = (info.run_name, info.status, info.end_time)
        if about != self._about:
            self._about = about
            self._ended = info.end_time is not None
            yield self._calls.about(name=str(info.run_name or ""), ended_ms=info.end_time, finished=info.status == "FINISHED")


def _parts(address: str) -> tuple[str, str, str]:
    """Server, experiment and run; "" for what the address does not name."""
    found = _ADDRESS.fullmatch(address)
    return (found["server"], found["experiment"] or "", found["run"] or "") if found else ("", "", "")


def _require() -> None:
    _client_error()


def _client_error() -> type[Exception]:
    try:
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingExtraError("MLflow servers", "mlflow") from error
    found: type[Exception] = MlflowException
    return found


def _client(server: str) -> Any:
    for name, value in _CLIENT.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=server)


def _written(address: str) -> os.stat_result:
    """A run on a server has no file; it is as good as one that was written now."""
    now = time.time()
    return os.stat_result((0, 0, 0, 0, 0, 0, 0, int(now), int(now), int(now)))


TRACKER: Final = Tracker(
    name="mlflow_server",
    summary="an MLflow tracking server by its address: each of its runs",
    paths=re.compile(r"^https?://.+/#/experiments/\d+/runs/[0-9a-f]{32}$"),
    reader=Run,
    extra="mlflow",
    written=_written,
    holds=re.compile(r"^https?://"),
    lister=Server,
    apart=True,
)

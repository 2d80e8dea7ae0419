"""The composition root: configuration in, threads out. Reads like a table of contents; it makes no decision that a part could make.

Threads: ``tail`` reads files and folds, ``scout`` finds files and their runs, ``saves`` watches checkpoint directories and reads the
models in them, ``allocations`` asks to whom GPUs were given, ``evidence`` collects what a run shows that makes no step, ``http`` answers
from snapshots, and the poller's own. Each waits for an event, so that stop() ends them at once and in reverse order.
"""

from __future__ import annotations

import json
import logging
import platform
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from email.message import Message
from http import HTTPStatus

from trainer_exporter import incidents, version
from trainer_exporter.allotment import allocations
from trainer_exporter.attribution import States
from trainer_exporter.catalogue import catalogue
from trainer_exporter.clock import Clock, SystemClock
from trainer_exporter.config import Config, listen_address, web_security
from trainer_exporter.errors import TrainerExporterError
from trainer_exporter.feeds import Feeds, Tools
from trainer_exporter.gpu.poller import KernelPlaces, Poller, kernel_gpus, launcher
from trainer_exporter.hangs import HangWatch, Sight
from trainer_exporter.health import Health
from trainer_exporter.metrics import allocations as given
from trainer_exporter.metrics import daemon, gpus, hangs, processes, runs, status
from trainer_exporter.metrics.family import Sample
from trainer_exporter.metrics.gate import Gate
from trainer_exporter.metrics.page import Page, SampleSource
from trainer_exporter.metrics.server import Handler, Response, Server
from trainer_exporter.model import Evidence, FileStatus, NodeStatus, RunProcesses
from trainer_exporter.model_gpu import GpuSnapshot
from trainer_exporter.runs.state import StateSettings
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.saves import SaveWatch
from trainer_exporter.scout import Scout
from trainer_exporter.sources.follow import Limits
from trainer_exporter.sources.waker import Waker
from trainer_exporter.workloads import Known, Workloads

log = logging.getLogger(__name__)

POLL_S = 1.0  # a stat of every file each second decides; the waker only makes it sooner (design, decision 10)
SCOUT_S = 5.0
SCOUT_PAUSE_S = 1.0  # new files come in crowds (a checkpoint of hundreds): one look serves them all
SAVES_S = 1.0
ALLOCATIONS_S = 10.0
EVIDENCE_S = 5.0
JOIN_S = 10.0  # a thread that waits for a dead file server cannot be ended, and must not keep the others


class App:
    """The daemon. ``reload`` gives a fresh configuration when one is asked for; its sources and formats are taken over."""

    def __init__(self, config: Config, *, reload: Callable[[], Config] | None = None, clock: Clock | None = None) -> None:
        self._config = config
        self._load = reload
        self._clock = clock or SystemClock()
        self._health = Health()
        self._started_wall = self._clock.wall()
        self._stopping = threading.Event()
        self._scouting = threading.Event()  # set: look around now
        self._ready = threading.Event()
        self._reloading = threading.Lock()
        procfs = config.processes.procfs
        self._arrivals = 0
        self._daemon = daemon.DaemonSnapshot(version(), platform.python_version())  # written by the tail alone
        self._reloaded = daemon.Reload(successful=True, wall=self._started_wall)  # written by whoever asks for a reload
        self._files: Sequence[FileStatus] = ()

        self._store = Store(_store_settings(config), clock=self._clock, health=self._health)
        limits = Limits(history_bytes=config.limits.history_bytes, line_bytes=config.limits.line_bytes)
        self._specs, self._formats = config.formats, catalogue(config)
        self._feeds = Feeds(Tools(self._store, self._formats, self._clock, self._health, limits))
        self._waker = Waker(self._clock, self._health)
        self._poller = (
            Poller(
                self._clock,
                self._health,
                interval_s=config.gpu.interval_s,
                deadline_s=config.gpu.deadline_s,
                devices_expected=config.gpu.devices,
                places=KernelPlaces(log=config.gpu.kernel_log, gpus=kernel_gpus(procfs)),
                launch=launcher(config.gpu.interval_s, gpus=kernel_gpus(procfs), throughput=config.gpu.pcie_throughput),
            )
            if config.gpu.enabled
            else None
        )
        self._allocations = allocations(config, clock=self._clock, health=self._health)
        self._scout = Scout(
            config,
            store=self._store,
            gpus=self._gpus,
            clock=self._clock,
            health=self._health,
            allocations=self._allocations.of,
            proc_root=procfs,
        )
        self._states = States(procfs)
        self._processes: Sequence[RunProcesses] = ()  # written by the scout alone
        self._saves = SaveWatch(self._store, clock=self._clock, health=self._health)
        self._workloads = Workloads(self._store, clock=self._clock, health=self._health)
        sight = Sight(self._store.snapshot, self._scout.pids)
        self._hangs = (
            HangWatch(config.evidence, sight, clock=self._clock, health=self._health, proc_root=procfs) if config.evidence.enabled else None
        )
        host, port = listen_address(config.web.listen_address, file=config.file, key="web.listen_address")
        self._server = Server(host, port, routes=self._routes(), health=self._health, gate=self._gate(config.web.config_file))
        work = {"scout": self._look_around, "tail": self._tail, "saves": self._watch_saves}
        if self._allocations.are_known:
            work["allocations"] = self._watch_allocations
        if self._hangs is not None:
            work["evidence"] = self._watch_hangs
        self._threads = [threading.Thread(target=self._run, args=each, name=each[0], daemon=True) for each in work.items()]

    @property
    def is_alive(self) -> bool:
        """Whether all of its threads still run; one that waits for a dead file server does."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._server.port

    def start(self) -> None:
        """Begin to serve, and to read; returns at once."""
        self._server.start()
        log.info("serving on port %d", self.port)
        if self._poller is not None:
            self._poller.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the tick, close, join."""
        self._stopping.set()
        self._scouting.set()
        self._waker.wake()
        if self._hangs is not None:
            self._hangs.stop()
        for thread in reversed(self._threads):
            thread.join(JOIN_S)
            if thread.is_alive():
                log.warning("%s is left behind: it waits for a file system or for /proc", thread.name)
        if self._poller is not None:
            self._poller.stop()
        self._server.stop()
        self._waker.close()
        self._feeds.close()
        log.info("stopped")

    def reload(self) -> bool:
        """Load the configuration again; False, and everything as before, when it cannot be used."""
        with self._reloading:
            done = False
            with self._health.guard("reload"):  # whatever it is, the old configuration goes on
                done = self._reload()
            if not done:
                self._reloaded = replace(self._reloaded, successful=False)
            return done

    def _reload(self) -> bool:
        if self._load is None:
            return False
        try:
            fresh = self._load()
            formats = catalogue(fresh)
        except TrainerExporterError as error:
            log.error("the configuration was not reloaded: %s", error)
            return False
        if fresh.formats != self._specs:
            self._specs, self._formats = fresh.formats, formats
        self._scout.reconfigure(fresh)
        self._scouting.set()
        self._reloaded = daemon.Reload(successful=True, wall=self._clock.wall())
        log.info("configuration reloaded")
        return True

    # -- threads

    def _run(self, name: str, work: Callable[[], None]) -> None:
        """A part's bug costs one turn of its thread, never the thread."""
        while not self._stopping.is_set():
            failed = True
            with self._health.guard(name):
                work()
                failed = False
            if failed:
                self._stopping.wait(POLL_S)

    def _look_around(self) -> None:
        asked = self._scouting.is_set()
        self._scouting.clear()  # before the look: what is asked for meanwhile is asked for anew
        self._scout.look(now=asked)
        self._processes = self._states.of(self._scout.pids())
        self._waker.wake()
        if not self._stopping.wait(SCOUT_PAUSE_S):
            self._scouting.wait(SCOUT_S)

    def _tail(self) -> None:
        self._feeds.use(self._formats)
        self._feeds.assign(self._scout.assignments())
        self._waker.watch(self._scout.directories())
        more = self._feeds.poll()
        self._store.publish()
        self._report()
        if not self._ready.is_set() and self._scout.has_looked and self._feeds.caught_up:
            self._ready.set()
            log.info("ready: what stood in %d files has been read", len(self._feeds))
        if not more:
            self._waker.wait(POLL_S)
        if self._waker.arrivals != self._arrivals:
            self._arrivals = self._waker.arrivals
            self._scouting.set()

    def _watch_saves(self) -> None:
        scout = self._scout
        self._saves.look(scout.save_directories())
        self._workloads.look(Known(scout.save_directories(), scout.models(), scout.owners(), self._gpus()))
        self._stopping.wait(SAVES_S)

    def _watch_allocations(self) -> None:
        self._allocations.look()
        self._stopping.wait(ALLOCATIONS_S)

    def _watch_hangs(self) -> None:
        if self._hangs is not None and self._ready.is_set():
            self._hangs.look()
        self._stopping.wait(EVIDENCE_S)

    def _report(self) -> None:
        """Freeze what the other threads show of the tail."""
        lines, read, lag = self._feeds.totals()
        self._daemon = replace(self._daemon, lines=lines, read_bytes=read, lag_bytes=lag, files=len(self._feeds))
        self._files = self._feeds.status()

    # -- what is served

    def _gpus(self) -> GpuSnapshot:
        return self._poller.snapshot() if self._poller is not None else GpuSnapshot()

    def _gate(self, path: str) -> Gate | None:
        return Gate(lambda: web_security(path), path=path, clock=self._clock, health=self._health) if path else None

    def _routes(self) -> dict[tuple[str, str], Handler]:
        page = Page(self._collectors(), health=self._health)

        def metrics(headers: Message) -> Response:
            rendered = page.render(headers.get("Accept", ""))
            return Response(rendered.body, rendered.content_type)

        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/"): lambda _: self._status_page(),
            ("GET", "/metrics"): metrics,
            ("GET", "/-/healthy"): lambda _: Response(b"healthy\n"),
            ("GET", "/-/ready"): lambda _: self._readiness(),
            ("GET", "/api/v1/runs"): lambda _: self._runs_document(),
        }
        if self._config.web.enable_lifecycle:
            routes["POST", "/-/reload"] = lambda _: self._reload_response()
        return routes

    def _collectors(self) -> Sequence[tuple[str, SampleSource]]:
        figures = runs.Runs()
        collectors: list[tuple[str, SampleSource]] = [("runs", lambda: figures.collect(self._store.snapshot(), self._clock.wall()))]
        if self._poller is not None:
            collectors.append(("gpu", self._gpu_samples))
        collectors.append(("processes", lambda: processes.samples(self._processes)))
        if self._allocations.are_known:
            collectors.append(("allocations", self._allocation_samples))
        if self._hangs is not None:
            collectors.append(("evidence", lambda: hangs.samples(self._evidence())))
        collectors.append(("daemon", lambda: daemon.samples(self._daemon, self._reloaded, self._health.snapshot())))
        return collectors

    def _gpu_samples(self) -> Iterable[Sample]:
        return gpus.samples(self._gpus(), self._scout.owners(), self._clock.wall(), readings=self._config.gpu.metrics)

    def _allocation_samples(self) -> Iterable[Sample]:
        return given.samples(self._scout.allocations(), self._allocations.allocatable(self._gpus()))

    def _evidence(self) -> Sequence[Evidence]:
        return self._hangs.evidence(self._store.snapshot()) if self._hangs is not None else ()

    def _status(self) -> NodeStatus:
        health = self._health.snapshot()
        return NodeStatus(
            version=self._daemon.version,
            now=self._clock.wall(),
            started_wall=self._started_wall,
            ready=self._ready.is_set(),
            runs=self._store.snapshot(),
            files=self._files,
            gpus=self._gpus(),
            owners=self._scout.owners(),
            errors=health.errors,
            latest=health.latest,
            dropped=health.dropped,
            gpu_enabled=self._poller is not None,
            evidence=self._evidence(),
        )

    def _status_page(self) -> Response:
        page = status.html(self._status()).encode()
        return Response(page, "text/html; charset=utf-8", headers={"Content-Security-Policy": status.CONTENT_SECURITY_POLICY})

    def _readiness(self) -> Response:
        if self._ready.is_set():
            return Response(b"ready\n")
        lag = self._daemon.lag_bytes
        return Response(f"reading history, {lag} bytes to go\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _runs_document(self) -> Response:
        document = status.document(
            self._store.snapshot(), self._clock.wall(), self._files, evidence=self._evidence(), health=self._health.snapshot()
        )
        return Response(json.dumps(document, allow_nan=False).encode(), "application/json")

    def _reload_response(self) -> Response:
        if self.reload():
            return Response(b"reloaded\n")
        return Response(b"not reloaded: the exporter's log says why\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _store_settings(config: Config) -> StoreSettings:
    return StoreSettings(
        max_runs=config.runs.maximum,
        ended_grace_s=config.runs.ended_grace_s,
        failed_grace_s=config.runs.failed_grace_s,
        state=StateSettings(latch_s=config.runs.latch_s, incident_kinds=incidents.KINDS),
    )

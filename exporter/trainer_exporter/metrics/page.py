"""The page that Prometheus scrapes: samples of all collectors in the exposition format asked for.

A collector that fails costs its own families alone; its failure stands on the page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import exposition, process_collector, registry
from prometheus_client.core import Metric

from trainer_exporter.health import Health
from trainer_exporter.metrics.daemon import COLLECTOR_DURATION, COLLECTOR_SUCCESS, SERIES
from trainer_exporter.metrics.family import Batch, Collected, Family, Sample
from trainer_exporter.metrics.lines import Lines
from trainer_exporter.names import sendable

SampleSource = Callable[[], Iterable[Collected]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page and its content type."""

    content_type: str
    body: bytes


class Page:
    """Renders the samples of named collectors, in the order given."""

    def __init__(self, collectors: Sequence[tuple[str, SampleSource]], *, health: Health) -> None:
        self._collectors = collectors
        self._health = health
        self._lines = Lines()
        self._rendering = threading.Lock()
        self._last: tuple[str, float, Rendered] | None = None  # what was asked for, when it was made, and the page
        self._process = registry.CollectorRegistry(auto_describe=False)
        process_collector.ProcessCollector(registry=self._process)

    def render(self, accept: str) -> Rendered:
        """The page in the format that ``accept`` (the HTTP header) prefers: OpenMetrics, else text.

        Two scrapers at once get the same page: the one that comes while it is made waits for it, and not for one of its own.
        """
        asked = time.perf_counter()
        with self._rendering:
            if self._last is None or self._last[0] != accept or self._last[1] < asked:
                page = self._render(accept)
                self._last = accept, time.perf_counter(), page
            return self._last[2]

    def _render(self, accept: str) -> Rendered:
        encode, content_type = exposition.choose_encoder(accept)
        samples = self._samples()
        if "escaping=dots" in content_type:  # asks for other names, which the library makes
            return Rendered(content_type, encode(_Collected([*metrics(flat(samples)), *self._process.collect()])))
        own = self._lines.page(samples, openmetrics=content_type.startswith("application/openmetrics-text"))
        return Rendered(content_type, own.encode() + encode(_Collected(list(self._process.collect()))))

    def _samples(self) -> list[Collected]:
        samples: list[Collected] = []
        for name, collect in self._collectors:
            started = time.perf_counter()
            collected: list[Collected] = []
            succeeded = False
            with self._health.guard(f"collector_{name}"):
                collected = list(collect())
                succeeded = True
            samples += collected
            samples.append(Sample(COLLECTOR_DURATION, (name,), time.perf_counter() - started))
            samples.append(Sample(COLLECTOR_SUCCESS, (name,), int(succeeded)))
        total = sum(len(item.samples) if isinstance(item, Batch) else 1 for item in samples)
        samples.append(Sample(SERIES, (), total))
        return samples


def flat(collected: Iterable[Collected]) -> Iterator[Sample]:
    """The samples one by one, those of batches too."""
    for item in collected:
        if isinstance(item, Batch):
            yield from item.samples
        else:
            yield item


def metrics(samples: Iterable[Sample]) -> list[Metric]:
    """The samples by family, in the order in which families first appear."""
    found: dict[Family, Metric] = {}
    for sample in samples:
        family = sample.family
        metric = found.get(family)
        if metric is None:
            metric = found[family] = Metric(
                family.name.removesuffix("_total") if family.kind == "counter" else family.name, family.help, family.kind
            )
        labels = dict(zip(family.labels, sample.labels, strict=True))
        if sample.extra:
            labels.update(sample.extra)
        metric.add_sample(family.name + sample.suffix, {name: sendable(value) for name, value in labels.items()}, sample.value)
    return list(found.values())


class _Collected(registry.Collector):
    """What the renderers take: something with ``collect``."""

    def __init__(self, collected: Sequence[Metric]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Metric]:
        return self._collected

"""Histograms in plain integers, held against those of the library."""

import asyncio
import random
import threading
from collections import Counter

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.metrics.export import Histogram as Points

from antiphon import semconv
from antiphon.telemetry.distributions import Distributions
from antiphon.telemetry.exporters import PeriodicReader
from antiphon.telemetry.instruments import histogram
from antiphon.telemetry.providers import start

LABELS = ("audio_duplex", "turn")
VALUES = [*semconv.UNIT_SECONDS, 0.0, 99.0, *(random.Random(1).expovariate(2.0) for _ in range(200))]
"""Among them every bound, which belongs to the bucket below it."""


def test_page_is_that_of_the_library() -> None:
    telemetry = start("here", {})
    distribution = telemetry.distributions.of(semconv.UNIT)
    library = start("here", {})
    instrument = histogram(library.meter, semconv.UNIT)
    for value in VALUES:
        distribution.record(value, *LABELS)
        instrument.record(value, dict(zip(semconv.UNIT.labels, LABELS, strict=True)))

    lines = telemetry.exposition().splitlines()
    assert sorted(lines) == sorted(library.exposition().splitlines())
    assert b"antiphon_unit_seconds_bucket" in telemetry.exposition()


def test_nothing_is_told_of_what_was_never_recorded() -> None:
    telemetry = start("here", {})
    telemetry.distributions.of(semconv.UNIT)

    assert b"antiphon_unit_seconds" not in telemetry.exposition()


class Kept(MetricExporter):
    """Keeps what is exported."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__(preferred_temporality={Histogram: temporality})
        self.exported: list[MetricsData] = []

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> MetricExportResult:
        self.exported.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        pass


def points_of(data: MetricsData | None) -> list[HistogramDataPoint]:
    """Those of the one histogram in it."""
    assert data is not None
    ((resource,),) = (data.resource_metrics,)
    ((scope,),) = (resource.scope_metrics,)
    found = [metric.data for metric in scope.metrics if metric.name == semconv.UNIT.name]
    return [point for points in found if isinstance(points, Points) for point in points.data_points]


def plain(point: HistogramDataPoint) -> tuple[object, ...]:
    """All of it but the times, and the sum as far as additions in another order keep it."""
    return (
        dict(point.attributes or {}),
        point.count,
        pytest.approx(point.sum),
        tuple(point.bucket_counts),
        tuple(point.explicit_bounds),
        point.min,
        point.max,
    )


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_collector_is_told_what_the_library_would_tell(temporality: AggregationTemporality) -> None:
    exporter, distributions = Kept(temporality), Distributions()
    library = InMemoryMetricReader(preferred_temporality={Histogram: temporality})
    periodic = PeriodicReader(exporter, distributions)
    meter = MeterProvider([library]).get_meter("x")
    provider = MeterProvider([periodic])
    provider.get_meter("x").create_counter("antiphon_something_total").add(1)
    meter.create_counter("antiphon_something_total").add(1)
    instrument, own = histogram(meter, semconv.UNIT), distributions.of(semconv.UNIT)
    told = []
    for values in (VALUES[:50], [], VALUES[50:]):
        for value in values:
            own.record(value, *LABELS)
            instrument.record(value, dict(zip(semconv.UNIT.labels, LABELS, strict=True)))
        periodic.collect()
        expected = points_of(library.get_metrics_data())
        points = points_of(exporter.exported[-1])
        assert list(map(plain, points)) == list(map(plain, expected))
        told += points
    provider.shutdown()

    assert all(point.start_time_unix_nano < point.time_unix_nano for point in told)
    if temporality is AggregationTemporality.DELTA:
        assert [point.count for point in told] == [50, len(VALUES) - 50]
        assert told[1].start_time_unix_nano > told[0].start_time_unix_nano


async def test_what_nobody_collects_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.telemetry.distributions.SETTLE_S", 0.0)
    distributions = Distributions()
    distribution = distributions.of(semconv.UNIT)
    recorder = distribution.recorder(*LABELS)
    waiting = recorder.__self__  # type: ignore[attr-defined]
    task = asyncio.create_task(distributions.keep_settled())
    try:
        for value in VALUES:
            recorder(value)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting
    finally:
        task.cancel()

    told = distribution.collected(1, AggregationTemporality.CUMULATIVE)
    assert told is not None
    assert [point.count for point in told.data.data_points] == [len(VALUES)]


def test_collecting_on_several_threads_loses_nothing() -> None:
    distribution = Distributions().of(semconv.UNIT)
    recorder = distribution.recorder(*LABELS)
    counted: Counter[str] = Counter()
    is_over = threading.Event()

    def collect(name: str) -> None:
        while not is_over.is_set():
            told = distribution.collected(1, AggregationTemporality.DELTA)
            counted[name] += sum(point.count for point in told.data.data_points) if told is not None else 0

    threads = [threading.Thread(target=collect, args=(str(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20_000):
        recorder(1.0)
    is_over.set()
    for thread in threads:
        thread.join()
    collect_rest = distribution.collected(1, AggregationTemporality.DELTA)
    rest = sum(point.count for point in collect_rest.data.data_points) if collect_rest is not None else 0
    assert sum(counted.values()) + rest == 20_000

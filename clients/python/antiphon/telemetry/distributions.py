"""Histograms that are cheap to record: plain integers until somebody collects.

A record of OpenTelemetry's own takes about 10 us: it copies the labels, asks for views and exemplars, and
takes a lock. Here it is a search among the bounds and an addition. Readers put what was counted beside what
the library has collected; names, labels, buckets and temporality are the same.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    MetricsData,
)
from opentelemetry.sdk.metrics.export import Metric as Collected

from antiphon.semconv import Metric

Labels = tuple[str, ...]
"""Values of the labels of a metric, in their order."""


class Distribution:
    """One histogram. It is recorded on one thread; a collection may run on any."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._bounds = metric.buckets
        self._series: dict[Labels, _Series] = {}

    def record(self, value: float, *labels: str) -> None:
        """Counts a value; `labels` are those of the metric, in their order."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(len(self._bounds) + 1)
        series.counts[bisect_left(self._bounds, value)] += 1
        series.total += value
        if value < series.least:
            series.least = value
        if value > series.greatest:
            series.greatest = value

    def collected(self, now: int, temporality: AggregationTemporality) -> Collected | None:
        """What was counted, in the form of the library, at `now` ns of Unix time; None for nothing."""
        points = [
            point
            # A copy, made at once: meanwhile more is recorded.
            for labels, series in list(self._series.items())
            if (point := self._point(labels, series, now, temporality)) is not None
        ]
        name, unit, meaning = self._metric.name, self._metric.unit, self._metric.meaning
        return Collected(name, meaning, unit, Histogram(points, temporality)) if points else None

    def _point(
        self, labels: Labels, series: "_Series", now: int, temporality: AggregationTemporality
    ) -> HistogramDataPoint | None:
        counts, total, least, greatest = series.counts.copy(), series.total, series.least, series.greatest
        since = series.since
        if temporality is AggregationTemporality.DELTA:
            told, told_total = series.told, series.told_total
            series.told, series.told_total, series.since = counts, total, now
            series.least, series.greatest = math.inf, -math.inf
            counts = [count - before for count, before in zip(counts, told, strict=True)]
            total -= told_total
        if not any(counts):
            return None
        return HistogramDataPoint(
            attributes=dict(zip(self._metric.labels, map(str, labels), strict=True)),
            start_time_unix_nano=since,
            time_unix_nano=now,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=self._bounds,
            min=least,
            max=greatest,
        )


class _Series:
    """What was recorded under the same labels, and what of it a reader of differences was told."""

    __slots__ = ("counts", "greatest", "least", "since", "told", "told_total", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0
        self.least = math.inf
        self.greatest = -math.inf
        self.since = time.time_ns()
        self.told: Sequence[int] = [0] * buckets
        self.told_total = 0.0


class Distributions:
    """All those of one process, which has at most one reader."""

    def __init__(self) -> None:
        self._all: list[Distribution] = []

    def of(self, metric: Metric) -> Distribution:
        """A new one."""
        distribution = Distribution(metric)
        self._all.append(distribution)
        return distribution

    def beside(self, collected: MetricsData, temporality: AggregationTemporality) -> MetricsData:
        """What the library has `collected`, and these, under its first resource and scope."""
        now = time.time_ns()
        own = [metric for each in list(self._all) if (metric := each.collected(now, temporality)) is not None]
        resource, *resources = collected.resource_metrics
        scope, *scopes = resource.scope_metrics
        scope = replace(scope, metrics=[*scope.metrics, *own])
        return MetricsData([replace(resource, scope_metrics=[scope, *scopes]), *resources])

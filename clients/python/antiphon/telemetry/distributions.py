"""Histograms that are cheap to record: values are put aside, and sorted into plain integers now and then.

A record of OpenTelemetry's own takes about 10 us: it copies the labels, asks for views and exemplars, and
takes a lock. Here it is one append. Readers put what was counted beside what the library has collected;
names, labels, buckets and temporality are the same.
"""

import asyncio
import math
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat, starmap
from typing import Final, TypeAlias

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    MetricsData,
)
from opentelemetry.sdk.metrics.export import Metric as Collected

from antiphon.semconv import Metric

SETTLE_S: Final = 0.5

Labels: TypeAlias = tuple[str, ...]
"""Values of the labels of a metric, in their order."""


class Distribution:
    """One histogram. Values come on one thread; a collection may run on any."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._series: dict[Labels, _Series] = {}

    def recorder(self, *labels: str) -> Callable[[float], None]:
        """Counts the values that it is given; `labels` are those of the metric, in their order."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(self._metric.buckets)
        return series.values.append

    def record(self, value: float, *labels: str) -> None:
        """Counts a value."""
        self.recorder(*labels)(value)

    def settle(self) -> None:
        """Sorts what was put aside."""
        for series in list(self._series.values()):
            series.settle()

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
        seen = series.take(now, temporality)
        if not any(seen.counts):
            return None
        return HistogramDataPoint(
            attributes=dict(zip(self._metric.labels, map(str, labels), strict=True)),
            start_time_unix_nano=seen.since,
            time_unix_nano=now,
            count=sum(seen.counts),
            sum=seen.total,
            bucket_counts=seen.counts,
            explicit_bounds=self._metric.buckets,
            min=seen.least,
            max=seen.greatest,
        )


@dataclass
class _Seen:
    """Values in their buckets, since a moment in ns of Unix time."""

    counts: list[int]
    since: int
    total: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf


class _Series:
    """What was recorded under the same labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.values: deque[float] = deque()
        """What was not looked at yet."""
        self._bounds = bounds
        self._seen = self._nothing(time.time_ns())
        self._lock = threading.Lock()
        """Held by who moves values: two at once would lose some."""

    def settle(self) -> None:
        """Sorts what was put aside."""
        with self._lock:
            self._settle()

    def take(self, now: int, temporality: AggregationTemporality) -> _Seen:
        """All that was recorded; where differences are asked for, it is forgotten with that."""
        with self._lock:
            self._settle()
            seen = self._seen
            if temporality is AggregationTemporality.DELTA:
                self._seen = self._nothing(now)
            return replace(seen, counts=seen.counts.copy())

    def _settle(self) -> None:
        waiting, seen, bounds = self.values, self._seen, self._bounds
        values = list(starmap(waiting.popleft, repeat((), len(waiting))))
        if not values:
            return
        for bucket, count in Counter(map(bisect_left, repeat(bounds), values)).items():
            seen.counts[bucket] += count
        seen.total += sum(values)
        seen.least = min(seen.least, min(values))
        seen.greatest = max(seen.greatest, max(values))

    def _nothing(self, now: int) -> _Seen:
        return _Seen([0] * (len(self._bounds) + 1), now)


class Distributions:
    """All those of one process, which has at most one reader."""

    def __init__(self) -> None:
        self._all: list[Distribution] = []

    def of(self, metric: Metric) -> Distribution:
        """A new one."""
        distribution = Distribution(metric)
        self._all.append(distribution)
        return distribution

    async def keep_settled(self) -> None:
        """Sorts what was put aside until cancelled: however seldom anybody collects, little waits."""
        while True:
            await asyncio.sleep(SETTLE_S)
            for distribution in list(self._all):
                distribution.settle()

    def beside(self, collected: MetricsData, temporality: AggregationTemporality) -> MetricsData:
        """What the library has `collected`, and these, under its first resource and scope."""
        now = time.time_ns()
        own = [metric for each in list(self._all) if (metric := each.collected(now, temporality)) is not None]
        resource, *resources = collected.resource_metrics
        scope, *scopes = resource.scope_metrics
        scope = replace(scope, metrics=[*scope.metrics, *own])
        return MetricsData([replace(resource, scope_metrics=[scope, *scopes]), *resources])

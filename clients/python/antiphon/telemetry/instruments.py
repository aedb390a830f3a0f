"""SDK instruments for the metrics that `antiphon.semconv` declares."""

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from antiphon.semconv import Metric

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels, in their order, and the number."""


class Histogram:
    """A histogram of the SDK that takes label values in the order in which its metric declares them."""

    def __init__(self, meter: Meter, metric: Metric) -> None:
        self._labels = metric.labels
        self._record = meter.create_histogram(
            metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
        ).record

    def record(self, value: float, *labels: str) -> None:
        """Record one value in the metric's unit."""
        self._record(value, self._attributes(labels))

    def recorder(self, *labels: str) -> Callable[[float], None]:
        """Return a function that records values under `labels`."""
        return partial(self._record, attributes=self._attributes(labels) or None)

    def _attributes(self, labels: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self._labels, map(str, labels), strict=True))


def observed_counter(meter: Meter, metric: Metric, read: Callable[[], Samples]) -> None:
    """Create a counter; `read` returns its values at each collection, on any thread."""
    meter.create_observable_counter(metric.name, [_observer(metric, read)], metric.unit, metric.meaning)


def observed_gauge(meter: Meter, metric: Metric, read: Callable[[], Samples]) -> None:
    """Create a gauge; `read` returns its values at each collection, on any thread."""
    meter.create_observable_gauge(metric.name, [_observer(metric, read)], metric.unit, metric.meaning)


def _observer(
    metric: Metric, read: Callable[[], Samples]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> list[Observation]:
        return [
            # A member of an enumeration and its text would be two series of one name.
            Observation(value, dict(zip(metric.labels, map(str, labels), strict=True)))
            for labels, value in read()
        ]

    return observe

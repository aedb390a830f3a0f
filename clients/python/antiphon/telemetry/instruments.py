"""Instruments as `antiphon.semconv` describes them."""

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from antiphon.semconv import Metric

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels, in their order, and the number."""


def histogram(meter: Meter, metric: Metric) -> Histogram:
    """Records one value at a time."""
    return meter.create_histogram(
        metric.name,
        metric.unit,
        metric.meaning,
        explicit_bucket_boundaries_advisory=metric.buckets,
    )


def counter(meter: Meter, metric: Metric) -> Counter:
    """Counts what happens seldom; what happens per message is a plain int behind `observed_counter`."""
    return meter.create_counter(metric.name, metric.unit, metric.meaning)


def observed_counter(meter: Meter, metric: Metric, read: Callable[[], Samples]) -> None:
    """A counter whose numbers are kept elsewhere; `read` runs at each collection, on any thread."""
    meter.create_observable_counter(metric.name, [_observer(metric, read)], metric.unit, metric.meaning)


def observed_gauge(meter: Meter, metric: Metric, read: Callable[[], Samples]) -> None:
    """A gauge; `read` runs at each collection, on any thread."""
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

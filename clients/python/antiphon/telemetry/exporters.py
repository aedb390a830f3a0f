"""Where spans and metrics go: a collector, the console, a scrape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from prometheus_client import CollectorRegistry

from antiphon.telemetry import otlp
from antiphon.telemetry.distributions import Distributions
from antiphon.telemetry.errors import TelemetryError

MOST_SPANS: Final = 2048
"""Spans that wait for a collector; OTEL_BSP_MAX_QUEUE_SIZE sets another number."""

BATCH: Final = 512
"""Spans in one request; OTEL_BSP_MAX_EXPORT_BATCH_SIZE sets another number."""

_HTTP: Final = "http/protobuf"
_HISTOGRAMS: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_EXPLICIT: Final = "explicit_bucket_histogram"


@dataclass
class Drops:
    """Spans that no collector got."""

    count: int = 0


def span_processor(environ: Mapping[str, str], drops: Drops) -> SpanProcessor | None:
    """What OTEL_TRACES_EXPORTER asks for; None, as by default, for no traces. Raises `TelemetryError`."""
    name = _one_of(environ, "OTEL_TRACES_EXPORTER", "none", ("otlp", "console", "none"))
    match name:
        case "otlp":
            _check_protocol(environ, "TRACES")
            return _bounded(environ, otlp.SpanExporter(), drops)
        case "console":
            return _bounded(environ, ConsoleSpanExporter(), drops)
    return None


def metric_readers(
    environ: Mapping[str, str], registry: CollectorRegistry, distributions: Distributions
) -> Sequence[MetricReader]:
    """What OTEL_METRICS_EXPORTER asks for, by default a scrape of `registry`. Raises `TelemetryError`."""
    known = ("otlp", "console", "prometheus", "none")
    match _one_of(environ, "OTEL_METRICS_EXPORTER", "prometheus", known):
        case "otlp":
            _check_protocol(environ, "METRICS")
            _one_of(environ, _HISTOGRAMS, _EXPLICIT, (_EXPLICIT,))
            return [PeriodicReader(OTLPMetricExporter(), distributions)]
        case "console":
            return [PeriodicReader(ConsoleMetricExporter(), distributions)]
        case "prometheus":
            return [ScrapedReader(registry, distributions)]
    return []


class PeriodicReader(PeriodicExportingMetricReader):
    """Exports what the library collects and the `distributions`."""

    def __init__(self, exporter: MetricExporter, distributions: Distributions) -> None:
        self._distributions = distributions
        preferred = exporter._preferred_temporality or {}
        self._temporality = preferred.get(Histogram, AggregationTemporality.CUMULATIVE)
        super().__init__(exporter)

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        both = self._distributions.beside(metrics_data, self._temporality)
        super()._receive_metrics(both, timeout_millis, **kwargs)


class ScrapedReader(PrometheusMetricReader):
    """Has what the library collects and the `distributions` on the page of `registry`."""

    def __init__(self, registry: CollectorRegistry, distributions: Distributions) -> None:
        self._distributions = distributions
        super().__init__(disable_target_info=True, scope_info_enabled=False, registry=registry)

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        both = self._distributions.beside(metrics_data, AggregationTemporality.CUMULATIVE)
        super()._receive_metrics(both, timeout_millis, **kwargs)


def _one_of(environ: Mapping[str, str], variable: str, default: str, known: tuple[str, ...]) -> str:
    value = environ.get(variable, "").strip().lower() or default
    if value not in known:
        raise TelemetryError(f"{variable} is {value!r}: set it to one of {', '.join(known)}.")
    return value


def _check_protocol(environ: Mapping[str, str], signal: str) -> None:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = environ.get(variable, "").strip().lower()
        if value and value != _HTTP:
            raise TelemetryError(
                f"{variable} is {value!r}, and only {_HTTP} is spoken here: set it to that, and the endpoint "
                "to the collector's port for HTTP (4318)."
            )
        if value:
            return


def _bounded(environ: Mapping[str, str], exporter: SpanExporter, drops: Drops) -> "BoundedProcessor":
    most = _whole(environ, "OTEL_BSP_MAX_QUEUE_SIZE", MOST_SPANS)
    return BoundedProcessor(exporter, drops, most, _whole(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH))


def _whole(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "").strip() or str(default)
    if not text.isdecimal() or not int(text):
        raise TelemetryError(f"{variable} is {text!r}: set it to a whole number above 0.")
    return int(text)


class BoundedProcessor(SpanProcessor):
    """Hands spans in batches to an exporter, on another thread; those beyond `most` it drops and counts.

    The library's own processor tells nobody how many it drops.
    """

    def __init__(self, exporter: SpanExporter, drops: Drops, most: int, batch: int = BATCH) -> None:
        self._drops = drops
        self._most = most
        self._accepted = 0
        self._taken = _Taken(exporter, drops)
        self._batches = BatchSpanProcessor(
            self._taken, max_queue_size=most, max_export_batch_size=min(most, batch)
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is due before a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues it, if it is sampled and there is room."""
        if not span.context.trace_flags.sampled:
            return
        if self._accepted - self._taken.count >= self._most:
            self._drops.count += 1
            return
        self._accepted += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Exports what is left, however long that takes."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Exports what waits."""
        return self._batches.force_flush(timeout_millis)


class _Taken(SpanExporter):
    """Counts what an exporter was handed, and what it failed at."""

    def __init__(self, exporter: SpanExporter, drops: Drops) -> None:
        self.count = 0
        self._exporter = exporter
        self._drops = drops

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._drops.count += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

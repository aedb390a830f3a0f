"""Exporters of spans and metrics: OTLP over HTTP, the console, a Prometheus page."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricReader,
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

from antiphon_service.telemetry.errors import TelemetryError

MOST_SPANS: Final = 2048
"""Default bound of the span queue; OTEL_BSP_MAX_QUEUE_SIZE overrides it."""

BATCH: Final = 512
"""Default number of spans in one export request; OTEL_BSP_MAX_EXPORT_BATCH_SIZE overrides it."""

_HTTP: Final = "http/protobuf"


@dataclass
class Drops:
    """The number of sampled spans that reached no collector."""

    count: int = 0


def span_processor(environ: Mapping[str, str], drops: Drops) -> SpanProcessor | None:
    """Return the batch processor for OTEL_TRACES_EXPORTER, None for `none`, the default.

    Raises `TelemetryError` for a value that cannot be used.
    """
    name = _one_of(environ, "OTEL_TRACES_EXPORTER", "none", ("otlp", "console", "none"))
    match name:
        case "otlp":
            _check_protocol(environ, "TRACES")
            return _bounded(environ, OTLPSpanExporter(), drops)
        case "console":
            return _bounded(environ, ConsoleSpanExporter(), drops)
    return None


def metric_readers(environ: Mapping[str, str], registry: CollectorRegistry) -> Sequence[MetricReader]:
    """Return the readers for OTEL_METRICS_EXPORTER; the default, `prometheus`, collects into `registry`.

    Raises `TelemetryError` for a value that cannot be used.
    """
    known = ("otlp", "console", "prometheus", "none")
    match _one_of(environ, "OTEL_METRICS_EXPORTER", "prometheus", known):
        case "otlp":
            _check_protocol(environ, "METRICS")
            return [PeriodicExportingMetricReader(OTLPMetricExporter())]
        case "console":
            return [PeriodicExportingMetricReader(ConsoleMetricExporter())]
        case "prometheus":
            return [PrometheusMetricReader(True, scope_info_enabled=False, registry=registry)]
    return []


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
                f"{variable} is {value!r}, but only {_HTTP} is supported: set it to that, and the endpoint "
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
    """The SDK's `BatchSpanProcessor`, with a count of the spans that it drops.

    The SDK's queue drops spans and does not report their number. So this processor drops a span itself when
    that queue would be full. `drops` counts these spans and those of failed exports.
    """

    def __init__(self, exporter: SpanExporter, drops: Drops, most: int, batch: int = BATCH) -> None:
        self._drops = drops
        self._most = most
        self._accepted = 0
        self._lock = threading.Lock()
        self._counting = _CountingExporter(exporter, drops)
        self._batches = BatchSpanProcessor(
            self._counting, max_queue_size=most, max_export_batch_size=min(most, batch)
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing; spans are exported when they end."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or count it as dropped if the queue is full."""
        if not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self._accepted - self._counting.taken >= self._most:
                self._drops.count += 1
                return
            self._accepted += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Export the queued spans, then shut the exporter down; wait for both."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export the queued spans now."""
        return self._batches.force_flush(timeout_millis)


class _CountingExporter(SpanExporter):
    """An exporter that counts the spans it took from the queue and those it failed to export."""

    def __init__(self, exporter: SpanExporter, drops: Drops) -> None:
        self.taken = 0
        self._exporter = exporter
        self._drops = drops

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
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

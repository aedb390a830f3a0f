"""Tests of the effect of the `OTEL_*` variables on a process."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon_service import semconv
from antiphon_service.telemetry.errors import TelemetryError
from antiphon_service.telemetry.exporters import BoundedProcessor, Drops
from antiphon_service.telemetry.instruments import Histogram, observed_counter, observed_gauge
from antiphon_service.telemetry.limits import SPAN_LIMITS
from antiphon_service.telemetry.providers import FLUSH_S, start
from tests.support.patience import PATIENCE_S

DEADLINE_S = 10.0


def recorded(environ: dict[str, str], count: int = 1) -> tuple[int, int]:
    """Of `count` spans, how many the two tracers record."""
    memory = InMemorySpanExporter()
    telemetry = start("here", environ, span_exporters=[memory])
    for _ in range(count):
        telemetry.tracer.start_span("by the sampler").end()
    sampled = len(memory.get_finished_spans())
    for _ in range(count):
        telemetry.always.start_span("always").end()
    return sampled, len(memory.get_finished_spans()) - sampled


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("", "", 10),
        ("always_off", "", 0),
        ("always_on", "", 10),
        ("parentbased_always_off", "", 0),
        ("traceidratio", "0", 0),
        ("parentbased_traceidratio", "1", 10),
    ],
)
def test_tracer_follows_the_sampler_and_always_ignores_it(sampler: str, argument: str, expected: int) -> None:
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert recorded(environ, 10) == (expected, 10)


def test_defaults_are_no_traces_scraped_metrics_and_no_global_providers() -> None:
    telemetry = start("here", {})
    assert not telemetry.tracer.start_span("x").is_recording()
    assert not telemetry.always.start_span("x").is_recording()
    assert b"antiphon_telemetry_dropped_total 0.0" in telemetry.exposition()
    start("here", {}, span_exporters=[InMemorySpanExporter()])
    assert not trace.get_tracer_provider().get_tracer("x").start_span("x").is_recording()
    assert type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"


def test_resource_names_the_service_and_a_disabled_sdk_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=another")
    memory = InMemorySpanExporter()
    start("antiphon-adapter", span_exporters=[memory]).always.start_span("x").end()
    (span,) = memory.get_finished_spans()
    assert span.resource.attributes["service.name"] == "antiphon-adapter"
    assert span.resource.attributes["deployment.environment"] == "test"
    memory = InMemorySpanExporter()
    telemetry = start("here", {"OTEL_SDK_DISABLED": "true"}, span_exporters=[memory])
    telemetry.always.start_span("x").end()
    Histogram(telemetry.meter, semconv.UNIT).record(1.0, "chat", "turn")
    assert memory.get_finished_spans() == ()
    assert telemetry.exposition() == b""
    telemetry.shutdown()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_METRICS_EXPORTER", "statsd"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        *((variable, value) for variable in SPAN_LIMITS for value in ("many", "-1", "1.5")),
        *(("OTEL_TRACES_SAMPLER_ARG", share) for share in ("often", "-1", "1.5", "nan")),
    ],
)
def test_unusable_variable_is_named(variable: str, value: str) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", variable: value}
    hint = "from 0 to 1" if variable.endswith("_ARG") else "set it to"
    with pytest.raises(TelemetryError, match=f"{variable} is '{value}'.*{hint}"):
        start("here", environ)


@pytest.mark.parametrize("tracer", ["tracer", "always"])
def test_span_limits_hold_for_both_tracers(tracer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"SPAN_ATTRIBUTE_COUNT": "2", "SPAN_EVENT_COUNT": "3", "SPAN_LINK_COUNT": "1"}
    limits |= {"EVENT_ATTRIBUTE_COUNT": "1", "ATTRIBUTE_VALUE_LENGTH": "4", "ATTRIBUTE_COUNT": ""}
    for name, value in limits.items():
        monkeypatch.setenv(f"OTEL_{name}_LIMIT", value)
    memory = InMemorySpanExporter()
    telemetry = start("here", span_exporters=[memory])
    links = [trace.Link(trace.SpanContext(1, number, is_remote=True)) for number in (1, 2, 3)]
    attributes = {"a": "123456", "b": 2, "d": 4, "c": "123456"}
    span = getattr(telemetry, tracer).start_span("x", attributes=attributes, links=links)
    for number in range(10):
        span.add_event(str(number), {"one": 1, "two": 2})
    span.end()

    (told,) = memory.get_finished_spans()
    assert dict(told.attributes or {}) == {"d": 4, "c": "1234"}
    assert told.dropped_attributes == 2
    assert [event.name for event in told.events] == ["7", "8", "9"]
    assert told.dropped_events == 7
    assert all(len(event.attributes or {}) == 1 for event in told.events)
    assert [link.context.span_id for link in told.links] == [3]
    assert told.dropped_links == 2


def test_exponential_histograms_are_exported_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[ExportMetricsServiceRequest] = []

    def take(handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        requests.append(ExportMetricsServiceRequest.FromString(body))
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    variable = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    monkeypatch.setenv(variable, "base2_exponential_bucket_histogram")
    with collector(take) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        telemetry = start("here", {"OTEL_METRICS_EXPORTER": "otlp"})
        Histogram(telemetry.meter, semconv.UNIT).record(0.2, "chat", "turn")
        telemetry.shutdown()

    exported = [
        metric.WhichOneof("data")
        for request in requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == semconv.UNIT.name
    ]
    assert exported == ["exponential_histogram"]


@contextmanager
def collector(answer: Callable[[http.server.BaseHTTPRequestHandler], object]) -> Iterator[str]:
    """The endpoint of a collector on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Write nothing to standard error."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_instruments_match_their_declarations() -> None:
    telemetry = start("here", {})
    Histogram(telemetry.meter, semconv.ADAPTER_OVERHEAD).record(0.0007)
    Histogram(telemetry.meter, semconv.UNIT).recorder("chat", "turn")(0.2)
    observed_counter(telemetry.meter, semconv.ERRORS, lambda: [(("x", semconv.Side.CLIENT), 2)])
    observed_counter(telemetry.meter, semconv.UNITS, lambda: [(("chat", "turn"), 3)])
    observed_gauge(telemetry.meter, semconv.SLOTS, lambda: [((semconv.SlotState.FREE,), 4)])
    page = telemetry.exposition().decode()

    bounds = [f'antiphon_adapter_overhead_seconds_bucket{{le="{b}"}}' for b in semconv.OVERHEAD_SECONDS]
    assert all(bound in page for bound in bounds)
    assert 'antiphon_unit_seconds_bucket{end="turn",le="0.2",mode="chat"} 1.0' in page
    assert 'antiphon_unit_seconds_bucket{end="turn",le="0.1",mode="chat"} 0.0' in page
    assert 'antiphon_errors_total{code="x",side="client"} 2.0' in page
    assert 'antiphon_units_total{end="turn",mode="chat"} 3.0' in page
    assert 'antiphon_slots{state="free"} 4.0' in page


def test_names_of_metrics_are_those_of_their_series() -> None:
    for metric in semconv.METRICS:
        assert metric.name.startswith("antiphon_")
        assert bool(metric.buckets) == ("histogram" in _kind(metric)), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
    assert len({metric.name for metric in semconv.METRICS}) == len(semconv.METRICS)


def _kind(metric: semconv.Metric) -> str:
    telemetry = start("here", {})
    labels = ("x",) * len(metric.labels)
    if metric.buckets:
        Histogram(telemetry.meter, metric).record(1.0, *labels)
    elif metric.name.endswith("_total"):
        observed_counter(telemetry.meter, metric, lambda: [(labels, 1)])
    else:
        observed_gauge(telemetry.meter, metric, lambda: [(labels, 1)])
    types = [line for line in telemetry.exposition().decode().splitlines() if f"TYPE {metric.name} " in line]
    assert len(types) == 1, metric.name
    return types[0]


class Stuck(SpanExporter):
    """Holds the first batch until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        self.may_go_on.wait(DEADLINE_S)
        self.exported += len(spans)
        return SpanExportResult.SUCCESS


def _provider(processor: BoundedProcessor) -> trace.Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider.get_tracer("x")


def test_spans_beyond_the_bound_are_dropped_and_counted() -> None:
    exporter, drops = Stuck(), Drops()
    processor = BoundedProcessor(exporter, drops, most=16)
    tracer = _provider(processor)
    for _ in range(16):
        tracer.start_span("first").end()
    assert exporter.began.wait(DEADLINE_S)
    for _ in range(100):
        tracer.start_span("then").end()
    assert drops.count == 84
    exporter.may_go_on.set()
    processor.shutdown()
    assert exporter.exported == 32


def test_spans_that_could_not_be_exported_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, drops = InMemorySpanExporter(), Drops()
    monkeypatch.setattr(exporter, "export", lambda spans: SpanExportResult.FAILURE)
    processor = BoundedProcessor(exporter, drops, most=16)
    for _ in range(3):
        _provider(processor).start_span("x").end()
    processor.shutdown()
    assert drops.count == 3


def test_shutdown_waits_only_briefly_for_an_unresponsive_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    with collector(lambda _: over.wait(10 * DEADLINE_S)) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        telemetry = start("here", {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"})
        telemetry.always.start_span("x").end()
        ending = threading.Thread(target=telemetry.shutdown, daemon=True)
        ending.start()
        ending.join(FLUSH_S + DEADLINE_S)
        over.set()
    assert not ending.is_alive()


def test_client_sdk_ignores_the_variables() -> None:
    code = "import antiphon, sys; assert 'opentelemetry' not in sys.modules"
    environ = {**os.environ, "OTEL_SDK_DISABLED": "true", "OTEL_TRACES_SAMPLER": "nonsense"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0

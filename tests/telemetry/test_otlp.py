"""Requests to a collector, held against the library's."""

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from antiphon.telemetry import otlp
from antiphon.telemetry.otlp import SpanExporter, encoded
from benchmarks.tracing.collector import Collector
from tests.telemetry.tracers import library, own

FLAGS = TraceFlags(1)
FAR = SpanContext(2**100, 2**50, is_remote=True, trace_flags=FLAGS)
NEAR = SpanContext(2**100, 2**50, is_remote=False, trace_flags=FLAGS)
STATED = SpanContext(1, 2, is_remote=True, trace_flags=FLAGS, trace_state=TraceState([("a", "b")]))

VALUES: Sequence[AttributeValue] = (
    "x",
    "",
    3,
    0,
    -1,
    2**62,
    True,
    False,
    1,
    1.0,
    0.5,
    ["a", "b"],
    (1, 2),
    [True],
    (),
)


def under(above: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(above), Context())


def spans_of_all_sorts(tracer: Tracer) -> None:
    tracer.start_span("bare", Context()).end()
    for kind in SpanKind:
        tracer.start_span("kind", under(NEAR), kind, start_time=10).end(20)
    for above in (FAR, STATED):
        tracer.start_span("below", under(above), attributes={"number": 1}).end()
    for value in VALUES * 2:
        tracer.start_span("value", Context(), attributes={"value": value, "other": "ä"}).end()
    for links in [Link(FAR, {"why": 1})], [Link(FAR), Link(NEAR)], [Link(STATED)]:
        tracer.start_span("linked", Context(), links=links).end()
    for status in (Status(StatusCode.OK), Status(StatusCode.ERROR, "why")):
        span = tracer.start_span("over", Context())
        span.set_status(status)
        span.end()
    span = tracer.start_span("eventful", Context())
    span.add_event("first", timestamp=5)
    span.add_event("second")
    span.end()
    span = tracer.start_span("more eventful", Context())
    span.add_event("first", {"where": "there"})
    span.end()


def same(spans: Sequence[ReadableSpan]) -> bool:
    return ExportTraceServiceRequest.FromString(encoded(spans)) == encode_spans(spans)


@pytest.mark.parametrize("make", [own, library])
def test_requests_are_those_of_the_library(make: Any) -> None:
    spans_of_all_sorts(make(memory := InMemorySpanExporter()))

    spans = memory.get_finished_spans()
    assert len(spans) == 15 + 2 * len(VALUES)
    assert same(spans)
    for span in spans:
        assert same([span]), span.name


def test_what_was_dropped_is_told() -> None:
    limits = SpanLimits(max_span_attributes=1, max_events=1, max_links=1)
    tracer = library(memory := InMemorySpanExporter(), span_limits=limits)
    tracer.start_span("attributes", Context(), attributes={"a": 1, "b": 2}).end()
    tracer.start_span("links", Context(), links=[Link(FAR), Link(NEAR)]).end()
    with tracer.start_as_current_span("events", Context()) as span:
        span.add_event("first")
        span.add_event("second")

    assert same(memory.get_finished_spans())


def test_no_more_is_remembered_than_is_told() -> None:
    tracer = own(memory := InMemorySpanExporter())
    for number in range(otlp.REMEMBERED + 10):
        tracer.start_span("unit", Context(), attributes={"number": number}).end()

    assert same(memory.get_finished_spans())
    assert otlp._remembered.cache_info().currsize == otlp.REMEMBERED


def test_a_collector_gets_them_until_the_end() -> None:
    spans_of_all_sorts(own(memory := InMemorySpanExporter()))
    spans = memory.get_finished_spans()
    with Collector() as collector:
        exporter = SpanExporter(f"{collector.endpoint}/v1/traces")
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        assert collector.raw == encoded(spans)
        exporter.shutdown()
        assert exporter.export(spans) is SpanExportResult.FAILURE
        assert len(list(collector.spans())) == len(spans)


def test_what_a_collector_refuses_is_a_failure() -> None:
    tracer = own(memory := InMemorySpanExporter())
    tracer.start_span("unit", Context()).end()
    with Collector() as collector:
        exporter = SpanExporter(f"{collector.endpoint}/elsewhere")
        assert exporter.export(memory.get_finished_spans()) is SpanExportResult.FAILURE

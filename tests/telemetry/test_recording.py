"""Spans that are made past the library, held against those it makes."""

from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from tests.telemetry.tracers import library, own

FAR = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "b")]))


def of_everything(tracer: Tracer) -> None:
    """A span with all that a span may have, and what comes too late."""
    context = set_span_in_context(NonRecordingSpan(FAR), Context())
    link = Link(SpanContext(3, 4, is_remote=False), {"why": "first"})
    attributes = {"text": "x", "number": 3, "share": 0.5, "is": True, "all": ["a", "b"]}
    span = tracer.start_span("a unit", context, SpanKind.SERVER, attributes, [link], start_time=10)
    assert span.is_recording()
    span.set_attribute("text", "y")
    span.set_attributes({"more": 1, "number": 4})
    span.add_event("seen", {"where": "there"}, 15)
    span.add_event("heard", timestamp=16)
    span.add_link(SpanContext(5, 6, is_remote=True), {"why": "second"})
    span.add_link(SpanContext(7, 8, is_remote=True))
    span.set_status(StatusCode.ERROR)
    span.update_name("a turn")
    span.end(20)
    assert not span.is_recording()
    late: list[Callable[[], Any]] = [
        lambda: span.set_attribute("late", 1),
        lambda: span.set_attributes({"late": 1}),
        lambda: span.add_event("late"),
        lambda: span.add_link(FAR),
        lambda: span.set_status(Status(StatusCode.OK)),
        lambda: span.update_name("late"),
        lambda: span.end(30),
    ]
    for too_late in late:
        too_late()


def exported(make: Callable[[InMemorySpanExporter], Tracer]) -> str:
    """What a collector is told, but for the id of the span and the order of its attributes."""
    memory = InMemorySpanExporter()
    of_everything(make(memory))
    told = encode_spans(memory.get_finished_spans())
    ((scope,),) = (told.resource_spans[0].scope_spans,)
    (span,) = scope.spans
    assert len(span.span_id) == 8
    assert any(span.span_id)
    span.span_id = b""
    span.attributes.sort(key=lambda attribute: attribute.key)
    return str(told)


def test_collector_is_told_what_the_library_would_tell() -> None:
    assert exported(own) == exported(library)


def ids(span: Span) -> tuple[int, int]:
    context = span.get_span_context()
    assert context.is_valid
    assert context.trace_flags.sampled
    return context.trace_id, context.span_id


def test_roots_have_traces_of_their_own_and_children_that_of_their_parent() -> None:
    tracer = own(InMemorySpanExporter())
    roots = [tracer.start_span("root", Context()) for _ in range(100)]
    with tracer.start_as_current_span("parent") as parent:
        child = tracer.start_span("child")

    assert len({number for root in roots for number in ids(root)}) == 200
    assert ids(child)[0] == ids(parent)[0]
    assert not parent.is_recording()
    assert child.is_recording()


def test_of_an_exception_only_its_type_is_told() -> None:
    memory = InMemorySpanExporter()
    span = own(memory).start_span("x", Context())
    span.record_exception(ValueError("what a user said"))
    span.end()

    (told,) = memory.get_finished_spans()
    assert [dict(event.attributes or {}) for event in told.events] == [{"exception.type": "ValueError"}]

"""Tracers of the library and of ours, whose spans are kept."""

from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from antiphon.telemetry.recording import RecordingTracer

RESOURCE: Final = Resource({"service.name": "here"})
SCOPE: Final = "antiphon"


def library(memory: InMemorySpanExporter, **given: Any) -> Tracer:
    """The library's, made with what is `given`."""
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False, **given)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return provider.get_tracer(SCOPE)


def own(memory: InMemorySpanExporter) -> Tracer:
    """Ours."""
    tracer = RecordingTracer(RESOURCE, SCOPE)
    tracer.span_processor.add_span_processor(SimpleSpanProcessor(memory))
    return tracer

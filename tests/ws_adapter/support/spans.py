"""Spans of an adapter under test, as they are exported, and whether any is still open."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, Tracer
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon_service.semconv import SERVICE_ADAPTER
from antiphon_service.telemetry.providers import start


class _Open(SpanProcessor):
    def __init__(self) -> None:
        self.spans: set[int] = set()
        self.started = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.started += 1
        self.spans.add(span.context.span_id)

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.discard(span.context.span_id)


class Traced:
    """Telemetry that keeps what it is given; `environ` are variables `OTEL_*`."""

    def __init__(self, **environ: str) -> None:
        self._memory = InMemorySpanExporter()
        self._open = _Open()
        self.telemetry = start(SERVICE_ADAPTER, environ, span_exporters=[self._memory])
        for tracer in (self.telemetry.tracer, self.telemetry.always):
            assert isinstance(tracer, Tracer)
            tracer.span_processor.add_span_processor(self._open)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended, in order of their end."""
        return self._memory.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    @property
    def started(self) -> int:
        return self._open.started

    @property
    def still_open(self) -> int:
        """Spans that have begun and not ended."""
        return len(self._open.spans)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> set[int]:
    """Ids of the spans that `span` links to."""
    return {link.context.span_id for link in span.links}


def everything(spans: Sequence[ReadableSpan]) -> str:
    """All text in them."""
    return "\n".join(span.to_json() for span in spans)

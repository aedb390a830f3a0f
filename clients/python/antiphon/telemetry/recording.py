"""Spans that cost little to make, for those whose recording is already decided.

A span of OpenTelemetry's own takes about 80 us: it asks a sampler, counts limits, and cleans, locks and
copies what it is given. Here it is a record, which becomes one of the library's when it ends. Callers bound
what they put into it, and there is no sampler to ask.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SynchronousMultiSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    get_current_span,
    use_span,
)
from opentelemetry.util.types import Attributes, AttributeValue

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class RecordingTracer(Tracer):
    """Records every span that it is asked for; a root has a trace of its own."""

    def __init__(self, resource: Resource, scope: str) -> None:
        self.span_processor = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
        """What hears of each span."""
        self._resource = resource
        self._scope = InstrumentationScope(scope)

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> "RecordingSpan":
        """See `Tracer.start_span`."""
        above = get_current_span(context).get_span_context()
        parent = above if above.is_valid else None
        own = SpanContext(
            parent.trace_id if parent is not None else random.getrandbits(128) or 1,
            random.getrandbits(64) or 1,
            is_remote=False,
            trace_flags=_SAMPLED,
            trace_state=parent.trace_state if parent is not None else None,
        )
        begin = time.time_ns() if start_time is None else start_time
        span = RecordingSpan(self, name, own, parent, kind, attributes, links, begin)
        self.span_processor.on_start(span)  # type: ignore[arg-type]
        return span

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *args: Any, end_on_exit: bool = True, **kwargs: Any
    ) -> Iterator[Span]:
        """See `Tracer.start_as_current_span`."""
        with use_span(self.start_span(name, *args, **kwargs), end_on_exit=end_on_exit) as span:
            yield span

    def ended(self, span: "RecordingSpan", end: int) -> None:
        """A span is over, at `end` ns of Unix time."""
        self.span_processor.on_end(
            ReadableSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=span.attributes,
                events=span.events,
                links=span.links,
                kind=span.kind,
                status=span.status,
                start_time=span.start_time,
                end_time=end,
                instrumentation_scope=self._scope,
            )
        )


class RecordingSpan(Span):
    """See `Span`; what comes after its end is passed over."""

    def __init__(
        self,
        tracer: RecordingTracer,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] | None,
        start_time: int,
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.attributes: dict[str, AttributeValue] = dict(attributes or {})
        self.events: list[Event] = []
        self.links: list[Link] = list(links or ())
        self.status = _UNSET
        self.start_time = start_time
        self._tracer: RecordingTracer | None = tracer

    def end(self, end_time: int | None = None) -> None:
        """Hands it on, once."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.ended(self, time.time_ns() if end_time is None else end_time)

    def get_span_context(self) -> SpanContext:
        """See `Span`."""
        return self.context

    def is_recording(self) -> bool:
        """See `Span`."""
        return self._tracer is not None

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.attributes.update(attributes)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.attributes[key] = value

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.events.append(Event(name, attributes or {}, timestamp))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.links.append(Link(context, attributes or {}))

    def update_name(self, name: str) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """See `Span`."""
        if self._tracer is not None:
            self.status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Says of what type it was, and no more: what it says may be a user's."""
        self.add_event("exception", {"exception.type": type(exception).__qualname__}, timestamp)

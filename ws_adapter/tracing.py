"""Trace contexts that travel with a session and with each of its units (W3C Trace Context)."""

import secrets

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_propagator = TraceContextTextMapPropagator()


class SessionTrace:
    """The trace of one session. What the client brings is not continued: it is not trusted."""

    def __init__(self) -> None:
        self._trace_id = secrets.randbits(128) or 1
        self.traceparent = self._context()

    def unit(self) -> str:
        """The `traceparent` of a unit: a span of its own in the session's trace."""
        return self._context()

    def _context(self) -> str:
        span = SpanContext(self._trace_id, secrets.randbits(64) or 1, False, TraceFlags.get_default())
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(NonRecordingSpan(span), Context()))
        return carrier["traceparent"]

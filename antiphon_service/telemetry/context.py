"""W3C trace context as text, for headers, metadata and messages."""

from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon.contract import METADATA_TRACEPARENT, METADATA_TRACESTATE

_propagator = TraceContextTextMapPropagator()


def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Return the remote span that a `traceparent` names; None without one, or if it is malformed.

    A malformed `tracestate` is left out.
    """
    if not traceparent:
        return None
    carrier = {METADATA_TRACEPARENT: traceparent}
    if tracestate:
        carrier[METADATA_TRACESTATE] = tracestate
    context = get_current_span(_propagator.extract(carrier)).get_span_context()
    return context if context.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """Return the `traceparent` that names a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"

"""Trace contexts that travel with a session and with each of its units (W3C Trace Context)."""

import secrets

from opentelemetry.trace import format_span_id, format_trace_id


class SessionTrace:
    """The trace of one session. What the client brings is not continued: it is not trusted."""

    def __init__(self) -> None:
        self._trace_id = secrets.randbits(128) or 1
        self.traceparent = self._context()

    def unit(self) -> str:
        """The `traceparent` of a unit: a span of its own in the session's trace."""
        return self._context()

    def _context(self) -> str:
        span_id = secrets.randbits(64) or 1
        return f"00-{format_trace_id(self._trace_id)}-{format_span_id(span_id)}-00"

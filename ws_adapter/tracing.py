"""Trace contexts that travel with a session and with each of its units (W3C Trace Context)."""

import random
import secrets

from opentelemetry.trace import format_trace_id


class SessionTrace:
    """The trace of one session. What the client brings is not continued: it is not trusted."""

    def __init__(self) -> None:
        self._trace_id = format_trace_id(secrets.randbits(128) or 1)
        self.traceparent = self.unit()

    def unit(self) -> str:
        """The `traceparent` of a unit: a span of its own in the session's trace."""
        # Nobody gains by guessing it, and it is drawn for every unit.
        return f"00-{self._trace_id}-{random.getrandbits(64) or 1:016x}-00"

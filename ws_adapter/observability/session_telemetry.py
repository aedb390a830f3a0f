"""What is seen of a session: its spans, its share of the figures, its lines in the log.

Nothing that was said, typed or sent is among it.
"""

import logging
from collections.abc import Callable
from typing import Final

from antiphon import semconv
from antiphon.semconv import DropReason, SlowAction
from antiphon.telemetry.context import parse_traceparent
from antiphon.telemetry.logs import SessionFields
from ws_adapter.observability.leases import Leases
from ws_adapter.observability.metrics import Metrics, known_reason
from ws_adapter.observability.tracing import SessionTrace
from ws_adapter.observability.unit_telemetry import TurnTelemetry
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.answers import Answer
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.errors import BACKEND_ERROR, ErrorCode
from ws_adapter.protocol.wire.events import Fault

logger = logging.getLogger(__name__)

_SERVERS: Final = frozenset(code for code in ErrorCode if code.is_servers)
_FULL: Final = frozenset(
    {
        ErrorCode.QUEUE_FULL,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.SERVICE_UNAVAILABLE,
        ErrorCode.WORKER_BUSY,
    }
)
"""What crowds are told: as warnings these collapse in the log."""

_TOTALS: Final = {
    "reason": semconv.ATTR_CLOSE_REASON,
    "close_code": semconv.ATTR_CLOSE_CODE,
    "seconds": semconv.ATTR_SESSION_SECONDS,
    "units": semconv.ATTR_SESSION_UNITS,
    "turns": semconv.ATTR_SESSION_TURNS,
    "dropped": semconv.ATTR_SESSION_DROPPED,
    "input_tokens": semconv.ATTR_GEN_AI_INPUT_TOKENS,
    "output_tokens": semconv.ATTR_GEN_AI_OUTPUT_TOKENS,
}
"""Totals of a session: in the log, and on its last span."""


class SessionTelemetry:
    """Of one session, from its opening to its end."""

    def __init__(
        self,
        metrics: Metrics,
        leases: Leases,
        trace: SessionTrace,
        fields: SessionFields,
        kind: Kind,
        dialect: str,
        clock: Clock,
        takes_line: Callable[[], bool],
    ) -> None:
        """`fields` are what each of its lines carries; `clock` is the session's. `takes_line` counts what the
        log says of the client, and says no once that is too much."""
        self.metrics = metrics
        self.leases = leases
        self.trace = trace
        self.fields = fields
        self.kind = kind
        self.clock = clock
        self._takes_line = takes_line
        self.turns = TurnTelemetry(metrics, trace, kind, dialect)
        self._began_at = clock.now()
        self._dropped = 0
        self._failure = ""
        metrics.active[kind] += 1
        logger.info("session opened", extra={"mode": kind.value, "dialect": dialect})

    @property
    def trace_id(self) -> str:
        """What finds the session in traces and in the log."""
        return self.trace.upgrade.trace_id

    def told(self, fault: Fault) -> None:
        """The client is told of an error."""
        self.metrics.failed(fault.code, is_servers=fault.is_servers)
        self._failure = fault.code if fault.is_servers else ""
        if not fault.is_servers:
            self.trace.refused(fault.code)
        level = logging.ERROR if fault.is_servers else logging.INFO
        if fault.code in _FULL:
            level = logging.WARNING
        if level > logging.INFO or self._takes_line():
            logger.log(level, "the client is told of an error", extra={"code": fault.code})

    def noted(self, text: str) -> None:
        """There is something to say of the client, in words of ours."""
        if self._takes_line():
            logger.info("the client has a diagnostic", extra={"diagnostic": text})

    def answered(self, answer: Answer) -> None:
        """A unit of a full-duplex session is answered; the answer knows how many were dropped so far."""
        if answer.dropped_total != self._dropped:
            self.metrics.dropped[self.kind, DropReason.STALE] += answer.dropped_total - self._dropped
            self._dropped = answer.dropped_total

    def congested(self) -> None:
        """So much output waits that no units are run."""
        self.metrics.slow_consumers[SlowAction.PAUSED] += 1

    def stalled(self) -> None:
        """The client does not read, and is closed."""
        self.metrics.slow_consumers[SlowAction.CLOSED] += 1

    def client_context(self, traceparent: str | None, tracestate: str | None) -> None:
        """The client says in an event what it is doing: the span that is open, or the next, links to it."""
        context = parse_traceparent(traceparent, tracestate)
        if context is None:
            self.metrics.invalid_trace_contexts += 1
        else:
            self.trace.relate(context)

    def ended(self, reason: str, close: int | None) -> None:
        """The session is over: the last thing to be told."""
        reason = known_reason(reason)
        now = self.clock.now()
        seconds = now - self._began_at
        turns = self.turns
        turns.end(now)
        self.metrics.ended(self.kind, reason, seconds)
        failure = reason if reason in _SERVERS else self._failure if reason == BACKEND_ERROR else ""
        totals = {
            "reason": reason,
            "close_code": close,
            "seconds": round(seconds, 3),
            "units": turns.units,
            "turns": turns.count,
            "dropped": self._dropped,
            "input_tokens": turns.input_tokens,
            "output_tokens": turns.output_tokens,
        }
        self.trace.end(failure, {_TOTALS[name]: value for name, value in totals.items() if value is not None})
        self.fields.unit = None
        logger.info("session ended", extra=totals)

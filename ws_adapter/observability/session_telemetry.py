"""Telemetry of a session and of its slots: spans, metrics and log lines.

Sessions only report events here, so they behave the same without telemetry. Telemetry never contains content
of a conversation.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from antiphon.contract import Reason
from antiphon_service import semconv
from antiphon_service.pools import STABLE
from antiphon_service.semconv import (
    FailoverOutcome,
    LeaseOutcome,
    QueueOutcome,
    Rejection,
    SlotState,
    SlowAction,
)
from antiphon_service.telemetry.context import parse_traceparent
from antiphon_service.telemetry.logs import SessionFields
from ws_adapter.dispatch.base import Lease
from ws_adapter.observability.leases import LeasedSlot
from ws_adapter.observability.metrics import Metrics, known_reason
from ws_adapter.observability.tracing import SessionTrace
from ws_adapter.observability.unit_telemetry import UnitTelemetry, is_ours
from ws_adapter.process.clock import Clock
from ws_adapter.process.errors import AttachFailed, DispatcherUnavailable, QueueFull, QuotaSpent, WaitExpired
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.wire.errors import BACKEND_ERROR, ErrorCode
from ws_adapter.protocol.wire.events import Fault
from ws_adapter.worker.transport.rpc import Metadata

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
"""Errors of overload, logged as warnings, which the log collapses."""

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
"""Span attributes of the totals in a session's last log line and span."""

OPERATIONS: Final = {
    Kind.AUDIO_DUPLEX: "duplex",
    Kind.OMNI_DUPLEX: "duplex",
    Kind.CHAT: "chat",
    Kind.REALTIME: "chat",
    Kind.TRANSCRIPTION: "transcription",
}
"""Operation names of the semantic conventions for generative AI."""


_WAITS: Final[dict[type[BaseException] | None, QueueOutcome]] = {
    QueueFull: QueueOutcome.FULL,
    QuotaSpent: QueueOutcome.QUOTA,
    WaitExpired: QueueOutcome.EXPIRED,
    DispatcherUnavailable: QueueOutcome.NO_WORKER,
}
"""Outcomes of a wait without a slot; any other exception means that the session gave up."""

_UNSERVED: Final = frozenset({QueueOutcome.FULL, QueueOutcome.EXPIRED, QueueOutcome.NO_WORKER})


_BACKGROUND: Final = "background"
"""The dialect label of background transcription in a conversation."""


class SessionTelemetry:
    """Telemetry of one session, from its opening to its end."""

    def __init__(
        self,
        metrics: Metrics,
        trace: SessionTrace,
        fields: SessionFields,
        kind: Kind,
        dialect: str,
        clock: Clock,
        takes_line: Callable[[], bool],
    ) -> None:
        """`fields` are those of each log line, and `clock` is the session's. `takes_line` counts a log line
        about the client, and returns False beyond the rate limit."""
        self.metrics = metrics
        self.trace = trace
        self.fields = fields
        self.kind = kind
        self.clock = clock
        self._takes_line = takes_line
        self.units = UnitTelemetry(metrics, trace, fields, kind, dialect, clock)
        self._began_at = clock.now()
        self._held: LeasedSlot | None = None
        """The last slot of the session."""
        self._failure = ""
        metrics.active[kind] += 1
        logger.info("session opened", extra={"mode": kind.value, "dialect": dialect})

    def slot(self) -> "SlotTelemetry":
        """Return the telemetry of the session's next slot."""
        return SlotTelemetry(self)

    def error_sent(self, fault: Fault) -> None:
        """Record an error that was sent to the client."""
        self.metrics.failed(fault.code, is_servers=fault.is_servers)
        self._failure = fault.code if fault.is_servers else ""
        if not fault.is_servers:
            self.trace.refused(fault.code)
        level = logging.ERROR if fault.is_servers else logging.INFO
        if fault.code in _FULL:
            level = logging.WARNING
        if level > logging.INFO or self._takes_line():
            logger.log(level, "an error is sent to the client", extra={"code": fault.code})

    def held(self, held: LeasedSlot) -> None:
        """Record the slot that the session got."""
        self._held = held
        self.units.slot = self.metrics.leases.totals_of(held)

    def paused(self, is_paused: bool) -> None:
        """Record that the client pauses or resumes."""
        if self._held is not None:
            self._held.is_paused = is_paused

    def noted(self, text: str) -> None:
        """Log a fixed note about the client."""
        if self._takes_line():
            logger.info("the client has a diagnostic", extra={"diagnostic": text})

    def congested(self) -> None:
        """Record that back-pressure stops the session's units."""
        self.metrics.slow_consumers[SlowAction.PAUSED] += 1

    def stalled(self) -> None:
        """Record that a slow consumer is closed."""
        self.metrics.slow_consumers[SlowAction.CLOSED] += 1

    def failed_over(self, outcome: FailoverOutcome, reason: Reason, seconds: float, units: int) -> None:
        """Record a finished failover that took `seconds`, with `units` in the journal."""
        self.metrics.failovers[outcome] += 1
        is_continued = outcome is FailoverOutcome.CONTINUED
        if is_continued:
            self.metrics.replayed_units += units
        is_failed = not is_continued and outcome is not FailoverOutcome.LEFT
        attributes = {
            semconv.ATTR_OUTCOME: outcome.value,
            semconv.ATTR_REPLAYED: units if is_continued else 0,
        }
        self.trace.failover(seconds, attributes, reason if is_failed else "")
        extra = {
            "outcome": outcome.value,
            "reason": reason.value,
            "seconds": round(seconds, 3),
            "units": units,
        }
        logger.log(
            logging.ERROR if is_failed else logging.INFO, "failover of the session is over", extra=extra
        )

    def client_context(self, traceparent: str | None, tracestate: str | None) -> None:
        """Link the open span, or the next one, to the trace context that the client sent."""
        context = parse_traceparent(traceparent, tracestate)
        if context is None:
            self.metrics.invalid_trace_contexts += 1
        else:
            self.trace.relate(context)

    def ended(self, reason: str, close: int | None) -> None:
        """Record the end of the session; `close` is the WebSocket close code. Call it last."""
        reason = known_reason(reason)
        now = self.clock.now()
        seconds = now - self._began_at
        units = self.units
        units.end(now)
        self.metrics.ended(self.kind, reason, seconds)
        failure = reason if reason in _SERVERS else self._failure if reason == BACKEND_ERROR else ""
        totals = {
            "reason": reason,
            "close_code": close,
            "seconds": round(seconds, 3),
            "units": units.units,
            "turns": units.turns,
            "dropped": units.dropped,
            "input_tokens": units.input_tokens,
            "output_tokens": units.output_tokens,
        }
        self.trace.end(failure, {_TOTALS[name]: value for name, value in totals.items() if value is not None})
        self.fields.unit = None
        logger.info("session ended", extra=totals)


class BackgroundTelemetry:
    """Telemetry of background transcription; its slots and units count as transcription."""

    kind: Final = Kind.TRANSCRIPTION

    def __init__(self, session: SessionTelemetry) -> None:
        self.metrics = session.metrics
        self.clock = session.clock
        self.trace = session.trace.background()
        fields = session.fields
        self.fields = SessionFields(fields.session_id, trace_id=fields.trace_id, span_id=fields.span_id)
        self.units = UnitTelemetry(
            self.metrics, self.trace, self.fields, self.kind, _BACKGROUND, session.clock
        )

    def slot(self) -> "SlotTelemetry":
        """Return the telemetry of the next slot."""
        return SlotTelemetry(self)

    def held(self, held: LeasedSlot) -> None:
        """Record the slot that the transcription got."""
        self.units.slot = self.metrics.leases.totals_of(held)


class SlotTelemetry:
    """Telemetry of one slot, as a context manager from entering the queue until the slot is given back."""

    def __init__(self, session: SessionTelemetry | BackgroundTelemetry) -> None:
        self._session = session
        self._metrics = session.metrics
        self._clock = session.clock
        self._has_kept = False
        """Whether units of a lost worker wait for another worker."""
        self._begin()

    def _begin(self) -> None:
        self._trace = self._session.trace.slot()
        self._queued_at = self._clock.now()
        self._estimate_s: float | None = None
        self._held: LeasedSlot | None = None
        self._revision = ""
        self._lost: Reason | None = None

    def __enter__(self) -> None:
        """Record that the session enters the queue, for the first time or after the loss of a slot."""
        self._begin()
        self._trace.queued()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Record that the worker has cleaned the slot, or that none was granted."""
        if self._held is None:
            outcome = _WAITS.get(kind, QueueOutcome.GAVE_UP)
            self._metrics.waited(self._clock.now() - self._queued_at, outcome)
            is_unserved = outcome in _UNSERVED
            if outcome is QueueOutcome.FULL:
                self._metrics.rejected[Rejection.FULL] += 1
            self._trace.left(outcome, outcome if is_unserved else "", is_ours=is_unserved)
            return
        reason = error.reason if isinstance(error, AttachFailed) else self._lost
        self._close(reason, keeps_units=self._has_kept)
        self._metrics.leases.returned(self._held)
        if reason is None:
            outcome_of_lease = LeaseOutcome.RELEASED
        elif self._held.state is SlotState.GRANTED:
            outcome_of_lease = LeaseOutcome.REFUSED
        else:
            outcome_of_lease = LeaseOutcome.LOST
        self._metrics.lease_outcomes[outcome_of_lease, self._revision or STABLE] += 1

    # ------------------------------------------------------------------- until the session begins

    def moved(self, place: Place) -> None:
        """Record the session's place in the queue."""
        if self._estimate_s is None:
            self._estimate_s = place.estimated_wait_s
        self._trace.moved(place.position, place.queue_length)

    def granted(self, lease: Lease, model: str, revision: str) -> None:
        """Record a granted slot of a worker that runs this revision of `model`."""
        session, now = self._session, self._clock.now()
        self._revision = revision
        waited_s = now - self._queued_at
        self._metrics.waited(waited_s, QueueOutcome.GRANTED)
        if self._estimate_s is not None:
            self._metrics.estimate_error.record(abs(waited_s - self._estimate_s))
        self._trace.left(QueueOutcome.GRANTED)
        self._held = self._metrics.leases.granted(lease, session.kind, now, session.fields.session_id)
        session.held(self._held)
        session.fields.worker_id = lease.worker_id
        host, _, port = lease.target.rpartition(":")
        self._trace.granted(
            {
                semconv.ATTR_WORKER_ID: lease.worker_id,
                semconv.ATTR_SLOT: lease.slot,
                semconv.ATTR_LEASE_EPOCH: lease.epoch,
                semconv.ATTR_GEN_AI_MODEL: model,
                semconv.ATTR_GEN_AI_OPERATION: OPERATIONS[session.kind],
                semconv.ATTR_GEN_AI_PROVIDER: semconv.PROVIDER,
                semconv.ATTR_SERVER_ADDRESS: host.strip("[]") or lease.target,
                **({semconv.ATTR_SERVER_PORT: int(port)} if port.isdecimal() else {}),
            }
        )

    def headers(self) -> Metadata:
        """Return the trace headers of the calls to the worker."""
        return self._trace.headers()

    def attached(self) -> None:
        """Record that the worker has the session."""
        if self._held is not None:
            self._held.state = SlotState.ATTACHED

    def began(self) -> None:
        """Record that the session accepts units."""
        self._has_kept = False
        self._trace.began()

    # ------------------------------------------------------------------------- the end of the slot

    def lost(self, reason: Reason, *, keeps_units: bool = False) -> None:
        """Record that the worker ended the session; with `keeps_units` another worker answers its units."""
        self._lost = reason
        self._close(reason, keeps_units=keeps_units)
        self._has_kept = keeps_units

    def given_up(self) -> None:
        """Record that the session releases the slot, which the worker then cleans."""
        self._close(None)

    def _close(self, reason: Reason | None, *, keeps_units: bool = False) -> None:
        """End every open span, since later units belong to the next slot."""
        self._trace.over(reason or "", is_ours=is_ours(reason))
        has_units = self._has_kept
        if self._held is not None and self._held.state is SlotState.ATTACHED:
            self._held.state = SlotState.CLEANING
            has_units = True
        if has_units and not keeps_units:
            self._has_kept = False
            self._session.units.abandoned(reason)

"""Spans of the adapter: short ones, connected by links and the id of the session.

The sampler decides once, for the first span of a session, whether the session is traced. An untraced session
has a trace id too: the client and the log get it, and the worker gets it with the flags 00.
"""

import random
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from antiphon import contract
from antiphon_service import semconv
from antiphon_service.telemetry.context import format_traceparent
from antiphon_service.telemetry.providers import Telemetry
from ws_adapter.worker.transport.rpc import Metadata

GROUP_S: Final = 30.0
"""The longest duration of one trace of units, in seconds; the end of a turn ends it earlier."""

MOST_POSITIONS: Final = 20
"""The most queue positions on a span."""

MOST_REFUSED: Final = 8
"""The most rejected events that are stored while no span is open."""

MOST_LINKS: Final = 64
"""The most units that a turn links to."""

_ROOT: Final = Context()

Attributes: TypeAlias = Mapping[str, AttributeValue]


def _ago(seconds: float) -> int:
    """Return the wall-clock time `seconds` ago in ns, for spans, since sessions have a clock of their own."""
    return time.time_ns() - int(seconds * 1e9)


def _fail(span: Span, error: str, *, is_ours: bool) -> None:
    """Record a failure on a span; its status is an error only if the server is at fault (`is_ours`)."""
    span.set_attribute(semconv.ATTR_ERROR_TYPE, error)
    if is_ours:
        span.set_status(StatusCode.ERROR)


class Upgrade:
    """The span of one WebSocket request, and the trace of the session that follows.

    The span continues the trace of `parent`. It only links to `linked`, which an untrusted caller sent.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        attributes: Attributes,
        parent: SpanContext | None = None,
        linked: SpanContext | None = None,
    ) -> None:
        self._telemetry = telemetry
        context = set_span_in_context(NonRecordingSpan(parent), _ROOT) if parent is not None else _ROOT
        links = [Link(linked)] if linked is not None else []
        self._span = telemetry.tracer.start_span(semconv.SPAN_UPGRADE, context, SpanKind.SERVER, links=links)
        self.is_sampled = self._span.is_recording()
        given = self._span.get_span_context()
        state = given.trace_state if given.is_valid else None
        self.context = SpanContext(
            given.trace_id or secrets.randbits(128) or 1,
            given.span_id or random.getrandbits(64) or 1,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED if self.is_sampled else TraceFlags.DEFAULT),
            trace_state=state,
        )
        if self.is_sampled:
            self._span.set_attributes(attributes)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return format_trace_id(self.context.trace_id)

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return format_span_id(self.context.span_id)

    def answered(self, status: int) -> None:
        """Record the HTTP status of the answer."""
        if self._span.is_recording():
            self._span.set_attribute(semconv.ATTR_HTTP_STATUS, status)

    def end(self, error: str = "", *, is_ours: bool = False) -> None:
        """End the span because a session began, `error` rejected it, or the client disconnected. Only the
        first call has an effect."""
        if not self._span.is_recording():
            return
        if error:
            _fail(self._span, error, is_ours=is_ours)
        self._span.end()

    def session(self, attributes: Attributes) -> "SessionTrace":
        """End the span; return the trace of the session, whose spans get `attributes`."""
        if self._span.is_recording():
            self._span.set_attributes(attributes)
        self.end()
        return SessionTrace(self._telemetry, self, attributes)


class SessionTrace:
    """Spans of one session."""

    def __init__(self, telemetry: Telemetry, upgrade: Upgrade, attributes: Attributes) -> None:
        self.is_sampled = upgrade.is_sampled
        self.upgrade = upgrade
        self._telemetry = telemetry
        self.anchor: SpanContext | None = None
        """The latest `session.start`, to which all later spans link."""
        self._related: SpanContext | None = None
        """The trace context of the client, until a span links to it."""
        self._refused: deque[tuple[int, str]] = deque(maxlen=MOST_REFUSED)
        """Rejected events of the client, with their times and codes, until a span records them."""
        self._latest: Span = INVALID_SPAN
        """The span that began last."""
        self._opening: Span = INVALID_SPAN
        """The latest span of waiting for a slot or of starting in it."""
        self._tracer = telemetry.always
        self._attributes = attributes
        self._session_id = {semconv.ATTR_SESSION_ID: attributes[semconv.ATTR_SESSION_ID]}
        """The only session attribute on spans of units and turns, since each attribute costs time; the id
        identifies the others."""
        self._group: SpanContext | None = None
        self._group_since = 0.0
        self.untraced = f"00-{upgrade.trace_id}-%016x-00"
        """The format of the `traceparent` of an untraced unit; the argument is its span id."""

    # ------------------------------------------------------------------------------- the spans themselves

    def opening(self, name: str, parent: SpanContext | None) -> Span:
        """Begin a span of the wait for a slot or of the start in it; return INVALID_SPAN, which does nothing,
        if the session is not traced."""
        if self.is_sampled:
            self._opening = self._start(name, parent, 0.0, self._attributes)
            return self._opening
        return INVALID_SPAN

    def _start(self, name: str, parent: SpanContext | None, since_s: float, attributes: Attributes) -> Span:
        context = _ROOT if parent is None else set_span_in_context(NonRecordingSpan(parent), _ROOT)
        links = [Link(seen) for seen in (self.anchor, self._related) if seen is not None]
        self._related = None
        span = self._tracer.start_span(
            name, context, attributes=attributes, links=links, start_time=_ago(since_s)
        )
        while self._refused:
            at, code = self._refused.popleft()
            span.add_event(semconv.EVENT_REFUSED, {semconv.ATTR_ERROR_TYPE: code}, at)
        self._latest = span
        return span

    # -------------------------------------------------------------------------------- what the client does

    def relate(self, context: SpanContext) -> None:
        """Link the open span, or the next one, to the trace context in an event of the client."""
        if self._opening.is_recording():
            self._opening.add_link(context)
        else:
            self._related = context

    def refused(self, code: str) -> None:
        """Record a rejected event of the client on the open span, or on the next one."""
        if self._latest.is_recording():
            self._latest.add_event(semconv.EVENT_REFUSED, {semconv.ATTR_ERROR_TYPE: code})
        elif self.is_sampled:
            self._refused.append((time.time_ns(), code))

    def background(self) -> "SessionTrace":
        """Return a trace for background work, to whose spans no other span links."""
        return SessionTrace(self._telemetry, self.upgrade, self._attributes)

    def slot(self) -> "SlotTrace":
        """Return the trace of the session's next slot."""
        return SlotTrace(self)

    # ------------------------------------------------------------------------------------------ the units

    def unit(self, now: float, since_s: float, number: int) -> Span:
        """Begin the span of a unit that was accepted `since_s` seconds ago. Call it only for a traced
        session."""
        if self._group is not None and now - self._group_since >= GROUP_S:
            self._group = None
        own = {**self._session_id, semconv.ATTR_UNIT: number}
        span = self._start(semconv.SPAN_UNIT, self._group, since_s, own)
        if self._group is None:
            self._group, self._group_since = span.get_span_context(), now
        return span

    def close(self, span: Span, error: str | None, *, is_ours: bool) -> None:
        """End the span of a unit."""
        if span is INVALID_SPAN:
            return
        if error:
            _fail(span, error, is_ours=is_ours)
        span.end()

    def turn(self, since_s: float, units: list[SpanContext], attributes: Attributes) -> None:
        """Write the span of a finished turn, and end the trace of its units. Call it only for a traced
        session."""
        span = self._start(semconv.SPAN_TURN, self._group, since_s, {**self._session_id, **attributes})
        for unit in units:
            span.add_link(unit)
        span.end()
        self._group = None

    def failover(self, since_s: float, attributes: Attributes, error: str) -> None:
        """Write the span of a finished failover, if the session is traced; `error` is empty or why it
        failed."""
        if not self.is_sampled:
            return
        span = self._start(semconv.SPAN_FAILOVER, None, since_s, {**self._attributes, **attributes})
        if error:
            _fail(span, error, is_ours=True)
        span.end()

    # -------------------------------------------------------------------------------------------- the end

    def end(self, error: str, attributes: Attributes) -> None:
        """Write the span of the session's end. With `error`, a fault of the server, this span is written
        even for an untraced session."""
        if not self.is_sampled and not error:
            return
        span = self._start(semconv.SPAN_END, self.upgrade.context, 0.0, {**self._attributes, **attributes})
        if error:
            _fail(span, error, is_ours=True)
        span.end()


class SlotTrace:
    """Spans of the wait for one slot and of the start at its worker. At most one is open at a time."""

    def __init__(self, trace: SessionTrace) -> None:
        self._trace = trace
        # The first slot belongs to the trace of the upgrade; each later slot begins a trace of its own.
        self._parent = trace.upgrade.context if trace.anchor is None else None
        self._span: Span = INVALID_SPAN
        self._context = trace.upgrade.context
        self._positions = 0

    def queued(self) -> None:
        """Begin the span of the wait for a slot."""
        self._span = self._trace.opening(semconv.SPAN_QUEUE, self._parent)
        if self._span is not INVALID_SPAN and self._parent is None:
            self._parent = self._span.get_span_context()

    def moved(self, position: int, length: int) -> None:
        """Add the new queue position to the span as an event."""
        if self._positions < MOST_POSITIONS and self._span.is_recording():
            self._positions += 1
            place = {semconv.ATTR_QUEUE_POSITION: position, semconv.ATTR_QUEUE_LENGTH: length}
            self._span.add_event(semconv.EVENT_POSITION, place)

    def left(self, outcome: str, error: str = "", *, is_ours: bool = False) -> None:
        """End the span of the wait."""
        if self._span.is_recording():
            self._span.set_attribute(semconv.ATTR_OUTCOME, outcome)
        self._end(error, is_ours)

    def granted(self, attributes: Attributes) -> None:
        """Begin the span of the session's start at the worker."""
        self._span = self._trace.opening(semconv.SPAN_START, self._parent)
        if self._span is not INVALID_SPAN:
            self._span.set_attributes(attributes)
            self._context = self._span.get_span_context()

    def headers(self) -> Metadata:
        """Return the metadata that carries the trace of this session to the worker."""
        context = self._context
        headers = [(contract.METADATA_TRACEPARENT, format_traceparent(context))]
        if state := context.trace_state.to_header():
            headers.append((contract.METADATA_TRACESTATE, state))
        return tuple(headers)

    def began(self) -> None:
        """End the span of the start; later spans link to it."""
        if self._span is not INVALID_SPAN:
            self._trace.anchor = self._context
        self._end()

    def over(self, error: str = "", *, is_ours: bool = False) -> None:
        """End all open spans because the slot is given up or lost."""
        self._end(error, is_ours)

    def _end(self, error: str = "", is_ours: bool = False) -> None:
        span, self._span = self._span, INVALID_SPAN
        if span is INVALID_SPAN:
            return
        if error:
            _fail(span, error, is_ours=is_ours)
        span.end()

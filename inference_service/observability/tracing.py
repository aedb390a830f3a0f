"""The worker's spans: the three steps of each sampled unit, and one tick of the engine in a hundred.

A span is made when its step is over, with its start and end times, so that no session leaves one open.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service import semconv
from antiphon_service.semconv import Side
from antiphon_service.telemetry.context import parse_traceparent
from antiphon_service.telemetry.providers import Telemetry
from inference_service.errors import SessionError, side_of
from inference_service.interface.engine import (
    Done,
    Finalized,
    Prefilled,
    Ticked,
)
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSetup,
    SessionSetup,
    TokensSetup,
    TranscribeSetup,
)
from inference_service.session.units import Stream, Unit

MAX_CONTEXT = 512
"""Limit of characters of a trace context that are read."""

Attributes = dict[str, AttributeValue]
LastAnswer = Prefilled | Done | Finalized

_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
_NAMES = {
    Stream.PREFILL: semconv.SPAN_PREFILL,
    Stream.GENERATE: semconv.SPAN_GENERATE,
    Stream.FINALIZE: semconv.SPAN_FINALIZE,
}


class Tracing:
    """The worker's spans, from the tracers of `telemetry`; without an exporter it makes none, at no cost.

    `ticks` are the engine's latest ticks, the newest last.
    """

    def __init__(
        self, telemetry: Telemetry, worker_id: str, clock: Callable[[], float], ticks: Sequence[Ticked]
    ) -> None:
        self.is_on = not isinstance(telemetry.always, NoOpTracer)
        self.telemetry = telemetry
        self.worker_id = worker_id
        self._clock = clock
        self._ticks = ticks

    @property
    def last_tick(self) -> int:
        """Number of the newest tick; 0 before the first."""
        return self._ticks[-1].number if self._ticks else 0

    @property
    def epoch_ns(self) -> int:
        """Unix time in nanoseconds at second 0 of the clock."""
        return time.time_ns() - int(self._clock() * 1e9)

    def session(
        self, session_id: str, slot: int, lease_epoch: int | None, peer: str, identity: str
    ) -> "SessionTrace | None":
        """Return the spans of a new session of `peer`; None without an exporter."""
        return SessionTrace(self, session_id, slot, lease_epoch, peer, identity) if self.is_on else None

    def ticked(self, tick: Ticked, units: Iterable[SpanContext]) -> None:
        """Record a tick with named members; `units` are the span contexts of its sampled units."""
        links = [Link(unit) for unit in units]
        if not links:
            return
        epoch = self.epoch_ns
        attributes: Attributes = {
            semconv.ATTR_WORKER_ID: self.worker_id,
            semconv.ATTR_TICK_ID: tick.number,
            semconv.ATTR_BATCH_SIZE: tick.sessions,
            semconv.ATTR_BATCH_TOKENS: tick.tokens,
            semconv.ATTR_DEVICE_SECONDS: tick.ended - tick.started,
        }
        span = self.telemetry.always.start_span(
            semconv.SPAN_TICK,
            Context(),
            attributes=attributes,
            links=links,
            start_time=_at(epoch, tick.started),
        )
        span.end(_at(epoch, tick.ended))


@dataclass
class _Sampled:
    """A traced unit."""

    context: Context | None
    """The parent of its spans; None until its first span has become their root."""
    epoch_ns: int
    tick: int = 0
    """The tick whose span links to the unit, if any."""


class SessionTrace:
    """The spans of one session's units.

    Their parent is the unit's own trace context, or else that of the session's streams; they are made only if
    the parent is sampled. Without a trace context the worker's own sampler decides once for the session, and
    `prefill` is the root of each unit's trace.
    """

    def __init__(
        self,
        tracing: Tracing,
        session_id: str,
        slot: int,
        lease_epoch: int | None,
        peer: str = "",
        identity: str = "",
    ) -> None:
        self._tracing = tracing
        self._parent: SpanContext | None = None
        self._is_sampled: bool | None = None
        self._units: dict[int, _Sampled] = {}
        common: Attributes = {semconv.ATTR_RPC_SYSTEM: "grpc", semconv.ATTR_SESSION_ID: session_id}
        self._attributes: dict[Stream, Attributes] = {
            step: {**common, semconv.ATTR_RPC_METHOD: f"{_SERVICE}/{step.value}"} for step in Stream
        }
        # An attribute costs time to make and to encode, so only one span of a unit has it.
        place = self._attributes[Stream.PREFILL]
        place |= {semconv.ATTR_WORKER_ID: tracing.worker_id, semconv.ATTR_SLOT: slot}
        if lease_epoch is not None:
            place[semconv.ATTR_LEASE_EPOCH] = lease_epoch
        if peer:
            place[semconv.ATTR_PEER_ADDRESS] = peer
        if identity:
            place[semconv.ATTR_PEER_IDENTITY] = identity

    def attach(self, traceparent: str, tracestate: str) -> None:
        """Attach a stream with its trace context, each empty if there is none; the first one counts."""
        if self._parent is None:
            self._parent = parse_traceparent(traceparent[:MAX_CONTEXT], tracestate[:MAX_CONTEXT])

    def configure(self, setup: SessionSetup, model: str) -> None:
        """Record the settings of the session."""
        mode, operation = kind_of(setup)
        self._attributes[Stream.GENERATE] |= {
            semconv.ATTR_MODE: mode,
            semconv.ATTR_GEN_AI_OPERATION: operation,
            semconv.ATTR_GEN_AI_PROVIDER: "antiphon",
            semconv.ATTR_GEN_AI_MODEL: model,
        }

    def begin(self, number: int, traceparent: str) -> SpanContext | None:
        """Begin a unit; return the parent of its spans, None without one.

        `traceparent` is the unit's own trace context; if it is not valid, that of the streams counts.
        """
        parent = parse_traceparent(traceparent[:MAX_CONTEXT]) or self._parent
        if parent is None:
            if self._is_sampled is not False:
                self._units[number] = _Sampled(None, self._tracing.epoch_ns)
        elif parent.trace_flags.sampled:
            context = set_span_in_context(NonRecordingSpan(parent), Context())
            self._units[number] = _Sampled(context, self._tracing.epoch_ns)
        return parent

    def in_tick(self, number: int, tick: int) -> SpanContext | None:
        """Return the span context to which a tick's span links for a member unit; None if it is not
        sampled.
        """
        unit = self._units.get(number)
        if unit is None or unit.context is None:
            return None
        unit.tick = tick
        return _span_context(unit.context)

    def answered(self, unit: Unit, step: Stream, answer: LastAnswer) -> None:
        """Record a finished step."""
        sampled = self._units.get(unit.number)
        if sampled is None or (began := unit.began(step)) is None:
            return
        attributes = _attributes_of(answer)
        if step is Stream.GENERATE:
            attributes[semconv.ATTR_TICK_ID] = sampled.tick or self._tracing.last_tick
        failure = None if isinstance(answer, Finalized) else answer.failure
        error = (failure.reason, side_of(failure.reason)) if failure else None
        self._make(unit.number, sampled, step, began, unit.answered_at[step], attributes, error)
        if step is Stream.FINALIZE:
            self._units.pop(unit.number, None)

    def cut(self, units: Iterable[Unit], error: SessionError | None, now: float) -> None:
        """End the session and the running steps of `units`."""
        for unit in units:
            sampled, under_way = self._units.get(unit.number), unit.under_way()
            if sampled is None or under_way is None:
                continue
            step, began = under_way
            attributes: Attributes = {semconv.ATTR_RPC_STATUS: error.code.name if error else "OK"}
            why = (error.reason or error.code.name, error.side) if error else None
            self._make(unit.number, sampled, step, began, now, attributes, why)
        self._units.clear()

    def _make(
        self,
        number: int,
        unit: _Sampled,
        step: Stream,
        began: float,
        ended: float,
        attributes: Attributes,
        error: tuple[str, Side | None] | None,
    ) -> None:
        """Make one span. The first span of an undecided session asks the sampler."""
        telemetry = self._tracing.telemetry
        is_undecided = unit.context is None and self._is_sampled is None
        tracer = telemetry.tracer if is_undecided else telemetry.always
        span = tracer.start_span(
            _NAMES[step],
            unit.context or Context(),
            SpanKind.SERVER,
            {**self._attributes[step], semconv.ATTR_UNIT: number, **attributes},
            start_time=_at(unit.epoch_ns, began),
        )
        if is_undecided:
            self._is_sampled = span.is_recording()
            if not self._is_sampled:
                self._units.clear()
                return
        if unit.context is None:
            unit.context = set_span_in_context(span, Context())
        if error is not None:
            reason, side = error
            span.set_attribute(semconv.ATTR_ERROR_TYPE, reason)
            if side is Side.SERVER:
                span.set_status(Status(StatusCode.ERROR))
        span.end(_at(unit.epoch_ns, ended))


def _at(epoch_ns: int, when: float) -> int:
    return epoch_ns + int(when * 1e9)


def _span_context(context: Context) -> SpanContext:
    return get_current_span(context).get_span_context()


_KINDS: dict[type[SessionSetup], tuple[str, str]] = {
    DuplexSetup: ("audio_duplex", "duplex"),
    ChatSetup: ("chat", "chat"),
    TranscribeSetup: ("transcription", "transcription"),
    TokensSetup: (semconv.OTHER, "text_completion"),
}


def kind_of(setup: SessionSetup) -> tuple[str, str]:
    """Return the values of the span attributes for the mode and the operation of a session."""
    mode, operation = _KINDS[type(setup)]
    return ("omni_duplex" if getattr(setup, "sees", False) else mode), operation


def _attributes_of(answer: LastAnswer) -> Attributes:
    """Return the attributes of a step's span."""
    match answer:
        case Prefilled(usage=usage):
            heard = usage.input_text_tokens + usage.input_audio_tokens + usage.input_vision_tokens
            return {semconv.ATTR_GEN_AI_INPUT_TOKENS: heard}
        case Done(usage=usage):
            found: Attributes = {
                semconv.ATTR_UNIT_END: answer.end.name.lower(),
                semconv.ATTR_GEN_AI_OUTPUT_TOKENS: usage.output_text_tokens + usage.output_audio_tokens,
            }
            if answer.finish is not None:
                found[semconv.ATTR_GEN_AI_FINISH] = [answer.finish.name.lower()]
            return found
        case Finalized():
            return {semconv.ATTR_KV_TOKENS: answer.context_tokens}

"""The resources of a session: its three calls, engine session, slot and clock."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import grpc
from google.protobuf.message import Message
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from antiphon.contract import MAX_MESSAGE_BYTES, METADATA_WORKER_ID
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.semconv import Side
from antiphon_service.telemetry.logs import SessionFields, session_log
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.errors import (
    BadField,
    Cancelled,
    PayloadInvalid,
    SessionError,
    SessionFault,
    UnitRefused,
    UnitTimeout,
)
from inference_service.interface.engine import (
    Deliver,
    Done,
    EngineSession,
    Event,
    Finalized,
    Prefilled,
    Ready,
)
from inference_service.interface.setups import DuplexSetup, SessionSetup
from inference_service.observability.tracing import LastAnswer, kind_of
from inference_service.rpc.messages import replies, requests
from inference_service.rpc.transport.call import Call
from inference_service.rpc.transport.outbox import Outbox
from inference_service.rpc.transport.peer import Peer
from inference_service.session.calls.backend import Backend
from inference_service.session.calls.session_call import DecodedContent, SessionCall
from inference_service.session.leases import Lease, Terms
from inference_service.session.machine import Answer, GoAway, SessionMachine
from inference_service.session.units import Stream, Unit

logger = logging.getLogger(__name__)

SETTLE_S: Final = 0.25
"""Seconds of timer delay beyond which a message is checked again before it counts as unread."""


class SessionCalls:
    """One session with its three calls. `on_closed` is called once, when its slot is free again."""

    def __init__(
        self,
        session_id: str,
        slot: int,
        lease: Lease | None,
        peer: Peer,
        backend: Backend,
        on_closed: Callable[["SessionCalls"], None],
    ) -> None:
        self.session_id = session_id
        self.lease = lease
        self._terms = Terms.of(lease)
        self.slot = slot
        self.peer = peer
        """The caller that opened the session's first call."""
        self.opened_at = backend.clock()
        self.newest_unit = 0
        """Number of the newest unit."""
        self._backend = backend
        self._on_closed = on_closed
        self._plan: SessionPlan | None = None
        self._unit_seconds = 0.0
        """Seconds of audio in a unit; 0 where units are not seconds of a conversation."""
        self._is_configured = False
        self._prefilled: pb.GenerateResponse | None = None
        """The waiting answer to the input of an automatic unit that has no other answer yet."""
        self._usage = backend.usages.begin(lease.epoch) if lease is not None else None
        self._calls: dict[Stream, SessionCall] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        """When the timer fires, by the session's clock."""
        self._over_at = 0.0
        self._trace = backend.tracing.session(
            session_id, slot, lease.epoch if lease else None, peer.address, peer.identity
        )
        self._fields = SessionFields(session_id, worker_id=backend.worker_id)
        self._outboxes: dict[Stream, Outbox[Any]] = {
            Stream.GENERATE: Outbox(backend.clock, replies.absorb),  # flushed first
            Stream.PREFILL: Outbox(backend.clock),
            Stream.FINALIZE: Outbox(backend.clock),
        }
        self._outcome: SessionError | None = None
        """The status with which the calls end."""
        self.session = SessionMachine(session_id, self, backend.limits, self.opened_at)

    # ------------------------------------------------------------- from outside

    def attach(self, stream: Stream, traceparent: str, tracestate: str) -> None:
        """Attach a call of this session. Raises `StreamExists`, which leaves the session unchanged."""
        self.session.attach(stream, self._backend.clock())
        if self._trace is not None:
            self._trace.attach(traceparent, tracestate)
        if self.session.is_attached:
            self._backend.slots.attach(self.slot)
        self._arm(self._backend.clock())

    def go_away(self, time_left_s: float, reason: str) -> None:
        """Announce the end of the session."""
        self._apply(lambda _: self.session.go_away(GoAway(time_left_s, reason)))

    def fail(self, error: SessionError) -> None:
        """End the session with `error` once the engine has cleaned up."""
        self._apply(self.session.fail, error)

    def abandon(self, error: SessionError) -> None:
        """End the session with `error` at once, because the engine is gone."""
        self._apply(self.session.abandon, error)

    def in_tick(self, unit: int, tick: int) -> SpanContext | None:
        """Return the span context to which the span of a tick links for `unit`; None if it is not sampled."""
        return self._trace.in_tick(unit, tick) if self._trace is not None else None

    def serve(self, stream: Stream, call: Call) -> None:
        """Serve one attached call."""
        served = self._calls[stream] = SessionCall(stream, call, self, self._outboxes[stream])
        call.take(served, (METADATA_WORKER_ID, self._backend.worker_id))
        self._outboxes[stream].open(served)
        if self.session.is_attached:
            for each in list(self._calls.values()):  # a request on one call may end all calls
                each.go_on()

    # ------------------------------------------------------------------ the calls

    def may_read(self, stream: Stream) -> bool:
        """Return whether a request of `stream` may be handled now. Prefill waits while an outbox is full."""
        if self.session.is_over or not self.session.is_attached:
            return False
        return stream is not Stream.PREFILL or not any(box.is_full for box in self._outboxes.values())

    def may_handle(self, stream: Stream, request: Message) -> bool:
        """Return whether `request` may be handled now: the valid settings of a unit depend on the mode."""
        return stream is not Stream.GENERATE or self._is_configured or _is_cancel(request)

    async def decode(self, stream: Stream, data: bytes) -> tuple[Message, DecodedContent]:
        """Decode a large request in a thread; return it with a function that returns its content.

        Raises `PayloadInvalid`.
        """
        return await self._backend.decoder.read(stream, data, self._made)

    def handle(self, stream: Stream, request: Any, made: DecodedContent | None) -> None:
        """Handle a request."""
        if self.session.is_over:
            return
        token, now = session_log.set(self._fields), self._backend.clock()
        try:
            match stream:
                case Stream.PREFILL:
                    self._prefill(request, made, now)
                case Stream.GENERATE:
                    self._generate(request, now)
                case Stream.FINALIZE:
                    self.session.finalize(request.unit, now, keep_last_token=request.keep_last_token)
        except Exception as error:
            self._fail_after(error, now)
        finally:
            session_log.reset(token)
        self._settle(now)

    def half_close(self, stream: Stream) -> None:
        """Handle the half-close of `stream`."""
        self._apply(self.session.half_close, stream)

    def give_up(self, stream: Stream) -> None:
        """Give up because the caller has gone, or because gRPC refused a message that was too large."""
        self._calls.pop(stream, None)
        too_large = f"sent more than {MAX_MESSAGE_BYTES} bytes at once"
        self.fail(Cancelled(f"The caller gave up its {stream.value} stream, or {too_large}."))

    def answered(self) -> None:
        """Handle that the waiting answers have been written."""
        if (prefill := self._calls.get(Stream.PREFILL)) is not None:
            prefill.go_on()

    def end_call(self, stream: Stream, call: Call) -> None:
        """Handle that everything has been written."""
        self._calls.pop(stream, None)
        if self._outcome is None:
            call.end(grpc.StatusCode.OK)
        else:
            call.fail(self._outcome)
        self._arm(self._backend.clock())  # nothing else drops the timer once the slot is clean

    def _made(self, request: Message) -> Any:
        """Return the decoded plan, content or failure of a request without changing anything; None for other
        requests.
        """
        if not isinstance(request, pb.PrefillRequest):
            return None
        backend = self._backend
        if request.HasField("config"):
            plan = resolve(request.config, backend.info, backend.draw_seed)
            terms = self._terms
            return plan.within(terms.tenant, terms.max_duration_s, terms.idle_timeout_s)
        if self._plan is None:
            return None
        try:
            return requests.content(request, self._plan.setup, backend.info)
        except UnitRefused as refused:
            return refused.failure

    def _prefill(self, request: pb.PrefillRequest, made: DecodedContent | None, now: float) -> None:
        if request.HasField("config"):
            self.session.expect_config(request.unit)
            plan: SessionPlan = made() if made else self._made(request)
            self._plan = plan
            setup, info = plan.setup, self._backend.info
            self._unit_seconds = info.format_of(setup).seconds if isinstance(setup, DuplexSetup) else 0.0
            if self._trace is not None:
                self._trace.configure(plan.setup, self._backend.info.name)
            mode, _ = kind_of(plan.setup)
            logger.info("session opened", extra={"mode": mode, "slot": self.slot, **self.peer.fields()})
            self.session.open(
                plan.setup,
                now,
                max_duration_s=plan.max_duration_s,
                idle_timeout_s=plan.idle_timeout_s,
                automatic=plan.automatic,
            )
            self._is_configured = True
            if (generate := self._calls.get(Stream.GENERATE)) is not None:
                generate.go_on()
            return
        self.session.require_config()
        if self._plan is None:
            return  # the config was refused: the session is over
        self.newest_unit = self._fields.unit = unit = request.unit
        traced = self._trace and self._trace.begin(unit, request.traceparent)
        if traced:
            self._fields.trace_id = format_trace_id(traced.trace_id)
            self._fields.span_id = format_span_id(traced.span_id)
        content = made() if made else self._made(request)
        if self._plan.automatic:
            run = requests.generate(request.run, self._plan.setup, self._backend.info)
            keeps = request.keep_last_token
            self.session.run_automatically(unit, content, run, now, keep_last_token=keeps)
            return
        if request.HasField("run") or request.keep_last_token:
            raise PayloadInvalid(
                BadField("run", "needs automatic_units in the config, as keep_last_token does")
            )
        self.session.prefill(unit, content, now)

    def _generate(self, request: pb.GenerateRequest, now: float) -> None:
        match request.WhichOneof("action"):
            case "run":
                assert self._plan is not None, "no unit is run before the config"
                run = requests.generate(request.run, self._plan.setup, self._backend.info)
                self.session.generate(request.unit, run, now)
            case "cancel":
                self.session.cancel(request.unit)
            case "rewind":
                assert self._plan is not None, "no unit is rewound before the config"
                self.session.rewind(requests.rewind(request, self._plan.setup), now)
            case _:
                raise PayloadInvalid(BadField("action", "must be `run`, `cancel` or `rewind`"))

    # --------------------------------------------------- effects of the session

    def open(self, setup: SessionSetup) -> EngineSession:
        """Open the engine session; implements `SessionEffects.open`."""
        return self._backend.engine.open(self.session_id, self.slot, setup, self._on_events)

    def ready(self, answer: Ready) -> None:
        """Answer the config: the session accepts units now."""
        assert self._plan is not None, "an engine is ready only after the config"
        backend = self._backend
        if self._usage is not None:
            self._usage.prompted(answer.prompt_tokens)
        window = backend.limits.window_of(self._plan.setup)
        message = replies.session_ready(answer, self._plan, backend.info, backend.worker_id, window)
        self._outboxes[Stream.PREFILL].put(message)

    def send(self, stream: Stream, answer: Answer, unit: Unit | None = None) -> None:
        """Put an answer into the outbox of its stream; `unit` comes with the last answer of each step."""
        if unit is not None:
            self._tell(stream, cast(LastAnswer, answer), unit)
        if self._usage is not None:
            self._usage.count(answer)
        if self._plan is not None and self._plan.automatic:
            self._send_together(answer)
            return
        for message in replies.messages(answer, self._backend.info):
            self._outboxes[stream].put(message)

    def _send_together(self, answer: Answer) -> None:
        """Send an answer to an automatic unit on Generate, joined to the answers that wait to be written.

        In full duplex the answer to the input waits for the unit's first output, tens of milliseconds later.
        The caller has no use for it before, and a message costs both sides more than its content.
        """
        outbox = self._outboxes[Stream.GENERATE]
        match answer:
            case Prefilled():
                if answer.failure is None:
                    self._prefilled = replies.automatic_prefilled(answer)
                    if not self._unit_seconds:
                        self._put_prefilled()
            case Finalized():
                outbox.put(replies.automatic_finalized(answer))
            case _:
                self._put_prefilled()
                for message in replies.messages(answer, self._backend.info):
                    outbox.put(message)

    def _put_prefilled(self) -> None:
        if self._prefilled is not None:
            self._outboxes[Stream.GENERATE].put(self._prefilled)
            self._prefilled = None

    def _tell(self, stream: Stream, answer: LastAnswer, unit: Unit) -> None:
        """Report a finished step to spans, metrics and admission control."""
        if self._trace is not None:
            self._trace.answered(unit, stream, answer)
        match answer:
            case Done():
                unit_seconds = 0.0 if answer.replayed else self._unit_seconds
                self._backend.metrics.done(answer, unit_seconds)
                if unit_seconds:
                    self._backend.admission.answered(
                        (self._backend.clock(), answer.timings.worked / unit_seconds)
                    )
                if answer.failure is not None:
                    logger.warning("unit failed", extra={"code": answer.failure.reason})
            case Finalized() if (began := unit.began(Stream.FINALIZE)) is not None:
                self._backend.metrics.finalized(unit.answered_at[Stream.FINALIZE] - began)

    def cleaning(self, error: SessionError | None, units: Sequence[Unit]) -> None:
        """Note that the session is over and its slot is being cleaned."""
        self._over_at = self._backend.clock()
        if self._trace is not None:
            self._trace.cut(units, error, self._over_at)
        self._backend.metrics.ended(error)
        self._backend.slots.clean(self.slot)

    def clean(self) -> None:
        """Note that the slot is free."""
        if self._usage is not None:
            self._backend.usages.end(self._usage)
        self._backend.slots.free(self.slot)
        self._backend.metrics.cleaned(self._backend.clock() - self._over_at)
        self._on_closed(self)

    def end(self, error: SessionError | None) -> None:
        """End all three calls with the same status, after the answers that wait to be written."""
        is_ours = error is not None and error.side is Side.SERVER
        totals = {
            "code": (error.reason or error.code.name) if error else "OK",
            "units": self.newest_unit,
            "seconds": round(self._backend.clock() - self.opened_at, 3),
        }
        logger.log(logging.ERROR if is_ours else logging.INFO, "session closed", extra=totals)
        self._outcome = error
        for outbox in self._outboxes.values():
            outbox.end()

    # ------------------------------------------------------------ rules and clock

    def _on_events(self, events: Sequence[Event]) -> None:
        """Handle events of the engine in a logging context of their own."""
        session_log.set(self._fields)
        now = self._backend.clock()
        for event in events:
            try:
                self.session.event(event, now)
            except Exception as error:
                self._fail_after(error, now)
        self._settle(now)

    def _apply(self, step: Callable[..., None], *given: Any) -> None:
        """Call a step of the state machine with the current time."""
        token, now = session_log.set(self._fields), self._backend.clock()
        try:
            step(*given, now)
        except Exception as error:
            self._fail_after(error, now)
        finally:
            session_log.reset(token)
        self._settle(now)

    def _fail_after(self, error: Exception, now: float) -> None:
        """End only this session: with its error for a broken rule, with INTERNAL for a bug."""
        if not isinstance(error, SessionError):
            logger.error("session failed", exc_info=error)
            error = SessionFault("The session failed inside the worker.")
        # The session keeps the error; its traceback would keep the session.
        self.session.fail(error.with_traceback(None), now)

    def _settle(self, now: float) -> None:
        """Write the output of a step, and set the next timer."""
        for outbox in self._outboxes.values():
            if outbox.is_pending:
                outbox.flush()
                if outbox.writing_since is not None:
                    self._wake_by(now + self._backend.limits.unit_s, now)
        self._arm(now)

    def _arm(self, now: float) -> None:
        """Keep one timer that fires no later than the session's next deadline."""
        if self._due <= now + self.session.patience:
            return
        deadline = self.session.deadline()
        if deadline is not None:
            self._wake_by(deadline, now)
        elif self.session.is_over and not self._calls:
            self._disarm()

    def _wake_by(self, when: float, now: float) -> None:
        if when < self._due:
            self._disarm()
            self._due = when
            self._timer = asyncio.get_running_loop().call_later(max(0.0, when - now), self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, math.inf

    def _expire(self) -> None:
        due = self._due
        self._disarm()
        now, patience = self._backend.clock(), self._backend.limits.unit_s
        self._apply(self.session.expire)
        for stream, outbox in self._outboxes.items():
            since = outbox.writing_since
            if since is None:
                continue
            if since + patience > now:
                self._wake_by(since + patience, now)
                continue
            if now > due + SETTLE_S:  # the process was paused, and some writes may have finished
                self._wake_by(now + SETTLE_S, now)
                continue
            error = UnitTimeout(f"The caller did not read {stream.value} for {patience:g} s.")
            if self.session.is_over:
                self._calls.pop(stream).cut(self._outcome or error)
            else:
                self.fail(error)
                self._wake_by(now + patience, now)  # time to read the error, before the cut


def _is_cancel(request: Message) -> bool:
    return cast(pb.GenerateRequest, request).HasField("cancel")


def deliver_on(loop: asyncio.AbstractEventLoop) -> Deliver:
    """Return the `deliver` of an engine whose callers live on `loop`."""

    def hand_out(deliveries: list[tuple[Callable[[Any], None], Any]]) -> None:
        for receive, payload in deliveries:
            try:
                receive(payload)
            except Exception:  # must not cost other sessions their events
                logger.exception("an event of the engine was lost")

    def deliver(deliveries: list[tuple[Callable[[Any], None], Any]]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(hand_out, deliveries)

    return deliver

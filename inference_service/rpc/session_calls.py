"""What a session lives on: its three calls, its engine session, its slot and its clock, kept together."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio
from google.protobuf.message import Message
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from antiphon.semconv import MAX_MESSAGE_BYTES, METADATA_WORKER_ID, Reason, Side
from antiphon.telemetry.logs import SessionFields, session_log
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import (
    Done,
    Engine,
    EngineSession,
    Event,
    Failure,
    Finalized,
    ModelInfo,
    Piece,
    Prefilled,
    Ready,
)
from inference_service.api.setups import Content, DuplexSetup, SessionSetup
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.config.sampling import unit_overrides
from inference_service.errors import (
    BadField,
    Cancelled,
    PayloadInvalid,
    SessionError,
    SessionFault,
    UnitRefused,
    UnitTimeout,
)
from inference_service.observability.metrics import WorkerMetrics
from inference_service.observability.tracing import Tracing, kind_of
from inference_service.rpc import replies, requests
from inference_service.rpc.decoding import Decoder
from inference_service.rpc.outbox import Outbox
from inference_service.session.leases import Lease
from inference_service.session.machine import Answer, GoAway, Limits, SessionMachine
from inference_service.session.slots import SlotTable
from inference_service.session.unit import Generate, Stream, Unit

logger = logging.getLogger(__name__)

HALF_CLOSE_SETTLE_S = 0.01
"""A cancelled call looks half-closed for an instant; this long later it is known which of the two it was."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Backend:
    """What all sessions of a ready worker share."""

    worker_id: str
    engine: Engine
    info: ModelInfo
    slots: SlotTable
    limits: Limits
    clock: Callable[[], float]
    draw_seed: Callable[[], int]
    metrics: WorkerMetrics
    tracing: Tracing
    decoder: Decoder[Any] = field(default_factory=Decoder)


class SessionCalls:
    """Runs one session. `on_closed` is called once, when its slot is free again."""

    def __init__(
        self,
        session_id: str,
        slot: int,
        lease: Lease | None,
        backend: Backend,
        on_closed: Callable[["SessionCalls"], None],
    ) -> None:
        self.session_id = session_id
        self.lease = lease
        self.slot = slot
        self.opened_at = backend.clock()
        self.newest_unit = 0
        """Number of the unit that came last."""
        self._backend = backend
        self._on_closed = on_closed
        self._plan: SessionPlan | None = None
        self._all_attached = asyncio.Event()
        self._configured = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._over_at = 0.0
        self._trace = backend.tracing.session(session_id, slot, lease.epoch if lease else None)
        self._fields = SessionFields(session_id, worker_id=backend.worker_id)
        self._outboxes: dict[Stream, Outbox[Any]] = {
            Stream.PREFILL: Outbox(),
            Stream.GENERATE: Outbox(replies.absorb),
            Stream.FINALIZE: Outbox(),
        }
        self.session = SessionMachine(session_id, self, backend.limits, self.opened_at)

    # ------------------------------------------------------------- from outside

    def attach(self, stream: Stream, traceparent: str, tracestate: str) -> None:
        """A call of this session has come. Raises `StreamExists`, which leaves the session as it is."""
        self.session.attach(stream, self._backend.clock())
        self._trace.attach(traceparent, tracestate)
        if self.session.is_attached:
            self._backend.slots.attach(self.slot)
            self._all_attached.set()
        self._arm()

    def go_away(self, time_left_s: float, reason: str) -> None:
        """Announces the end of the session."""
        self.session.go_away(GoAway(time_left_s, reason))

    def fail(self, error: SessionError) -> None:
        """Ends the session with `error` once the engine has cleaned up."""
        with self._ruled():
            self.session.fail(error, self._backend.clock())

    def abandon(self, error: SessionError) -> None:
        """Ends the session with `error` at once: the engine is gone."""
        with self._ruled():
            self.session.abandon(error, self._backend.clock())

    def in_tick(self, unit: int, tick: int) -> SpanContext | None:
        """What the span of a tick links to for a unit that was in it; None if that is not sampled."""
        return self._trace.in_tick(unit, tick)

    async def serve(self, stream: Stream, context: Context) -> grpc.StatusCode:
        """The life of one call; this coroutine is its only writer. Returns the status it ends with."""
        outbox = self._outboxes[stream]
        reader = asyncio.create_task(self._read(stream, context))
        try:
            await context.send_initial_metadata(((METADATA_WORKER_ID, self._backend.worker_id),))
            while (message := await outbox.take()) is not None:
                await self._write(stream, context, message)
        except grpc.aio.InternalError:  # the caller is gone, and gRPC knows it already
            self.fail(_given_up(stream))
            # Of any other end it would write a traceback, as if it were an error of ours.
            raise asyncio.CancelledError from None
        except (Exception, asyncio.CancelledError):
            self.fail(_given_up(stream))
            raise
        finally:
            reader.cancel()
        if outbox.error is None:
            return grpc.StatusCode.OK
        outbox.error.end_call(context)
        return outbox.error.code

    # ------------------------------------------------------------------ the calls

    async def _write(self, stream: Stream, context: Context, message: Message) -> None:
        loop, patience = asyncio.get_running_loop(), self._backend.limits.unit_s
        watch = loop.call_later(patience, self._stall, stream)
        try:
            # Never given up by us: a call whose write is pending cannot be ended in another way.
            await context.write(message)
        finally:
            watch.cancel()

    def _stall(self, stream: Stream) -> None:
        self.fail(UnitTimeout(f"Nobody read {stream.value} for {self._backend.limits.unit_s:g} s."))

    async def _read(self, stream: Stream, context: Context) -> None:
        """Reads requests until the caller has no more; input waits while answers do."""
        await self._all_attached.wait()
        while not self.session.is_over:
            if stream is Stream.PREFILL:
                for outbox in self._outboxes.values():
                    await outbox.room.wait()
            try:
                data = await context.read()
            except Exception:  # the call broke in some other way
                self.fail(_given_up(stream))
                return
            if data is grpc.aio.EOF:
                await asyncio.sleep(HALF_CLOSE_SETTLE_S)
                with self._ruled():
                    self.session.half_close(stream, self._backend.clock())
                return
            try:
                request, made = await self._backend.decoder.read(stream, data, self._made)
            except PayloadInvalid as error:
                self.fail(error.with_traceback(None))
                return
            if stream is Stream.GENERATE and cast(pb.GenerateRequest, request).HasField("run"):
                await self._configured.wait()  # which settings a unit may have depends on its mode
            with self._ruled():
                self._receive(stream, request, made)

    def _made(self, request: Message) -> SessionPlan | Content | Failure | None:
        """What the config or the input in a request comes to; changes nothing. None where there is none."""
        if not isinstance(request, pb.PrefillRequest):
            return None
        backend = self._backend
        if request.HasField("config"):
            return resolve(request.config, backend.info, backend.draw_seed)
        if self._plan is None:
            return None
        try:
            return requests.content(request, self._plan.setup, backend.info)
        except UnitRefused as refused:
            return refused.failure

    def _receive(self, stream: Stream, request: Message, made: Callable[[], Any]) -> None:
        if self.session.is_over:
            return
        match stream:
            case Stream.PREFILL:
                self._prefill(cast(pb.PrefillRequest, request), made)
            case Stream.GENERATE:
                self._generate(cast(pb.GenerateRequest, request))
            case Stream.FINALIZE:
                self._finalize(cast(pb.FinalizeRequest, request))

    def _prefill(self, request: pb.PrefillRequest, made: Callable[[], Any]) -> None:
        now = self._backend.clock()
        if request.HasField("config"):
            self.session.expect_config(request.unit)
            plan: SessionPlan = made()
            self._plan = plan
            self._trace.configure(plan.setup, self._backend.info.name)
            mode, _ = kind_of(plan.setup)
            logger.info("session opened", extra={"mode": mode, "slot": self.slot})
            self.session.open(
                plan.setup, now, max_duration_s=plan.max_duration_s, idle_timeout_s=plan.idle_timeout_s
            )
            self._configured.set()
            return
        self.session.require_config()
        if self._plan is None:
            return  # the config was refused: the session is over
        self.newest_unit = request.unit
        self._fields.unit = request.unit
        traced = self._trace.begin(request.unit, request.traceparent)
        if traced is not None:
            self._fields.trace_id = format_trace_id(traced.trace_id)
            self._fields.span_id = format_span_id(traced.span_id)
        self.session.prefill(request.unit, made(), now)

    def _generate(self, request: pb.GenerateRequest) -> None:
        match request.WhichOneof("action"):
            case "run":
                self.session.generate(request.unit, self._run(request.run), self._backend.clock())
            case "cancel":
                self.session.cancel(request.unit)
            case _:
                raise PayloadInvalid(BadField("action", "must be `run` or `cancel`"))

    def _run(self, request: pb.GenerateUnit) -> Generate:
        assert self._plan is not None, "nothing is generated before the config"
        setup = self._plan.setup
        try:
            if request.force_listen and not isinstance(setup, DuplexSetup):
                raise UnitRefused(
                    Reason.PARAMS_INVALID,
                    "run.force_listen is for AUDIO and VIDEO sessions only.",
                    "run.force_listen",
                )
            overrides = unit_overrides(request.sampling, "run.sampling", setup, self._backend.info)
        except UnitRefused as refused:
            return Generate(request.force_listen, refusal=refused.failure)
        return Generate(request.force_listen, overrides)

    def _finalize(self, request: pb.FinalizeRequest) -> None:
        self.session.finalize(request.unit, self._backend.clock(), keep_last_token=request.keep_last_token)

    # ------------------------------------------------- what the session acts upon

    def open(self, setup: SessionSetup) -> EngineSession:
        """Starts the engine's part; see `sessions.World`."""
        return self._backend.engine.open(self.session_id, self.slot, setup, self._on_event)

    def send(self, stream: Stream, answer: Answer, unit: Unit | None = None) -> None:
        """Puts an answer into the outbox of its stream."""
        if unit is not None and isinstance(answer, Prefilled | Done | Finalized):
            self._trace.answered(unit, stream, answer)
            self._count(answer, unit)
        for message in self._messages(answer):
            self._outboxes[stream].put(message)

    def _count(self, answer: Prefilled | Done | Finalized, unit: Unit) -> None:
        metrics = self._backend.metrics
        if isinstance(answer, Done):
            assert self._plan is not None, "nothing is generated before the config"
            is_duplex = isinstance(self._plan.setup, DuplexSetup)
            metrics.done(answer, self._backend.info.unit_seconds if is_duplex else 0.0)
            if answer.failure is not None:
                logger.warning("unit failed", extra={"code": answer.failure.reason})
        elif isinstance(answer, Finalized) and (began := unit.began(Stream.FINALIZE)) is not None:
            metrics.finalized(unit.answered_at[Stream.FINALIZE] - began)

    def cleaning(self, error: SessionError | None, units: Sequence[Unit]) -> None:
        """The slot is no longer this session's and not yet anybody else's."""
        self._over_at = self._backend.clock()
        self._trace.cut(units, error, self._over_at)
        self._backend.metrics.ended(error)
        self._backend.slots.clean(self.slot)

    def clean(self) -> None:
        """The slot is free."""
        self._backend.slots.free(self.slot)
        self._backend.metrics.cleaned(self._backend.clock() - self._over_at)
        self._on_closed(self)

    def end(self, error: SessionError | None) -> None:
        """All three calls end alike, after what waits to be sent."""
        is_ours = error is not None and error.side is Side.SERVER
        totals = {
            "code": (error.reason or error.code.name) if error else "OK",
            "units": self.newest_unit,
            "seconds": round(self._backend.clock() - self.opened_at, 3),
        }
        logger.log(logging.ERROR if is_ours else logging.INFO, "session closed", extra=totals)
        for outbox in self._outboxes.values():
            outbox.end(error)

    def _messages(self, answer: Answer) -> Iterator[Message]:
        """One, or several of an answer that is large."""
        match answer:
            case Ready():
                assert self._plan is not None, "an engine is ready only after the config"
                backend = self._backend
                window = backend.limits.window_of(self._plan.setup)
                yield replies.session_ready(answer, self._plan, backend.info, backend.worker_id, window)
            case Prefilled():
                yield replies.prefilled(answer)
            case Piece():
                yield from replies.pieces(answer, self._backend.info.output_sample_rate_hz)
            case Done():
                yield replies.done(answer)
            case Finalized():
                yield replies.finalized(answer)
            case GoAway():
                yield replies.go_away(answer.time_left_s, answer.reason)

    # ------------------------------------------------------------ rules and clock

    def _on_event(self, event: Event) -> None:
        with self._ruled():
            self.session.event(event, self._backend.clock())

    @contextmanager
    def _ruled(self) -> Iterator[None]:
        """A broken rule ends this session with its error, a fault of ours with INTERNAL; nobody else's."""
        token = session_log.set(self._fields)
        try:
            yield
        except SessionError as error:
            # The session keeps the error; its traceback would keep the session.
            self.session.fail(error.with_traceback(None), self._backend.clock())
        except Exception:
            logger.exception("session failed")
            self.session.fail(SessionFault("The session failed inside the worker."), self._backend.clock())
        finally:
            session_log.reset(token)
            self._arm()

    def _arm(self) -> None:
        """Keeps one timer, due no later than the session's next deadline."""
        deadline = self.session.deadline()
        loop = asyncio.get_running_loop()
        if deadline is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        when = loop.time() + max(0.0, deadline - self._backend.clock())
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        with self._ruled():
            self.session.expire(self._backend.clock())


def _given_up(stream: Stream) -> Cancelled:
    # gRPC itself refuses a message that is too large and shows us no difference.
    return Cancelled(
        f"The caller gave up its {stream.value} stream, or sent more than {MAX_MESSAGE_BYTES} bytes at once."
    )

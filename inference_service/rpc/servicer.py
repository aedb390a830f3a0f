"""The gRPC methods: each finds or opens the session of a call, or refuses the call."""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import grpc

from antiphon.contract import MAX_MESSAGE_BYTES, METADATA_TRACEPARENT, METADATA_TRACESTATE
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import CLAIMS_VERSION
from antiphon_service.pools import STABLE
from inference_service.errors import Draining, LeaseInvalid, LeaseRevoked, Loading, NoFreeSlot, SessionError
from inference_service.interface.engine import Ticked
from inference_service.observability.metrics import STATES, WorkerMetrics
from inference_service.observability.status import SlotView
from inference_service.observability.tracing import Tracing
from inference_service.rpc.messages import replies
from inference_service.rpc.transport.call import Call, Context
from inference_service.rpc.transport.peer import Peer
from inference_service.session.calls.backend import Backend
from inference_service.session.calls.session_calls import SessionCalls
from inference_service.session.leases import Lease, LeaseReader, LeaseRules
from inference_service.session.metadata import Metadata, first, session_id
from inference_service.session.slots import SlotState
from inference_service.session.units import Stream

logger = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

_VERSION = version("antiphon")


class State(Enum):
    """The states of a worker."""

    LOADING = pb.WORKER_STATE_LOADING
    READY = pb.WORKER_STATE_READY
    DRAINING = pb.WORKER_STATE_DRAINING


class InferenceServicer:
    """The methods of the service, with every session of the worker. All of it runs on the serving event loop.

    The `rules` decide which calls need a lease.
    """

    def __init__(
        self,
        worker_id: str,
        rules: LeaseRules,
        metrics: WorkerMetrics,
        tracing: Tracing,
        revision: str = STABLE,
    ) -> None:
        self.worker_id = worker_id
        self.revision = revision
        self.changed: Callable[[], None] = lambda: None
        """Called when a slot is taken, or admission control refused a session."""
        self._metrics = metrics
        self._tracing = tracing
        self.state = State.LOADING
        self.empty = asyncio.Event()
        """Set while the worker has no session."""
        self.empty.set()
        self.quiet = asyncio.Event()
        """Set while no session has an open call: callers have read everything."""
        self.quiet.set()
        self._open_calls = 0
        self._rules = rules
        self._leases = LeaseReader(rules, worker_id)
        self._backend: Backend | None = None
        self._model = pb.GetInfoResponse()
        """GetInfo's description of the model."""
        self._sessions: dict[str, SessionCalls] = {}

    # --------------------------------------------------------- from the worker

    def start(self, backend: Backend) -> None:
        """Accept sessions from now on."""
        self._backend = backend
        self._model = replies.model_info(backend.info)
        self.state = State.READY

    def drain(self) -> None:
        """Accept no new session from now on; running ones go on."""
        self.state = State.DRAINING

    def go_away(self, time_left_s: float) -> None:
        """Announce to every session that it will be ended."""
        for session in list(self._sessions.values()):
            session.go_away(time_left_s, "draining")

    def fail_all(self, error: SessionError) -> None:
        """End every session with `error`; `empty` follows when the engine has cleaned up."""
        for session in list(self._sessions.values()):
            session.fail(error)

    def abandon_all(self, error: SessionError) -> None:
        """End every session with `error` at once, since the engine is gone, and accept no more."""
        self.drain()
        for session in list(self._sessions.values()):
            session.abandon(error)

    def takes_sessions(self) -> bool:
        """Return whether a session with a lease would be accepted."""
        return self.state is State.READY and self._backend is not None and self._backend.admission.has_time()

    def revoke(self, slot: int, epoch: int) -> bool:
        """Revoke a lease and end its session; return whether its slot is free already."""
        if self._backend is None or not 0 <= slot < self._backend.slots.leased:
            return True
        if self._backend.slots.revoke(slot, epoch) is SlotState.FREE:
            return True
        for session in list(self._sessions.values()):
            if session.lease is not None and session.lease[:2] == (slot, epoch):
                session.fail(LeaseRevoked("The dispatcher took the slot of this session back."))
        return False

    def ticked(self, tick: Ticked) -> None:
        """Record a tick that has named members."""
        linked = (
            session.in_tick(unit, tick.number)
            for name, unit in tick.members
            if (session := self._sessions.get(name)) is not None
        )
        self._tracing.ticked(tick, [context for context in linked if context is not None])

    def slot_views(self) -> list[SlotView]:
        """Return every slot with its session."""
        if self._backend is None:
            return []
        now, slots = self._backend.clock(), self._backend.slots
        sessions = {session.slot: session for session in self._sessions.values()}
        views = []
        for slot in range(slots.count):
            state, session = STATES[slots.state(slot)].value, sessions.get(slot)
            if session is None:
                views.append(SlotView(slot, state))
            else:
                views.append(
                    SlotView(slot, state, session.session_id, now - session.opened_at, session.newest_unit)
                )
        return views

    # ------------------------------------------------------------- the methods

    def methods(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the service's methods.

        Requests of streams stay bytes: decoding a large one would block the event loop.
        """
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            stream.value: grpc.stream_stream_rpc_method_handler(partial(self._serve, stream))
            for stream in Stream
        }
        handlers["GetInfo"] = grpc.unary_unary_rpc_method_handler(
            self._get_info,
            request_deserializer=pb.GetInfoRequest.FromString,
            response_serializer=pb.GetInfoResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _get_info(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Describe the worker; the description of the model is empty until it is loaded."""
        count = self._counted("GetInfo")
        info = self._describe()
        count(grpc.StatusCode.OK)
        return info

    def _describe(self) -> pb.GetInfoResponse:
        info = pb.GetInfoResponse(
            worker_id=self.worker_id,
            version=_VERSION,
            max_message_bytes=MAX_MESSAGE_BYTES,
            state=self.state.value,
            lease_version=CLAIMS_VERSION,
            revision=self.revision,
        )
        if self._backend is not None:
            info.slots = self._backend.slots.leased
            info.short_of_time = not self._backend.admission.has_time()
            info.free_slots = 0 if info.short_of_time else self._backend.slots.free_count
            info.held.extend(
                pb.HeldSlot(slot=slot, epoch=epoch) for slot, epoch in self._backend.slots.held()
            )
            info.usage.extend(
                pb.LeaseUsage(
                    epoch=each.epoch, input_tokens=each.input_tokens, output_tokens=each.output_tokens
                )
                for each in self._backend.usages.all()
            )
            info.MergeFrom(self._model)
        return info

    def _counted(self, method: str) -> Callable[[grpc.StatusCode], None]:
        began = time.monotonic()
        return lambda code: self._metrics.called(method, code, time.monotonic() - began)

    async def _serve(self, stream: Stream, requests: object, context: Context) -> None:
        """Serve one call from its first byte to its status."""
        call = Call(context)
        call.on_over = self._counted(stream.value)
        try:
            session = self._attach(stream, call.metadata, call.peer)
        except SessionError as error:
            self._metrics.ended(error)
            about = {"code": error.reason, "method": stream.value, **call.peer.fields()}
            logger.warning("call refused", extra=about)
            call.fail(error)
        except Exception:
            logger.exception("call failed inside the worker")
            call.end(grpc.StatusCode.INTERNAL, "The call failed inside the worker.")
        else:
            session.serve(stream, call)
        self._open_calls += 1
        self.quiet.clear()
        try:
            await call.serve()
        finally:
            self._open_calls -= 1
            if not self._open_calls:
                self.quiet.set()

    def _attach(self, stream: Stream, metadata: Metadata, peer: Peer) -> SessionCalls:
        """Return the session of a call; create it if needed. A refused call disturbs no session."""
        name = session_id(metadata)
        lease = self._leases.read(metadata)
        session = self._sessions.get(name) or self._open(name, lease, peer)
        if self._rules.binding and session.lease != lease:
            raise LeaseInvalid(f"Session {name} was attached with another lease.")
        session.attach(stream, first(metadata, METADATA_TRACEPARENT), first(metadata, METADATA_TRACESTATE))
        return session

    def _open(self, name: str, lease: Lease | None, peer: Peer) -> SessionCalls:
        if self.state is State.DRAINING:
            raise Draining("This worker is shutting down; open the session on another.")
        if self._backend is None:
            raise Loading("The model is still loading.")
        if not self._backend.admission.has_time():
            self.changed()
            raise NoFreeSlot("One more session would make the units of others late.")
        slot = self._backend.slots.acquire(lease)
        self._backend.admission.enter()
        session = self._sessions[name] = SessionCalls(name, slot, lease, peer, self._backend, self._forget)
        self.empty.clear()
        self.changed()
        return session

    def _forget(self, session: SessionCalls) -> None:
        del self._sessions[session.session_id]
        if self._backend is not None:
            self._backend.admission.leave()
        if not self._sessions:
            self.empty.set()

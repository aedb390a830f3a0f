"""DispatchService: admission of direct callers to the queue, and the responses to them."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, TypeAlias
from urllib.parse import unquote

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from websockets.datastructures import Headers
from websockets.http11 import Request

from antiphon.contract import AcquireReason
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1.dispatch_service_pb2_grpc import DispatchServiceServicer
from antiphon_service.semconv import Rejection
from ws_adapter.access.http.access import Access, Denied, Pass
from ws_adapter.access.keys import Key
from ws_adapter.direct.refusals import Refused
from ws_adapter.direct.slot import DirectRequest, DirectSlot, Revoked
from ws_adapter.dispatch.base import MODE_OF, Lease, LeaseTerms, Need, Priority, QueuePlace, Share
from ws_adapter.observability.metrics import Metrics
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.session.services import Services
from ws_adapter.usage.accounts import About, Meter
from ws_adapter.usage.store import DAY_S
from ws_adapter.usage.tenant import NOBODY

Context: TypeAlias = "grpc.aio.ServicerContext[pb.AcquireRequest, pb.AcquireResponse]"

KINDS: Final = {
    "chat": Kind.CHAT,
    "audio": Kind.AUDIO_DUPLEX,
    "video": Kind.OMNI_DUPLEX,
    "transcribe": Kind.TRANSCRIPTION,
}


class DispatchServicer(DispatchServiceServicer):
    """DispatchService, with the limits, keys and queue that WebSockets have too."""

    def __init__(
        self,
        services: Services,
        access: Access,
        metrics: Metrics,
        rejected: Callable[[Rejection], None],
    ) -> None:
        """`rejected` is called with the reason for each caller that access control rejects."""
        self._services = services
        self._access = access
        self._metrics = metrics
        self._rejected = rejected
        self._callers: dict[DirectSlot, Key | None] = {}
        self._slot_tasks: set[asyncio.Task[None]] = set()

    def end_withdrawn(self) -> None:
        """End the waits of withdrawn and expired keys; their callers keep granted leases."""
        for slot, key in list(self._callers.items()):
            if (verdict := self._access.end_of(key)) is not None:
                slot.refuse(Refused(AcquireReason.KEY_REFUSED, verdict.message))

    def drain(self) -> None:
        """End all waits."""
        for slot in list(self._callers):
            slot.refuse(_draining())

    async def close(self) -> None:
        """Stop all tasks of slots; the sessions continue at their workers."""
        for task in self._slot_tasks:
            task.cancel()
        await asyncio.gather(*self._slot_tasks, return_exceptions=True)

    # The generated base class declares a generator; this handler writes through its context.
    async def Acquire(  # type: ignore[override]
        self, request: pb.AcquireRequest, context: Context
    ) -> None:
        """Wait for a slot, and write queue places and the lease to the stream of the call."""
        try:
            entry = await self._enter(context)
            slot = self._open_slot(request, entry)
            await self._serve(slot, entry.key, context)
        except Refused as refused:
            refused.end_call(context)
        except grpc.aio.InternalError:  # the caller has disconnected
            # gRPC logs a traceback for any other exception, as if the adapter had failed.
            raise asyncio.CancelledError from None

    async def _enter(self, context: Context) -> Pass:
        """Admit a caller, which counts for its limits from now on. Raises `Refused`."""
        if self._services.load.is_draining:
            raise _draining()
        headers = Headers()
        for name, value in context.invocation_metadata() or ():
            if isinstance(value, str):
                headers[name] = value
        request = Request("/", headers)
        try:
            caller = self._access.caller(request, _address(context.peer()))
            return await self._access.enter(request, caller)
        except Denied as denied:
            self._rejected(denied.reason)
            raise Refused.by_access(denied) from None

    def _open_slot(self, request: pb.AcquireRequest, entry: Pass) -> DirectSlot:
        """Start to wait for a slot. The caller counts for its limits until the slot is free again, although
        its call ends long before. Raises `Refused` for an invalid request."""
        services = self._services
        try:
            demand = _demand(request, entry, services.options)
        except Refused:
            entry.leave()
            raise
        meter = self._meter(demand, entry.key)
        slot = DirectSlot(
            demand, services.dispatcher, services.registry, self._metrics, services.clock, meter
        )
        self._slot_tasks.add(slot.task)
        slot.task.add_done_callback(self._slot_tasks.discard)
        slot.task.add_done_callback(lambda _: entry.leave())
        return slot

    def _meter(self, demand: DirectRequest, key: Key | None) -> Meter:
        """Return the meter of a session. It takes the quota for the longest session at once, since the
        adapter cannot end a direct session early."""
        tenant = key.tenant if key is not None else NOBODY
        longest_s = self._services.options.direct_session_limit_s or DAY_S
        about = About(demand.label, demand.kind.value, "grpc", "grpc")
        return self._services.accounts.meter(tenant, about, round(longest_s * 1000))

    async def _serve(self, slot: DirectSlot, key: Key | None, context: Context) -> None:
        self._callers[slot] = key
        try:
            async for update in slot.updates():
                await context.write(_response(update, is_served=bool(self._services.registry.ready())))
        finally:
            del self._callers[slot]
            slot.give_up()


def _demand(request: pb.AcquireRequest, entry: Pass, options: AdapterOptions) -> DirectRequest:
    kind = KINDS.get(request.kind)
    if kind is None:
        expected = ", ".join(KINDS)
        raise Refused(AcquireReason.PAYLOAD_INVALID, f"kind must be one of {expected}", field="kind")
    rights = entry.rights
    if not rights.allows_mode(MODE_OF[kind]):
        message = f"the key is not for kind {request.kind}"
        raise Refused(AcquireReason.NOT_ALLOWED, message, field="kind")
    if not rights.allows_model(request.model):
        raise Refused(AcquireReason.NOT_ALLOWED, "the key is not for this model", field="model")
    if entry.key is not None and entry.key.limits.tokens_per_day is not None:
        # The adapter cannot end a direct session when its tokens are spent.
        message = "a key with tokens_per_day opens no direct sessions"
        raise Refused(AcquireReason.NOT_ALLOWED, f"{message}; connect by WebSocket, or use another key")
    max_wait_s = longest_s = options.queue_max_wait_s
    if request.HasField("max_wait"):
        wait_s = request.max_wait.seconds + request.max_wait.nanos / 1e9
        if wait_s <= 0:
            raise Refused(AcquireReason.PAYLOAD_INVALID, "max_wait must be above 0", field="max_wait")
        max_wait_s = min(wait_s, longest_s or wait_s)
    terms = LeaseTerms(entry.tenant, options.direct_session_limit_s, options.direct_idle_s)
    need = Need(model=request.model, models=rights.models)
    label = f"direct_{secrets.token_hex(6)}"
    priority = entry.key.priority if entry.key is not None else Priority.NORMAL
    return DirectRequest(kind, need, max_wait_s, label, terms, _share(entry, options), priority)


def _share(entry: Pass, options: AdapterOptions) -> Share | None:
    """Return the slot limit of a caller: that of its key, else the default; None without a limit."""
    if not entry.holder:
        return None
    own = entry.key.limits.direct_slots if entry.key is not None else None
    return Share(entry.holder, options.direct_slots_per_caller if own is None else own)


def _draining() -> Refused:
    return Refused(AcquireReason.DRAINING, "this adapter is shutting down; ask another")


def _response(update: QueuePlace | Lease | Revoked, *, is_served: bool) -> pb.AcquireResponse:
    match update:
        case Lease():
            return pb.AcquireResponse(
                granted=pb.Lease(
                    target=update.target,
                    token=update.token,
                    worker_id=update.worker_id,
                    slot=update.slot,
                    epoch=update.epoch,
                    pool=update.pool,
                )
            )
        case Revoked():
            return pb.AcquireResponse(revoked=pb.Revoked(reason=update.reason))
    place = pb.QueuePlace(
        ticket_id=update.ticket_id, position=update.position, queue_length=update.queue_length
    )
    if is_served:
        wait = Duration()
        wait.FromNanoseconds(round(update.estimated_wait_s * 1e9))
        place.estimated_wait.CopyFrom(wait)
    return pb.AcquireResponse(queued=place)


def _address(peer: str) -> str:
    """Return the address in a gRPC peer such as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")

"""Acquisition of a slot for a session from the queue of an adapter."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import AcquireReason
from antiphon.errors import AntiphonError, AuthError, ConnectError, ProtocolError, QueueFull
from antiphon.grpc.dial import open_channel
from antiphon.grpc.status import Status
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1.dispatch_service_pb2_grpc import DispatchServiceStub

_FULL: Final = frozenset(
    {
        AcquireReason.QUEUE_FULL,
        AcquireReason.WAIT_EXPIRED,
        AcquireReason.RATE_LIMITED,
        AcquireReason.SLOT_LIMIT,
    }
)


@dataclass(frozen=True)
class Place:
    """A place in the queue. `position` counts from 1; `wait_s` is an estimate in seconds, or None."""

    ticket_id: str
    position: int
    queue_length: int
    wait_s: float | None


@dataclass(frozen=True)
class Lease:
    """The right to one session in one slot of one worker. `Session.open` accepts it in place of a target."""

    target: str
    token: str
    worker_id: str
    slot: int
    epoch: int


OnPlace: TypeAlias = Callable[[Place], None] | Callable[[Place], Awaitable[None]]


@asynccontextmanager
async def acquire(
    dispatcher: str | grpc.aio.Channel,
    kind: str,
    *,
    key: str | None = None,
    max_wait_s: float | None = None,
    on_place: OnPlace | None = None,
    model: str = "",
    credentials: grpc.ChannelCredentials | None = None,
) -> AsyncIterator[Lease]:
    """Wait in the queue of the adapter at `dispatcher` for a slot, and yield its lease.

    `dispatcher` is the address `host:port` of the adapter's gRPC port, or a channel to that port. An address
    with TLS needs `credentials`.
    `kind` is the kind of session: `chat`, `audio`, `video` or `transcribe`. Without a `model` the adapter
    chooses one that serves this kind. `key` is the API key, where the adapter requires one. `on_place` is
    called with each `Place` while no slot is free. Open the session within 10 s:

        async with acquire("adapter:8007", "audio") as lease, Session.open(lease, config) as session: ...

    Leaving the block before the session is open gives the place or the lease back; later it has no effect.
    Raises `QueueFull` (also if the wait took too long, or this caller exceeds its rate limit or its limit of
    slots), `AuthError`, `ProtocolError` or `ConnectError`, with the adapter's `reason`.
    """
    async with AsyncExitStack() as owned:
        name = "the given channel"
        if isinstance(dispatcher, str):
            name = dispatcher
            dispatcher = await owned.enter_async_context(open_channel(dispatcher, credentials))
        request = pb.AcquireRequest(model=model, kind=kind)
        if max_wait_s is not None:
            wait = Duration()
            wait.FromNanoseconds(round(max_wait_s * 1e9))
            request.max_wait.CopyFrom(wait)
        metadata = [("authorization", f"Bearer {key}")] if key is not None else []
        call = DispatchServiceStub(dispatcher).Acquire(request, metadata=metadata)
        owned.callback(call.cancel)
        lease = await _wait(call, name, on_place)
        # Later messages need no handling: a worker refuses a session with a revoked lease.
        rest = asyncio.create_task(_read_on(call))
        owned.callback(rest.cancel)
        yield lease


async def _wait(call: Any, name: str, on_place: OnPlace | None) -> Lease:
    try:
        async for response in call:
            if response.HasField("granted"):
                lease = response.granted
                return Lease(lease.target, lease.token, lease.worker_id, lease.slot, lease.epoch)
            if response.HasField("queued") and on_place is not None:
                told = on_place(_place(response.queued))
                if inspect.isawaitable(told):
                    await told
    except grpc.aio.AioRpcError as error:
        status = Status.of(error.code(), error.details() or "", error.trailing_metadata())
        raise _error(status, name) from error
    raise ConnectError("The dispatcher ended the wait without a lease.", reason="closed", retryable=True)


async def _read_on(call: Any) -> None:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError:
        pass  # the adapter may go; the session does not need it


def _place(place: pb.QueuePlace) -> Place:
    wait_s = None
    if place.HasField("estimated_wait"):
        wait_s = place.estimated_wait.ToTimedelta().total_seconds()
    return Place(place.ticket_id, place.position, place.queue_length, wait_s)


def _error(status: Status, name: str) -> AntiphonError:
    match status.code:
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return AuthError(status.message, reason=status.reason)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ProtocolError(status.message, reason=status.reason, param=status.field)
    if status.reason == AcquireReason.QUOTA_EXCEEDED:
        return ConnectError(status.message, reason=status.reason)
    if status.reason in _FULL or status.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return QueueFull(status.message, reason=status.reason or AcquireReason.RATE_LIMITED)
    if not status.reason:
        return ConnectError(f"No dispatcher answers at {name}: {status.message}", reason="UNAVAILABLE")
    return ConnectError(status.message, reason=status.reason, retryable=True)

"""A dispatcher reached by `DispatchService.Acquire`, as direct callers reach it: the third back end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import grpc

from antiphon.contract import AcquireReason
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from antiphon_service.semconv import SERVICE_ADAPTER
from antiphon_service.telemetry.providers import start
from tests.ws_adapter.support.backend import InProcessBackend, ListedRegistry, until_told
from ws_adapter.access.http.access import Access
from ws_adapter.direct import slot as direct_slot
from ws_adapter.direct.server import DirectServer
from ws_adapter.direct.service import KINDS, DispatchServicer
from ws_adapter.dispatch.base import ANYTHING, Lease, Need, QueuePlace, QueueView, Share
from ws_adapter.dispatch.inprocess import InProcessDispatcher
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.observability.metrics import Metrics
from ws_adapter.options import AdapterOptions
from ws_adapter.process.clock import LoopClock
from ws_adapter.process.errors import (
    DispatchError,
    DispatcherUnavailable,
    QueueFull,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.process.load import Load
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.session.services import Services
from ws_adapter.usage.accounts import Accounts

WORDS = {kind: word for word, kind in KINDS.items()}
ERRORS: dict[str, type[DispatchError]] = {
    AcquireReason.QUEUE_FULL: QueueFull,
    AcquireReason.WAIT_EXPIRED: WaitExpired,
    AcquireReason.WAIT_CANCELLED: WaitCancelled,
    AcquireReason.NO_WORKER: DispatcherUnavailable,
}


class RemoteTicket:
    """See `Ticket`. Its id is known once it has a place."""

    def __init__(self, call: Any) -> None:
        self.id = ""
        self._call = call

    async def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        """See `Ticket.updates`."""
        try:
            async for response in self._call:
                if response.HasField("granted"):
                    it = response.granted
                    yield Lease(it.target, it.token, it.worker_id, it.slot, it.epoch, it.pool)
                    return
                self.id = response.queued.ticket_id
                yield _place(response.queued)
        except grpc.aio.AioRpcError as error:
            trailers = dict(error.trailing_metadata() or ())
            for reason, kind in ERRORS.items():
                if reason.encode() in bytes(trailers["grpc-status-details-bin"]):
                    raise kind(error.details()) from None
            raise


def _place(told: pb.QueuePlace) -> QueuePlace:
    wait_s = told.estimated_wait.ToTimedelta().total_seconds()
    return QueuePlace(told.ticket_id, told.position, told.queue_length, wait_s, True)


class RemoteDispatcher:
    """See `Dispatcher`. Those who look on ask the adapter itself."""

    def __init__(self, channel: grpc.aio.Channel, adapter: InProcessDispatcher) -> None:
        self._stub = DispatchServiceStub(channel)
        self._adapter = adapter

    @asynccontextmanager
    async def acquire(
        self,
        kind: Kind,
        max_wait: float,
        *,
        need: Need = ANYTHING,
        label: str = "",
        again: str | None = None,
        share: Share | None = None,
    ) -> AsyncIterator[RemoteTicket]:
        """See `Dispatcher.acquire`; labels and the head of the queue are for sessions of the adapter."""
        assert not again
        assert not label
        assert share is None
        request = pb.AcquireRequest(model=need.model, kind=WORDS[kind])
        if max_wait:
            request.max_wait.FromNanoseconds(round(max_wait * 1e9))
        call = self._stub.Acquire(request)
        try:
            yield RemoteTicket(call)
        finally:
            call.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    async def view(self) -> QueueView:
        """See `Dispatcher.view`."""
        return await self._adapter.view()


class HoldingRegistry(ListedRegistry):
    """Its workers say which leases are held."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[tuple[str, int]] = set()

    async def holds(self, target: str, worker_id: str, epoch: int) -> bool | None:
        return (worker_id, epoch) in self.held


class RemoteBackend(InProcessBackend):
    """An adapter with a gRPC port. A slot is clean when its worker says so."""

    def __init__(self, rules: QueueRules) -> None:
        self.registry: HoldingRegistry = HoldingRegistry()
        self.adapter = InProcessDispatcher(self.registry, LoopClock(), rules)

    async def start(self) -> None:
        """Listens."""
        options, clock = AdapterOptions(workers=("127.0.0.1:1",), grpc_port=0), LoopClock()
        load = Load(options.load_limits, clock)
        unused = cast(Any, None)
        counted = Accounts(clock)
        services = Services(
            options, self.adapter, self.registry, clock, load, unused, unused, unused, counted
        )
        telemetry = start(SERVICE_ADAPTER, {})
        metrics = Metrics(telemetry.meter)
        servicer = DispatchServicer(services, Access(options, clock), metrics, lambda reason: None)
        self.server = DirectServer(options, servicer, None)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{await self.server.start()}")
        self.dispatcher = cast(Any, RemoteDispatcher(self.channel, self.adapter))

    async def shut(self, name: str) -> None:
        self.registry.held = {lease for lease in self.registry.held if lease[0] != name}
        await self.drain(name)

    async def attach(self, lease: Lease) -> None:
        self.registry.held.add((lease.worker_id, lease.epoch))

    async def clean(self, lease: Lease) -> None:
        self.registry.held.discard((lease.worker_id, lease.epoch))


@asynccontextmanager
async def remote(**rules: Any) -> AsyncIterator[RemoteBackend]:
    """The back end of direct callers, whose workers are asked often."""
    with patch.object(direct_slot, "ASK_S", 0.01):
        backend = RemoteBackend(QueueRules(**rules))
        await backend.start()

        async def is_empty() -> bool:
            return (
                not (await backend.adapter.view()).running
                and (await backend.adapter.status()).queue_length == 0
            )

        try:
            yield backend
            await until_told(is_empty)
        finally:
            await backend.channel.close()
            await backend.server.close()
            await backend.adapter.close()

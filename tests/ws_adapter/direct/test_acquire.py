"""Slots for callers who dial workers themselves, from a real adapter and at real workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon import AuthError, ConnectError, ProtocolError, QueueFull
from antiphon.contract import AcquireReason, Reason
from antiphon.grpc import Finalized, Lease, Place, Session, acquire
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1 import inference_service_pb2 as session_pb
from antiphon.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from tests.support.scripted_engine import (
    EVERYTHING,
    Play,
    RunningWorker,
    ScriptedEngine,
    listen,
    running_worker,
)
from tests.ws_adapter.support.calls import Authority
from tests.ws_adapter.support.conversation import CLOSE, INIT
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import PATIENCE_S, ManualClock, Stage, running_adapter, until
from ws_adapter.direct import slot
from ws_adapter.direct.service import _address
from ws_adapter.direct.slot import ATTACH_S

KEY = b"a key of 16 byte"
LISTEN = listen()
CONFIG = session_pb.SessionConfig(mode=session_pb.SESSION_MODE_AUDIO)


@asynccontextmanager
async def backend(
    slots: int = 1, worker_key: bytes | None = KEY, play: Play = LISTEN, **options: Any
) -> AsyncIterator[tuple[Stage, RunningWorker]]:
    """An adapter with a gRPC port, and the worker behind it."""
    engine = ScriptedEngine(play, slots=slots, info=EVERYTHING, repeat=True)
    async with running_worker(engine, slots=slots, worker_key=worker_key) as worker:
        async with running_adapter(worker.address, worker_key=worker_key, grpc_port=0, **options) as stage:
            yield stage, worker


def port_of(stage: Stage) -> str:
    return f"127.0.0.1:{stage.adapter.grpc_port}"


class Call:
    """A bare call, for what the SDK hides."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Any = None, **request: Any) -> None:
        request = {"kind": "audio", **request}
        self.call = DispatchServiceStub(channel).Acquire(pb.AcquireRequest(**request), metadata=metadata)

    async def next(self) -> pb.AcquireResponse | None:
        async with asyncio.timeout(PATIENCE_S):
            answer = await self.call.read()
        return None if answer is grpc.aio.EOF else answer

    async def granted(self, worst_place: int = 1000) -> pb.Lease:
        """The lease, behind the places in the queue."""
        while (update := await self.next()) is not None and update.HasField("queued"):
            assert update.queued.position <= worst_place
        assert update is not None
        return update.granted


async def play(session: Session) -> None:
    await session.send_unit(bytes(64_000))
    async for output in session:
        if isinstance(output, Finalized):
            break


@asynccontextmanager
async def channel_to(stage: Stage) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(port_of(stage)) as channel:
        yield channel


@pytest.mark.parametrize("worker_key", [KEY, None], ids=["signed", "unsigned"])
async def test_a_free_slot_is_leased_at_once_and_opens_a_session(worker_key: bytes | None) -> None:
    """Its call ends once somebody has attached; those who look see it as any other session."""
    async with backend(slots=2, worker_key=worker_key) as (stage, worker):
        async with acquire(port_of(stage), "audio") as lease, Session.open(lease, CONFIG) as session:
            assert lease.target == worker.address
            assert session.ready.worker_id == lease.worker_id
            await stage.until(free_slots=1)
            running = (await stage.request("/status"))[2]["running_tasks"]
            assert [task["worker_id"] for task in running] == [f"{lease.worker_id}/{lease.slot}"]
            async with channel_to(stage) as channel:
                call = Call(channel)
                granted = await call.granted()
                async with Session.open(granted.target, CONFIG, lease=granted.token):
                    assert await call.next() is None
                    assert await call.call.code() is grpc.StatusCode.OK
                    await stage.until(free_slots=0)
        await stage.until(free_slots=2)


async def test_waiting_caller_gets_queue_position_until_lease_is_granted() -> None:
    async with backend() as (stage, _):
        places: list[Place] = []

        async def second() -> Lease:
            async with acquire(port_of(stage), "audio", on_place=places.append) as lease:
                return lease

        async with acquire(port_of(stage), "audio") as first, Session.open(first, CONFIG):
            waiting = asyncio.create_task(second())
            await until(lambda: places)
        lease = await waiting
        assert (places[0].position, places[0].queue_length) == (1, 1)
        assert places[0].ticket_id.startswith("ticket_")
        assert places[0].wait_s is not None
        assert lease.epoch > first.epoch


async def test_direct_callers_and_websockets_stand_in_one_queue() -> None:
    async with backend() as (stage, _), stage.client() as holder:
        await holder.begin()
        async with channel_to(stage) as channel, stage.client() as second:
            await second.expect("session.queued")
            third = Call(channel)
            queued = await third.next()
            assert queued is not None
            assert (queued.queued.position, queued.queued.queue_length) == (2, 2)
            await holder.send(CLOSE)
            await second.expect_until("session.queue_done")
            await second.send(INIT, CLOSE)
            await second.rest()
            await third.granted(worst_place=2)
            third.call.cancel()


async def test_leaving_after_attaching_changes_nothing() -> None:
    """The slot is nobody else's as long as the session runs, and somebody's once it is over."""
    async with backend() as (stage, _):
        async with acquire(port_of(stage), "audio") as lease:
            opened = Session.open(lease, CONFIG)
            session = await opened.__aenter__()
        async with stage.client() as client:
            await client.expect("session.queued")
            await play(session)
            await opened.__aexit__(None, None, None)
            await client.expect_until("session.queue_done")


async def test_unused_lease_is_revoked_and_slot_granted_to_next_caller() -> None:
    clock = ManualClock()
    async with backend(clock=clock) as (stage, _), channel_to(stage) as channel:
        idle = Call(channel)
        first = await idle.granted()
        next_one = Call(channel)
        queued = await next_one.next()
        assert queued is not None
        revoked = asyncio.create_task(idle.next())
        while not revoked.done():
            await clock.advance(1.0)
            await asyncio.sleep(0.01)
        told = await revoked
        assert told is not None
        assert told.revoked.reason
        assert clock.now() - 5000.0 >= ATTACH_S
        assert await idle.next() is None
        assert await idle.call.code() is grpc.StatusCode.OK
        granted = await next_one.granted()
        assert granted.epoch > first.epoch
        async with Session.open(granted.target, CONFIG, lease=granted.token):
            with pytest.raises(AuthError) as refused:
                async with Session.open(first.target, CONFIG, lease=first.token):
                    pass
        assert refused.value.reason == Reason.STALE_LEASE


async def test_call_cancelled_at_any_step_leaves_no_ticket_or_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "ASK_S", 0.01)
    async with backend() as (stage, _), channel_to(stage) as channel:
        for step in range(12):
            call = Call(channel)
            await asyncio.sleep(0.0005 * step)
            call.call.cancel()
        async with acquire(port_of(stage), "audio"):
            await stage.until_queue(0)
        await stage.until(free_slots=1)


async def test_late_attach_takes_free_slot_and_next_client_queues() -> None:
    """The next client waits as for any other slot that is taken."""
    async with backend() as (stage, _):
        async with acquire(port_of(stage), "audio") as lease:
            pass
        await stage.until(free_slots=1)
        async with Session.open(lease, CONFIG):
            await stage.until(free_slots=0)
            async with stage.client() as client:
                await client.expect("session.queued")
        await stage.until(free_slots=1)


async def test_the_end_of_the_adapter_does_not_end_the_session() -> None:
    async with backend(slots=2) as (stage, worker):
        async with acquire(port_of(stage), "audio") as lease:
            opened = Session.open(lease, CONFIG)
            session = await opened.__aenter__()
        stage.adapter.interrupt()
        stage.adapter.interrupt()
        await asyncio.wait({stage.task})
        await play(session)
        # The next adapter does not give the slot away.
        async with running_adapter(worker.address, worker_key=KEY) as stage:
            await stage.until(free_slots=1, slots=2)
            await opened.__aexit__(None, None, None)
            await stage.until(free_slots=2)


async def test_a_request_without_sense_is_refused_with_its_field() -> None:
    async with backend() as (stage, _), channel_to(stage) as channel:
        for request, field in (
            ({"kind": ""}, "kind"),
            ({"kind": "karaoke"}, "kind"),
            ({"max_wait": {"seconds": 0}}, "max_wait"),
            ({"max_wait": {"seconds": -1}}, "max_wait"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=field) as error:
                await Call(channel, **request).next()
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(ProtocolError) as refused:
            async with acquire(port_of(stage), "karaoke"):
                pass
        assert (refused.value.reason, refused.value.param) == (AcquireReason.PAYLOAD_INVALID, "kind")
        async with stage.client() as client:
            await client.begin()


async def test_acquire_full_queue_and_expired_wait_raise_queue_full() -> None:
    async with backend(queue_capacity=1) as (stage, _), stage.client() as holder:
        await holder.begin()
        with pytest.raises(QueueFull) as refused:
            async with acquire(port_of(stage), "audio", max_wait_s=0.05):
                pass
        assert refused.value.reason == AcquireReason.WAIT_EXPIRED
        assert (await stage.request("/status"))[2]["queue_length"] == 0
        async with stage.client() as second:
            await second.expect("session.queued")
            with pytest.raises(QueueFull) as refused:
                async with acquire(port_of(stage), "audio"):
                    pass
        assert (refused.value.reason, refused.value.retryable) == (AcquireReason.QUEUE_FULL, True)


async def test_a_draining_adapter_ends_the_wait() -> None:
    async with backend() as (stage, _), stage.client() as holder, channel_to(stage) as channel:
        await holder.begin()
        call = Call(channel)
        await call.next()
        stage.adapter.interrupt()
        assert await call.call.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await Call(channel).next()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_acquire_without_worker_or_dispatcher_fails() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, grpc_port=0, no_worker_grace_s=0.05) as stage:
        with pytest.raises(ConnectError) as refused:
            async with acquire(port_of(stage), "audio"):
                pass
        assert refused.value.reason == AcquireReason.NO_WORKER
    with pytest.raises(ConnectError, match="No dispatcher answers"):
        async with acquire("127.0.0.1:1", "audio"):
            pass


async def test_a_key_is_asked_for_as_it_is_of_websockets(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    async with backend(auth="keys", keys=keys.path) as (stage, _):
        for key in (None, "ak_wrong"):
            with pytest.raises(AuthError) as refused:
                async with acquire(port_of(stage), "audio", key=key):
                    pass
            assert (refused.value.reason, refused.value.retryable) == (AcquireReason.KEY_REFUSED, False)
        async with acquire(port_of(stage), "audio", key=keys.secrets["alice"]), channel_to(stage) as channel:
            call = Call(channel, metadata=[("authorization", f"Bearer {keys.secrets['bob']}")])
            await call.next()
            keys.remove("bob")
            stage.adapter.reload()
            assert await call.call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_address_over_rate_limit_gets_resource_exhausted() -> None:
    """A proxy that is trusted says whose address it is."""
    limits = {"opens_per_min_per_address": 1, "trusted_proxies": ("127.0.0.0/8",)}
    async with backend(slots=2, **limits) as (stage, _), channel_to(stage) as channel:
        mine, yours = [("x-forwarded-for", "192.0.2.1")], [("x-forwarded-for", "192.0.2.2")]
        assert await Call(channel, mine).next() is not None
        again = Call(channel, mine)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await again.next()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await Call(channel, yours).next() is not None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::2]:1", "2001:db8::2"),
    ],
)
def test_the_other_end_has_an_address(peer: str, address: str) -> None:
    assert _address(peer) == address


async def test_tls_is_spoken_where_the_adapter_has_a_certificate_also_a_new_one(tmp_path: Path) -> None:
    async def ask(stage: Stage) -> str:
        credentials = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
        address = f"localhost:{stage.adapter.grpc_port}"
        async with acquire(address, "audio", credentials=credentials) as lease:
            return lease.worker_id

    certificate, key = Authority(tmp_path).issue()
    async with backend(tls_cert=certificate, tls_key=key, tls_port=0) as (stage, _):
        assert await ask(stage)
        Authority(tmp_path).issue()
        stage.adapter.reload()
        assert await ask(stage)
        with pytest.raises(ConnectError):
            async with acquire(port_of(stage), "audio"):
                pass

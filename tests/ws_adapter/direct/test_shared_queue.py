"""A worker and an adapter that have nothing but a Redis in common."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon import AuthError
from antiphon.contract import Reason
from antiphon.grpc import Session, acquire
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.pools import pool_name
from antiphon_service.redis import connect, disconnect, prefix
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE, INIT, append
from tests.ws_adapter.support.stage import Client, Stage, running_adapter

KEY = b"a key of 16 byte"
CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)


@asynccontextmanager
async def cluster(redis_server: RedisServer, slots: int = 1) -> AsyncIterator[Stage]:
    """One worker and one adapter of a queue that is not new, so that nobody is waited for."""
    client, key, now = connect(redis_server.url), prefix(pool_name("scripted", ["audio"])), time.time()
    await client.set(f"{key}boot", round(now * 1000) - 60_000)
    await client.hset(f"{key}clock", mapping={"real": round(now * 1000), "time": round(now * 1000)})
    await client.set(f"{key}seq", 1)
    await disconnect(client)
    engine = ScriptedEngine(listen(), slots=slots, repeat=True)
    shared = {"dispatcher": redis_server.url, "worker_key": KEY}
    async with running_worker(engine, slots=slots, **shared):
        async with running_adapter(grpc_port=0, wait=False, **shared) as stage:
            await stage.until(ready=True, free_slots=slots)
            yield stage


async def begin(client: Client) -> None:
    """Also if the adapter has yet to ask the worker what it serves."""
    await client.expect_until("session.queue_done")
    await client.send(INIT)
    await client.expect("session.created")


async def test_sessions_of_both_kinds_find_the_worker_and_leave_their_slot(
    redis_server: RedisServer,
) -> None:
    async with cluster(redis_server) as stage:
        port = f"127.0.0.1:{stage.adapter.grpc_port}"
        async with stage.client() as client:
            await begin(client)
            await client.send(append(input_id="1"))
            await client.expect("listen")
            waiting = asyncio.create_task(_visit(port))
            while (await stage.request("/status"))[2]["queue_length"] != 1:
                assert not waiting.done()
            await client.send(CLOSE)
            await client.rest()
        first = await waiting
        assert await _visit(port) > first


async def _visit(port: str) -> int:
    async with acquire(port, "audio") as lease, Session.open(lease, CONFIG) as session:
        assert session.ready.worker_id == lease.worker_id
        return lease.epoch


async def test_a_lease_that_is_not_used_is_back_long_before_the_next_beat_and_stale(
    redis_server: RedisServer,
) -> None:
    async with cluster(redis_server) as stage:
        port = f"127.0.0.1:{stage.adapter.grpc_port}"
        async with acquire(port, "audio") as unused:
            pass
        async with stage.client() as client:
            await begin(client)
        with pytest.raises(AuthError) as refused:
            async with Session.open(unused, CONFIG):
                pass
        assert refused.value.reason == Reason.STALE_LEASE


async def test_a_conversation_goes_on_without_redis(redis_server: RedisServer) -> None:
    async with cluster(redis_server) as stage, stage.client() as client:
        await begin(client)
        redis_server.stop()
        for number in range(3):
            await client.send(append(input_id=str(number)))
            assert (await client.expect("listen"))["input_id"] == str(number)
        await client.send(CLOSE)
        await client.rest()

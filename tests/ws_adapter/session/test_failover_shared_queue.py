"""Sessions of two adapters stand in one queue; those that lose their worker come before all newcomers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import REPLAYING, RunningWorker, ScriptedEngine, running_worker
from tests.ws_adapter.session.test_failover import LONG_S, TALK, text_of, units
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.conversation import CLOSE, INIT
from tests.ws_adapter.support.stage import PATIENCE_S, Client, Stage, running_adapter, until

pytestmark = pytest.mark.usefixtures("patience")

KEY = b"a key of 16 byte"


def engine_of(slots: int) -> ScriptedEngine:
    return ScriptedEngine(*TALK, slots=slots, info=REPLAYING)


@asynccontextmanager
async def worker_of(server: RedisServer, engine: ScriptedEngine) -> AsyncIterator[RunningWorker]:
    options = {"dispatcher": server.url, "worker_key": KEY, "drain_timeout_s": LONG_S}
    async with running_worker(engine, slots=engine.slots, **options) as worker:
        yield worker


@asynccontextmanager
async def two_adapters(server: RedisServer) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two of one queue, in which nobody waits for time."""
    options = {
        "dispatcher": server.url,
        "worker_key": KEY,
        "silence_tail_units": 0,
        "max_lag_s": LONG_S,
        "no_worker_grace_s": LONG_S,
        "queue_max_wait_s": LONG_S,
    }
    async with running_adapter(**options) as one, running_adapter(**options) as other:
        yield one, other


async def moved(*clients: Client) -> Client:
    """Wait until one of them is told that its session has moved."""
    waiting = {asyncio.create_task(client.next()): client for client in clients}
    try:
        async with asyncio.timeout(PATIENCE_S):
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (task,) = done
        assert task.result()["type"] == "session.moved"
        assert not any(task.done() for task in left)
        return waiting[task]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def begin(client: Client) -> None:
    """Through to `session.created`, whether or not the client has to wait."""
    await client.expect_until("session.queue_done")
    await client.send(INIT)
    await client.expect("session.created")


async def finished(client: Client, told: str) -> None:
    """Talk to the end of the model's answer, and close."""
    assert told + text_of(await units(client, 3)) == "Hello there you"
    await client.send(CLOSE)


async def test_two_adapters_share_a_worker_and_its_queue(redis_server: RedisServer) -> None:
    age(redis_server)
    async with (
        worker_of(redis_server, engine_of(1)),
        two_adapters(redis_server) as (one, other),
        one.client() as first,
    ):
        await begin(first)
        async with other.client() as second, one.client() as third:
            assert (await second.expect("session.queued"))["position"] == 1
            assert (await third.expect("session.queued"))["position"] == 2
            redis_server.pause()
            await first.send(CLOSE)
            assert (await first.rest())[-1]["type"] == "session.closed"
            redis_server.resume()
            await second.expect_until("session.queue_done")


async def test_displaced_sessions_of_two_adapters_precede_new_sessions(
    redis_server: RedisServer,
) -> None:
    age(redis_server)
    async with AsyncExitStack() as exits:
        lost = await exits.enter_async_context(AsyncExitStack())
        await lost.enter_async_context(worker_of(redis_server, engine_of(2)))
        one, other = await exits.enter_async_context(two_adapters(redis_server))
        talking = [await exits.enter_async_context(stage.client()) for stage in (one, other)]
        said = []
        for client in talking:
            await begin(client)
            said.append(text_of(await units(client, 2)))
        assert said == ["Hello", "Hello"]
        newcomers = [await exits.enter_async_context(stage.client()) for stage in (one, other)]
        for client in newcomers:
            await client.expect("session.queued")
        await lost.aclose()
        await exits.enter_async_context(worker_of(redis_server, engine_of(1)))
        first = await moved(*talking)
        await finished(first, "Hello")
        (second,) = [client for client in talking if client is not first]
        assert await moved(second) is second
        await finished(second, "Hello")
        for client in newcomers:
            await begin(client)
            await client.send(CLOSE)


async def test_two_sessions_that_leave_a_worker_for_one_slot_both_go_on(redis_server: RedisServer) -> None:
    """Each adapter sees the slot free when the worker drains; one of them gets it, the other one waits."""
    age(redis_server)
    next_engine = engine_of(1)
    async with AsyncExitStack() as exits:
        leaving = await exits.enter_async_context(worker_of(redis_server, engine_of(2)))
        one, other = await exits.enter_async_context(two_adapters(redis_server))
        talking = [await exits.enter_async_context(stage.client()) for stage in (one, other)]
        for client in talking:
            await begin(client)
            assert text_of(await units(client, 2)) == "Hello"
        await exits.enter_async_context(worker_of(redis_server, next_engine))
        for stage in (one, other):
            await stage.until(free_slots=1)
        leaving.worker.interrupt()
        first = await moved(*talking)
        assert len(next_engine.sessions) == 1
        await finished(first, "Hello")
        (second,) = [client for client in talking if client is not first]
        assert await moved(second) is second
        await finished(second, "Hello")
        await until(lambda: all(session.is_closed for session in next_engine.sessions))
        async with asyncio.timeout(PATIENCE_S):
            assert await leaving.run == 0

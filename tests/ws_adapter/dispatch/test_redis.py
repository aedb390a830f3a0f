"""The queue that several adapters share, on a real Redis that fails in every way it can."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import ws_adapter.dispatch.redis as redis_module
from antiphon_service.redis import connect
from tests.support.redis_server import RedisServer
from tests.support.redis_users import RedisUsers
from tests.ws_adapter.support.backend import Callers, ListedRegistry, RedisBackend, on_redis, until_told
from tests.ws_adapter.support.backend import stage as entered
from tests.ws_adapter.support.stage import until
from ws_adapter.dispatch.redis import RedisDispatcher
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.process.clock import LoopClock
from ws_adapter.process.errors import DispatcherUnavailable, WaitCancelled

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")


@asynccontextmanager
async def stage(server: RedisServer, **rules: Any) -> AsyncIterator[tuple[RedisBackend, Callers]]:
    async with entered(on_redis(server), **rules) as callers:
        assert isinstance(callers.backend, RedisBackend)
        yield callers.backend, callers


async def until_degraded(backend: RedisBackend, *, is_it: bool = True) -> None:
    async def is_so() -> bool:
        return (await backend.dispatcher.status()).is_degraded is is_it

    await until_told(is_so)


async def test_ticket_is_found_and_cancelled_at_any_adapter(redis_server: RedisServer) -> None:
    async with stage(redis_server) as (backend, callers):
        await callers.occupy()
        waiting = await callers.enter(label="kitchen")
        other = backend.another()

        async def knows_workers() -> bool:
            return (await other.status()).workers > 0

        await until_told(knows_workers)  # it knows the pools once it has spoken to Redis
        found = await other.find(waiting.ticket_id)
        assert found is not None
        assert (found.label, found.place.position) == ("kitchen", 1)
        assert [shown.label for shown in (await other.view()).waiting] == ["kitchen"]
        assert await other.cancel(waiting.ticket_id)
        await until(lambda: waiting.error)
        assert isinstance(waiting.error, WaitCancelled)
        assert not await other.cancel(waiting.ticket_id)


async def test_tickets_of_an_adapter_that_died_are_dropped(redis_server: RedisServer) -> None:
    async with stage(redis_server) as (backend, callers):
        holder = await callers.occupy()
        dying = backend.another()
        lost = await callers.enter(dispatcher=dying)
        waiting = await callers.enter()
        assert waiting.places[0].position == 2
        dying.die()
        await until(lambda: waiting.places[-1].position == 1)
        await holder.leave()
        await until(lambda: waiting.lease)
        assert lost.lease is None


async def test_grant_comes_by_its_wake_up(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but that: the next beat is an hour away."""
    async with stage(redis_server) as (backend, callers):
        holder = await callers.occupy()
        monkeypatch.setattr(redis_module, "TICKET_TTL_MS", 3_600_000)
        waiting = await callers.enter()
        channel = f"a:{backend.dispatcher.adapter_id}".encode()
        await until(lambda: channel in redis_server.command("PUBSUB", "CHANNELS"))
        monkeypatch.setattr(redis_module, "BEAT_S", 3600.0)
        shown = len(waiting.places)
        await until(lambda: len(waiting.places) > shown + 40)
        await holder.leave()
        await until(lambda: waiting.lease)


async def test_grant_comes_without_any_wake_up(redis_server: RedisServer) -> None:
    async with stage(redis_server) as (backend, callers):
        holder = await callers.occupy()
        await backend.dispatcher.stop_wake_ups()
        waiting = await callers.enter()
        await holder.leave()
        await until(lambda: waiting.lease)


@pytest.mark.parametrize("how", ["stopped", "paused"])
async def test_redis_outage_rejects_only_new_callers(redis_server: RedisServer, how: str) -> None:
    async with stage(redis_server, arrival_wait_s=0.5) as (backend, callers):
        holder = await callers.occupy()
        waiting = [await callers.enter() for _ in range(2)]
        redis_server.stop() if how == "stopped" else redis_server.pause()
        newcomer = await callers.enter()
        assert isinstance(newcomer.error, DispatcherUnavailable)
        await until_degraded(backend)
        told = [len(caller.places) for caller in waiting]
        await until(lambda: all(len(c.places) > n for c, n in zip(waiting, told, strict=True)))
        assert [caller.places[-1].position for caller in waiting] == [1, 2]
        assert not holder.task.done()
        redis_server.start() if how == "stopped" else redis_server.resume()
        await until_degraded(backend, is_it=False)
        for caller in (holder, *waiting):
            await until(lambda caller=caller: caller.lease)
            await caller.leave()
        assert callers.granted == [holder, *waiting]


async def test_leases_and_queue_order_survive_redis_data_loss(redis_server: RedisServer) -> None:
    async with stage(redis_server) as (backend, callers):
        await backend.open("a", 1)
        other = backend.another()
        holder = await callers.served()
        assert holder.lease is not None
        waiting = [await callers.enter(dispatcher=(other, backend.dispatcher)[n % 2]) for n in range(4)]
        redis_server.restart(keep_data=False)
        newcomer = await callers.enter()
        for caller in (holder, *waiting, newcomer):
            await until(lambda caller=caller: caller.lease)
            await caller.leave()
        assert callers.granted == [holder, *waiting, newcomer]
        epochs = [caller.lease.epoch for caller in callers.granted if caller.lease]
        assert epochs == sorted(set(epochs))
        assert epochs[1] > epochs[0] + 1000
        assert backend.workers["a"].refused == []


async def test_redis_outage_over_limit_rejects_only_waiting_callers(redis_server: RedisServer) -> None:
    async with stage(redis_server, outage_limit_s=0.5) as (_, callers):
        holder = await callers.occupy()
        waiting = await callers.enter()
        redis_server.stop()
        await until(lambda: waiting.error)
        assert isinstance(waiting.error, DispatcherUnavailable)
        assert not holder.task.done()
        redis_server.start()
        await holder.leave()


async def test_functions_that_are_gone_are_loaded_again(redis_server: RedisServer) -> None:
    async with stage(redis_server) as (backend, callers):
        await backend.open("a", 2)
        await callers.served()
        redis_server.command("FUNCTION", "FLUSH")
        await callers.served()


async def test_adapter_listens_to_wake_ups_with_the_rights_of_its_user(redis_users: RedisUsers) -> None:
    server = redis_users.server
    async with stage(server) as (backend, callers):
        adapter = backend.another(redis_users.adapter)
        await backend.open("a", 1)
        first = await callers.served(dispatcher=adapter)
        channel = f"a:{adapter.adapter_id}".encode()
        await until(lambda: channel in server.command("PUBSUB", "CHANNELS"))
        second = await callers.enter(dispatcher=adapter)
        await first.leave()
        await until(lambda: second.lease)


async def test_dispatcher_that_never_reached_redis_ends_at_once(tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/nothing.sock")
    dispatcher = RedisDispatcher(client, ListedRegistry(), LoopClock(), QueueRules(arrival_wait_s=0.2))
    dispatcher.start()
    with pytest.raises(DispatcherUnavailable):
        async with dispatcher.acquire(redis_module.Kind.CHAT, 0.0):
            pass
    await asyncio.wait_for(dispatcher.close(), 30)

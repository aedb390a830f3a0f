"""The usage store of several adapters in a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.peers.test_shared import Line
from tests.ws_adapter.support.stage import until
from ws_adapter.usage.shared import MOST_AT_ONCE, RedisUsageStore
from ws_adapter.usage.store import Take, Taken
from ws_adapter.usage.tenant import Quota

ACCOUNT = "a" * 64
QUOTA = Quota(seconds_per_day=60, tokens_per_day=5000)


@asynccontextmanager
async def book_of(url: str, name: str) -> AsyncIterator[tuple[RedisUsageStore, Any]]:
    line: Any = Line(url)
    usage_store = RedisUsageStore(line, name, call_s=PATIENCE_S, retry_s=0.01)
    usage_store.start()
    try:
        yield usage_store, line
    finally:
        await usage_store.close()


async def take(usage_store: RedisUsageStore, **fields: int) -> Taken:
    async with asyncio.timeout(PATIENCE_S):
        return await usage_store.take(Take(ACCOUNT, QUOTA, **fields))


async def test_two_adapters_never_give_more_than_the_quota(redis_server: RedisServer) -> None:
    """And nothing in Redis is kept for ever."""
    async with book_of(redis_server.url, "one") as (one, _), book_of(redis_server.url, "two") as (two, line):
        taken = await asyncio.gather(*(take(usage_store, want_ms=7000) for usage_store in (one, two) * 20))
        names = await line.client.keys("antiphon:{tenants}:*")
        lives = {name: await line.client.pttl(name) for name in names}
    assert sum(each.ms for each in taken) == 60_000
    assert len(lives) == 3
    assert all(life > 0 for life in lives.values()), lives


async def test_spent_is_booked_beyond_the_quota_and_a_slice_is_given_back(redis_server: RedisServer) -> None:
    async with book_of(redis_server.url, "one") as (usage_store, _):
        day = (await take(usage_store, spent_ms=59_000)).day
        assert (await take(usage_store, want_ms=5000)).ms == 1000
        assert (await take(usage_store, spent_tokens=9000, want_tokens=1)).tokens == 0
        await take(usage_store, spent_ms=-2000, day=day - 1)
        assert (await take(usage_store, want_ms=5000)).ms == 0, "it was another day's"
        await take(usage_store, spent_ms=-2000, day=day)
        assert (await take(usage_store, want_ms=5000)).ms == 2000


async def test_unanswered_call_is_booked_once(redis_server: RedisServer) -> None:
    async with book_of(redis_server.url, "one") as (usage_store, line):
        await take(usage_store, want_ms=1000)
        line.loses_answers = 3
        assert (await take(usage_store, want_ms=20_000)).ms == 20_000
        assert (await take(usage_store, want_ms=60_000)).ms == 39_000


async def test_quota_taken_during_redis_outage_is_booked_after_it(redis_server: RedisServer) -> None:
    async with book_of(redis_server.url, "one") as (usage_store, line):
        line.is_cut = True
        answer = usage_store.take(Take(ACCOUNT, QUOTA, spent_ms=30_000))
        await until(lambda: usage_store.is_away)
        assert not answer.done()
        line.is_cut = False
        async with asyncio.timeout(PATIENCE_S):
            await answer
        assert not usage_store.is_away
        assert (await take(usage_store, want_ms=60_000)).ms == 30_000


async def test_crowd_costs_few_calls(redis_server: RedisServer) -> None:
    async with book_of(redis_server.url, "one") as (usage_store, line):
        takes = [Take(f"{number:064x}", QUOTA, want_ms=1000) for number in range(1000)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*map(usage_store.take, takes))
    assert len(line.calls) <= 2 + 2 * (1000 // MOST_AT_ONCE)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_close_waits_for_no_redis_that_is_gone(redis_server: RedisServer, how: str) -> None:
    async def hang(*args: Any) -> Any:
        await asyncio.Event().wait()

    async with book_of(redis_server.url, "one") as (usage_store, line):
        line.is_cut = how == "kill"
        if how == "stop":
            line.client.execute_command = hang
        waiting = usage_store.take(Take(ACCOUNT, QUOTA, want_ms=1))
        await asyncio.sleep(0)
    assert waiting.cancelled()

"""Limits hold over all adapters of one Redis, whichever a client goes to, and whatever becomes of that."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from antiphon_service.redis import connect
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.stage import until
from ws_adapter.peers import shared
from ws_adapter.peers.base import UNCOUNTED, AdmissionRequest, Admitted, Peer, Refused
from ws_adapter.peers.shared import PREFIX, RedisPeers

AMPLE_S = 60.0
"""Of a deadline that a test does not expect to strike."""

THREE_AT_ONCE = AdmissionRequest("address:203.0.113.5", most=3, per_min=0)
A_MINUTE_ELSEWHERE = AdmissionRequest("address:203.0.113.7", most=0, per_min=3)


class Line:
    """To Redis. Cut before a call arrives, or after it was carried out and before its answer."""

    def __init__(self, url: str) -> None:
        self.client = connect(url)
        self.function_load = self.client.function_load
        self.connection_pool = self.client.connection_pool
        self.aclose = self.client.aclose
        self.is_cut = False
        self.loses_answers = 0
        self.calls: list[str] = []

    async def execute_command(self, *args: Any) -> Any:
        if self.is_cut:
            raise ConnectionError("cut")
        self.calls.append(args[1])
        answer = await self.client.execute_command(*args)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ConnectionError("the answer was lost")
        return answer


class Adapter:
    """One of several."""

    def __init__(self, url: str, name: str, **times: float) -> None:
        self.line: Any = Line(url)
        self.alone = 0
        self.name = name
        self.peers = RedisPeers(
            self.line, name, self._about, self._count, **{"ask_s": AMPLE_S, "life_s": AMPLE_S, **times}
        )

    def _about(self) -> Peer:
        return Peer(self.name, "1", "host", 1, 1.0, 0, 0.0, True, False)

    def _count(self) -> None:
        self.alone += 1

    async def admit(self, *demands: AdmissionRequest) -> Admitted:
        answer = await self.peers.admit(demands)
        assert isinstance(answer, Admitted), answer
        return answer

    async def refuses(self, *demands: AdmissionRequest) -> Refused:
        answer = await self.peers.admit(demands)
        assert isinstance(answer, Refused)
        return answer

    async def admit_at_last(self, *demands: AdmissionRequest) -> Admitted:
        """Within the test's own deadline."""
        async with asyncio.timeout(AMPLE_S):
            while not isinstance(answer := await self.peers.admit(demands), Admitted):
                pass
        return answer


@asynccontextmanager
async def living(url: str, name: str, **times: float) -> AsyncIterator[Adapter]:
    """An adapter; where its line is cut at the end, Redis hears nothing of that."""
    adapter = Adapter(url, name, **times)
    adapter.peers.start()
    try:
        yield adapter
    finally:
        await adapter.peers.close()


Two = tuple[Adapter, Adapter]


@pytest.fixture
async def two(redis_server: RedisServer) -> AsyncIterator[tuple[Adapter, Adapter]]:
    url = redis_server.url
    async with living(url, "one") as one, living(url, "two") as two:
        yield one, two


def totals(server: RedisServer) -> dict[str, int]:
    """Return the totals that Redis counts over all clients."""
    words = server.command("HGETALL", f"{PREFIX}total").split(b"\r\n")[2::2]
    return {name.decode(): int(count) for name, count in zip(words[::2], words[1::2], strict=True)}


async def test_client_that_spreads_over_two_adapters_has_no_more_than_over_one(two: Two) -> None:
    """Connections, or attempts in a minute."""
    for number in range(3):
        await two[number % 2].admit(THREE_AT_ONCE)
        (await two[number % 2].admit(A_MINUTE_ELSEWHERE)).leave()
    for adapter in two:
        assert await adapter.refuses(THREE_AT_ONCE) == Refused(0, None)
        refused = await adapter.refuses(A_MINUTE_ELSEWHERE)
        assert refused.demand == 0
        assert refused.wait_s is not None
        assert 0 < refused.wait_s <= 20
        await adapter.admit(AdmissionRequest("address:203.0.113.6", 3, 0))


async def test_no_more_slip_in_at_the_same_time(two: Two) -> None:
    answers = await asyncio.gather(*(two[n % 2].peers.admit([THREE_AT_ONCE]) for n in range(300)))
    assert sum(isinstance(answer, Admitted) for answer in answers) == 3


async def test_crowd_costs_few_calls(two: Two) -> None:
    one, _ = two
    await asyncio.gather(*(one.admit(AdmissionRequest(f"address:{n}", 1, 1)) for n in range(500)))
    assert one.line.calls.count("antiphon_peers_v1_meet") < 100
    assert await one.peers.admit([]) is UNCOUNTED, "without limits nobody is asked"


async def test_refused_by_one_limit_is_counted_by_no_other_but_as_an_attempt(
    two: Two, redis_server: RedisServer
) -> None:
    one, other = two
    key = AdmissionRequest("key:k", most=1, per_min=0)
    await one.admit(key)
    for _ in range(3):
        assert await other.refuses(AdmissionRequest("address:a", 3, 3), key) == Refused(1, None)
    assert (await one.refuses(AdmissionRequest("address:a", 3, 3))).demand == 0
    assert totals(redis_server) == {"key:k": 1}


async def test_place_freed_at_one_adapter_is_usable_at_other(two: Two) -> None:
    one, other = two
    admitted = [await one.admit(THREE_AT_ONCE) for _ in range(3)]
    await other.refuses(THREE_AT_ONCE)
    admitted[0].leave()
    await other.admit_at_last(THREE_AT_ONCE)
    await one.refuses(THREE_AT_ONCE)


async def test_killed_adapter_gives_its_counts_back_in_time(redis_server: RedisServer) -> None:
    async with living(redis_server.url, "one") as one:
        async with living(redis_server.url, "two", life_s=1.0) as two:
            for _ in range(3):
                await two.admit(THREE_AT_ONCE)
            two.line.is_cut = True
        await one.admit_at_last(THREE_AT_ONCE)
        assert totals(redis_server) == {"address:203.0.113.5": 1}


async def test_adapter_that_ends_gives_its_counts_back_at_once(redis_server: RedisServer) -> None:
    url = redis_server.url
    async with living(url, "one") as one:
        async with living(url, "two") as two:
            for _ in range(3):
                await two.admit(THREE_AT_ONCE)
            assert [peer.adapter_id for peer in await one.peers.all()] == ["one", "two"]
        assert [peer.adapter_id for peer in await one.peers.all()] == ["one"]
        await one.admit(THREE_AT_ONCE)


async def test_adapter_forgotten_by_redis_registers_its_sessions_again(
    two: Two, redis_server: RedisServer
) -> None:
    one, other = two
    for _ in range(3):
        await one.admit(THREE_AT_ONCE)
    redis_server.command("FCALL", "antiphon_peers_v1_leave", "1", PREFIX, "one")
    await until(lambda: totals(redis_server) == {"address:203.0.113.5": 3})
    await other.refuses(THREE_AT_ONCE)


async def test_redis_keeps_no_keys_after_all_adapters_are_gone(redis_server: RedisServer) -> None:
    async with living(redis_server.url, "one") as one:
        await one.admit(THREE_AT_ONCE)
    assert redis_server.command("KEYS", f"{PREFIX}*") == b"*0"
    async with living(redis_server.url, "one", life_s=0.2) as one:
        await one.admit(THREE_AT_ONCE)
        one.line.is_cut = True
    await until(lambda: redis_server.command("KEYS", f"{PREFIX}*") == b"*0")


async def test_redis_outage_rejects_no_client_and_limits_apply_per_adapter(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with living(redis_server.url, "one", beat_s=0.05) as one:
        await one.admit(THREE_AT_ONCE)
        redis_server.stop()
        for _ in range(9):
            await one.admit(THREE_AT_ONCE)
        assert one.alone == 9
        redis_server.start()
        await until(lambda: totals(redis_server) == {"address:203.0.113.5": 10})
        async with living(redis_server.url, "two") as other:
            await other.refuses(THREE_AT_ONCE)
    said = [record.getMessage() for record in caplog.records if record.name == shared.__name__]
    assert len(said) == 2
    assert said[0].startswith("Redis unavailable, limits count each adapter alone")
    assert said[1] == "Redis available again, limits count all adapters"


async def test_no_handshake_hangs_while_redis_does(redis_server: RedisServer) -> None:
    """The first ones wait for as long as they may, and nobody after them."""
    async with living(redis_server.url, "one", beat_s=AMPLE_S) as one:
        await one.admit(THREE_AT_ONCE)
        redis_server.pause()
        one.peers._ask_s = 0.2
        try:
            async with asyncio.timeout(AMPLE_S):
                await asyncio.gather(*(one.admit(THREE_AT_ONCE) for _ in range(20)))
            asked = len(one.line.calls)
            for _ in range(200):
                await one.admit(THREE_AT_ONCE)
            assert len(one.line.calls) == asked
        finally:
            redis_server.resume()
        assert one.alone == 220


async def test_session_counts_are_restored_after_redis_data_loss(two: Two, redis_server: RedisServer) -> None:
    one, other = two
    admitted = [await one.admit(THREE_AT_ONCE), await other.admit(THREE_AT_ONCE)]
    redis_server.restart(keep_data=False)
    await until(lambda: totals(redis_server) == {"address:203.0.113.5": 2})
    admitted[0].leave()
    await until(lambda: totals(redis_server) == {"address:203.0.113.5": 1})


async def test_admission_cancelled_during_redis_stall_is_not_counted(redis_server: RedisServer) -> None:
    async with living(redis_server.url, "one", beat_s=0.05) as one:
        await one.admit(AdmissionRequest("address:first", 1, 0))
        redis_server.pause()
        knocking = asyncio.create_task(one.peers.admit([THREE_AT_ONCE]))
        calls = len(one.line.calls)
        await until(lambda: len(one.line.calls) > calls)
        knocking.cancel()
        await asyncio.gather(knocking, return_exceptions=True)
        redis_server.resume()
        await until(lambda: len(one.line.calls) > calls + 2)
        await until(lambda: totals(redis_server) == {"address:first": 1})
        assert one.alone == 0


@pytest.mark.parametrize("seed", range(3))
async def test_redis_totals_match_sessions_held_by_adapters_after_random_faults(
    redis_server: RedisServer, seed: int
) -> None:
    chance = random.Random(seed)
    url, clients = redis_server.url, [AdmissionRequest(f"key:{n}", 4, 0) for n in range(3)]
    async with AsyncExitStack() as stack:
        adapters = [await stack.enter_async_context(living(url, str(n), beat_s=0.02)) for n in range(3)]
        inside: list[tuple[str, Admitted]] = []
        for _ in range(200):
            match chance.randrange(20):
                case 0:
                    redis_server.empty()
                case 1:
                    name = str(chance.randrange(3))
                    redis_server.command("FCALL", "antiphon_peers_v1_leave", "1", PREFIX, name)
                case what if what < 9 and inside:
                    inside.pop(chance.randrange(len(inside)))[1].leave()
                case _:
                    demand = chance.choice(clients)
                    answer = await chance.choice(adapters).peers.admit([demand])
                    if isinstance(answer, Admitted):
                        inside.append((demand.client, answer))

        held: dict[str, int] = {}
        for client, _ in inside:
            held[client] = held.get(client, 0) + 1
        await until(lambda: totals(redis_server) == held)


async def test_older_library_of_another_adapter_is_used(two: Two, redis_server: RedisServer) -> None:
    """Functions that are missing are loaded by whoever misses them, and both may do it at once."""
    redis_server.command("FUNCTION", "FLUSH")
    await asyncio.gather(*(adapter.admit(THREE_AT_ONCE) for adapter in two))

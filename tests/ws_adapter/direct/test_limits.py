"""Holders: they attach with what they got, whereupon their calls end, and ask for more.

A session counts for the key and the address of its call as long as its worker has it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from websockets.exceptions import InvalidStatus

from antiphon.grpc import Session
from antiphon_service.pools import pool_name
from tests.conformance.support.stack import scripted_worker
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, listen, running_worker
from tests.ws_adapter.direct.test_acquire import CONFIG, Call, channel_to
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter
from ws_adapter.direct.slot import ASK_S, SILENCE_S

SLOTS, LET_IN = 3, 2
WORKER_KEY = b"a key of 16 byte"
BEHIND_A_PROXY = {"trusted_proxies": ("127.0.0.0/8",)}
"""Settings under which a proxy names the client's address."""


def address(number: int) -> tuple[str, str]:
    return "x-forwarded-for", f"192.0.2.{number}"


def bearer(keys: KeyFile, name: str) -> tuple[str, str]:
    return "authorization", keys.bearer(name)["Authorization"]


@asynccontextmanager
async def backend(**options: Any) -> AsyncIterator[tuple[Stage, RunningWorker]]:
    async with running_worker(ScriptedEngine(listen(), slots=SLOTS, repeat=True), slots=SLOTS) as worker:
        async with running_adapter(worker.address, clock=ManualClock(), grpc_port=0, **options) as stage:
            yield stage, worker


def keyed(keys: KeyFile, most: int = LET_IN) -> dict[str, Any]:
    return {"auth": "keys", "keys": keys.path, "connections_per_key": most, **BEHIND_A_PROXY}


async def pass_time(stage: Stage) -> None:
    """As long as it takes until the worker is asked again."""
    if isinstance(stage.clock, ManualClock):
        await stage.clock.advance(ASK_S)
    await asyncio.sleep(0.01)


async def is_let_in(stage: Stage, *metadata: tuple[str, str]) -> bool:
    """Whether a caller, who leaves again, is not told that he has too much already."""
    async with channel_to(stage) as channel:
        try:
            await Call(channel, metadata).next()
        except grpc.aio.AioRpcError as error:
            is_too_many = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return not (is_too_many and "at once" in (error.details() or ""))
        return True


async def until_let_in(stage: Stage, *metadata: tuple[str, str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_let_in(stage, *metadata):
            await pass_time(stage)


class Holder:
    def __init__(self, stage: Stage, *metadata: tuple[str, str]) -> None:
        self._stage = stage
        self._metadata = metadata
        self._sessions: list[AsyncExitStack] = []

    async def take(self) -> None:
        """One more, whose call has ended as it does once somebody has attached."""
        async with channel_to(self._stage) as channel, asyncio.timeout(PATIENCE_S):
            call = Call(channel, self._metadata)
            while (update := await call.next()) is not None and not update.HasField("granted"):
                pass
            assert update is not None
            session, granted = AsyncExitStack(), update.granted
            self._sessions.append(session)
            await session.enter_async_context(Session.open(granted.target, CONFIG, lease=granted.token))
            end = asyncio.create_task(call.next())
            while not end.done():
                await pass_time(self._stage)
            assert await end is None

    async def end_one(self) -> None:
        await self._sessions.pop().aclose()

    async def end(self) -> None:
        while self._sessions:
            await self.end_one()


@asynccontextmanager
async def holding(stage: Stage, *metadata: tuple[str, str], count: int = LET_IN) -> AsyncIterator[Holder]:
    """Yield a caller that holds `count` sessions, by default as many as its limit allows."""
    holder = Holder(stage, *metadata)
    try:
        for _ in range(count):
            await holder.take()
        yield holder
    finally:
        await holder.end()


async def test_one_key_holds_no_more_sessions_than_it_may_from_wherever_it_comes(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "holder", "other")
    key = bearer(keys, "holder")
    async with backend(**keyed(keys)) as (stage, _), holding(stage, key) as holder:
        assert not await is_let_in(stage, key)
        assert not await is_let_in(stage, key, address(1))
        with pytest.raises(InvalidStatus, match="429"):
            async with stage.client(additional_headers=keys.bearer("holder")):
                pass
        await stage.until(free_slots=SLOTS - LET_IN)
        async with stage.client(additional_headers=keys.bearer("other")) as client:
            await client.begin()
        await holder.end_one()
        await until_let_in(stage, key)


async def test_one_address_holds_no_more_sessions_than_it_may() -> None:
    async with backend(connections_per_address=LET_IN, **BEHIND_A_PROXY) as (stage, _):
        async with holding(stage, address(1)) as holder:
            assert not await is_let_in(stage, address(1))
            assert await is_let_in(stage, address(2))
            await holder.end_one()
            await until_let_in(stage, address(1))


async def test_invalid_request_and_unused_lease_are_released_from_quota(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    key = bearer(keys, "alice")
    async with backend(**keyed(keys, most=1)) as (stage, _):
        async with channel_to(stage) as channel:
            call = Call(channel, [key], kind="karaoke")
            assert await call.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await is_let_in(stage, key)
        for _ in range(SLOTS):
            await until_let_in(stage, key)
        await stage.until(free_slots=SLOTS)


async def test_sessions_of_a_worker_that_is_gone_for_good_count_no_longer(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    key = bearer(keys, "alice")
    options: dict[str, Any] = {"clock": ManualClock(), "grpc_port": 0, **keyed(keys)}
    with scripted_worker("--slots", str(SLOTS)) as worker:
        async with running_adapter(worker.target, **options) as stage, holding(stage, key):
            worker.process.kill()  # it says of no session that it is over
            gone_at = stage.clock.now()
            await until_let_in(stage, key)
            # It was asked for the last time shortly before.
            assert stage.clock.now() - gone_at >= SILENCE_S - 2 * ASK_S


@pytest.mark.usefixtures("patient_peers")
async def test_sessions_count_at_all_adapters_of_a_cluster(tmp_path: Path, redis_server: RedisServer) -> None:
    keys = KeyFile(tmp_path / "keys", "holder")
    key = bearer(keys, "holder")
    shared: dict[str, Any] = {"dispatcher": redis_server.url, "worker_key": WORKER_KEY}
    options = {**keyed(keys), **shared, "grpc_port": 0, "wait": False}
    engine = ScriptedEngine(listen(), slots=SLOTS, repeat=True)
    age(redis_server, pool_name("scripted", ["audio"]))
    async with (
        running_worker(engine, slots=SLOTS, **shared),
        running_adapter(**options) as one,
        running_adapter(**options) as other,
    ):
        for stage in (one, other):
            await stage.until(ready=True, free_slots=SLOTS)
        async with holding(one, key) as holder:
            assert not await is_let_in(other, key)
            await holder.end_one()
            await until_let_in(other, key)

"""Limits and rights of keys and addresses. Holders attach with what they got, and ask for more.

A session counts for the key and the address of its call as long as its worker has it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.grpc import Session
from antiphon.grpc.status import Status
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon_service.pools import pool_name
from tests.conformance.support.stack import scripted_worker
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, listen, running_worker
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.direct.test_acquire import CONFIG, KEY, Call, backend, channel_to
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter, until
from ws_adapter.direct.slot import ASK_S, SILENCE_S

SLOTS, LET_IN = 3, 2
TOO_MANY, NO_MORE_SLOTS = "RATE_LIMITED", "SLOT_LIMIT"
BEHIND_A_PROXY: dict[str, Any] = {"trusted_proxies": ("127.0.0.0/8",)}
"""Settings under which a proxy names the client's address."""

Identity = tuple[str, str]
"""Call metadata that name the caller."""


def address(number: int) -> Identity:
    return "x-forwarded-for", f"192.0.2.{number}"


def bearer(keys: KeyFile, name: str) -> Identity:
    return "authorization", keys.bearer(name)["Authorization"]


def strangers(by: str, folder: Path) -> tuple[list[Identity], dict[str, Any]]:
    """Return three callers, and the options of an adapter that tells them apart by `by`."""
    if by == "address":
        return [address(number) for number in range(3)], BEHIND_A_PROXY
    keys = KeyFile(folder / "keys", "one", "other", "third")
    return [bearer(keys, name) for name in keys.keys], {"auth": "keys", "keys": keys.path, **BEHIND_A_PROXY}


def unsigned(**options: Any) -> AbstractAsyncContextManager[tuple[Stage, RunningWorker]]:
    """An adapter and a worker whose leases are not signed."""
    return backend(SLOTS, None, clock=ManualClock(), **BEHIND_A_PROXY, **options)


@asynccontextmanager
async def cluster(server: RedisServer, **options: Any) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two adapters of one Redis in front of one worker."""
    shared: dict[str, Any] = {"dispatcher": server.url, "worker_key": KEY}
    options = {**BEHIND_A_PROXY, **options, **shared, "grpc_port": 0, "wait": False}
    engine = ScriptedEngine(listen(), slots=SLOTS, repeat=True)
    age(server, pool_name("scripted", ["audio"]))
    async with (
        running_worker(engine, slots=SLOTS, **shared),
        running_adapter(**options) as one,
        running_adapter(**options) as other,
    ):
        for stage in (one, other):
            await stage.until(ready=True, free_slots=SLOTS)
        yield one, other


def keyed(keys: KeyFile, most: int = LET_IN) -> dict[str, Any]:
    return {"auth": "keys", "keys": keys.path, "connections_per_key": most}


async def answer(call: Call) -> pb.AcquireResponse | Status:
    """The first answer to a call, or its end."""
    try:
        response = await call.next()
    except grpc.aio.AioRpcError as error:
        return Status.of(error.code(), error.details() or "", error.trailing_metadata())
    assert response is not None
    return response


async def pass_time(stage: Stage) -> None:
    """As long as it takes until the worker is asked again."""
    if isinstance(stage.clock, ManualClock):
        await stage.clock.advance(ASK_S)
    await asyncio.sleep(0.01)


async def refusal(stage: Stage, *metadata: Identity) -> str:
    """The reason why a caller gets no slot; empty for one who may have one, and leaves again."""
    async with channel_to(stage) as channel:
        told = await answer(Call(channel, metadata))
    return told.reason if isinstance(told, Status) else ""


async def until_let_in(stage: Stage, *metadata: Identity) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await refusal(stage, *metadata) in (TOO_MANY, NO_MORE_SLOTS):
            await pass_time(stage)


class Holder:
    def __init__(self, stage: Stage, *metadata: Identity) -> None:
        self._stage = stage
        self._metadata = metadata
        self._sessions: list[AsyncExitStack] = []

    async def take(self) -> None:
        """One more, whose call has ended as it does once somebody has attached."""
        async with channel_to(self._stage) as channel, asyncio.timeout(PATIENCE_S):
            call = Call(channel, self._metadata)
            session, granted = AsyncExitStack(), await call.granted()
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
async def holding(stage: Stage, *metadata: Identity, count: int = LET_IN) -> AsyncIterator[Holder]:
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
    async with unsigned(**keyed(keys)) as (stage, _), holding(stage, key) as holder:
        assert await refusal(stage, key) == await refusal(stage, key, address(1)) == TOO_MANY
        assert (await refused_upgrade(stage, additional_headers=keys.bearer("holder"))).status_code == 429
        await stage.until(free_slots=SLOTS - LET_IN)
        async with stage.client(additional_headers=keys.bearer("other")) as client:
            await client.begin()
        await holder.end_one()
        await until_let_in(stage, key)


async def test_direct_session_and_websocket_of_one_key_count_together(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "holder")
    key = bearer(keys, "holder")
    async with unsigned(**keyed(keys)) as (stage, _), holding(stage, key, count=1):
        async with stage.client(additional_headers=keys.bearer("holder")) as client:
            await client.expect("session.queue_done")
            assert await refusal(stage, key) == TOO_MANY


async def test_one_address_holds_no_more_sessions_than_it_may() -> None:
    async with unsigned(connections_per_address=LET_IN) as (stage, _):
        async with holding(stage, address(1)) as holder:
            assert await refusal(stage, address(1)) == TOO_MANY
            assert await refusal(stage, address(2)) == ""
            await holder.end_one()
            await until_let_in(stage, address(1))


async def test_invalid_request_and_unused_lease_are_released_from_quota(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    key = bearer(keys, "alice")
    async with unsigned(**keyed(keys, most=1)) as (stage, _):
        async with channel_to(stage) as channel:
            call = Call(channel, [key], kind="karaoke")
            assert await call.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await refusal(stage, key) == ""
        for _ in range(SLOTS):
            await until_let_in(stage, key)
        await stage.until(free_slots=SLOTS)


async def test_sessions_of_a_worker_that_is_gone_for_good_count_no_longer(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    key = bearer(keys, "alice")
    options: dict[str, Any] = {"clock": ManualClock(), "grpc_port": 0, **BEHIND_A_PROXY, **keyed(keys)}
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
    async with cluster(redis_server, **keyed(keys)) as (one, other), holding(one, key) as holder:
        assert await refusal(other, key) == TOO_MANY
        await holder.end_one()
        await until_let_in(other, key)


@pytest.mark.parametrize(
    ("fields", "wanted", "field"),
    [({"modes": "chat"}, {"kind": "audio"}, "kind"), ({"models": "x"}, {"model": "scripted"}, "model")],
)
async def test_call_beyond_key_rights_gets_permission_denied(
    fields: dict[str, str], wanted: dict[str, str], field: str, tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "keys", "bob")
    keys.add("alice", **fields)
    async with unsigned(**keyed(keys)) as (stage, _), channel_to(stage) as channel:
        refused = await answer(Call(channel, [bearer(keys, "alice")], **wanted))
        assert isinstance(refused, Status)
        assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
        assert refused.field == field
        await Call(channel, [bearer(keys, "bob")], **wanted).granted()


async def test_wait_ends_when_its_key_expires(tmp_path: Path) -> None:
    clock, keys = ManualClock(), KeyFile(tmp_path / "keys", "bob")
    expires = datetime.fromtimestamp(clock.unix() + 5, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys.add("alice", expires=expires)
    async with backend(auth="keys", keys=keys.path, clock=clock) as (stage, _), channel_to(stage) as channel:
        holder = Call(channel, [bearer(keys, "bob")])
        await holder.granted()
        call = Call(channel, [bearer(keys, "alice")]).call
        assert (await call.read()).HasField("queued")
        await clock.advance(6)
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "expired" in await call.details()


ADDRESSES, CALLS = 4, 5
AHEAD = ADDRESSES * LET_IN - SLOTS
"""Takers in the queue while others of them have all slots."""


class Takers:
    """Callers that attach to no slot, and ask again when one is taken away: so many of each sort at once."""

    def __init__(self, channel: grpc.aio.Channel, callers: Sequence[Sequence[Identity]], each: int) -> None:
        self.granted = 0
        """Leases so far."""
        self.there = Counter[int]()
        """Callers of each sort that wait or have a slot."""
        self.refused = Counter[int]()
        self._channel = channel
        self._callers = callers
        sorts = [*range(len(callers))] * each
        self._tasks = [asyncio.create_task(self._take(sort)) for sort in sorts]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, sort: int) -> None:
        while await self._hold(sort):
            pass
        self.refused[sort] += 1

    async def _hold(self, sort: int) -> bool:
        """Until the slot is taken away; False for somebody who is not let in."""
        call = Call(self._channel, self._callers[sort])
        if isinstance(told := await answer(call), Status):
            return told.code is not grpc.StatusCode.RESOURCE_EXHAUSTED
        self.there[sort] += 1
        with suppress(grpc.aio.AioRpcError):
            while told is not None:
                self.granted += told.HasField("granted")
                told = await call.next()
        self.there[sort] -= 1
        return True


@asynccontextmanager
async def taken(stage: Stage, callers: Sequence[Sequence[Identity]], each: int) -> AsyncIterator[Takers]:
    """Takers who have said all they can say for now."""
    async with channel_to(stage) as channel:
        takers = Takers(channel, callers, each)
        try:
            everybody = len(callers) * each
            await until(lambda: takers.there.total() + takers.refused.total() == everybody)
            yield takers
        finally:
            await takers.end()


async def test_takers_from_many_addresses_hold_what_each_address_may_and_others_get_their_turn() -> None:
    clock = ManualClock()
    callers = [[address(number)] for number in range(ADDRESSES)]
    options = {"clock": clock, "connections_per_address": LET_IN, **BEHIND_A_PROXY}
    async with backend(SLOTS, None, **options) as (stage, _), taken(stage, callers, CALLS) as takers:
        for caller in range(ADDRESSES):
            assert (takers.there[caller], takers.refused[caller]) == (LET_IN, CALLS - LET_IN)
        await until(lambda: takers.granted == SLOTS)
        async with stage.client() as client:
            assert (await client.expect("session.queued"))["position"] == AHEAD + 1
            served = asyncio.create_task(client.expect_until("session.queue_done"))
            while not served.done():
                await clock.advance(1.0)
                await asyncio.sleep(0.01)
            await served
            # A returning taker queues behind the client. More slots than one become free at a time.
            assert takers.granted <= SLOTS + AHEAD + 2 * SLOTS
            assert max(takers.there.values()) <= LET_IN
            await client.send({"type": "session.init", "payload": {}})
            await client.expect("session.created")


async def test_takers_with_one_key_hold_what_the_key_may_from_wherever_they_come(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "taker", "other")
    callers = [[address(number), bearer(keys, "taker")] for number in range(ADDRESSES)]
    async with unsigned(**keyed(keys)) as (stage, _), taken(stage, callers, 1) as takers:
        assert (takers.there.total(), takers.refused.total()) == (LET_IN, ADDRESSES - LET_IN)
        await stage.until(free_slots=SLOTS - LET_IN)
        async with stage.client(additional_headers=keys.bearer("other")) as client:
            await client.begin()

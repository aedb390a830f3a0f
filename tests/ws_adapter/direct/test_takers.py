"""Takers: they ask for slots from many addresses, attach to none, and ask again when one is taken away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1.dispatch_service_pb2_grpc import DispatchServiceStub
from tests.ws_adapter.direct.test_acquire import backend, channel_to
from tests.ws_adapter.direct.test_limits import (
    BEHIND_A_PROXY,
    LET_IN,
    SLOTS,
    address,
    bearer,
    keyed,
    unsigned,
)
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, until

ADDRESSES, CALLS = 4, 5
AHEAD = ADDRESSES * LET_IN - SLOTS
"""Takers in the queue while others of them have all slots."""

Metadata = Sequence[tuple[str, str]]


class Takers:
    """So many at once of each sort of caller, each for ever again."""

    def __init__(self, channel: grpc.aio.Channel, callers: Sequence[Metadata], each: int) -> None:
        self.granted = 0
        """Leases so far."""
        self.there = Counter[int]()
        """Callers of each sort that wait or have a slot."""
        self.refused = Counter[int]()
        self._stub = DispatchServiceStub(channel)
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
        call = self._stub.Acquire(pb.AcquireRequest(kind="audio"), metadata=self._callers[sort])
        told = await self._next(call)
        if told is None:
            return await call.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
        self.there[sort] += 1
        while told is not None:
            self.granted += told.HasField("granted")
            told = await self._next(call)
        self.there[sort] -= 1
        return True

    @staticmethod
    async def _next(call: Any) -> pb.AcquireResponse | None:
        try:
            told = await call.read()
        except grpc.aio.AioRpcError:
            return None
        return None if told is grpc.aio.EOF else told


@asynccontextmanager
async def taken(stage: Stage, callers: Sequence[Metadata], each: int) -> AsyncIterator[Takers]:
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

"""Ended calls are freed at once: grpcio keeps, and remakes, a connection while one of its calls exists."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest

from tests.ws_adapter.support.calls import Caller, Way, ask, echo
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import RpcError

Deed = Callable[[Channel, grpc.aio.Server], Awaitable[None]]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # looking through all that was there before takes a second each time
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls() -> int:
    """Count grpcio's calls of clients that exist."""
    return sum(isinstance(it, grpc.aio.Call) for it in gc.get_objects())


async def end_a_call(channel: Channel, server: grpc.aio.Server) -> None:
    caller = await Caller(channel).answered()
    caller.call.half_close()
    assert await caller.end() is None


async def cancel_a_call(channel: Channel, server: grpc.aio.Server) -> None:
    caller = await Caller(channel).answered()
    caller.call.cancel()
    await caller.failure()


async def hang_up(channel: Channel, server: grpc.aio.Server) -> None:
    caller = await Caller(channel).answered()
    channel.disconnect()
    await caller.failure()


async def lose_the_server(channel: Channel, server: grpc.aio.Server) -> None:
    caller = await Caller(channel).answered()
    await server.stop(None)
    await caller.failure()


async def find_no_server(channel: Channel, server: grpc.aio.Server) -> None:
    await lose_the_server(channel, server)
    with pytest.raises(RpcError, match="UNAVAILABLE"):
        await Caller(channel).start()
    with pytest.raises(RpcError, match="UNAVAILABLE"):
        await ask(channel)


async def give_up_before_it_began(channel: Channel, server: grpc.aio.Server) -> None:
    starting = asyncio.create_task(Caller(channel).start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.parametrize(
    "deed",
    [end_a_call, cancel_a_call, hang_up, lose_the_server, find_no_server, give_up_before_it_began],
    ids=lambda deed: deed.__name__,
)
async def test_ended_call_is_freed_without_the_collector(tmp_path: Path, deed: Deed) -> None:
    async with Way("tcp", tmp_path).served(echo) as (channel, server):
        before = calls()
        await deed(channel, server)
        await until(lambda: calls() == before)

"""A crowd of gRPC events does not clog the way in which they reach the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from ws_adapter import wakeup

CALLS = 200
ROUNDS = 5


class Echo(grpc.GenericRpcHandler):
    """Sends back what it gets, whatever it is asked for."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def echo(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message

        return grpc.stream_stream_rpc_method_handler(echo)


async def test_events_that_come_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = 0
    wake = wakeup._wake

    def counted(*arguments: Any) -> None:
        nonlocal wakes
        wakes += 1
        wake(*arguments)

    monkeypatch.setattr(wakeup, "_wake", counted)
    with wakeup.unclogged(asyncio.get_running_loop()):
        server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.stream_stream("/echo/Echo")() for _ in range(CALLS)]

        async def ask(call: Any) -> None:
            await call.write(b"x")
            await call.read()

        async def be_busy() -> None:
            while True:
                time.sleep(0.02)  # noqa: ASYNC251  as long as a turn of a busy loop
                await asyncio.sleep(0)

        busy = asyncio.create_task(be_busy())
        async with asyncio.timeout(60):
            for _ in range(ROUNDS):
                await asyncio.gather(*(ask(call) for call in calls))
        busy.cancel()
        for call in calls:
            call.cancel()
    await server.stop(None)

    events = ROUNDS * CALLS * 4  # a write and a read on either side
    assert 0 < wakes < events / 10


class Source:
    """Stands for gRPC's socket; `left` counts the bytes in it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def recv(self, most: int) -> bytes:
        if not self.left:
            raise BlockingIOError
        taken = min(self.left, most)
        self.left -= taken
        return bytes(taken)


async def test_event_that_cannot_be_handled_does_not_hold_up_those_behind_it() -> None:
    events = [RuntimeError("Event loop is closed"), None, RuntimeError("Event loop is closed"), None]
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def handle_events() -> None:
        while events:
            if event := events.pop(0):
                raise event

    source: Any = Source(4)
    with pytest.raises(RuntimeError):
        wakeup._wake(source, handle_events)
    for _ in range(3):
        await asyncio.sleep(0)

    assert (source.left, events, len(told)) == (0, [], 1)


async def test_readers_of_others_are_left_alone() -> None:
    loop = asyncio.get_running_loop()
    here, there = wakeup.socket.socketpair()
    called = asyncio.Event()
    with wakeup.unclogged(loop):
        loop.add_reader(here, called.set)
    there.send(b"x")
    async with asyncio.timeout(10):
        await called.wait()
    loop.remove_reader(here)
    here.close()
    there.close()

    assert "add_reader" not in vars(loop)

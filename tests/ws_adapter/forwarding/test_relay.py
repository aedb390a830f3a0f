"""A relay between two sockets: bytes, back-pressure and ends go from one side to the other."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import until
from ws_adapter.forwarding import relay
from ws_adapter.forwarding.relay import WRITE_LIMIT, Relay

BUFFER = 2**16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Scene:
    """A relay, and what is at its two ends."""

    relay: Relay
    client: Streams
    owner: Streams
    over: list[Relay] = field(default_factory=list)


async def _ends() -> tuple[asyncio.Transport, Streams]:
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
    transport.pause_reading()
    return transport, await asyncio.open_connection(sock=far)


@asynccontextmanager
async def relayed() -> AsyncIterator[Scene]:
    (client, at_client), (owner, at_owner) = await _ends(), await _ends()
    over: list[Relay] = []
    scene = Scene(Relay(client, owner, over.append), at_client, at_owner, over)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield scene
    finally:
        scene.relay.abort()
        for _, writer in (at_client, at_owner):
            writer.transport.abort()
        await until(lambda: over)


async def test_bytes_go_both_ways_as_they_are() -> None:
    async with relayed() as scene:
        scene.client[1].write(b"\x81\x00question")
        assert await scene.owner[0].readexactly(10) == b"\x81\x00question"
        scene.owner[1].write(b"answer\x00")
        assert await scene.client[0].readexactly(7) == b"answer\x00"


@pytest.mark.parametrize("side", ["client", "owner"])
async def test_side_that_does_not_read_has_the_other_one_wait(side: str) -> None:
    async with relayed() as scene:
        sender, taker = (scene.owner, scene.client) if side == "client" else (scene.client, scene.owner)
        _, writer = sender
        data = bytes(range(256)) * 2**14
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(data)
        near = scene.relay.client if side == "client" else scene.relay.owner
        await until(lambda: near.transport.get_write_buffer_size() > WRITE_LIMIT)
        waiting = near.transport.get_write_buffer_size()
        for _ in range(100):
            await asyncio.sleep(0)
        assert near.transport.get_write_buffer_size() <= max(waiting, WRITE_LIMIT + 2**18)
        assert writer.transport.get_write_buffer_size() > len(data) // 2, "most waits at the sender"

        assert await taker[0].readexactly(len(data)) == data
        await writer.drain()


@pytest.mark.parametrize("side", ["client", "owner"])
async def test_end_of_one_side_is_the_end_of_the_other_after_all_that_came(side: str) -> None:
    async with relayed() as scene:
        sender, taker = (scene.owner, scene.client) if side == "client" else (scene.client, scene.owner)
        sender[1].write(b"last words")
        await sender[1].drain()
        sender[1].close()

        assert await taker[0].read() == b"last words"
        await until(lambda: scene.over)


async def test_unresponsive_owner_is_dropped_after_first_answer_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "FIRST_ANSWER_S", 0.05)
    async with relayed() as scene:
        assert await scene.client[0].read() == b""
        await until(lambda: scene.over)


async def test_client_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "STALL_S", 0.05)
    async with relayed() as scene:
        scene.owner[1].write(bytes(2**22))
        await until(lambda: scene.over)


async def test_relay_side_not_draining_is_cut_at_close_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CLOSE_S", 0.05)
    async with relayed() as scene:
        scene.owner[1].write(bytes(2**20))
        await until(lambda: scene.relay.client.transport.get_write_buffer_size() > WRITE_LIMIT)
        scene.owner[1].transport.abort()
        scene.relay.owner.transport.resume_reading()
        await until(lambda: scene.over)

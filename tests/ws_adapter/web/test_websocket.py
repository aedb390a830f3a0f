"""Public connections below the dialects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response

from tests.conformance.support.client import PING, PONG, RawClient
from tests.ws_adapter.support.stage import Stage, until
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.process.call_queue import CallQueue
from ws_adapter.web.http1 import HttpRequest
from ws_adapter.web.message import Arriving, Disconnected
from ws_adapter.web.websocket import PublicConnection

OVERRIDDEN = {"close", "connection_lost", "connection_made", "data_received", "eof_received"}
"""asyncio's callbacks, and `close`, which the library documents."""


@asynccontextmanager
async def echoing(
    limit: int | None = None, **options: Any
) -> AsyncIterator[tuple[str, list[PublicConnection]]]:
    """An address where messages come back as text, and the connections made to it."""
    connections: list[PublicConnection] = []

    async def echo(connection: ServerConnection) -> None:
        assert isinstance(connection, PublicConnection)
        connections.append(connection)
        if limit is not None:
            connection.limit_messages(limit)
        try:
            while True:
                await connection.send_text((await connection.receive()).data)
        except Disconnected:
            pass

    async def refuse(connection: PublicConnection, request: HttpRequest) -> Response:
        raise AssertionError("only WebSockets connect here")

    create: Any = partial(
        PublicConnection,
        arriving=Arriving(0),
        losses=CallQueue(),
        byte_count=ByteCount(),
        answer=refuse,
        coming=set(),
        open_session=lambda request: request.abort(),
    )
    async with serve(echo, "127.0.0.1", 0, create_connection=create, compression=None, **options) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", connections


@asynccontextmanager
async def echoed(**options: Any) -> AsyncIterator[tuple[ClientConnection, PublicConnection]]:
    """A client whose first message has come back, and its connection."""
    async with echoing(**options) as (address, connections):
        async with connect(f"ws://{address}", compression=None, max_size=None) as client:
            await client.send("first")
            assert await client.recv() == "first"
            yield client, connections[0]


def test_connection_overrides_only_documented_methods_and_callbacks_of_asyncio() -> None:
    overridden = {name for name in vars(PublicConnection) if hasattr(ServerConnection, name)}

    assert {name for name in overridden if not name.startswith("__")} == OVERRIDDEN


async def test_texts_written_past_the_library_are_messages_to_a_client_in_order() -> None:
    async with echoed() as (client, _):
        for size in (0, 1, 125, 126, 65_535, 65_536, 200_000):
            for text in ("x" * size, "still in order"):
                await client.send(text)
                assert await client.recv() == text, size


async def test_a_text_is_taken_as_it_comes_unless_another_waits_or_came_with_it() -> None:
    async with echoed() as (client, connection):
        taken: list[bytes] = []
        takes = True

        def take(text: bytes) -> bool:
            if takes:
                taken.append(text)
                connection.write_text(b"taken")
            return takes

        connection.when_text(take)
        await client.send("the second one")
        assert await client.recv() == "taken"
        takes = False
        await client.send("the third one")
        assert await client.recv() == "the third one"
        takes = True
        for text in ("the fourth one", "the fifth one"):
            client.protocol.send_text(text.encode())
        client.transport.write(b"".join(client.protocol.data_to_send()))
        assert [await client.recv(), await client.recv()] == ["the fourth one", "the fifth one"]
        await client.send(["in ", "fragments"])
        assert await client.recv() == "in fragments"
    assert taken == [b"the second one"]


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    async with echoed() as (client, connection):
        await client.close()
        await until(lambda: connection.closed_with == 1000)
        assert not connection.write_text(b"late")
        with pytest.raises(Disconnected):
            await connection.send_text(b"late")


async def test_a_limit_set_after_the_upgrade_holds() -> None:
    async with echoed(limit=1000) as (client, connection):
        await client.send("x" * 1000)
        assert len(await client.recv()) == 1000
        await client.send("x" * 1001)
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1009
        await until(lambda: connection.closed_with == 1009)


async def test_a_client_that_answers_no_ping_is_cut_without_a_close() -> None:
    async with echoing() as (address, connections):
        client = await RawClient.connect(address, "/v1/realtime?mode=audio")
        await until(lambda: connections)
        pinging = asyncio.create_task(connections[0].keep_alive(0.05, 0.05))
        assert (await client.read())[0] == PING
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.read()
        await pinging


async def test_every_ping_of_a_flood_is_answered_in_order(lonely: Stage) -> None:
    client = await RawClient.connect(lonely.address.removeprefix("http://"), "/v1/realtime?mode=audio")
    await client.flood(PING, b"x", 200)
    pongs = []
    while len(pongs) < 200:  # the client waits in the queue meanwhile, and is told so
        opcode, data = await client.read()
        if opcode == PONG:
            pongs.append(data)

    assert pongs == [b"x"] * 200
    client.vanish()

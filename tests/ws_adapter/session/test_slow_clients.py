"""Clients that do not read, over real sockets."""

import asyncio
import socket
from typing import Any

import pytest

from antiphon_service.semconv import OUTBOX
from tests.support.passing import Passing
from tests.support.scrape import scrape
from tests.support.scripted_engine import ScriptedEngine, listen, speak
from tests.ws_adapter.session.test_endings import PING_S, unanswered_ping
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.stage import PATIENCE_S, ManualClock, running_adapter, serving, until
from ws_adapter.server import listener


def small_window() -> socket.socket:
    """A socket that takes little before its owner reads."""
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    return client


async def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    client = small_window()
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    return client


async def test_client_not_reading_loses_only_its_own_session() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(speak("word"), repeat=True, slots=2)
    async with serving(engine, clock=clock) as stage, stage.client() as neighbour:
        await neighbour.begin()
        options: dict[str, Any] = {"sock": await connected(stage.address), "max_queue": 1}
        async with stage.client(**options) as client:
            await client.begin()
            stopped = engine.session
            client.socket.transport.pause_reading()
            await client.send(append(50.0))
            await until(lambda: len(stopped.heard) > 3)
            heard = await settled(lambda: len(stopped.heard))
            assert heard < 50, "no more is run than the client can be sent"
            for _ in range(14):
                await clock.advance(0.5)
                await asyncio.sleep(0.01)
            await until(lambda: stopped.is_closed)
            client.socket.transport.resume_reading()
            await client.rest()
            assert client.close_code in (1006, 1008)

        await neighbour.send(append())
        await neighbour.expect("text", "audio")


async def settled(value: Any) -> Any:
    """`value()` once it has stopped changing."""
    last = value()
    while True:
        for _ in range(10):
            await asyncio.sleep(0.01)
        if value() == last:
            return last
        last = value()


async def test_client_that_reads_late_gets_everything() -> None:
    engine = ScriptedEngine(speak("word"), repeat=True)
    async with serving(engine, admin_port=0) as stage:
        async with stage.client(sock=await connected(stage.address), max_queue=1) as client:
            await client.begin()
            client.socket.transport.pause_reading()
            await client.send(append(20.0))
            await settled(lambda: len(engine.session.heard))
            client.socket.transport.resume_reading()
            await client.expect(*["text", "audio"] * 20)
        assert stage.adapter.admin_port is not None
        measured = await scrape(stage.adapter.admin_port)
        assert measured.total(f"{OUTBOX.name}_count") > 0


async def test_vanished_client_is_noticed_while_output_waits(
    monkeypatch: pytest.MonkeyPatch, passing: Passing
) -> None:
    """Below the bound of the outbox, but so much that no ping gets through any more."""
    monkeypatch.setattr(listener, "PING_S", PING_S)
    engine = ScriptedEngine(speak("word"), repeat=True)
    async with serving(engine, outbox_audio_s=30, outbox_mib=64) as stage:
        async with stage.client(sock=await connected(stage.address), max_queue=1) as client:
            await client.begin()
            client.socket.transport.pause_reading()
            await client.send(append(10.0))
            await settled(lambda: len(engine.session.heard))
            await unanswered_ping(passing)
            await until(lambda: engine.session.is_closed)
            client.vanish()


async def test_unfinished_messages_of_all_clients_are_bounded() -> None:
    unfinished = b"\x81\xff" + (16_000_000).to_bytes(8, "big") + bytes(4) + b" " * 3_000_000
    async with serving(ScriptedEngine(slots=2), max_inflight_mib=4) as stage:
        async with stage.client() as talking, stage.client() as first, stage.client() as second:
            await talking.begin()
            first.socket.transport.write(unfinished)
            second.socket.transport.write(unfinished)
            async with asyncio.timeout(PATIENCE_S):
                waits = [asyncio.create_task(client.rest()) for client in (first, second)]
                done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            assert (len(done), len(left)) == (1, 1)
            await talking.send(append(5.0))
            await talking.expect(*["listen"] * 5)
            first.vanish()
            second.vanish()
            await asyncio.wait(left, timeout=PATIENCE_S)


async def test_byte_by_byte_sender_is_served() -> None:
    async with serving(ScriptedEngine(listen())) as stage:
        async with stage.client() as client:
            await client.expect("session.queue_done")
            raw = asyncio.Queue[bytes]()
            write = client.socket.transport.write
            client.socket.transport.write = raw.put_nowait  # type: ignore[method-assign]
            await client.send(INIT)
            client.socket.transport.write = write  # type: ignore[method-assign]
            for byte in raw.get_nowait():
                write(bytes([byte]))
                await asyncio.sleep(0)
            await client.expect("session.created")


async def test_partial_handshake_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ws_adapter.server.listener.OPEN_TIMEOUT_S", 0.2)
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        assert b" 101 " not in await stage.exchange(b"GET /v1/realtime HTTP/1.1\r\nHost:")

"""Adapters that share a port: who drains leaves it to the others."""

import asyncio
import json
from urllib.parse import urlsplit

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.stage import PATIENCE_S, Stage, running_adapter, serving

NEWCOMERS = 12
SLOTS = NEWCOMERS + 1


def engine() -> ScriptedEngine:
    return ScriptedEngine(listen(), slots=SLOTS, repeat=True)


async def sessions_of(stage: Stage, admin_port: int) -> list[int]:
    """How many sessions the adapter has that answers there, asked five times over five connections."""
    request = b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = [await stage.exchange(request, admin_port) for _ in range(5)]
    return [json.loads(answer.partition(b"\r\n\r\n")[2])["sessions"] for answer in answers]


async def test_adapter_draining_on_shared_port_keeps_session_as_other_admits() -> None:
    async with (
        running_worker(engine(), slots=SLOTS) as first_worker,
        running_worker(engine(), slots=SLOTS) as second_worker,
        running_adapter(first_worker.address, reuse_port=True) as first,
        first.client() as talker,
    ):
        await talker.begin()
        port = urlsplit(first.address).port
        async with running_adapter(second_worker.address, reuse_port=True, port=port) as second:
            first.adapter.interrupt()
            for _ in range(NEWCOMERS):
                async with second.client() as newcomer:
                    await newcomer.expect_until("session.queue_done")
            await talker.send(append())
            await talker.expect("listen")


async def test_connection_accepted_before_drain_of_shared_port_is_served() -> None:
    async with serving(engine(), reuse_port=True) as stage:
        at = urlsplit(stage.address)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.write(b"GET /v1/realtime?mode=audio HTTP/1.1\r\nHost: here\r\n")
        await stage.request("/healthz")  # came later, so the other was accepted
        stage.adapter.interrupt()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    _, later = await asyncio.open_connection(at.hostname, at.port)
                except ConnectionRefusedError:
                    break
                later.close()
        writer.write(
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
            assert b"session.queue_done" in await reader.readuntil(b"session.queue_done")
        writer.transport.abort()


async def test_administration_of_one_that_drains_is_left_to_the_others() -> None:
    async with (
        running_worker(engine(), slots=SLOTS) as worker,
        running_adapter(worker.address, reuse_port=True, admin_port=0) as first,
        first.client() as talker,
    ):
        await talker.begin()
        admin_port = first.adapter.admin_port
        assert admin_port is not None
        assert await sessions_of(first, admin_port) == [1] * 5
        options = {"reuse_port": True, "port": urlsplit(first.address).port, "admin_port": admin_port}
        async with running_adapter(worker.address, **options):
            first.adapter.interrupt()
            for _ in range(5):
                await asyncio.sleep(0)  # it is told
            assert await sessions_of(first, admin_port) == [0] * 5

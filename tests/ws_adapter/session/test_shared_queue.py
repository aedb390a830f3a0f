"""Conversations through adapters and workers that know of each other by Redis alone."""

from contextlib import AsyncExitStack

from antiphon_service.pools import pool_name
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.conversation import CLOSE, INIT
from tests.ws_adapter.support.stage import Client, running_adapter

KEY = b"a key of 16 byte"
POOL = pool_name("scripted", ("audio", "video", "chat", "transcription"))


async def begin(client: Client) -> None:
    """An adapter may yet have to dial a worker that Redis told it of."""
    await client.expect_until("session.queue_done")
    await client.send({**INIT, "payload": {}})
    await client.expect("session.created")


async def test_two_adapters_share_a_worker_and_its_queue(redis_server: RedisServer) -> None:
    age(redis_server, POOL)
    async with AsyncExitStack() as backend:
        engine = ScriptedEngine(listen(), slots=1, repeat=True, info=EVERYTHING)
        worker = running_worker(engine, slots=1, worker_key=KEY, dispatcher=redis_server.url)
        await backend.enter_async_context(worker)
        one, other = [
            await backend.enter_async_context(
                running_adapter(worker_key=KEY, dispatcher=redis_server.url, wait=True)
            )
            for _ in range(2)
        ]
        async with one.client() as first:
            await begin(first)
            async with other.client() as second, one.client() as third:
                assert (await second.expect("session.queued"))["position"] == 1
                assert (await third.expect("session.queued"))["position"] == 2
                redis_server.pause()
                await first.send(CLOSE)
                assert (await first.rest())[-1]["type"] == "session.closed"
                redis_server.resume()

                await second.expect_until("session.queue_done")

"""Conversations through adapters and workers that know of each other by Redis alone."""

from contextlib import AsyncExitStack
from dataclasses import replace

from antiphon_service.pools import pool_name
from inference_service.interface.setups import Mode
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import EVERYTHING, INFO, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.backend import age, until_told
from tests.ws_adapter.support.conversation import CLOSE, INIT
from tests.ws_adapter.support.stage import Client, Stage, running_adapter, until

KEY = b"a key of 16 byte"
POOL = pool_name("scripted", ("audio", "video", "chat", "transcription"))


async def begin(client: Client) -> None:
    """An adapter may yet have to dial a worker that Redis told it of."""
    await client.expect_until("session.queue_done")
    await client.send({**INIT, "payload": {}})
    await client.expect("session.created")


async def describes(adapter: Stage, models: set[str]) -> bool:
    """Whether the workers of these models have answered too: Redis tells of one before it has."""
    _, _, body = await adapter.request("/v1/models")
    return {model["id"] for model in body["data"]} == models


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


async def test_worker_that_joins_and_one_that_leaves_need_no_restart_of_an_adapter(
    redis_server: RedisServer,
) -> None:
    age(redis_server, POOL)
    async with AsyncExitStack() as backend:
        adapter = await backend.enter_async_context(
            running_adapter(worker_key=KEY, dispatcher=redis_server.url, wait=False)
        )
        text = replace(INFO, modes=frozenset({Mode.CHAT}), name="words")
        for info in (text, EVERYTHING):
            engine = ScriptedEngine(listen(), slots=1, repeat=True, info=info)
            worker = running_worker(engine, slots=1, worker_key=KEY, dispatcher=redis_server.url)
            running = await backend.enter_async_context(worker)
        await adapter.until(workers=2)
        await until_told(lambda: describes(adapter, {"words", EVERYTHING.name}))

        async with adapter.client() as client:
            await begin(client)
            await adapter.until(free_slots=1)

        running.worker.interrupt()
        await adapter.until(workers=1)
        await until(lambda: running.run.done())

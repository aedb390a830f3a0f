"""Two whole adapters on one Redis: what a client or an operator sees is the same at both."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.observability.test_metrics import scrape
from tests.ws_adapter.support.backend import age, until_told
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter

BEHIND_PROXY: dict[str, Any] = {"trusted_proxies": ("127.0.0.0/8",), "wait": False}

pytestmark = pytest.mark.usefixtures("patient_peers")


@asynccontextmanager
async def two_adapters(server: RedisServer, **options: Any) -> AsyncIterator[tuple[Stage, Stage]]:
    options = {"dispatcher": server.url, **options}
    async with running_adapter(**options) as one, running_adapter(**options) as other:
        yield one, other


@asynccontextmanager
async def two_adapters_with_one_slot(
    server: RedisServer, **options: Any
) -> AsyncIterator[tuple[Stage, Stage]]:
    age(server)
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1, dispatcher=server.url):
        async with two_adapters(server, **options) as stages:
            yield stages


async def open_from(stage: Stage, address: str, **headers: str) -> ClientConnection:
    return await connect(stage.url, additional_headers={"X-Forwarded-For": address, **headers})


async def is_refused(stage: Stage, address: str, **headers: str) -> bool:
    with pytest.raises(InvalidStatus) as refusal:
        await open_from(stage, address, **headers)
    return refusal.value.response.status_code == 429


async def test_connections_of_an_address_are_counted_at_both(redis_server: RedisServer) -> None:
    async with two_adapters(redis_server, connections_per_address=2, **BEHIND_PROXY) as (one, other):
        sockets = [await open_from(one, "203.0.113.5"), await open_from(other, "203.0.113.5")]

        for stage in (one, other):
            assert await is_refused(stage, "203.0.113.5")
            sockets.append(await open_from(stage, "203.0.113.6"))
        for socket in sockets:
            await socket.close()


async def test_attempts_with_one_key_and_guesses_from_one_address_are_counted_at_both(
    redis_server: RedisServer, tmp_path: Any
) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    limits = {"opens_per_min_per_key": 2, "opens_per_min_per_address": 2}
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, **limits}
    async with two_adapters(redis_server, **options, **BEHIND_PROXY) as (one, other):
        for stage in (one, other):
            await (await open_from(stage, "203.0.113.5", **keys.bearer("alice"))).close()
        for stage in (one, other):
            assert await is_refused(stage, "203.0.113.6", **keys.bearer("alice"))
        await (await open_from(one, "203.0.113.7", **keys.bearer("bob"))).close()

        for stage in (one, other):
            assert not await is_refused(stage, "203.0.113.8", Authorization="Bearer guess")
        for stage in (one, other):
            assert await is_refused(stage, "203.0.113.8", Authorization="Bearer guess")


async def told(stage: Stage) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((await scrape(stage, "/status.json"))[2])
    return status


async def gauge(stage: Stage, name: str, **labels: str) -> float:
    families = text_string_to_metric_families((await scrape(stage, "/metrics"))[2])
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def test_both_tell_of_all_adapters_all_workers_and_the_one_queue(redis_server: RedisServer) -> None:
    async with two_adapters_with_one_slot(redis_server, admin_port=0) as (one, other):
        async with one.client() as talking:
            await talking.expect_until("session.queue_done")
            async with other.client() as waiting:
                await waiting.expect("session.queued")

                async def is_told_at_both() -> bool:
                    seen = [await told(stage) for stage in (one, other)]
                    return all(
                        [peer["sessions"] for peer in status["adapters"]] == [1, 1]
                        and [worker["held"] for worker in status["workers"]] == [1]
                        and len(status["queue"]) == 1
                        for status in seen
                    )

                await until_told(is_told_at_both)
                seen = [await told(stage) for stage in (one, other)]
                assert seen[0]["adapters"][0]["version"] == seen[0]["version"]
                assert [[place["position"] for place in status["queue"]] for status in seen] == [[1], [1]]
                assert [len(status["leases"]) for status in seen] == [1, 0]
                gauges = [await gauge(stage, "antiphon_queue_length") for stage in (one, other)]
                assert gauges == [1, 1], "each tells of the one queue: their maximum is its length"
                held = [await gauge(stage, "antiphon_slots", state="attached") for stage in (one, other)]
                assert held == [1, 0], "each tells of its own: their sum is what is held"
                page = (await scrape(other, "/"))[2]
                assert page.count("ready") >= 2


async def test_adapter_that_ends_is_gone_from_the_page_of_the_other(redis_server: RedisServer) -> None:
    options: dict[str, Any] = {"dispatcher": redis_server.url, "admin_port": 0, "wait": False}
    async with running_adapter(**options) as one:
        async with running_adapter(**options) as other:

            async def are_two_at_both() -> bool:
                return all([len((await told(stage))["adapters"]) == 2 for stage in (one, other)])

            await until_told(are_two_at_both)
        assert len((await told(one))["adapters"]) == 1

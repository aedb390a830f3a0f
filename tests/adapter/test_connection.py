"""Public connections below the dialects."""

import logging

import pytest

from tests.adapter.stage import running_adapter
from tests.conformance.client import PING, PONG, RawClient

FLOOD = 5_000


async def pong(client: RawClient) -> bytes:
    """What the next pong holds; the client waits in the queue meanwhile, and is told so."""
    while (frame := await client.read())[0] != PONG:
        pass
    return frame[1]


async def test_a_flood_of_pings_of_a_client_that_has_gone_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        host = stage.address.removeprefix("http://")
        client = await RawClient.connect(host, "/v1/realtime?mode=audio")
        with caplog.at_level(logging.WARNING, "asyncio"):
            await client.flood(PING, b"x", FLOOD)
            client.vanish()
            # Once another client is served, what the first one left behind has been dealt with.
            other = await RawClient.connect(host, "/v1/realtime?mode=audio")
            await other.frame(PING, b"still there?")
            assert await pong(other) == b"still there?"
            other.vanish()

    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_every_ping_of_a_flood_is_answered_in_order() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        client = await RawClient.connect(stage.address.removeprefix("http://"), "/v1/realtime?mode=audio")
        await client.flood(PING, b"x", 200)

        assert [await pong(client) for _ in range(200)] == [b"x"] * 200
        client.vanish()

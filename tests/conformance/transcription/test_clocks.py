"""The clocks of transcription, turned by hand: adapter and worker run in the test's own process."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.transcription_words import (
    COMMIT,
    FINAL,
    PATH,
    append,
    begin,
    delta,
    done,
    error,
    nothing,
    opened,
)
from tests.support.scripted_engine import EVERYTHING, Play, Script, listen, write
from tests.ws_adapter.support.stage import until

INFO = EVERYTHING
GO = write(" go")


@pytest.fixture
async def world(no_leaked_tasks: None) -> AsyncIterator[Clockwork]:
    async with clockwork(slots=1, info=INFO) as world:
        yield world


def plays(world: Clockwork, *script: Play) -> None:
    world.engine.scripts.append(Script(script))


async def free(world: Clockwork) -> bool:
    return bool((await world.stage.request("/readyz"))[2]["free_slots"])


async def test_silent_client_with_an_open_utterance(world: Clockwork) -> None:
    plays(world, GO, write(" on"), write(" again"))
    async with world.client(PATH) as client:
        await begin(client)
        await world.advance(29.9)
        await nothing(client)
        await world.advance(0.1)
        assert await client.take(3) == [delta(" on"), done(" go on", completion=2), error("idle_timeout")]
        await client.send(append(), FINAL)
        await nothing(client)
        await world.advance(0)
        assert await client.take(2) == [delta(" again"), done(" again", completion=1)]


async def test_slot_is_kept_for_half_a_minute(world: Clockwork) -> None:
    plays(world, GO, listen())
    async with world.client(PATH) as client:
        await begin(client)
        await client.send(FINAL)
        assert await client.next() == done(" go", completion=2)
        for _ in range(29):
            await world.advance(1)
        assert not await free(world)
        await world.advance(1)
        await world.stage.until(free_slots=1)
        await world.advance(3600)
        plays(world, write(" later"))
        await client.send(append(), FINAL)
        assert await client.take(2) == [delta(" later"), done(" later", completion=1)]


async def test_short_audio_waits_a_second(world: Clockwork) -> None:
    plays(world, write(" soon"))
    async with world.client(PATH) as client:
        await opened(client, COMMIT, append(4000))
        await nothing(client)
        await until(lambda: world.engine.sessions)
        await world.advance(0.9)
        await nothing(client)
        await world.advance(0.1)
        assert await client.next() == delta(" soon")

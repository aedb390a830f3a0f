"""The clocks of transcription, turned by hand: adapter and worker run in the test's own process."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.transcription_words import (
    FINAL,
    PATH,
    append,
    begin,
    delta,
    done,
    error,
    nothing,
)
from tests.support.scripted_engine import EVERYTHING, Play, Script, write

INFO = EVERYTHING
GO = write(" go")


@pytest.fixture
async def world(no_leaked_tasks: None) -> AsyncIterator[Clockwork]:
    async with clockwork(slots=1, info=INFO) as world:
        yield world


def plays(world: Clockwork, *script: Play) -> None:
    world.engine.scripts.append(Script(script))


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

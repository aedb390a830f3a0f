"""The clocks of 8.2 at the values of the document.

Adapter and worker run in the test's process, on real sockets, on a clock that is turned by hand.
"""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    FINAL,
    PATH,
    UPDATE,
    append,
    begin,
    delta,
    done,
    error,
    nothing,
)
from tests.support.scripted_engine import EVERYTHING, Play, Script, hang, listen, write
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
    """8.2: OPEN and nothing for 30 s: as by a final commit: `done`, `error{idle_timeout}`, READY."""
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


async def test_what_counts_as_something(world: Clockwork) -> None:
    """8.2: no valid append or effective commit: an ignored commit and a refused append are none."""
    plays(world, GO, listen(), write(" on"))
    async with world.client(PATH) as client:
        await begin(client)
        await world.advance(20)
        await client.send(append(160))
        await nothing(client)
        await world.advance(29)
        await client.send(COMMIT, UPDATE)
        assert (await client.ask({**append(), "audio": "?"}))["code"] == "invalid_audio"
        await world.advance(1)
        assert (await client.until("transcription.done"))[-1]["text"] == " go on"
        assert await client.next() == error("idle_timeout")


async def test_waiting_for_a_slot_is_not_silence(world: Clockwork) -> None:
    """8.2: OPEN with a slot: the wait for one does not count."""
    plays(world, GO)
    plays(world, write(" at last"))
    async with world.client(PATH) as holder, world.client(PATH) as client:
        await begin(holder)
        assert await client.next() == CREATED
        await client.send(UPDATE, COMMIT, append())
        await nothing(client)
        for _ in range(12):
            await world.advance(10)
            await holder.send(append(160))
            await nothing(holder)
        await holder.socket.close()
        assert await client.next() == delta(" at last")
        await world.advance(29.9)
        await nothing(client)


async def test_finishing_has_no_clock(world: Clockwork) -> None:
    """8.2: an utterance whose final commit has come waits for the worker, who has a watchdog of its own."""
    plays(world, GO, hang("generate"))
    async with world.client(PATH) as client:
        await begin(client)
        await client.send(FINAL)
        await nothing(client)
        await world.advance(300)
        await nothing(client)
        world.session.release("generate", 2)
        assert await client.next() == done(" go", completion=2)


async def test_slot_is_kept_for_half_a_minute(world: Clockwork) -> None:
    """8.2: after `done` the slot is kept at most 30 s: so a silent socket holds none, and stays open."""
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


async def test_utterance_without_end(world: Clockwork) -> None:
    """8.2: there is no session time limit, whatever the limits of other kinds are."""
    plays(world, GO, *[listen()] * 200)
    async with world.client(PATH) as client:
        await begin(client)
        for heard in range(2, 130):
            await world.advance(20)
            await client.send(append())
            await until(lambda heard=heard: len(world.session.given) == heard)
        await client.send(FINAL)
        assert (await client.next())["text"] == " go"


async def test_short_audio_waits_a_second(world: Clockwork) -> None:
    """Less than a second of audio is heard when it has waited for one: text does not wait for more audio."""
    plays(world, write(" soon"))
    async with world.client(PATH) as client:
        assert await client.next() == CREATED
        await client.send(UPDATE, COMMIT, append(4000))
        await nothing(client)
        await until(lambda: world.engine.sessions)
        await world.advance(0.9)
        await nothing(client)
        await world.advance(0.1)
        assert await client.next() == delta(" soon")

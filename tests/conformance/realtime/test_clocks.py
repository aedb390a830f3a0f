"""Silence after an utterance, and the limits of a session, on a clock that is turned by hand.

Adapter and worker run in the test's process; the last test waits for real. Every rule of the silence is
tested in `tests/ws_adapter/protocol/duplex/test_silence.py`.
"""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.support.client import Client, kinds
from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.match import With
from tests.conformance.support.stack import Stack, Worker, running_stack
from tests.conformance.support.words import G3, Words, both, samples_of
from tests.support.scripted_engine import End, Play, hang, listen, speak, turn_end


@pytest.fixture
async def world(no_leaked_tasks: None) -> AsyncIterator[Clockwork]:
    async with clockwork() as world:
        yield world


async def hear(client: Client, words: Words, *expected: str) -> None:
    """The units that come next: `l` listens; `s` speaks, `e` speaks and ends the turn. All by silence."""
    for what in expected:
        event = await client.next()
        assert event["metrics"].get("injected_silence") is True
        assert event["input_id"] == "utterance"
        if what == "l":
            assert event["type" if words is not G3 else "kind"] == words.listen
            continue
        assert event["text"]
        if words is G3:
            await client.expect("audio")
            if what == "e":
                assert (await client.expect("listen"))["reason"] == "turn_end"


async def nothing(client: Client) -> None:
    """Nothing is on its way: the next event is the answer to this one."""
    await client.send({"type": "nonsense"})
    await client.expect("error:unknown_event")


@both
async def test_silence_after_a_burst(world: Clockwork, words: Words) -> None:
    async with world.client() as client:
        script = (listen(), listen(), listen(), listen(), speak("Well"), turn_end("yes."))
        await words.begin(client, *script)
        await client.send(words.append(48_000, input_id="utterance"))
        assert kinds(await client.take(3)) == [words.listen] * 3
        await world.advance(1.24)
        await nothing(client)
        await world.advance(0.02)
        await hear(client, words, "l")
        await world.advance(0.98)
        await nothing(client)
        await world.advance(0.02)
        await hear(client, words, "s")
        await world.advance(1.0)
        await hear(client, words, "e")
        await world.advance(60.0)
        await nothing(client)
        await client.send({"type": "session.close"})
        assert kinds((await client.end())[0]) == ["session.closed"]
        assert world.clock.timers <= 1, "only the dispatcher may still wait for something"


@both
async def test_silence_stops_at_force_listen(world: Clockwork, words: Words) -> None:
    async with world.client() as client:
        await words.begin(client, listen(), listen(), *[speak("on")] * 20)
        await client.send(words.append(32_000, input_id="utterance"))
        await client.take(2)
        await world.advance(1.3)
        await hear(client, words, "s")
        await client.send(words.silent(force_listen=True))
        assert "response_id" in await client.expect(words.listen)
        await world.advance(50.0)
        await nothing(client)


@both
@pytest.mark.parametrize(("query", "limit_s"), [("", 300), ("?mode=video", 300), ("?mode=audio", 600)])
async def test_limit_of_the_session(words: Words, query: str, limit_s: int) -> None:
    """It does not count the queue."""
    async with (
        clockwork(slots=1) as world,
        world.client() as holder,
        world.client(f"/v1/realtime{query}") as client,
    ):
        await holder.expect("session.queue_done")
        client.ignored = {"session.queue_update"}
        await client.expect("session.queued")
        await world.advance(15.0)
        await holder.socket.close()
        await client.expect("session.queue_done")
        await world.advance(15.0)
        await client.send(words.init())
        created = await client.expect("session.created")
        await world.advance(limit_s - 16.0)
        await nothing(client)
        await world.advance(1.1)
        events, code = await client.end()
        assert events == [With(**words.closed(created, "timeout"))]
        assert code == 1000


@both
async def test_limit_of_idling_counts_only_while_others_wait(words: Words) -> None:
    async with clockwork(slots=1) as world:
        async with world.client() as client:
            created = await words.begin(client)
            await world.advance(200.0)
            await nothing(client)
            async with world.client() as waiting:
                await waiting.expect("session.queued")
                await world.advance(1.1)
                events, code = await client.end()
                assert (events, code) == ([With(**words.closed(created, "timeout"))], 1000)
                waiting.ignored = {"session.queue_update"}
                await waiting.expect("session.queue_done")


@both
async def test_limit_of_the_context(stack: Stack, words: Words) -> None:
    full = Play(says=(("last words", 0.5),), end=End.CONTEXT_FULL)
    async with stack.client() as client:
        created = await words.begin(client, listen(), full)
        await client.send(*[words.append()] * 4)
        events, code = await client.end()
        spoken = ["text", "audio"] if words is G3 else ["response.output_audio.delta"]
        assert kinds(events) == [words.listen, *spoken, "session.closed"]
        assert samples_of(events[-2]).size == 12_000
        assert events[-1] == With(**words.closed(created, "context_full"))
        assert code == 1000


async def test_limit_of_the_session_on_the_real_clock(scripted: Worker) -> None:
    """A unit runs, which is cancelled."""
    with running_stack(scripted, options=("--session-limit-video-s", "1.5")) as stack:
        async with stack.client("/v1/realtime?mode=video") as client:
            created = await G3.begin(client, hang("generate"))
            await client.send(G3.append())
            assert await client.end() == ([With(**G3.closed(created, "timeout"))], 1000)

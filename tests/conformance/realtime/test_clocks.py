"""Sections 6.2 silence after an utterance and 9.1 limits and clocks, at the values of the document.

Adapter and worker run in the test's process on a clock that is turned by hand; the last test waits for real.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from inference_service.interface.setups import Window, WindowMode
from tests.conformance.support.client import Client, kinds
from tests.conformance.support.clockwork import SEEING, Clockwork, clockwork
from tests.conformance.support.match import With
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G3, Words, both, samples_of
from tests.support.scripted_engine import PROMPT_TOKENS, UNIT_TOKENS, End, Play, hang, listen, speak, turn_end


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


# ------------------------------------------------------------------------------ 6.2 sends and then waits


@both
async def test_silence_after_a_burst(world: Clockwork, words: Words) -> None:
    """6.2 burst: over 1.5 s more audio than it took to arrive; after 1.25 s silence, one unit per second.

    Each with its own events, `injected_silence` and the append's `input_id`, until the turn ends.
    """
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


@both
async def test_silence_after_an_isolated_append(world: Clockwork, words: Words) -> None:
    """6.2 isolated: an append of any length with none in the 3 s before it; silence after 3 s."""
    async with world.client() as client:
        await words.begin(client, listen(), turn_end("Yes."))
        await client.send(words.append(input_id="utterance"))
        await client.expect(words.listen)
        await world.advance(2.9)
        await nothing(client)
        await world.advance(0.2)
        await hear(client, words, "e")
        await world.advance(60.0)
        await nothing(client)


@both
async def test_silence_after_an_isolated_append_of_any_length(world: Clockwork, words: Words) -> None:
    """6.2 isolated, of any length: half a second is padded after 1.25 s, silence follows after 3 s."""
    async with world.client() as client:
        await words.begin(client, listen(), turn_end("Yes."))
        await client.send(words.append(8_000, input_id="utterance"))
        await nothing(client)
        await world.advance(1.3)
        assert (await client.expect(words.listen))["metrics"]["padded_samples"] == 8_000
        await world.advance(1.6)
        await nothing(client)
        await world.advance(0.2)
        await hear(client, words, "e")


@both
async def test_silence_after_a_burst_of_appends(world: Clockwork, words: Words) -> None:
    """6.2 burst: a run of appends that holds over 1.5 s more audio than it took to arrive."""
    async with world.client() as client:
        await words.begin(client, listen(), listen(), listen(), turn_end("Yes."))
        for name in ("a", "b", "utterance"):
            await client.send(words.append(input_id=name))
            await client.expect(words.listen)
            await world.advance(0.4)
        await world.advance(0.8)
        await nothing(client)
        await world.advance(0.1)
        await hear(client, words, "e")


@both
async def test_silence_is_at_most_ten_units_without_speech(world: Clockwork, words: Words) -> None:
    """6.2: at most 10 (`silence_tail_units`) while the model has not begun to speak."""
    async with world.client() as client:
        await words.begin(client)
        await client.send(words.append(32_000, input_id="utterance"))
        assert kinds(await client.take(2)) == [words.listen] * 2
        await world.advance(1.3)
        for _ in range(9):
            await hear(client, words, "l")
            await world.advance(1.0)
        await hear(client, words, "l")
        await world.advance(60.0)
        await nothing(client)


@both
async def test_silence_goes_on_until_the_turn_ends(world: Clockwork, words: Words) -> None:
    """6.2: once the model speaks, silence goes on until its turn ends, also beyond ten units."""
    async with world.client() as client:
        await words.begin(client, listen(), listen(), *[speak("on")] * 13, turn_end("and off."))
        await client.send(words.append(32_000, input_id="utterance"))
        assert kinds(await client.take(2)) == [words.listen] * 2
        await world.advance(1.3)
        for _ in range(13):
            await hear(client, words, "s")
            await world.advance(1.0)
        await hear(client, words, "e")
        await world.advance(60.0)
        await nothing(client)


@both
async def test_silence_stops_at_an_append(world: Clockwork, words: Words) -> None:
    """6.2: it stops at any append; the client has the floor again."""
    async with world.client() as client:
        await words.begin(client)
        await client.send(words.append(32_000, input_id="utterance"))
        await client.take(2)
        await world.advance(1.3)
        await hear(client, words, "l")
        for _ in range(4):  # in real time from now on
            await world.advance(0.9)
            await client.send(words.append())
            assert "injected_silence" not in (await client.expect(words.listen))["metrics"]
        await world.advance(0.9)
        await nothing(client)


@both
async def test_silence_stops_at_force_listen(world: Clockwork, words: Words) -> None:
    """6.2 with 6.4: an append that only interrupts is an append too, and there is nothing to answer."""
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
async def test_silence_is_not_for_an_append_that_only_interrupts(world: Clockwork, words: Words) -> None:
    """6.2 isolated: a `force_listen` without audio asks for no answer, whenever it comes."""
    async with world.client() as client:
        await words.begin(client)
        await client.send(words.silent(force_listen=True))
        await client.expect(words.listen)
        await world.advance(50.0)
        await nothing(client)


@both
async def test_silence_stops_at_close(world: Clockwork, words: Words) -> None:
    """6.2: it stops at any append or close."""
    async with world.client() as client:
        await words.begin(client)
        await client.send(words.append(32_000, input_id="utterance"))
        await client.take(2)
        await world.advance(1.3)
        await hear(client, words, "l")
        await client.send({"type": "session.close"})
        assert kinds((await client.end())[0]) == ["session.closed"]
        assert world.clock.timers <= 1, "only the dispatcher may still wait for something"


@both
async def test_silence_is_not_for_a_client_that_streams(world: Clockwork, words: Words) -> None:
    """6.2: a client that streams continuously and then stops gets none: for it, a pause is a pause."""
    async with world.client() as client:
        await words.begin(client)
        for _ in range(4):
            await client.send(words.append())
            await client.expect(words.listen)
            await world.advance(1.0)
        await world.advance(50.0)
        await nothing(client)


# ---------------------------------------------------------------------------------- 9.1 limits and clocks


@both
@pytest.mark.parametrize(("mode", "limit_s"), [("video", 300), ("audio", 600)])
async def test_limit_of_the_session(world: Clockwork, words: Words, mode: str, limit_s: int) -> None:
    """9.1 session: 300 s (video), 600 s (audio) from `queue_done`, idle time counts: `timeout`, 1000."""
    async with world.client(f"/v1/realtime?mode={mode}") as client:
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


async def test_limit_of_the_default_mode(world: Clockwork) -> None:
    """Section 1 rule 5 and 9.1: without a mode it is video, 300 s."""
    async with world.client("/v1/realtime") as client:
        await G3.begin(client)
        await world.advance(300.1)
        assert (await client.end())[1] == 1000


async def test_limit_does_not_count_the_queue() -> None:
    """9.1 session: queueing does not count."""
    async with clockwork(slots=1) as world:
        async with world.client() as holder, world.client() as client:
            await G3.begin(holder)
            client.ignored = {"session.queue_update"}
            await client.expect("session.queued")
            await world.advance(500.0)
            await holder.socket.close()
            await client.expect("session.queue_done")
            await client.send(G3.init())
            await client.expect("session.created")
            await world.advance(599.0)
            await nothing(client)
            await world.advance(1.1)
            assert [e["reason"] for e in (await client.end())[0]] == ["timeout"]


@both
async def test_held_input_does_not_age(words: Words) -> None:
    """Section 2: held frames are processed as if they had just arrived; 6.3 counts from then."""
    async with clockwork(slots=1) as world:
        async with world.client() as holder, world.client() as client:
            await G3.begin(holder)
            client.ignored = {"session.queue_update"}
            await client.expect("session.queued")
            await client.send(words.init(), *[words.append() for _ in range(4)])
            await nothing(client)
            await world.advance(100.0)
            await holder.socket.close()
            await client.expect("session.queue_done", "session.created")
            answers = await client.take(4)
            assert kinds(answers) == [words.listen] * 4
            assert not any("dropped_total" in answer["metrics"] for answer in answers)


@both
async def test_limit_of_init(world: Clockwork, words: Words) -> None:
    """9.1 init: 20 s from `queue_done` to a valid init; an invalid one does not count."""
    async with world.client() as client:
        await client.expect("session.queue_done")
        await world.advance(19.9)
        await client.send(words.init(**{words.prompt: 5}))
        await client.expect("error:invalid_payload")
        await world.advance(0.2)
        events, code = await client.end()
        assert (events, code) == ([With(type="session.closed", reason="timeout")], 1000)


@both
async def test_limit_of_idling_counts_only_while_others_wait(words: Words) -> None:
    """9.1 idle, duplex: 60 s without append, only while somebody waits in the queue; `timeout`."""
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
async def test_limit_of_idling_is_moved_by_an_append(words: Words) -> None:
    """9.1 idle, duplex: 60 s without append."""
    async with clockwork(slots=1, silence_tail_units=0) as world:
        async with world.client() as client, world.client() as waiting:
            await words.begin(client)
            await waiting.expect("session.queued")
            for _ in range(3):
                await world.advance(50.0)
                await client.send(words.append())
                await client.expect(words.listen)
            await world.advance(60.1)
            assert [e["reason"] for e in (await client.end())[0]] == ["timeout"]


@both
async def test_limit_of_the_context(stack: Stack, words: Words) -> None:
    """9.1 context: when the next unit cannot fit, that unit's events, then `context_full`, 1000."""
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


@both
async def test_limit_of_the_context_in_tokens(words: Words) -> None:
    """9.1 context: after a unit with `kv_cache_length` >= limit: that unit's events, then `context_full`."""
    info = replace(SEEING, context_limit=PROMPT_TOKENS + 3 * UNIT_TOKENS, window=Window(WindowMode.OFF))
    async with clockwork(info=info) as world, world.client() as client:
        created = await words.begin(client, listen(), listen(), speak("last"), speak("wrong"))
        await client.send(words.append(5 * 16_000))
        events, code = await client.end()
        spoken = ["text", "audio"] if words is G3 else ["response.output_audio.delta"]
        assert kinds(events) == [words.listen] * 2 + [*spoken, "session.closed"]
        assert events[2]["metrics"]["kv_cache_length"] == events[2]["metrics"]["n_past_max"]
        assert events[-1] == With(**words.closed(created, "context_full"))
        assert code == 1000


@both
async def test_limit_of_the_session_on_the_real_clock(impatient: Stack, words: Words) -> None:
    """9.1 session: the same with processes and three seconds, while a unit runs, which is cancelled."""
    async with impatient.client("/v1/realtime?mode=video") as client:
        created = await words.begin(client, hang("generate"))
        await client.send(words.append())
        events, code = await client.end()
        assert (events, code) == ([With(**words.closed(created, "timeout"))], 1000)

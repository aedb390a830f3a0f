"""Clients of `/v1/realtime` that must keep working, each a faithful copy of its traffic."""

import asyncio
import json
from typing import Any

import pytest

from tests.conformance.support.client import CLOSE as CLOSE_FRAME
from tests.conformance.support.client import PING, Client, kinds
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.match import With
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, Words, both, plays, samples_of
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import TALK, fails, hang, listen, speak, turn_end


@both
async def test_client_sends_a_short_last_chunk_and_a_silent_tail(words: Words) -> None:
    async with clockwork() as world, world.client() as client:
        await words.begin(client, *TALK)
        speech = ["text", "audio"] if words is G3 else ["response.output_audio.delta"]
        last = [*speech, "listen"] if words is G3 else speech
        listens = [words.listen]
        for expected in (listens, listens, speech):
            await client.send(words.append())
            assert kinds(await client.take(len(expected))) == expected
            await world.advance(1.0)
        await client.send(words.append(5_000))
        assert kinds([await client.ask({"type": "x"})]) == ["error:unknown_event"]
        await world.advance(0.25)  # a second and a fifth after the last unit, its successor is late
        assert kinds(await client.take(len(speech))) == speech
        for expected in (last, listens, listens):
            await client.send(words.append(level=0.0))
            assert kinds(await client.take(len(expected))) == expected
            await world.advance(1.0)
        await client.send(CLOSE)
        events, code = await client.end()
        assert (kinds(events), code) == (["session.closed"], 1000)


async def test_client_checks_every_frame(stack: Stack) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        script = (speak("a", seconds=0.123), speak("b"), turn_end("c", seconds=60.0), fails())
        await client.send(G3.init(plays(*script)), *[G3.append() for _ in range(4)], {"type": "x"})
        await client.until("error:inference_error")  # the client itself checks each frame
        assert [samples_of(e).size for e in client.events if "audio" in e] == [2952, 24_000, 1_440_000]


@both
async def test_unknown_headers_parameters_and_fields_are_ignored(stack: Stack, words: Words) -> None:
    headers = {"Authorization": "Bearer secret", "X-Client": "1", "OpenAI-Beta": "realtime=v1"}
    target = "/v1/realtime?mode=audio&session_id=mine&autostart=true&unknown=%ff&token=abc"
    async with stack.client(target, additional_headers=headers) as client:
        created = await words.begin(client, listen(), client_version="1.2", deep={"x": [1]})
        assert created["session_id"] == words.session_id
        assert "unsupported_fields" not in created
        await client.send(words.append(seq=5, timestamp=1.5) | {"event_id": "e1", "extra": None})
        await client.expect(words.listen)
        await client.send(CLOSE | {"event_id": "e2"})
        assert kinds((await client.end())[0]) == ["session.closed"]


@both
@pytest.mark.parametrize("how", ["close frame", "cut"])
async def test_client_closes_without_waiting(narrow: Stack, words: Words, how: str) -> None:
    async with narrow.client() as client:
        client.ignored = {"session.queued", "session.queue_update"}
        await words.begin(client, hang("generate"))
        await client.send(words.append(), CLOSE)
        if how == "cut":
            client.vanish()
        else:
            await client.socket.close()
    async with narrow.client() as following:
        following.ignored = {"session.queued", "session.queue_update"}
        await words.begin(following)
    assert "Traceback" not in narrow.log.text
    assert " ERROR " not in narrow.log.text


@both
async def test_client_opens_the_next_session_at_once(narrow: Stack, words: Words) -> None:
    for _ in range(4):
        async with narrow.raw_client() as client:
            if (await next_event(client))["type"] == "session.queued":
                while (await next_event(client))["type"] != "session.queue_done":
                    pass
            await client.send(words.init())
            await client.expect("session.created")
            await client.send(words.append(), CLOSE)
            events, code, _ = await client.end()
            assert events[-1] == With(type="session.closed", reason=words.stopped)
            assert code == 1000


async def next_event(client: Any) -> Any:
    opcode, payload = await client.read()
    assert opcode not in (CLOSE_FRAME, PING)
    return json.loads(payload)


async def test_client_pings_in_every_state(narrow: Stack) -> None:
    async def ping(client: Client) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await (await client.socket.ping())

    async with narrow.client() as holder, narrow.client() as client:
        client.ignored = {"session.queue_update"}
        await ping(holder)
        await G3.begin_script(holder, plays(hang("generate")))
        await holder.send(G3.append())
        await client.expect("session.queued")
        await ping(client)
        await ping(holder)
        await holder.socket.close()
        await client.expect("session.queue_done")
        await client.send(G2.init(plays(slow_start=True, key="pings")))
        await ping(client)
        narrow.worker.release("pings", "ready", 0)
        await client.expect("session.created")
        await ping(client)

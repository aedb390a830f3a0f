"""A row for each state of `/v1/realtime`, in both dialects, and the choice between them.

The whole table is in `tests/ws_adapter/protocol/duplex`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.conformance.support.client import CLOSE as CLOSE_FRAME
from tests.conformance.support.client import Client, RawClient, kinds
from tests.conformance.support.match import SOME_TEXT, TICKET_ID, TRACE_ID, Flag, Number, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, Words, both, f32, plays, without
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import Script, hang, listen, speak

UNKNOWN = {"type": "session.nonsense"}


@asynccontextmanager
async def waiting(narrow: Stack) -> AsyncIterator[tuple[Client, Client]]:
    """A client that has the only slot, and one that is QUEUED."""
    async with narrow.client() as holder, narrow.client() as client:
        await G3.begin(holder)
        client.ignored = {"session.queue_update"}
        await client.expect("session.queued")
        yield holder, client


@both
async def test_queued_session_gets_its_place_and_holds_init_and_input(narrow: Stack, words: Words) -> None:
    async with waiting(narrow) as (holder, client):
        assert client.events == [
            {
                "type": "session.queued",
                "position": 1,
                "estimated_wait_s": Number(),
                "estimate_is_guess": Flag(),
                "ticket_id": TICKET_ID,
                "queue_length": 1,
            }
        ]
        bad = words.init(**{words.config: {"top_k": 0}})
        assert await client.ask(bad) == error("invalid_payload", words.path(f"{words.config}.top_k"))
        assert await client.ask(words.append(input_id="early")) == error("not_ready", input_id="early")
        await client.send(words.init())
        assert await client.ask(words.init()) == error("invalid_event")
        await client.send(words.append(input_id="a"), words.append(input_id="b"))
        await holder.send(CLOSE)
        await holder.end()

        assert await client.next() == {"type": "session.queue_done"}
        assert (await client.expect("session.created"))["session_id"] == words.session_id
        answers = await client.take(2)
        assert kinds(answers) == [words.listen] * 2
        assert [answer["input_id"] for answer in answers] == ["a", "b"]


@both
async def test_queued_close_removes_the_ticket(narrow: Stack, words: Words) -> None:
    async with waiting(narrow) as (holder, client):
        ticket = client.events[0]["ticket_id"]
        assert (await narrow.request(f"/api/queue/{ticket}"))[1]["found"] is True
        await client.send(words.init(), CLOSE)
        assert (await client.end())[1] == 1000
        last = without(client.events[-1], "session_id")
        assert last == {"type": "session.closed", "reason": words.stopped}
        assert (await narrow.request(f"/api/queue/{ticket}"))[1] == {"found": False, "message": SOME_TEXT}
        await holder.send(G3.append())
        await holder.expect("listen")


@both
async def test_connected_session_waits_for_a_valid_init(stack: Stack, words: Words) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        assert await client.ask(words.append()) == {
            "type": "error",
            "error": {
                "code": "not_ready",
                "message": f"{words.input} before {words.opener}",
                "type": "client_error",
                "trace_id": TRACE_ID,
            },
        }
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        bad = words.init(**{words.prompt: 5})
        assert await client.ask(bad) == error("invalid_payload", words.path(words.prompt))
        await client.send(words.init())
        await client.expect("session.created")


@both
async def test_configuring_session_refuses_another_init_and_holds_input(stack: Stack, words: Words) -> None:
    key = f"{words.name}-configuring"
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(words.init(plays(listen(), slow_start=True, key=key)))
        assert await client.ask(words.init()) == error("invalid_event")
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        await client.send(words.append(input_id="held"))
        refused = await client.ask(words.append(level=99.0))
        assert refused == error("invalid_payload", f"{words.input_path}audio")
        stack.worker.release(key, "ready", 0)
        await client.expect("session.created")
        assert (await client.expect(words.listen))["input_id"] == "held"


@both
async def test_configuring_close_cancels(stack: Stack, words: Words) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(words.init(plays(slow_start=True)), CLOSE)
        events, code = await client.end()
        assert [without(event, "session_id") for event in events] == [
            {"type": "session.closed", "reason": words.stopped}
        ]
        assert code == 1000


@both
async def test_active_session_refuses_another_init_and_bad_input_whole(stack: Stack, words: Words) -> None:
    """Nothing of refused input is applied: neither its audio, nor its `force_listen`."""
    async with stack.client() as client:
        await words.begin(client, speak("Well"))
        assert await client.ask(words.init()) == error("invalid_event")
        for unknown in ({"type": "response.cancel"}, {"type": "input_audio_buffer.commit", "audio": f32(1)}):
            assert await client.ask(unknown) == error("unknown_event", "type")
        await client.send(words.append(8000, input_id="half"))
        refused = await client.ask(words.append(8000, level=99.0, force_listen=True, input_id="bad"))
        assert refused == error("invalid_payload", f"{words.input_path}audio", input_id="bad")
        await client.send(words.append(8000, input_id="rest"))
        answer = await client.next()
        assert (answer["text"], answer["input_id"]) == ("Well", "rest")


async def until_cut(client: RawClient) -> float:
    """Seconds from the server's Close, which is not answered, to the end of the transport."""
    while (await client.read())[0] != CLOSE_FRAME:
        pass
    begin = time.monotonic()
    with pytest.raises(asyncio.IncompleteReadError):
        await client.read()
    return time.monotonic() - begin


async def handshake_cut(stack: Stack) -> float:
    """Seconds from connecting without a word to the end of the transport."""
    host, port = stack.address.removeprefix("http://").split(":")
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    return time.monotonic() - begin


async def test_closing_ignores_everything_and_then_cuts(stack: Stack) -> None:
    """The client's Close is awaited for 5 s, as its opening handshake is."""

    async def deaf(words: Words) -> float:
        async with stack.raw_client() as client:
            await client.expect("session.queue_done")
            await client.send(words.init(), words.append())
            await client.expect("session.created", words.listen)
            await client.send(CLOSE, words.append(), words.init(), CLOSE, UNKNOWN)
            await client.expect("session.closed")
            return await until_cut(client)

    waits = await asyncio.gather(deaf(G3), deaf(G2), handshake_cut(stack))
    assert min(waits) > 4.5


@both
@pytest.mark.parametrize("state", ["QUEUED", "CONNECTED", "CONFIGURING", "ACTIVE"])
async def test_dropped_connection_releases_at_once(narrow: Stack, words: Words, state: str) -> None:
    async with narrow.client() as holder:
        if state == "QUEUED":
            await G3.begin(holder)
        async with narrow.client() as client:
            await client.expect("session.queued")
            if state == "QUEUED":
                await client.send(words.init())
                client.vanish()
                await narrow.until_queue(0)
                return
            client.ignored = {"session.queue_update"}
            await holder.expect("session.queue_done")
            match state:
                case "CONFIGURING":
                    await holder.send(words.init(Script(slow_start=True)))
                case "ACTIVE":
                    await holder.send(words.init(Script((hang("generate"),))), words.append())
                    await holder.expect("session.created")
            holder.vanish()
            await client.expect("session.queue_done")


@both
async def test_first_initialising_event_fixes_the_dialect(stack: Stack, words: Words) -> None:
    other = G2 if words is G3 else G3
    async with stack.client() as client:
        created = await words.begin(client)
        assert created["session_id"] == words.session_id
        for event in (other.init(), other.append()):
            assert await client.ask(event) == error("unknown_event", "type")
        await client.send(words.append())
        await client.expect(words.listen)


async def test_refused_initialising_event_does_not_fix_the_dialect(stack: Stack) -> None:
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.ask({"type": "session.update", "session": {}})
        await client.send(G3.init())
        assert (await client.expect("session.created"))["session_id"] == G3.session_id
